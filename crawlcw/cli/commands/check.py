"""`crawlcw check`: find mistakes in a spider's source and settings."""

import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from crawlcw.api.attempt import loaded_layers
from crawlcw.api.spider import Spider
from crawlcw.checking import reading
from crawlcw.checking.source import UNREADABLE, Finding
from crawlcw.cli import loading, options, spider_options
from crawlcw.cli.exit_codes import OK, USAGE
from crawlcw.cli.terminal import logs
from crawlcw.errors import SettingsError, SpiderError
from crawlcw.model.sanitize import printable


@click.command("check")
@click.argument("spider")
@spider_options.arguments_option
@spider_options.settings_option
@options.json_option
@logs.log_option
def command(
    *,
    spider: str,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Check SPIDER for mistakes, without a request.

    SPIDER is as for `run`, or a folder of Python files, such as a Scrapy project. The
    source is read first, and executed only if it has no fatal mistake. Each finding
    has its line, the correct word and the section of the manual. Exit code 2 if there
    is one.
    """
    name, place, found = (
        (spider, spider, [*_in_folder(Path(spider))])
        if Path(spider).is_dir()
        else _in_spider(spider, arguments, assignments)
    )
    if as_json:
        click.echo(json.dumps({"spider": name, "file": place, "findings": [*map(_shown, found)]}))
        return USAGE if found else OK
    for each in found:
        where = f"{each.path}:{each.line}" if each.line else each.path
        click.echo(printable(f"{where}: {each.message}", limit=500))
    if not found:
        click.echo(f"{name}: no mistake found")
    return USAGE if found else OK


def _shown(finding: Finding) -> dict[str, str | int | None]:
    return {
        "file": finding.path,
        "line": finding.line or None,
        "message": finding.message,
        "what": finding.what,
        "instead": finding.instead or None,
        "guide": finding.guide or None,
    }


def _in_folder(folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.rglob("*.py")):
        try:
            yield from reading.check(path)
        except UNREADABLE as error:
            yield Finding(path=str(path), line=0, what=str(error))


def _in_spider(
    spider: str, arguments: tuple[str, ...], assignments: tuple[str, ...]
) -> tuple[str, str, list[Finding]]:
    """Return the spider's name, its file, and the findings."""
    at = reading.located(spider, loading.FOLDER)
    found: list[Finding] = []
    if at is not None:
        try:
            found = reading.check(at[0])
        except UNREADABLE:
            at = None  # loading it gives a better error
    if at is not None and any(each.stops for each in found):
        return spider, str(at[0]), found
    if at is not None and found and not reading.has_spider(at[0]):
        return spider, str(at[0]), found
    kind = loading.find(spider)
    place = str(at[0]) if at is not None else inspect.getsourcefile(kind) or kind.__module__
    if at is None:
        with suppress(*UNREADABLE):  # a class without a source file, or with an unusual one
            found = reading.check(Path(place))
    try:
        made = loading.make(kind, arguments)
        loaded_layers(spider_options.settings_of(made, assignments).layers)
        if _has_no_parse(made):
            what = f"{kind.__name__} has no parse(), the callback of its start URLs"
            found.append(Finding(path=place, line=0, what=what))
    except (SettingsError, SpiderError) as error:
        found.append(Finding(path=place, line=0, what=str(error)))
    return kind.name, place, found


def _has_no_parse(spider: Spider) -> bool:
    kind = type(spider)
    return kind.parse is Spider.parse and kind.start is Spider.start and not spider.rules
