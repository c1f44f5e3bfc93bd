"""`crawlcw parse --stored`: run callbacks on stored pages."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import click

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named, settled
from crawlcw.archive.bodies import FileMissingError, folder_of
from crawlcw.archive.records import DamagedRecordError
from crawlcw.cli import ledger_option, options, parsed_pages
from crawlcw.cli.exit_codes import NOT_WELL, OK
from crawlcw.cli.numbers import counted
from crawlcw.cli.reparsing import Reparser, Saving, reparser_of, saving_to, stored
from crawlcw.cli.selection import ids_of
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Record
from crawlcw.model.transitions import Failed

#: Maximum number of faulty pages that are shown; further faulty pages are only counted.
_MAX_SHOWN_REASONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseOptions:
    """Options of `parse --stored`."""

    urls: Sequence[str]  #: empty: all stored pages
    callback: str | None  #: None: each page has the callback of its own request
    save: bool
    yes: bool
    as_json: bool
    reference: str  #: the spider's name as the user typed it


@dataclass(slots=True, kw_only=True)
class _ParseCounts:
    """Counts of parsed pages, faulty pages, items and requests."""

    parsed: int = 0
    items: int = 0
    requests: int = 0
    missing: Counter[str] = field(default_factory=Counter)  #: unreadable files, by message
    wrong: Counter[str] = field(default_factory=Counter)  #: other faults, by kind

    @property
    def total(self) -> int:
        return self.parsed + self.missing.total() + self.wrong.total()


async def parse(
    spider: Spider, settings: Settings, ledger_url: str, parse_options: ParseOptions
) -> int:
    """Run *spider* on stored pages, and show or record the results; return the exit code.

    Raises `UsageError` if no page is stored.
    """
    if parse_options.callback is not None:
        callback_named(spider, parse_options.callback)
    message = ": its tasks are not pages"
    async with ledger_option.opened(ledger_url, spider.name, crawls_only=message) as ledger:
        records = await _selected_pages(ledger, spider, parse_options)
        if parse_options.save and not parse_options.urls:
            question = f"Replace the items of all stored pages of {spider.name}?"
            options.confirm(question, yes=parse_options.yes)
        saving = saving_to(spider, ledger, settings) if parse_options.save else None
        numbers = _ParseCounts()
        reparser = await reparser_of(spider, settings, ledger, saving=saving)
        await settled(spider.opened())
        await _parse_all(records, reparser, numbers, parse_options, saving)
    if not numbers.total:
        folder = folder_of(spider.name, settings)
        run = options.command_line("run", parse_options.reference, "-s", "keep_bodies=true")
        raise UsageError(
            f"no page of {spider.name} is stored: {run} keeps pages in {folder}, those of an "
            f"earlier run after {options.command_line('recrawl', parse_options.reference)}"
        )
    return _print_summary(numbers, saving, parse_options)


async def _selected_pages(
    ledger: Ledger, spider: Spider, parse_options: ParseOptions
) -> AsyncIterator[Record]:
    """Yield the chosen stored pages; raises `UsageError` for a URL without a stored page."""
    ids = None
    if parse_options.urls:
        ids = set()
        for url in parse_options.urls:
            url_ids = await ids_of(ledger, url)
            records = await ledger.queries.find(TaskFilter(ids=url_ids), limit=len(url_ids))
            if not records:
                raise UsageError(f"{spider.name} has no page {url!r} in this ledger")
            if all(record.task.stored is None for record in records):
                raise UsageError(
                    f"the body of {url!r} is not stored: it is a redirect, or was fetched without "
                    "keep_bodies"
                )
            ids.update(url_ids)
    return stored(ledger, ids=ids)


async def _parse_all(
    records: AsyncIterator[Record],
    reparser: Reparser,
    numbers: _ParseCounts,
    parse_options: ParseOptions,
    saving: Saving | None,
) -> None:
    async for record in records:
        callback = parse_options.callback or record.task.callback
        try:
            response, produced = await reparser.reparse(record, callback=callback)
        except FileMissingError as error:
            numbers.missing[str(error)] += 1
            continue
        except DamagedRecordError as error:
            reason = f"its record is damaged: {error}"
            _count_fault(record, "could not be read", reason, numbers)
            continue
        if isinstance(produced, Failed):
            _count_fault(record, "failed", f"{callback} failed: {produced.message}", numbers)
            continue
        numbers.parsed += 1
        numbers.items += len(produced.items)
        numbers.requests += len(produced.tasks)
        if saving is not None:
            await saving.take(record, produced)
        elif parse_options.as_json:
            parsed_pages.show_json(response, produced)
        else:
            parsed_pages.show(produced)
        if produced.stop is not None:
            click.echo(f"crawlcw: the spider stops: {produced.stop}", err=True)
            break
    if saving is not None:
        await saving.flush()


def _count_fault(record: Record, kind: str, reason: str, numbers: _ParseCounts) -> None:
    """Count a page with a fault, and show the page if it is one of the first with a fault."""
    numbers.wrong[kind] += 1
    if numbers.wrong.total() <= _MAX_SHOWN_REASONS:
        url = printable(record.task.url, limit=400)
        click.echo(f"crawlcw: {url}: {printable(reason, limit=400)}", err=True)


def _print_summary(
    numbers: _ParseCounts, saving: Saving | None, parse_options: ParseOptions
) -> int:
    """Show the numbers of parsed and faulty pages, and return the exit code."""
    for reason, number in numbers.missing.most_common(_MAX_SHOWN_REASONS):
        click.echo(
            f"crawlcw: {_pages(number)} could not be read: {printable(reason, limit=400)} "
            "(-s bodies_dir=... names another folder)",
            err=True,
        )
    for kind, number in numbers.wrong.items():
        click.echo(f"crawlcw: {_pages(number)} {kind}", err=True)
    summary = f"{_pages(numbers.parsed)} parsed: {counted(numbers.items, 'item')}"
    if saving is None:
        click.echo(f"{summary}, {counted(numbers.requests, 'request')}", err=True)
        return NOT_WELL if numbers.missing or numbers.wrong else OK
    refused_pages = +saving.refused
    for reason, number in refused_pages.items():
        click.echo(f"crawlcw: {_pages(number)} kept the old items: {reason}", err=True)
    click.echo(f"{_pages(saving.pages)} recorded again, with {counted(saving.items, 'item')}")
    if saving.links:
        verb = "waits" if saving.links == 1 else "wait"
        links = counted(saving.links, "new link")
        click.echo(f"{links} {verb} for {options.command_line('run', parse_options.reference)}")
    return NOT_WELL if numbers.missing or numbers.wrong or refused_pages else OK


def _pages(number: int) -> str:
    return counted(number, "page")
