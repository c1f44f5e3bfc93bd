"""`crawlcw hosts`: the state of each host, and why it waits."""

import heapq
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from crawlcw.cli import options
from crawlcw.cli.ledger_option import Subject, ledger_command
from crawlcw.crawl.control import Control
from crawlcw.dashboard.observer import given_up_for, owner_of, unfinished_of, waiting_of, why
from crawlcw.feeds import escaping
from crawlcw.ledger.protocol import Counts, Ledger
from crawlcw.model.durations import format_duration, iso_time
from crawlcw.model.hosts import Host
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status

_EMPTY = "-"
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One host's row, without the robots.txt, because memory may have to hold a million rows."""

    name: str
    counts: Counts
    owner: str | None
    delay: float  #: current delay between two requests to the host, in seconds
    resting_until: datetime | None
    failures: int  #: consecutive failures of the host
    given_up: str | None
    sitemaps: tuple[str, ...]  #: sitemaps that the host's robots.txt names
    why: str


@ledger_command("hosts")
@options.number_option(
    "--limit", minimum=0, default=50, about="Number of hosts in the table; 0: all."
)
@click.option("--json", "as_json", is_flag=True, help="All hosts, one JSON object a line.")
async def command(subject: Subject, *, limit: int, as_json: bool) -> None:
    """Show the state of each host of SPIDER, and why the host waits.

    The table begins with the hosts that have most waiting tasks; --json sorts the hosts by name.
    SPIDER names a spider as in `crawlcw run`, or a use case. For a use case the command shows each
    stage like a host. The exit code is 2 if the ledger has no tasks of SPIDER.
    """
    async with subject.opened() as ledger:
        now, noun = ledger.now(), "stage" if ledger.kind.tracked else "host"
        if as_json:
            async for row in _rows(ledger, now=now):
                click.echo(escaping.visible(_json(row, noun=noun)))
            return
        rows = [row async for row in _rows(ledger, now=now)]
    for line in table(
        heapq.nsmallest(limit or len(rows), rows, key=_row_order), now=now, noun=noun
    ):
        click.echo(line)
    if 0 < limit < len(rows):
        click.echo(f"{limit:,} of {len(rows):,} {noun}s; --limit 0 shows all")


async def _rows(ledger: Ledger, *, now: datetime) -> AsyncIterator[Row]:
    """Yield the recorded hosts, sorted by name; then yield hosts with tasks but no record."""
    is_tracked = ledger.kind.tracked
    is_paused = not is_tracked and Control.of(await ledger.notes.control()).paused is not None
    counts = await ledger.hosts.counts()
    async for host in ledger.hosts.all():
        yield _row(host, counts.pop(host.name, Counts()), now=now, paused=is_paused)
    for name in sorted(counts):
        yield _row(Host(name=name), counts[name], now=now, paused=is_paused)


def _row(host: Host, counts: Counts, *, now: datetime, paused: bool) -> Row:
    is_resting = host.not_before is not None and host.not_before > now
    return Row(
        name=host.name,
        counts=counts,
        owner=owner_of(host, now=now),
        delay=host.delay,
        resting_until=host.not_before if is_resting else None,
        failures=host.failures,
        given_up=given_up_for(host),
        sitemaps=host.robots.sitemaps if host.robots else (),
        why=why(host, unfinished=unfinished_of(counts) > 0, now=now, paused=paused),
    )


def _row_order(row: Row) -> tuple[bool, int, str]:
    return not unfinished_of(row.counts), -waiting_of(row.counts), row.name


def _json(row: Row, *, noun: str) -> str:
    rest_end = row.resting_until
    fields = {
        noun: row.name,
        **{status.name.lower(): row.counts[status] for status in Status},
        "owner": row.owner,
        "delay": row.delay,
        "resting_until": rest_end and iso_time(rest_end),
        "failures": row.failures,
        "given_up": row.given_up,
        "sitemaps": row.sitemaps,
        "why": row.why,
    }
    return json.dumps(fields)


def table(rows: Sequence[Row], *, now: datetime, noun: str = "host") -> Iterator[str]:
    """Yield the lines of a table, without empty columns.

    *noun* is the heading of the first column: `host` or `stage`.
    """
    cells = [_cells(row, now=now) for row in rows]
    columns = [
        [noun if header == "host" else header, *(row[header] for row in cells)]
        for header in _HEADERS
        if any(row[header] != _EMPTY for row in cells)
    ]
    lines = zip(*map(_aligned, columns), strict=True)
    return ("  ".join(line).rstrip() for line in lines)


_TEXT_COLUMNS = ("host", "stage", "owner", "given up", "why")
_HEADERS = (
    *("host", "todo", "processing", "failed", "finished", "ignored"),
    *("owner", "delay", "rest", "failures in a row", "given up", "why"),
)


def _cells(row: Row, *, now: datetime) -> dict[str, str]:
    rest_end = row.resting_until
    return {
        "host": printable(row.name, limit=_LONGEST_NAME),
        "todo": f"{row.counts[Status.TODO]:,}",
        "processing": f"{row.counts[Status.PROCESSING]:,}",
        "failed": f"{row.counts[Status.FAILED]:,}",
        "finished": f"{row.counts[Status.FINISHED]:,}",
        "ignored": f"{row.counts[Status.IGNORED]:,}",
        "owner": _EMPTY if row.owner is None else printable(row.owner),
        "delay": f"{row.delay:.2f} s" if row.delay else _EMPTY,
        "rest": _EMPTY if rest_end is None else format_duration(rest_end - now),
        "failures in a row": f"{row.failures:,}" if row.failures else _EMPTY,
        "given up": _EMPTY if row.given_up is None else printable(row.given_up),
        "why": printable(row.why),
    }


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    alignment = "<" if column[0] in _TEXT_COLUMNS else ">"
    return [f"{cell:{alignment}{width}}" for cell in column]
