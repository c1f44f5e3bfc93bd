"""`crawlcw new`, `check` and `list`: the spiders in ./spiders, without a request."""

import inspect
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from crawlcw.api.attempt import loaded_layers
from crawlcw.api.spider import Spider, is_name
from crawlcw.checking import reading
from crawlcw.checking.source import UNREADABLE, Finding
from crawlcw.cli import loading, options
from crawlcw.cli.exit_codes import OK, USAGE
from crawlcw.cli.loading import BrokenFile, ListedSpider
from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal import logs, tables
from crawlcw.errors import FetchError, SettingsError, SpiderError, UsageError
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

_TEMPLATE = '''\
"""{title}: its pages, and the items from them.

    crawlcw parse {name} {url}
    crawlcw run {name} -o {name}.jsonl
"""

from crawlcw import Settings, Spider


class {title}(Spider):
    name = "{name}"
    start_urls = [{quoted}]
    settings = Settings()  # `crawlcw settings` lists them

    def parse(self, response):
        title = response.css_first("title")
        yield {{"url": response.url, "title": title.text(strip=True) if title else None}}
        yield from response.follow_all("a[href]")
'''


@click.command("new")
@click.argument("name")
@click.argument("url", default="https://example.com/")
def new(*, name: str, url: str) -> None:
    """Write ./spiders/NAME.py, a spider that starts at URL and follows every link of its site."""
    if not is_name(name):
        raise UsageError(
            f"{name!r} is not a spider name: a letter, then up to 59 letters, digits, - and _"
        )
    try:
        address = urls.locate(url).url
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL to fetch: {error.message}") from None
    path = Path(loading.FOLDER) / f"{name.replace('-', '_')}.py"
    title = "".join(part.capitalize() for part in name.replace("-", "_").split("_"))
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            text = _TEMPLATE.format(name=name, title=title, url=address, quoted=json.dumps(address))
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already and was not changed") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"Wrote {path}. `crawlcw parse {name} {address}` shows its items and requests.")


@click.command("check")
@click.argument("spider")
@options.arguments_option
@options.settings_option
@options.json_option
@logs.log_option
def check(
    *,
    spider: str,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Check SPIDER for mistakes, without sending a request.

    SPIDER names a spider as in `crawlcw run`, or a folder of Python files, such as a Scrapy
    project. The command reads the source, and loads the spider only if the source has no fatal
    mistake. For each mistake the command prints the line, the code to write and the section of the
    manual. The exit code is 2 if there is a mistake.
    """
    name, location, findings = (
        (spider, spider, [*_in_folder(Path(spider))])
        if Path(spider).is_dir()
        else _in_spider(spider, arguments, assignments)
    )
    if as_json:
        click.echo(
            json.dumps(
                {"spider": name, "file": location, "findings": [*map(_finding_fields, findings)]}
            )
        )
        return USAGE if findings else OK
    if not findings:
        click.echo(f"{name}: no mistake found")
        return OK
    _print_by_file(findings)
    return USAGE


def _print_by_file(findings: list[Finding]) -> None:
    findings_by_file = defaultdict[str, list[Finding]](list)
    for finding in findings:
        findings_by_file[finding.path].append(finding)
    for path, file_findings in findings_by_file.items():
        click.secho(printable(path, limit=500), bold=True)
        for finding in file_findings:
            message = tables.wrapped(printable(finding.message, limit=500), indent=8)
            click.echo(f"{finding.line or '-':>6}  {message}")
        click.echo()
    click.echo(f"{counted(len(findings), 'mistake')} in {counted(len(findings_by_file), 'file')}")


def _finding_fields(finding: Finding) -> dict[str, str | int | None]:
    return {
        "file": finding.path,
        "line": finding.line or None,
        "message": finding.message,
        "code": finding.code,
        "replacement": finding.replacement or None,
        "guide": finding.guide or None,
    }


def _in_folder(folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.rglob("*.py")):
        try:
            yield from reading.check(path)
        except UNREADABLE as error:
            yield Finding(path=str(path), line=0, code=str(error))


def _in_spider(
    spider: str, arguments: tuple[str, ...], assignments: tuple[str, ...]
) -> tuple[str, str, list[Finding]]:
    """Check a spider; return the spider's name, its file, and the mistakes."""
    path_and_class = reading.located(spider, loading.FOLDER)
    findings: list[Finding] = []
    if path_and_class is not None:
        try:
            findings = reading.check(path_and_class[0])
        except UNREADABLE:
            path_and_class = None  # `loading.find` below raises an error with a better message
    stops = any(finding.stops for finding in findings)
    if path_and_class is not None and (
        stops or (findings and not reading.has_spider(path_and_class[0]))
    ):
        return spider, str(path_and_class[0]), findings
    spider_class = loading.find(spider)
    location = (
        str(path_and_class[0])
        if path_and_class is not None
        else inspect.getsourcefile(spider_class) or spider_class.__module__
    )
    if path_and_class is None:
        with suppress(*UNREADABLE):  # the class may have no readable source file
            findings = reading.check(Path(location))
    try:
        loaded_spider = loading.make(spider_class, arguments)
        loaded_layers(options.settings_of(loaded_spider, assignments).layers)
        if _has_no_parse(loaded_spider):
            message = f"{spider_class.__name__} has no parse(), the callback of its start URLs"
            findings.append(Finding(path=location, line=0, code=message))
    except (SettingsError, SpiderError) as error:
        findings.append(Finding(path=location, line=0, code=str(error)))
    return spider_class.name, location, findings


def _has_no_parse(spider: Spider) -> bool:
    spider_class = type(spider)
    return (
        spider_class.parse is Spider.parse
        and spider_class.start is Spider.start
        and not spider.rules
    )


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@logs.log_option
def listing(*, as_json: bool) -> None:
    """List the spiders in ./spiders.

    Each line has a spider's name, its file and class, and the first line of its docstring. Files
    that cannot be loaded come last, with their error.
    """
    entries = list(loading.listed())
    spiders = sorted((s for s in entries if isinstance(s, ListedSpider)), key=lambda s: s.name)
    broken_files = [entry for entry in entries if isinstance(entry, BrokenFile)]
    if as_json:
        for spider in spiders:
            fields = {"name": spider.name, "reference": spider.reference, "about": _about(spider)}
            click.echo(json.dumps(fields))
        for broken_file in broken_files:
            click.echo(json.dumps({"file": str(broken_file.path), "error": str(broken_file.error)}))
        return
    name_width = max((len(spider.name) for spider in spiders), default=0)
    reference_width = max((len(spider.reference) for spider in spiders), default=0)
    for spider in spiders:
        line = f"{spider.name:{name_width}}  {spider.reference:{reference_width}}  {_about(spider)}"
        click.echo(printable(line.rstrip(), limit=500))
    for broken_file in broken_files:
        click.echo(printable(f"cannot be loaded: {broken_file.error}", limit=500))
    if not entries:
        click.echo(f"There are no spiders in ./{loading.FOLDER}.")


def _about(spider: ListedSpider) -> str:
    """Return the first line of the docstring of the class or, if it has none, of its module."""
    docstring = spider.spider_class.__doc__ or getattr(
        inspect.getmodule(spider.spider_class), "__doc__", None
    )
    return (docstring or "").strip().partition("\n")[0]
