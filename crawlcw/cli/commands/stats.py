"""`crawlcw stats`: counts of a ledger's tasks, items and workers."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from crawlcw.cli import ledger_option, loading, loop, options, selecting, watching
from crawlcw.cli.exit_codes import OK
from crawlcw.cli.stopping import until_stopped
from crawlcw.cli.terminal import logs, tables
from crawlcw.cli.terminal.tables import two_columns
from crawlcw.crawl.control import Control
from crawlcw.engine.workers import is_dead
from crawlcw.errors import POLICY_REASONS, UsageError
from crawlcw.feeds import escaping
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Count, Counts, Dimension, Group, Ledger, Worker
from crawlcw.model.counters import Examples
from crawlcw.model.durations import format_duration, iso_time
from crawlcw.model.sanitize import printable

_SHORTEST_PAUSE = timedelta(seconds=1)
#: Number of tasks whose items are counted: takes 0.05 s on MongoDB.
_SCAN_LIMIT = 10_000
_MOST_ROWS = 50
_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    name: str
    kind: LedgerKind
    counts: Counts
    items: Count
    items_by_callback: dict[str, int]
    items_dropped: dict[str, int]
    reasons: dict[str, int]
    links_dropped: dict[str, int]
    unchanged: int
    stalls: int
    longest_stall: float  #: seconds
    link_examples: Examples
    workers: list[Worker]
    next_due: datetime | None
    control: Control
    now: datetime


@click.command("stats")
@click.argument("spider")
@ledger_option.ledger_option
@options.json_option
@click.option(
    "--by",
    "dimension",
    type=click.Choice([str(each) for each in Dimension]),
    help="Count the tasks by host, reason, ...",
)
@click.option(
    "--all-items",
    is_flag=True,
    help="Count all items on MongoDB too; reads every task, seconds for a million.",
)
@click.option("--watch", "watched", is_flag=True, help="Update repeatedly, until Ctrl-C.")
@click.option(
    "--every",
    metavar="DURATION",
    help="Interval of --watch. Default: 2s on a terminal, else 10s.",
)
@logs.log_option
def command(
    *,
    spider: str,
    ledger_url: str,
    as_json: bool,
    dimension: str | None,
    all_items: bool,
    watched: bool,
    every: str | None,
) -> int:
    """Show the tasks of SPIDER by status and reason, and the workers.

    SPIDER is as for `crawlcw run`, or the name of a use case. A name without recorded
    tasks is an error (exit code 2).

    --watch shows a running crawl, from any machine that reaches its ledger: its
    speed, its workers, and the hosts that wait or fail, with the reason. It is a live
    table on a terminal, and one line an interval in a pipe.
    """
    if every is not None and not watched:
        raise UsageError("--every needs --watch: add it, or leave --every out")
    if all_items and (dimension is not None or watched):
        raise UsageError("--all-items does not go with --by or --watch: leave them out")
    if dimension is not None:
        if watched:
            raise UsageError("--by does not go with --watch: leave one of them out")
        loop.run(_write_groups(loading.name_of(spider), ledger_url, dimension, as_json=as_json))
        return OK
    if watched:
        name, pause = loading.name_of(spider), _pause(every)
        loop.run(until_stopped(watching.watch(name, ledger_url, every=pause, as_json=as_json)))
        return OK
    numbers = loop.run(_numbers(loading.name_of(spider), ledger_url, count_all=all_items))
    if as_json:
        click.echo(_json(numbers))
    else:
        _print(numbers)
    return OK


async def _write_groups(name: str, ledger_url: str, by: str, *, as_json: bool) -> None:
    async with ledger_option.opened(ledger_url, name) as ledger:
        groups = await ledger.groups.by(Dimension(by))
        tracked = ledger.kind.tracked
    if as_json:
        # One object a line: there may be a million hosts.
        for group in groups:
            click.echo(escaping.visible(_group_json(group, by)), nl=False)
    elif not groups:
        click.echo("no task has a value for this yet")
    else:
        _print_groups(groups, "stage" if tracked and by == Dimension.HOST else by)


def _group_json(group: Group, by: str) -> str:
    counts = {"open": group.open, "finished": group.finished, "ignored": group.ignored}
    return json.dumps({by: group.value, **counts, "total": group.total}) + "\n"


def _print_groups(groups: list[Group], called: str) -> None:
    rows = [
        (
            "none" if group.value is None else printable(str(group.value), limit=_LONGEST_VALUE),
            *(f"{n:,}" for n in (group.open, group.finished, group.ignored, group.total)),
        )
        for group in groups[:_MOST_ROWS]
    ]
    tables.show(tables.columns((called, "open", "finished", "ignored", "total"), rows))
    if len(groups) > _MOST_ROWS:
        click.echo(f"{_MOST_ROWS:,} of {len(groups):,}; --json writes all")


def _pause(every: str | None) -> timedelta:
    if every is None:
        return timedelta(seconds=2 if sys.stdout.isatty() else 10)
    pause = selecting.age(every, option="--every")
    if pause < _SHORTEST_PAUSE:
        raise UsageError("--every is at least 1s: shorter intervals would load the ledger")
    return pause


async def _numbers(name: str, ledger_url: str, *, count_all: bool) -> _Numbers:
    async with ledger_option.opened(ledger_url, name) as ledger:
        counters = await ledger.workers.counters()
        return _Numbers(
            name=name,
            kind=ledger.kind,
            counts=await ledger.queries.counts(),
            items=await _items(ledger, count_all=count_all),
            items_by_callback=_largest_first(counters.items_by_callback),
            items_dropped=_largest_first(counters.items_dropped),
            reasons=await ledger.queries.reasons(),
            links_dropped=_largest_first(counters.links_dropped),
            unchanged=counters.unchanged,
            stalls=counters.stalls,
            longest_stall=counters.longest_stall,
            link_examples=counters.link_examples,
            workers=_at_work(await ledger.workers.all()),
            next_due=await ledger.queries.horizon(),
            control=Control.of(await ledger.notes.control()),
            now=ledger.now(),
        )


async def _items(ledger: Ledger, *, count_all: bool) -> Count:
    if count_all:
        return Count(number=await ledger.queries.item_count())
    return await ledger.queries.items_among(scan_limit=_SCAN_LIMIT)


def _largest_first(numbers: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(numbers.items(), key=lambda each: (-each[1], each[0])))


def _at_work(workers: list[Worker]) -> list[Worker]:
    # A killed worker stays on the list until another one starts.
    return sorted((w for w in workers if not is_dead(w)), key=lambda w: (w.started, w.name))


def _json(numbers: _Numbers) -> str:
    return json.dumps(
        {
            numbers.kind.value: numbers.name,
            "counts": numbers.counts.by_name(),
            "redirects": numbers.counts.redirects,
            "total": numbers.counts.known,
            "items": numbers.items.number,
            "items_all_counted": numbers.items.whole,
            "items_by_callback": numbers.items_by_callback,
            "items_dropped": numbers.items_dropped,
            "reasons": numbers.reasons,
            "links_dropped": numbers.links_dropped,
            "unchanged": numbers.unchanged,
            "stalls": numbers.stalls,
            "longest_stall": numbers.longest_stall,
            "link_examples": {reason: list(some) for reason, some in numbers.link_examples.items()},
            "workers": [
                {
                    "host": worker.host,
                    "pid": worker.pid,
                    "started": iso_time(worker.started),
                    "heartbeat": iso_time(worker.heartbeat),
                    "pages": worker.counters.pages,
                    "rate": worker.vitals and worker.vitals.rate,
                    "processing": worker.vitals and worker.vitals.processing,
                    "memory": worker.vitals and worker.vitals.memory,
                    "lag": worker.vitals and worker.vitals.lag,
                }
                for worker in numbers.workers
            ],
            "next_due": numbers.next_due and iso_time(numbers.next_due),
            **numbers.control.fields(),
        }
    )


def _print(numbers: _Numbers) -> None:
    rows = {name: f"{number:,}" for name, number in numbers.counts.by_name().items()}
    rows["total"] = f"{numbers.counts.known:,}"
    if numbers.counts.redirects:
        rows["redirects"] = f"{numbers.counts.redirects:,}"
    rows["items"] = _item_number(numbers.items)
    rows |= {"next due": _when(numbers), "workers at work": f"{len(numbers.workers):,}"}
    if numbers.control.paused is not None:
        rows["paused"] = f"since {numbers.control.paused:%Y-%m-%d %H:%M:%S}Z"
    for name, value in numbers.control.settings.items():
        rows[f"set: {name}"] = printable(value)
    if numbers.unchanged:
        rows["visited again, unchanged"] = f"{numbers.unchanged:,}"
    if numbers.stalls:
        longest = format_duration(timedelta(seconds=numbers.longest_stall))
        rows["event loop blocked"] = f"{numbers.stalls:,} times, {longest} at most"
    tables.show(two_columns(numbers.name, rows))
    if len(numbers.items_by_callback) > 1:
        tables.show(two_columns("items by callback", _shown(numbers.items_by_callback)))
    if numbers.items_dropped:
        tables.show(two_columns("items not recorded by reason", _shown(numbers.items_dropped)))
    if numbers.reasons:
        reasons = {_reason(name): f"{n:,}" for name, n in numbers.reasons.items()}
        tables.show(two_columns("failed and ignored by reason", reasons))
    if numbers.links_dropped:
        dropped = _shown(numbers.links_dropped)
        tables.show(two_columns("links not followed by reason", dropped))
        for name in numbers.links_dropped:
            for link in numbers.link_examples.get(name, ()):
                click.echo(f"  {printable(name)}: {printable(link)}")


def _item_number(items: Count) -> str:
    return str(items) if items.whole else f"{items} (--all-items counts all)"


def _shown(numbers: Mapping[str, int]) -> dict[str, str]:
    return {printable(name): f"{number:,}" for name, number in numbers.items()}


def _reason(name: str) -> str:
    unwanted = name in POLICY_REASONS
    return f"{printable(name)} (unwanted, no failure)" if unwanted else printable(name)


def _when(numbers: _Numbers) -> str:
    if numbers.next_due is None:
        return "never: drained"
    wait = numbers.next_due - numbers.now
    return f"in {format_duration(wait)}" if wait > timedelta(0) else "now"
