"""`crawlcw check`: whether a spider is written as crawlcw reads it."""

import inspect
import json

import click

from crawlcw.api import leftovers
from crawlcw.api.spider import Spider
from crawlcw.cli import loading, spider_options
from crawlcw.cli.exit_codes import OK, USAGE
from crawlcw.cli.terminal import logs
from crawlcw.errors import SpiderError
from crawlcw.model.sanitize import printable


@click.command("check")
@click.argument("spider")
@spider_options.arguments_option
@spider_options.settings_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@logs.level_option
def command(
    *,
    spider: str,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    as_json: bool,
    log_level: str | None,
) -> int:
    """Show what is wrong with SPIDER, without a request.

    It looks at the settings, the callbacks and what means something in Scrapy
    alone; each finding has its line and the word to use instead. Exit code 2
    where there is one.
    """
    logs.set_up(log_level or "warning")
    kind = loading.find(spider)
    place = inspect.getsourcefile(kind) or kind.__module__
    wrong: list[tuple[int | None, str]] = [
        (each.line, each.message) for each in leftovers.findings(kind)
    ]
    try:
        # A reader of the lines above need not see again what one of them led to.
        made = loading.make(kind, arguments)
        spider_options.settings_of(made, assignments)
        if _has_no_parse(made):
            wrong.append(
                (None, f"{kind.__name__} has no parse(), which its start URLs are given to")
            )
    except SpiderError as error:
        wrong.append((None, str(error)))
    if as_json:
        findings = [{"line": line, "message": message} for line, message in wrong]
        click.echo(json.dumps({"spider": kind.name, "file": place, "findings": findings}))
    else:
        for line, message in wrong:
            where = place if line is None else f"{place}:{line}"
            click.echo(printable(f"{where}: {message}", limit=500))
        if not wrong:
            click.echo(f"{kind.name}: nothing is wrong")
    return USAGE if wrong else OK


def _has_no_parse(spider: Spider) -> bool:
    kind = type(spider)
    return kind.parse is Spider.parse and kind.start is Spider.start and not spider.rules
