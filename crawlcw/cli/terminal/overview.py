"""Output of `stats --watch`: a live table, a line, or a JSON object.

Text from pages and servers is escaped by `printable`.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from crawlcw.dashboard.observer import HostLine, Look, is_silent
from crawlcw.ledger.protocol import Worker
from crawlcw.model.durations import format_duration, iso_time
from crawlcw.model.sanitize import printable

#: Lines of the display outside of tables, and lines of a table besides its rows.
_FRAME, _TABLE = 7, 4
_LONGEST_NAME = 50
_MOST_REASONS = 6
#: Event loop lag in seconds that is shown in red.
_LATE = 1.0
#: Fields of a worker's vitals in its JSON object.
_VITALS = ("rate", "processing", "memory", "lag", "finished", "failed", "ignored", "items")
#: Older counts are shown with their age.
_FRESH = timedelta(seconds=5)
_STYLES = {
    "todo": "cyan",
    "in flight": "yellow",
    "failed": "red",
    "finished": "green",
    "ignored": "bright_black",
}


def picture(look: Look, *, height: int) -> RenderableType:
    """Return the display for a terminal with *height* lines."""
    room = max(height - _FRAME - 2 * _TABLE - min(len(look.reasons), _MOST_REASONS) - 2, 4)
    workers = min(len(look.workers), max(room // 2, room - len(look.hosts)))
    parts: list[RenderableType] = [_title(look), _tasks(look)]
    parts.append(Text(f"{_speed(look)}, backlog {look.backlog:,}, eta {_eta(look)}"))
    if look.paused is not None:
        parts.append(Text(_paused(look.paused), style="bold yellow"))
    if look.trouble:
        parts.append(Text(printable(look.trouble), style="bold red"))
    parts.append(_workers(look, most=workers))
    if look.hosts and not look.kind.tracked:
        parts.append(_hosts(look, most=max(room - workers, 2)))
    if look.reasons:
        parts.append(Text(f"failed and ignored: {_reasons(look)}", style="dim"))
    return Group(*parts)


def line(look: Look) -> str:
    """Return a summary in one line."""
    counts = (f"{name} {number:,}" for name, number in _numbers(look).items())
    busy = sum(worker.vitals.processing for worker in look.workers if worker.vitals is not None)
    parts = [printable(look.name), *counts, _speed(look), f"eta {_eta(look)}"]
    parts += [f"workers {len(look.workers):,} holding {busy:,}"]
    if look.paused is not None:
        parts.append(_paused(look.paused))
    failing = sum(each.host.failures > 0 for each in look.hosts)
    if failing:
        parts.append(f"hosts failing {failing:,}")
    if look.reasons:
        parts.append(f"reasons {_reasons(look)}")
    return ", ".join(parts)


def fields(look: Look) -> dict[str, Any]:
    """Return all fields, for programs; times in UTC, durations in seconds."""
    return {
        look.kind.value: look.name,
        "time": iso_time(look.now),
        "counted": look.counted and iso_time(look.counted),
        "counts": look.counts.by_name(),
        "redirects": look.counts.redirects,
        "total": look.counts.known,
        "backlog": look.backlog,
        "rate": round(look.rate, 3),
        "average_rate": None if look.average is None else round(look.average, 3),
        "paused": look.paused,
        "eta": None if look.eta is None else look.eta.total_seconds(),
        "workers": [_worker_fields(worker) for worker in look.workers],
        "hosts": [_host_fields(each) for each in look.hosts],
        "reasons": dict(look.reasons),
    }


def _paused(since: str) -> str:
    return f"paused since {printable(since)}"


def _worker_fields(worker: Worker) -> dict[str, Any]:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "started": iso_time(worker.started),
        "heartbeat": iso_time(worker.heartbeat),
        **{name: worker.vitals and getattr(worker.vitals, name) for name in _VITALS},
    }


def _host_fields(each: HostLine) -> dict[str, Any]:
    return {
        "host": each.host.name,
        "why": each.why,
        "owner": each.owner,
        "delay": each.host.delay,
        "failures": each.host.failures,
        "resting_until": each.host.not_before and iso_time(each.host.not_before),
    }


def _title(look: Look) -> Text:
    title = Text(printable(look.name, limit=_LONGEST_NAME), style="bold")
    title.append(f"  {look.now:%Y-%m-%d %H:%M:%S} UTC", style="dim")
    if look.counted is None:
        title.append("  counting ...", style="dim")
    elif (age := look.now - look.counted) > _FRESH:
        title.append(f"  counted {format_duration(age)} ago", style="dim")
    return title


def _tasks(look: Look) -> Text:
    text = Text()
    for name, number in _numbers(look).items():
        text.append(f"{name} ")
        text.append(f"{number:,}", style=_STYLES.get(name, ""))
        text.append("  ")
    return text.append(f"total {look.counts.known:,}", style="dim")


def _speed(look: Look) -> str:
    average = "-" if look.average is None else f"{look.average:,.1f}"
    return f"{look.rate:,.1f} {_unit(look)}/s now, {average} on average"


def _unit(look: Look) -> str:
    return "tasks" if look.kind.tracked else "pages"


def _eta(look: Look) -> str:
    return "-" if look.eta is None else format_duration(look.eta)


def _workers(look: Look, *, most: int) -> RenderableType:
    if not look.workers:
        return Text("no worker is at work", style="yellow")
    unit = _unit(look)
    table = _table("worker", f"{unit}/s", "in flight", "memory", "loop lag", unit, "failed", "")
    for worker in look.workers[:most]:
        table.add_row(*_worker_cells(worker, now=look.now))
    if most < len(look.workers):
        table.add_row(Text(f"and {len(look.workers) - most:,} more", style="dim"))
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
        yield Text(f"{1000 * vitals.lag:,.0f} ms", style="red" if vitals.lag >= _LATE else "")
        yield Text(f"{vitals.finished:,}")
        yield Text(f"{vitals.failed:,}")
    if is_silent(worker, now=now):
        yield Text(f"silent for {format_duration(now - worker.heartbeat)}", style="red")
    else:
        yield Text("wants hosts" if worker.idle else "", style="dim")


def _hosts(look: Look, *, most: int) -> Table:
    table = _table("slow, resting or failing host", "delay", "failures", "why")
    table.columns[-1].justify = "left"
    for each in look.hosts[:most]:
        host = each.host
        table.add_row(
            Text(printable(host.name, limit=_LONGEST_NAME)),
            Text(f"{host.delay:.2f} s" if host.delay else "-"),
            Text(f"{host.failures:,}" if host.failures else "-"),
            Text(printable(each.why), style="red" if host.failures else ""),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for header in others:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _reasons(look: Look) -> str:
    some = list(look.reasons.items())[:_MOST_REASONS]
    told = ", ".join(f"{printable(name)} {number:,}" for name, number in some)
    more = len(look.reasons) - len(some)
    return f"{told} and {more:,} more" if more else told


def _numbers(look: Look) -> dict[str, int]:
    numbers = look.counts.for_people().items()
    return {"in flight" if name == "processing" else name: number for name, number in numbers}
