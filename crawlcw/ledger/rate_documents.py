"""How a worker's points are written down: when, and what it showed of itself then.

kept     for how many days
minute   the minute it is of: a worker has one point in each
worker   its name
started  when the worker began to count
time     when exactly
vitals   as of a worker, see `documents`
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.documents import Document
from crawlcw.model.rates import COARSE, FINE_DAYS, KEPT_DAYS, Point, minute_of


def point_document(point: Point) -> Document:
    """Return a point as its document."""
    return {
        "kept": point.kept_days,
        "minute": minute_of(point.time),
        "worker": point.worker,
        "started": point.started,
        "time": point.time,
        "vitals": documents.vitals_document(point.vitals),
    }


def point(found: Mapping[str, Any]) -> Point:
    """Return the point that a document holds."""
    return Point(
        worker=found["worker"],
        started=found["started"],
        time=found["time"],
        vitals=documents.vitals(found["vitals"]),
    )


def kept_for(step: timedelta) -> list[int]:
    """Return which points a chart needs whose steps are that long, by how long they are kept."""
    return [KEPT_DAYS] if step >= COARSE else [KEPT_DAYS, FINE_DAYS]


def outdated(now: datetime) -> dict[int, datetime]:
    """Return until which minute points are to be dropped, by how long they are kept."""
    return {days: minute_of(now) - timedelta(days=days) for days in (KEPT_DAYS, FINE_DAYS)}
