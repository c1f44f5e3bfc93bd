"""Make the live table, the line or the JSON object that `stats --watch` shows.

`printable` escapes all text from pages and servers.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal.tables import STATUS_COLOURS
from crawlcw.dashboard.observer import CrawlState, HostLine, is_silent
from crawlcw.ledger.protocol import Worker
from crawlcw.model.counters import FinishReason
from crawlcw.model.durations import format_duration, iso_time
from crawlcw.model.sanitize import printable

#: Number of lines outside of the tables, and number of lines of a table that are not rows.
_FRAME, _TABLE = 8, 4
_LONGEST_NAME = 50
_DRAINED = "drained: nothing is left to do"
_WAITING = "drained: waiting for new pages"
_MAX_REASONS = 6
#: The display shows the lag of a worker's event loop in red if the lag is at least this long.
_MAX_LAG_S = 1.0
#: Fields of a worker's `Vitals` that the JSON object shows.
_VITALS = ("rate", "processing", "memory", "lag", "finished", "failed", "ignored", "items")
#: If the counts of tasks are older than this, the display also shows how old the counts are.
_FRESH_AGE = timedelta(seconds=5)


def display(state: CrawlState, *, height: int) -> RenderableType:
    """Return the live table of a crawl, for a terminal with *height* lines."""
    free_lines = max(height - _FRAME - 2 * _TABLE - min(len(state.reasons), _MAX_REASONS) - 2, 4)
    worker_rows = min(len(state.workers), max(free_lines // 2, free_lines - len(state.hosts)))
    parts: list[RenderableType] = [_title(state), _tasks(state)]
    parts.append(Text(f"{_speed(state)}, backlog {state.backlog:,}, eta {_eta(state)}"))
    if state.paused is not None:
        parts.append(Text(_paused(state.paused), style="bold yellow"))
    if _is_drained(state):
        parts.append(Text(f"{_drained(state)}; Ctrl-C ends this display", style="bold green"))
    if state.error:
        parts.append(Text(printable(state.error), style="bold red"))
    parts.append(_workers(state, max_rows=worker_rows))
    if state.hosts and not state.kind.tracked:
        parts.append(_hosts(state, max_rows=max(free_lines - worker_rows, 2)))
    if state.reasons:
        parts.append(Text(f"failed and ignored: {_reasons(state)}", style="dim"))
    return Group(*parts)


def line(state: CrawlState) -> str:
    """Return a crawl's state as a summary in one line."""
    counts = (f"{name} {number:,}" for name, number in state.counts.for_display().items())
    task_count = sum(
        worker.vitals.processing for worker in state.workers if worker.vitals is not None
    )
    parts = [printable(state.name), *counts, _speed(state), f"eta {_eta(state)}"]
    parts += [f"workers {len(state.workers):,} with {counted(task_count, 'task')}"]
    if state.paused is not None:
        parts.append(_paused(state.paused))
    if _is_drained(state):
        parts.append(_drained(state))
    failing_count = sum(host_line.host.failures > 0 for host_line in state.hosts)
    if failing_count:
        parts.append(f"hosts failing {failing_count:,}")
    if state.reasons:
        parts.append(f"reasons {_reasons(state)}")
    return ", ".join(parts)


def fields(state: CrawlState) -> dict[str, Any]:
    """Return the fields of a crawl's state for JSON, with times in UTC and durations in seconds."""
    return {
        state.kind.value: state.name,
        "time": iso_time(state.now),
        "counted_at": state.counted_at and iso_time(state.counted_at),
        "counts": state.counts.by_name(),
        "redirects": state.counts.redirects,
        "total": state.counts.without_redirects,
        "backlog": state.backlog,
        "rate": round(state.rate, 3),
        "average_rate": None if state.average_rate is None else round(state.average_rate, 3),
        "paused": state.paused,
        str(FinishReason.DRAINED): _is_drained(state),
        "eta": None if state.eta is None else state.eta.total_seconds(),
        "workers": [_worker_fields(worker) for worker in state.workers],
        "hosts": [_host_fields(host_line) for host_line in state.hosts],
        "reasons": dict(state.reasons),
    }


def _is_drained(state: CrawlState) -> bool:
    return state.counted_at is not None and not state.backlog


def _drained(state: CrawlState) -> str:
    return _WAITING if any(worker.keeps_running for worker in state.workers) else _DRAINED


def _paused(start: str) -> str:
    return f"paused since {printable(start)}"


def _worker_fields(worker: Worker) -> dict[str, Any]:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "started": iso_time(worker.started),
        "heartbeat": iso_time(worker.heartbeat),
        **{name: worker.vitals and getattr(worker.vitals, name) for name in _VITALS},
    }


def _host_fields(host_line: HostLine) -> dict[str, Any]:
    return {
        "host": host_line.host.name,
        "why": host_line.why,
        "owner": host_line.owner,
        "delay": host_line.host.delay,
        "failures": host_line.host.failures,
        "resting_until": host_line.host.not_before and iso_time(host_line.host.not_before),
    }


def _title(state: CrawlState) -> Text:
    title = Text(printable(state.name, limit=_LONGEST_NAME), style="bold")
    title.append(f"  {state.now:%Y-%m-%d %H:%M:%S} UTC", style="dim")
    if state.counted_at is None:
        title.append("  counting ...", style="dim")
    elif (age := state.now - state.counted_at) > _FRESH_AGE:
        title.append(f"  counted {format_duration(age)} ago", style="dim")
    return title


def _tasks(state: CrawlState) -> Text:
    text = counts_text(state.counts.for_display())
    return text.append(f"  total {state.counts.without_redirects:,}", style="dim")


def counts_text(numbers: Mapping[str, int]) -> Text:
    """Return the number of tasks of each status in one line; numbers except 0 are coloured."""
    text = Text()
    for name, number in numbers.items():
        colour = STATUS_COLOURS.get(name, "") if number else ""
        text.append(f"{name} {number:,}", style=colour)
        text.append("  ")
    text.rstrip()
    return text


def _speed(state: CrawlState) -> str:
    average = "-" if state.average_rate is None else f"{state.average_rate:,.1f}"
    return f"{state.rate:,.1f} {_unit(state)}/s now, {average} on average"


def _unit(state: CrawlState) -> str:
    return "tasks" if state.kind.tracked else "pages"


def _eta(state: CrawlState) -> str:
    return "-" if state.eta is None else format_duration(state.eta)


def _workers(state: CrawlState, *, max_rows: int) -> RenderableType:
    if not state.workers:
        return Text("no worker is at work", style="dim" if _is_drained(state) else "yellow")
    unit = _unit(state)
    table = _table("worker", f"{unit}/s", "processing", "memory", "loop lag", unit, "failed", "")
    for worker in state.workers[:max_rows]:
        table.add_row(*_worker_cells(worker, now=state.now))
    if max_rows < len(state.workers):
        table.add_row(Text(f"and {len(state.workers) - max_rows:,} more", style="dim"))
    return table


def _worker_cells(worker: Worker, *, now: datetime) -> Iterator[Text]:
    yield Text(printable(worker.name, limit=_LONGEST_NAME))
    vitals = worker.vitals
    if vitals is None:
        yield from [Text("-")] * 6
    else:
        yield Text(f"{vitals.rate:,.1f}")
        yield Text(f"{vitals.processing:,}")
        yield Text(f"{vitals.memory / (1 << 20):,.0f} MiB" if vitals.memory else "-")
        yield Text(f"{1000 * vitals.lag:,.0f} ms", style="red" if vitals.lag >= _MAX_LAG_S else "")
        yield Text(f"{vitals.finished:,}")
        yield Text(f"{vitals.failed:,}")
    if is_silent(worker, now=now):
        yield Text(f"silent for {format_duration(now - worker.heartbeat)}", style="red")
    else:
        yield Text("idle" if worker.idle else "", style="dim")


def _hosts(state: CrawlState, *, max_rows: int) -> Table:
    table = _table("slow, resting or failing host", "delay", "failures", "why")
    table.columns[-1].justify = "left"
    for host_line in state.hosts[:max_rows]:
        host = host_line.host
        table.add_row(
            Text(printable(host.name, limit=_LONGEST_NAME)),
            Text(f"{host.delay:.2f} s" if host.delay else "-"),
            Text(f"{host.failures:,}" if host.failures else "-"),
            Text(printable(host_line.why), style="red" if host.failures else ""),
        )
    return table


def _table(first_header: str, *headers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first_header, no_wrap=True)
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _reasons(state: CrawlState) -> str:
    entries = list(state.reasons.items())[:_MAX_REASONS]
    text = ", ".join(f"{printable(name)} {number:,}" for name, number in entries)
    further_count = len(state.reasons) - len(entries)
    return f"{text} and {further_count:,} more" if further_count else text
