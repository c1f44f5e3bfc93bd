"""Use cases of one test on one store, with any number of trackers."""

import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pymongo

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Task, key_id
from crawlcw.tracking import Policy, Tracker, UseCase
from crawlcw.tracking.use_case import stored_settings
from tests.faults.proxy import Proxy, proxied
from tests.support.ledgers import FakeClock

_numbers = itertools.count()


class UseCases:
    """Use cases on one store; each tracker stands for a process, and all share a clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = FakeClock()
        self.is_mongodb = url.startswith("mongodb")
        self._number = next(_numbers)
        self._opened = AsyncExitStack()

    def named(self, name: str) -> str:
        """Return the name of a use case on the store, which tests share."""
        return f"{name}_{self._number}"

    async def open(
        self, declared: str | UseCase = "orders", *, url: str | None = None, **policy: Any
    ) -> Tracker:
        """Return another tracker, closed at the end of the test; failed tasks are due at once.

        *url* is another address of the same store.
        """
        use_case = declared if isinstance(declared, UseCase) else UseCase(self.named(declared))
        ledger = await self._ledger(use_case.name, url or self.url)
        await ledger.notes.set_policy(
            stored_settings({"backoff_base": 0, **use_case.policy, **policy})
        )
        policy_now = Policy.of(await ledger.notes.policy())
        tracker = Tracker(ledger, use_case, policy_now, give_up=timedelta(seconds=30))
        self._opened.push_async_callback(tracker.close)
        return tracker

    async def _ledger(self, name: str, url: str) -> Ledger:
        if self.is_mongodb:
            return await MongoLedger.open(
                url, name, claims="batch", clock=self.clock, kind=LedgerKind.USE_CASE
            )
        return await SqliteLedger.open(self.path, name, clock=self.clock, kind=LedgerKind.USE_CASE)

    async def close(self) -> None:
        await self._opened.aclose()

    @property
    def path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    def documents(self, name: str) -> list[dict[str, Any]]:
        """Return the tasks as the store's own client sees them."""
        if self.is_mongodb:
            with pymongo.MongoClient(self.url, tz_aware=True) as client:
                return list(client.get_default_database()[name].find())
        with closing(sqlite3.connect(self.path)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(f'SELECT * FROM "{name}"')]

    def execute(self, statement: str, *values: Any) -> None:
        """Run a statement on the file by SQLite's own client."""
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(statement, values)


async def task_of(tracker: Tracker, key: str) -> Task:
    """Return a task, as a claim needs it."""
    record = await tracker.ledger.tasks.get(key_id(key))
    assert record is not None
    return record.task


async def due_keys(tracker: Tracker, *, limit: int = 1000) -> list[str]:
    """Return the keys of the tasks that can be claimed now, in order."""
    return [task.url for task in await tracker.ledger.tasks.page(limit=limit)]


async def finish(tracker: Tracker, *keys: str, **data: Any) -> None:
    """Finish tasks."""
    for key in keys:
        async with tracker.start(key) as execution:
            execution.data.update(data)


class DeclinedError(Exception):
    """The failure of an attempt in these tests."""


async def fail(tracker: Tracker, *keys: str, times: int = 1) -> None:
    """Let attempts fail."""
    for key in keys:
        for _ in range(times):
            try:
                async with tracker.start(key):
                    raise DeclinedError("the card was declined")
            except DeclinedError:
                pass


@asynccontextmanager
async def that_may_be_cut_off(use_cases: UseCases) -> AsyncIterator[tuple[Proxy, Tracker]]:
    """A tracker that gives up at once, and the network between it and its server."""
    with proxied(use_cases.url) as (network, url):
        tracker = await use_cases.open(url=f"{url}&timeoutMS=1000")
        tracker.session.retry.shorten(timedelta(0))
        yield network, tracker
        network.mend()
        await tracker.close()
