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
from crawlcw.cli import loading, options, scrapy_references
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

    SPIDER names a spider as in `crawlcw run`, or a folder of Python files. The command reads the
    source, and loads the spider only if the source has no fatal mistake. For each mistake the
    command prints the line, the code to write and the section of the manual. The exit code is 2 if
    there is a mistake.

    For a spider or the folder of a Scrapy project, the command loads the project, and prints what
    cannot run as it is. The exit code is 2 if anything cannot run. Give a single file of the
    project to see how to port the file to crawlcw.
    """
    if Path(spider).is_dir() and scrapy_references.has_config(Path(spider)):
        return _check_project(Path(spider), "", assignments, as_json=as_json)
    if not Path(spider).is_dir() and (target := scrapy_references.target_of(spider)) is not None:
        return _check_project(*target, assignments, as_json=as_json)
    name, location, findings = (
        (spider, spider, [*_in_folder(Path(spider))])
        if Path(spider).is_dir()
        else _in_spider(spider, arguments, assignments)
    )
    if as_json:
        _print_json(name, location, findings)
        return USAGE if findings else OK
    if not findings:
        click.echo(f"{name}: no mistake found")
        return OK
    _print_by_file(findings)
    numbers = counted(len(findings), "mistake"), counted(len({f.path for f in findings}), "file")
    click.echo(" in ".join(numbers))
    return USAGE


def _check_project(
    folder: Path, spider_name: str, assignments: tuple[str, ...], *, as_json: bool
) -> int:
    """Print what cannot run in the Scrapy project in *folder*, for one spider or for all."""
    from crawlcw.scrapy import project  # imported late: other spiders need no Scrapy

    name = spider_name or str(folder)
    try:
        findings = project.findings(folder, spider_name, scrapy_references.of_scrapy(assignments))
    except (SettingsError, SpiderError) as error:
        findings = [Finding(path=str(folder), line=0, code=str(error), stops=True)]
    can_run = not any(finding.stops for finding in findings)
    if as_json:
        _print_json(name, str(folder), findings)
    else:
        _print_by_file(findings)
        result = "runs" if can_run else "cannot run"
        click.echo(f"{name} {result} as it is; to port it: `crawlcw check FILE`")
    return OK if can_run else USAGE


def _print_json(name: str, location: str, findings: list[Finding]) -> None:
    fields = {"spider": name, "file": location, "findings": [*map(_finding_fields, findings)]}
    click.echo(json.dumps(fields))


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
    """List the spiders in ./spiders, and those of the Scrapy project that this folder is in.

    Each line has a spider's name, its file and class, and the first line of its docstring. Files
    that cannot be loaded come last, with their error.
    """
    entries = list(loading.listed())
    broken_files = [entry for entry in entries if isinstance(entry, BrokenFile)]
    spiders = sorted(
        (spider.name, spider.reference, _about(spider.spider_class))
        for spider in entries
        if isinstance(spider, ListedSpider)
    )
    if (folder := scrapy_references.project_folder()) is not None:
        from crawlcw.scrapy import project  # imported late: other spiders need no Scrapy

        try:
            for kind in project.spider_classes(folder):
                spiders.append((kind.name, f"{kind.__module__}:{kind.__name__}", _about(kind)))
        except UsageError as error:
            broken_files.append(BrokenFile(path=folder, error=error))
    if as_json:
        for name, reference, about in spiders:
            click.echo(json.dumps({"name": name, "reference": reference, "about": about}))
        for broken_file in broken_files:
            click.echo(json.dumps({"file": str(broken_file.path), "error": str(broken_file.error)}))
        return
    name_width = max((len(name) for name, _, _ in spiders), default=0)
    reference_width = max((len(reference) for _, reference, _ in spiders), default=0)
    for name, reference, about in spiders:
        line = f"{name:{name_width}}  {reference:{reference_width}}  {about}"
        click.echo(printable(line.rstrip(), limit=500))
    for broken_file in broken_files:
        click.echo(printable(f"cannot be loaded: {broken_file.error}", limit=500))
    if not spiders and not broken_files:
        click.echo(f"There are no spiders in ./{loading.FOLDER}.")


def _about(spider_class: type) -> str:
    """Return the first line of the class's docstring, or else of its module's docstring."""
    docstring = spider_class.__doc__ or getattr(inspect.getmodule(spider_class), "__doc__", None)
    return (docstring or "").strip().partition("\n")[0]
