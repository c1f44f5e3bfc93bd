"""Compute the data of the charts: rates of a crawl over time."""

from datetime import timedelta
from typing import Any, Literal

from crawlcw.ledger.protocol import Ledger
from crawlcw.model import rates
from crawlcw.model.rates import Slot
from crawlcw.server.requests import RequestModel

#: Duration of a chart, and of each of its steps.
RANGES = {
    "quarter": (timedelta(minutes=15), timedelta(minutes=1)),
    "hour": (timedelta(hours=1), timedelta(minutes=1)),
    "day": (timedelta(days=1), timedelta(minutes=10)),
    "week": (timedelta(days=7), timedelta(hours=1)),
}


class HistoryQuery(RequestModel):
    """The dashboard page's request for the data of its charts."""

    span: Literal["quarter", "hour", "day", "week"] = "hour"


async def history(ledger: Ledger, query: HistoryQuery) -> dict[str, Any]:
    """Return the rates of all workers in each step of the last quarter hour, hour, day or week.

    Each list of the result has one value for each step. `time` has the start of each step in
    seconds since 1970. `finished`, `failed` and `ignored` are numbers of tasks per second.
    `processing` is a number of tasks, `memory` is in bytes, and `lag` is in seconds. The first step
    starts with the first recorded work, so that no average includes time before the crawl.
    """
    length, step = RANGES[query.span]
    now = ledger.now()
    start = rates.minute_of(now) - length
    spans = await ledger.rates.between(start, now, step=step)
    start = max(start, min((span.start for span in spans), default=start))
    end = max((span.end for span in spans), default=now)
    slots = rates.slots(spans, start=start, end=end, step=step)
    return {
        "step": step.total_seconds(),
        "time": [slot.start.timestamp() for slot in slots],
        "end": end.timestamp(),
        "finished": [_per_second(slot, slot.finished) for slot in slots],
        "failed": [_per_second(slot, slot.failed) for slot in slots],
        "ignored": [_per_second(slot, slot.ignored) for slot in slots],
        "workers": [slot.workers for slot in slots],
        "processing": [slot.processing for slot in slots],
        "memory": [slot.memory for slot in slots],
        "lag": [slot.lag for slot in slots],
    }


def _per_second(slot: Slot, number: float) -> float:
    return round(number / (slot.end - slot.start).total_seconds(), 4)
