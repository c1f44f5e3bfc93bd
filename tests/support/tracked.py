"""Tracked tasks for the tests of ledgers: an order, and the data of an attempt at it."""

from typing import Any

from crawlcw.model.task import Payload, Task, key_id
from crawlcw.model.transitions import Progress
from tests.support.ledgers import START


def order(key: str = "one", stage: str = "pay", **overrides: Any) -> Task:
    fields: dict[str, Any] = {
        "id": key_id(key),
        "url": key,
        "host": stage,
        "callback": stage,
        "due": START,
        "update_time": START,
        "create_time": START,
        "carried": Payload(data={"n": 1}),
    }
    return Task(**fields | overrides)


def progress(**fields: Any) -> Progress:
    return Progress(worker="a", started_at=START, **fields)
