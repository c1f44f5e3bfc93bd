"""`crawlcw stats`: counts of a ledger's tasks, items and workers."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from crawlcw.cli import options, watching
from crawlcw.cli.ledger_option import Subject, ledger_command
from crawlcw.cli.loop import until_stopped
from crawlcw.cli.terminal import tables
from crawlcw.cli.terminal.tables import two_columns
from crawlcw.crawl.control import Control
from crawlcw.engine.workers import is_dead
from crawlcw.errors import POLICY_REASONS, UsageError
from crawlcw.feeds import escaping
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Count, Counts, Dimension, Group, Ledger, Worker
from crawlcw.model.counters import Counters
from crawlcw.model.durations import format_duration, iso_time
from crawlcw.model.sanitize import printable

_MIN_INTERVAL = timedelta(seconds=1)
#: Maximum number of tasks whose items are counted. MongoDB takes 0.05 s for this number of tasks.
_SCAN_LIMIT = 10_000
_MAX_ROWS = 50
_LONGEST_VALUE = 80
#: Fields of a worker's `Vitals` that the JSON object shows.
_VITALS = ("rate", "processing", "memory", "lag")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CrawlStats:
    name: str
    kind: LedgerKind
    counters: Counters
    counts: Counts
    items: Count
    reasons: dict[str, int]
    workers: list[Worker]
    next_due: datetime | None
    control: Control
    now: datetime

    @property
    def waits_for_pages(self) -> bool:
        """Whether no page is due, and a worker waits for new pages."""
        return self.next_due is None and any(worker.keeps_running for worker in self.workers)


@ledger_command("stats")
@options.json_option
@click.option(
    "--by",
    "dimension",
    type=click.Choice([str(choice) for choice in Dimension]),
    help="Count the tasks by this property.",
)
@click.option(
    "--all-items",
    is_flag=True,
    help="Count all items; on MongoDB this takes 4 s for a million tasks.",
)
@click.option(
    "--watch", "watched", is_flag=True, help="Show the numbers again and again, until Ctrl-C."
)
@options.duration_option(
    "--every", about="Interval of --watch. Default: 2s on a terminal, else 10s."
)
async def command(
    subject: Subject,
    *,
    as_json: bool,
    dimension: str | None,
    all_items: bool,
    watched: bool,
    every: timedelta | None,
) -> None:
    """Show the tasks of SPIDER by status and reason, and the workers.

    SPIDER names a spider as in `crawlcw run`, or a use case. The exit code is 2 if the ledger has
    no tasks of SPIDER.

    --watch shows the speed and the workers of a running crawl, and why hosts wait or fail. --watch
    works on any machine that can open the crawl's ledger. On a terminal --watch draws a live table;
    into a pipe it prints one line for each interval.
    """
    if every is not None and not watched:
        raise UsageError("--every needs --watch: add it, or leave --every out")
    if all_items and (dimension is not None or watched):
        raise UsageError("--all-items does not go with --by or --watch: leave them out")
    if dimension is not None and watched:
        raise UsageError("--by does not go with --watch: leave one of them out")
    if every is not None and every < _MIN_INTERVAL:
        raise UsageError("--every is at least 1s: shorter intervals would load the ledger")
    if watched:
        interval = every or timedelta(seconds=2 if sys.stdout.isatty() else 10)
        await until_stopped(watching.watch(subject, every=interval, as_json=as_json))
        return
    async with subject.opened() as ledger:
        if dimension is not None:
            await _write_groups(ledger, dimension, as_json=as_json)
            return
        numbers = await _numbers(ledger, subject.name, count_all=all_items)
    if as_json:
        click.echo(_json(numbers))
    else:
        _print(numbers)


async def _write_groups(ledger: Ledger, dimension: str, *, as_json: bool) -> None:
    groups = await ledger.groups.by(Dimension(dimension))
    if dimension == Dimension.DEPTH:
        groups = sorted(groups, key=_depth)
    if as_json:
        # Write one JSON object a line, because a ledger may have a million hosts.
        for group in groups:
            counts = {"open": group.open, "finished": group.finished, "ignored": group.ignored}
            line = json.dumps({dimension: group.value, **counts, "total": group.total})
            click.echo(escaping.visible(line))
    elif not groups:
        click.echo("no task has a value for this yet")
    else:
        is_by_stage = ledger.kind.tracked and dimension == Dimension.HOST
        _print_groups(groups, "stage" if is_by_stage else dimension)


def _depth(group: Group) -> int:
    return group.value if isinstance(group.value, int) else -1


def _print_groups(groups: list[Group], heading: str) -> None:
    rows = [
        (
            "none" if group.value is None else printable(str(group.value), limit=_LONGEST_VALUE),
            *(f"{number:,}" for number in (group.open, group.finished, group.ignored, group.total)),
        )
        for group in groups[:_MAX_ROWS]
    ]
    tables.show(tables.columns((heading, "open", "finished", "ignored", "total"), rows))
    if len(groups) > _MAX_ROWS:
        click.echo(f"{_MAX_ROWS:,} of {len(groups):,}; --json writes all")


async def _numbers(ledger: Ledger, name: str, *, count_all: bool) -> _CrawlStats:
    queries = ledger.queries
    if count_all:
        items = Count(number=await queries.item_count())
    else:
        items = await queries.item_count_within(scan_limit=_SCAN_LIMIT)
    # Leave out dead workers, because a killed worker stays recorded until a new worker starts.
    workers = [worker for worker in await ledger.workers.all() if not is_dead(worker)]
    return _CrawlStats(
        name=name,
        kind=ledger.kind,
        counters=await ledger.workers.counters(),
        counts=await queries.counts(),
        items=items,
        reasons=await queries.reasons(),
        workers=sorted(workers, key=lambda worker: (worker.started, worker.name)),
        next_due=await queries.next_due(),
        control=Control.of(await ledger.notes.control()),
        now=ledger.now(),
    )


def _largest_first(numbers: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(numbers.items(), key=lambda entry: (-entry[1], entry[0])))


def _json(numbers: _CrawlStats) -> str:
    counters = numbers.counters
    return json.dumps(
        {
            numbers.kind.value: numbers.name,
            "counts": numbers.counts.by_name(),
            "redirects": numbers.counts.redirects,
            "total": numbers.counts.without_redirects,
            "items": numbers.items.number,
            "items_all_counted": numbers.items.is_exact,
            "items_by_callback": _largest_first(counters.items_by_callback),
            "items_dropped": _largest_first(counters.items_dropped),
            "reasons": numbers.reasons,
            "links_dropped": _largest_first(counters.links_dropped),
            "unchanged": counters.unchanged,
            "stalls": counters.stalls,
            "longest_stall": counters.longest_stall,
            "link_examples": {name: list(links) for name, links in counters.link_examples.items()},
            "workers": [
                {
                    "host": worker.host,
                    "pid": worker.pid,
                    "started": iso_time(worker.started),
                    "heartbeat": iso_time(worker.heartbeat),
                    "pages": worker.counters.pages,
                    **{name: worker.vitals and getattr(worker.vitals, name) for name in _VITALS},
                }
                for worker in numbers.workers
            ],
            "next_due": numbers.next_due and iso_time(numbers.next_due),
            "waits_for_pages": numbers.waits_for_pages,
            **numbers.control.fields(),
        }
    )


def _print(numbers: _CrawlStats) -> None:
    rows = {name: f"{number:,}" for name, number in numbers.counts.by_name().items()}
    rows["total"] = f"{numbers.counts.without_redirects:,}"
    if numbers.counts.redirects:
        rows["redirects"] = f"{numbers.counts.redirects:,}"
    hint = "" if numbers.items.is_exact else " (--all-items counts all)"
    rows["items"] = f"{numbers.items}{hint}"
    rows |= {"next due": _next_due_text(numbers), "workers at work": f"{len(numbers.workers):,}"}
    if numbers.control.paused is not None:
        rows["paused"] = f"since {numbers.control.paused:%Y-%m-%d %H:%M:%S}Z"
    for name, value in numbers.control.settings.items():
        rows[f"set: {name}"] = printable(value)
    counters = numbers.counters
    if counters.unchanged:
        rows["visited again, unchanged"] = f"{counters.unchanged:,}"
    rows |= tables.stalls(counters)
    tables.show(two_columns(numbers.name, rows))
    if len(counters.items_by_callback) > 1:
        tables.show(two_columns("items by callback", _count_texts(counters.items_by_callback)))
    if counters.items_dropped:
        tables.show(
            two_columns("items not recorded by reason", _count_texts(counters.items_dropped))
        )
    if numbers.reasons:
        reasons = {_reason(name): f"{task_count:,}" for name, task_count in numbers.reasons.items()}
        tables.show(two_columns("failed and ignored by reason", reasons))
    if counters.links_dropped:
        tables.show(
            two_columns("links not followed by reason", _count_texts(counters.links_dropped))
        )
        for name in _largest_first(counters.links_dropped):
            for link in counters.link_examples.get(name, ()):
                click.echo(f"  {printable(name)}: {printable(link)}")


def _count_texts(numbers: Mapping[str, int]) -> dict[str, str]:
    return {printable(name): f"{number:,}" for name, number in _largest_first(numbers).items()}


def _reason(name: str) -> str:
    is_unwanted = name in POLICY_REASONS
    return f"{printable(name)} (unwanted, no failure)" if is_unwanted else printable(name)


def _next_due_text(numbers: _CrawlStats) -> str:
    if numbers.next_due is None:
        return "waiting for new pages" if numbers.waits_for_pages else "never: drained"
    wait = numbers.next_due - numbers.now
    return f"in {format_duration(wait)}" if wait > timedelta(0) else "now"
