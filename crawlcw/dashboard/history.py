"""Data of the charts: rates of a crawl over time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from crawlcw.ledger.protocol import Ledger
from crawlcw.model import rates
from crawlcw.model.rates import Slot, Span
from crawlcw.server.requests import RequestModel

#: Length of a chart, and of its steps.
RANGES = {
    "quarter": (timedelta(minutes=15), timedelta(minutes=1)),
    "hour": (timedelta(hours=1), timedelta(minutes=1)),
    "day": (timedelta(days=1), timedelta(minutes=10)),
    "week": (timedelta(days=7), timedelta(hours=1)),
}


class HistoryQuery(RequestModel):
    """A request for the data of the charts."""

    span: Literal["quarter", "hour", "day", "week"] = "hour"


async def history(ledger: Ledger, query: HistoryQuery) -> dict[str, Any]:
    """Return the rates of all workers in each step of the last quarter hour, hour, day or week.

    The lists are columns: `time` in seconds since 1970, the ends of the steps; `finished`,
    `failed` and `ignored` in tasks a second; `processing` in tasks; `memory` in bytes;
    `lag` in seconds.
    """
    length, step = RANGES[query.span]
    now = ledger.now()
    start = rates.minute_of(now) - length
    spans = await ledger.rates.between(start, now, step=step)
    slots = rates.slots(spans, start=start, end=_end_of_data(spans, now=now), step=step)
    return {
        "step": step.total_seconds(),
        "time": [slot.end.timestamp() for slot in slots],
        "finished": [_per_second(slot, slot.finished) for slot in slots],
        "failed": [_per_second(slot, slot.failed) for slot in slots],
        "ignored": [_per_second(slot, slot.ignored) for slot in slots],
        "workers": [slot.workers for slot in slots],
        "processing": [slot.processing for slot in slots],
        "memory": [slot.memory for slot in slots],
        "lag": [slot.lag for slot in slots],
    }


def _end_of_data(spans: Sequence[Span], *, now: datetime) -> datetime:
    """Return the time of the last known point; the workers have not written the next one yet."""
    last_time = max((span.end for span in spans), default=now)
    return last_time if now - last_time < 2 * rates.EVERY else now


def _per_second(slot: Slot, number: float) -> float:
    return round(number / (slot.end - slot.start).total_seconds(), 4)
