"""`crawlcw add`: add pages to a crawl, or tasks to a use case, also while workers run."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO

import click

from crawlcw.api.request import Request
from crawlcw.api.spider import Spider
from crawlcw.cli import ledger_option, loading, loop, options, reading_requests, reading_tasks
from crawlcw.cli.chunks import in_chunks
from crawlcw.cli.exit_codes import OK, USAGE
from crawlcw.cli.terminal import logs
from crawlcw.crawl.link_checks import LinkChecks
from crawlcw.crawl.page_adder import BATCH_SIZE, AddedPages, PageAdder
from crawlcw.errors import SpiderError, UsageError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Added
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status
from crawlcw.tracking import NewTask, Tracker, keys
from crawlcw.tracking.tracker import CHUNK_SIZE


@click.command("add")
@click.argument("name")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@ledger_option.ledger_option
@options.arguments_option
@click.option("--callback", metavar="NAME", help="Default callback of pages.  [default: parse]")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(reading_tasks.FORMATS),
    help="Format of a use case's file of tasks. The file's extension decides the default.",
)
@click.option(
    "--key",
    default="key",
    show_default=True,
    help="Column or field with the key of a use case's task.",
)
@click.option("--priority", default=0, show_default=True, help="Default priority of the tasks.")
@click.option("--stage", help="Stage of a use case's tasks.  [default: the first stage]")
@options.json_option
@logs.log_option
def command(
    *,
    name: str,
    sources: tuple[str, ...],
    ledger_url: str,
    arguments: tuple[str, ...],
    file_format: str | None,
    key: str,
    priority: int,
    stage: str | None,
    callback: str | None,
    as_json: bool,
) -> int:
    """Add pages to the spider NAME, or tasks to the use case NAME.

    The command does not change pages and tasks that are already in the ledger. To visit pages again
    use `crawlcw recrawl`; to start tasks again use `crawlcw reset`.

    For a spider, SOURCE is a URL, a file, or - for standard input. A line is a URL, or a JSON
    object with `url` and other arguments of a Request: method, callback, context, priority ... The
    command refuses a URL that the crawl would not follow, such as a URL out of scope. If the
    command refuses all URLs, the exit code is 2. A running crawl starts new pages within a second.

    For a use case, SOURCE is one file, or - for standard input. A plain line is the key of a task.
    A line of JSON is a key, or an object with `key` and optionally `data`, `priority` and `stage`.
    Without `data`, all other fields of the object or CSV row are the task's data.
    """
    spider_name = name if _is_bare(name) else loading.name_of(name)
    kind = loop.run(_recorded_kind(spider_name, ledger_url))
    spider = None if kind is LedgerKind.USE_CASE else _spider(name, arguments)
    if kind is not LedgerKind.SPIDER and spider is None:
        use_case = keys.use_case(name)
        if callback is not None:
            raise UsageError(f"{name} is a use case: --callback is for the pages of a spider")
        source = _file_of_keys(name, sources)
        file_format, priority = file_format or _format_of(sources[0]), keys.priority(priority)
        tasks = reading_tasks.read(source, file_format, key=key, priority=priority)
        result = loop.run(_add(use_case, ledger_url, tasks, stage))
        _print_added_tasks(result, as_json=as_json)
        return OK
    if stage is not None or key != "key" or file_format == "csv":
        raise UsageError(f"{spider_name} is a spider: --stage, --key and CSV are for use cases")
    with ExitStack() as stack:
        lines = chain.from_iterable([_lines(source, stack) for source in sources])
        requests = reading_requests.read(lines, callback=callback, priority=priority)
        counts = loop.run(_add_pages(spider_name, spider, ledger_url, requests))
    if kind is not None and spider is None:
        warning = "hosts and callbacks were not checked"
        click.echo(f"crawlcw: there is no spider {spider_name!r} here: {warning}", err=True)
    _print_added_pages(counts, as_json=as_json)
    return USAGE if counts.refused and not (counts.new or counts.existing) else OK


def _is_bare(name: str) -> bool:
    """Return whether *name* may be the name of a use case, not a file or module of a spider."""
    try:
        keys.use_case(name)
    except UsageError:
        return False
    return True


async def _recorded_kind(name: str, ledger_url: str) -> LedgerKind | None:
    """Return the recorded kind of the ledger *name*, or None if there is no ledger *name*."""
    settings = options.settings_of()
    opening = open_ledger(ledger_url, name, settings=settings, create=False, kind=None)
    try:
        async with ledger_option.closing(opening) as ledger:
            return ledger.kind if await ledger.queries.has(tuple(Status)) else None
    except UsageError:
        return None  # the ledger does not exist yet


def _spider(name: str, arguments: Sequence[str]) -> Spider | None:
    """Return the spider *name*, or None if its code is not available."""
    try:
        kind = loading.find(name)
    except SpiderError:
        return None
    return loading.make(kind, arguments)


def _lines(source: str, stack: ExitStack) -> Iterable[bytes]:
    """Return the lines of *source*; if *source* is a URL, the URL is the only line."""
    if "://" in source and not Path(source).exists():
        return [source.encode("utf-8", "surrogateescape")]
    return stack.enter_context(_file(source))


def _file(source: str) -> IO[bytes]:
    stream: IO[bytes] = click.File("rb").convert(source, None, click.get_current_context())
    return stream


async def _add_pages(
    name: str, spider: Spider | None, ledger_url: str, requests: Iterator[Request]
) -> AddedPages:
    settings = options.settings_of(spider)
    async with ledger_option.closing(open_ledger(ledger_url, name, settings=settings)) as ledger:
        state = await ledger.notes.state()
        checks = None if spider is None else LinkChecks(spider, settings, state)
        adder = PageAdder(ledger, spider, checks)
        await adder.add_all(in_chunks(requests, chunk_size=BATCH_SIZE))
        return adder.counts


def _print_added_pages(counts: AddedPages, *, as_json: bool) -> None:
    if as_json:
        refused_by_reason = dict(counts.refused.most_common())
        click.echo(
            json.dumps(
                {
                    "new": counts.new,
                    "existing": counts.existing,
                    "reopened": counts.reopened,
                    "refused": refused_by_reason,
                }
            )
        )
        return
    reopened_note = f" ({counts.reopened:,} of them reopened)" if counts.reopened else ""
    refused_note = f", {counts.refused.total():,} refused" if counts.refused else ""
    click.echo(
        f"{counts.new:,} added, {counts.existing:,} known already{reopened_note}{refused_note}"
    )
    for reason, number in counts.refused.most_common():
        message = printable(f"{reason}: {number:,}, such as {counts.examples[reason]}", limit=500)
        click.echo(f"crawlcw: {message}", err=True)


def _file_of_keys(name: str, sources: Sequence[str]) -> IO[bytes]:
    """Open the file of a use case's tasks; raises `UsageError` for URLs or several sources."""
    if any("://" in source for source in sources) and not Path(sources[0]).exists():
        raise UsageError(
            f"there is no spider {name!r} here, and no recorded crawl of one: a use case takes "
            "a file of keys, or - for standard input"
        )
    if len(sources) != 1:
        raise UsageError(f"{name} is a use case: give one file of keys, or - for standard input")
    return _file(sources[0])


def _print_added_tasks(result: Added, *, as_json: bool) -> None:
    if as_json:
        numbers = {"new": result.new, "existing": result.existing, "refused": len(result.rejected)}
        click.echo(json.dumps(numbers))
        return
    rejected_note = f", {len(result.rejected):,} cannot be stored" if result.rejected else ""
    click.echo(f"{result.new:,} added, {result.existing:,} known already{rejected_note}")
    for task, reason in result.rejected[:10]:
        click.echo(f"crawlcw: {printable(task.url)}: {printable(reason)}", err=True)


async def _add(name: str, ledger_url: str, tasks: Iterator[NewTask], stage: str | None) -> Added:
    if stage is not None:
        keys.stage(stage)
    total_added = Added()
    async with Tracker.open(ledger_url, name) as tracker:
        async for chunk in in_chunks(tasks, chunk_size=CHUNK_SIZE):
            result = await tracker.add_many(
                task if task.stage else replace(task, stage=stage) for task in chunk
            )
            total_added = Added(
                new=total_added.new + result.new,
                existing=total_added.existing + result.existing,
                rejected=total_added.rejected + result.rejected,
            )
    return total_added


def _format_of(name: str) -> str:
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}.get(Path(name).suffix, "lines")
