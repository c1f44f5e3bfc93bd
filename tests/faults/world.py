"""A small ledger with tasks and hosts in every state, behind a network with faults."""

import asyncio
import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pymongo
import pytest
from pymongo import common

from crawlcw.engine import ledger_retry
from crawlcw.engine.ledger_retry import LedgerRetry
from crawlcw.errors import Reason
from crawlcw.ledger import documents, hosts
from crawlcw.ledger.mongo import MongoLedger, blobs
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import Counters, Worker
from crawlcw.model.hosts import Host, HostLease
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import Succeeded, too_deep
from tests.faults.invariants import Documents
from tests.faults.proxy import Proxy, proxied
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    failure,
    make_task,
    settled,
    success,
    visit,
)

T = TypeVar("T")

#: Limit for one call, with the driver's wait for the server and a margin for a busy machine.
BOUND = timedelta(seconds=3)
NOW = START + timedelta(seconds=10)
LARGE = "x" * 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """State of the ledger at the start of an operation."""

    todo: list[Task]
    nearer: list[Task]  #: within the depth limit, and in the ledger as too deep
    leases: list[Lease]  #: live leases of the worker `a`
    stale: Lease  #: a lease that `a` has lost to another worker
    others: list[Lease]  #: all other leases
    hosts: list[HostLease]  #: live leases of `a`
    other_hosts: list[HostLease]


class World(ABC):
    """One database, with a ledger behind the proxy, and one that connects directly."""

    def __init__(self, url: str, driver: str) -> None:
        self.clock = FakeClock()
        self.driver = driver
        self.url = url
        self._runner = asyncio.Runner()
        self._sender = LedgerRetry(timedelta(seconds=20))

    @contextmanager
    def opened(self) -> Iterator["World"]:
        with self._runner, proxied(self.url) as (self.proxy, near), self._connected(near):
            try:
                self.setting = self.run(self._arrange())
                self.before = self.documents()
                self._keep()
                yield self
            finally:
                self.run(self.far.close())

    proxy: Proxy
    far: Any  #: the ledger that connects directly
    near: Any  #: the ledger behind the proxy
    late: timedelta  #: for a message whose client has given up, on PostgreSQL

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def begin(self, *, claims: str = "each") -> None:
        """Restore the setting, and start a new process behind the proxy."""
        self.proxy.plan(None)
        self._restore()
        self.clock.time = NOW
        self.claims = claims
        self.sendings = 0
        self.near = self._process()

    @abstractmethod
    def _connected(self, near: str) -> AbstractContextManager[None]:
        """Open the ledger `far`; *near* is the URL through the proxy."""

    @abstractmethod
    def _process(self) -> Any:
        """Return the ledger of a new process behind the proxy."""

    @abstractmethod
    def documents(self) -> Documents:
        """Return all documents on the server."""

    @abstractmethod
    def _keep(self) -> None:
        """Keep the present documents for `_restore`."""

    @abstractmethod
    def _restore(self) -> None:
        """Restore the documents of `_keep`."""

    async def send(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation until it is answered, as every caller in a crawl does."""

        async def once() -> T:
            began = time.monotonic()
            self.sendings += 1
            try:
                return await operation()
            finally:
                assert time.monotonic() - began < BOUND.total_seconds()

        return await self._sender.call("look", once)

    def held(self) -> tuple[list[Lease], list[HostLease]]:
        """Return all leases in the ledger, of any worker."""
        found = self.documents()
        tasks = [
            Lease(
                task=documents.task(task),
                token=task["lock"],
                fence=task["fence"],
                expires=task["due"],
            )
            for task in found["books"].values()
            if task["lock"] is not None
        ]
        hosts = [
            documents.host_lease(host)
            for host in found["books.hosts"].values()
            if host["owner"] is not None
        ]
        return tasks, hosts

    async def _arrange(self) -> Setting:
        far, clock = self.far, self.clock
        clock.time = START - timedelta(seconds=100)
        for name in ("a", "dead"):
            await far.workers.join(worker(name, started=clock.time))
        tasks = [make_task(f"http://{host}.com/{n}") for host in "pq" for n in range(5)]
        # Different priorities fix the order, and make `next_due` read more than once.
        tasks = [replace(task, priority=5 - n % 5, due=clock.time) for n, task in enumerate(tasks)]
        await far.tasks.add(tasks)
        await far.hosts.wake({f"{host}.com": clock.time for host in "pqrst"})
        deep = [make_task(f"http://{host}.com/deep", depth=7, due=clock.time) for host in "pu"]
        await far.tasks.add([too_deep(task) for task in deep])
        await far.notes.set_state({"seeds": {"hosts": ["p.com"]}})

        async def claim(n: int, name: str, lease: timedelta) -> Lease:
            (page,) = [task for task in await far.tasks.page(limit=50) if task.id == tasks[n].id]
            claimed = await far.leases.claim([page], worker=name, lease=lease, max_lost=3)
            return claimed.leases[0]

        async def host_leases(name: str, limit: int) -> list[HostLease]:
            return await far.host_leases.lease(worker=name, limit=limit, lease=LEASE)

        stale = await claim(0, "a", timedelta(seconds=50))
        (gone,) = await host_leases("dead", 1)  # p.com, and its lease runs out
        finished = await claim(1, "dead", LEASE)
        await far.outcomes.commit([success(far, finished, {"n": 1}, {"large": LARGE})])
        finished = await claim(2, "dead", LEASE)
        # Its revisit time has passed, but only `revisit_due` makes it due.
        again = Succeeded(items=({"n": 2}, {"n": 3}), visit=visit(), revisit=visit().time)
        await far.outcomes.commit([settled(far, finished, again)])
        await far.outcomes.commit([failure(far, await claim(3, "dead", LEASE), Reason.TLS)])
        clock.time = START
        await far.outcomes.commit([failure(far, await claim(5, "dead", LEASE), Reason.CONNECT)])
        others = [
            await claim(0, "other", LEASE),  # taken over from `a`, which keeps the stale lease
            await claim(6, "dead", timedelta(seconds=5)),  # it runs out before NOW
            await claim(7, "dead", LEASE),
        ]
        leases = [await claim(8, "a", LEASE), await claim(9, "a", LEASE)]
        hosts = await host_leases("a", 2)
        hosts = [lease for lease in hosts if lease.host.name != gone.host.name]
        assert {lease.host.name for lease in hosts} <= {"q.com", "r.com", "s.com", "t.com"}
        (asleep,) = await host_leases("b", 1)
        await far.host_leases.release([(asleep, asleep.host)])
        clock.time = NOW
        _, owned = self.held()
        known = {lease.host.name for lease in hosts}
        return Setting(
            todo=[tasks[4]],
            nearer=[replace(task, depth=2, due=NOW) for task in deep],
            leases=leases,
            stale=stale,
            others=others,
            hosts=hosts,
            other_hosts=[lease for lease in owned if lease.host.name not in known],
        )


class MongoWorld(World):
    """The same on MongoDB."""

    _COLLECTIONS = (
        *("books", "books.hosts", "books.workers", "books.rates", "books.items"),
        "crawlcw.schema",
    )
    #: Timeout of one command, set in the driver.
    _TIMEOUT = timedelta(seconds=0.3)
    #: In streaming mode, the driver's monitor takes half a second to see an error.
    _OPTIONS = f"timeoutMS={round(_TIMEOUT.total_seconds() * 1000)}&serverMonitoringMode=poll"

    @contextmanager
    def _connected(self, near: str) -> Iterator[None]:
        near += ("&" if "?" in near else "?") + self._OPTIONS
        with pymongo.MongoClient(self.url, tz_aware=True) as client:
            self._database = client.get_default_database()
            self.far = self.run(MongoLedger.open(self.url, "books", clock=self.clock))
            # The short timeout is for the faults; on a busy server, opening may take longer.
            opened = self.run(
                self._sender.call(
                    "look", lambda: MongoLedger.open(near, "books", driver=self.driver)
                )
            )
            self._near = opened.store.database
            try:
                yield
            finally:
                self.run(opened.close())
                client.drop_database(self._database.name)

    def _process(self) -> MongoLedger:
        return MongoLedger(MongoStore(self._near, "books", claims=self.claims, clock=self.clock))

    def documents(self) -> Documents:
        """See `World.documents`."""
        return {
            name: {
                str(each["_id"]) if isinstance(each["_id"], dict) else each["_id"]: each
                for each in self._database[name].find()
            }
            for name in self._COLLECTIONS
        }

    def _keep(self) -> None:
        """Do nothing: the documents are kept already."""

    def _restore(self) -> None:
        for name in self._COLLECTIONS:
            collection = self._database[name]
            collection.delete_many({})
            if before := self.before[name]:
                collection.insert_many(copy.deepcopy(list(before.values())))


def worker(name: str, *, started: datetime = NOW) -> Worker:
    return Worker(name=name, machine="m", pid=1, birth="1", started=started, heartbeat=started)


def learned(lease: HostLease, **more: Any) -> tuple[HostLease, Host]:
    """Return the lease of a host with the state that its owner writes."""
    fields = {"delay": 1.5, "finished": 7, "not_before": NOW, **more}
    return lease, replace(lease.host, **fields)


COUNTERS = Counters(pages=3, items=7, fetched=5, bytes=900, links_dropped={"depth": 2})


@contextmanager
def quick() -> Iterator[None]:
    """Shorten waits and limits for the tests."""
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise the driver's monitor checks the server only twice a second.
        patch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.01)
        patch.setattr(ledger_retry, "_FIRST_DELAY_S", 0.01)
        patch.setattr(blobs, "_LARGE_ITEM_BYTES", len(LARGE))
        patch.setattr(hosts, "_BATCH_SIZE", 2)
        yield
