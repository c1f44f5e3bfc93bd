"""Assemble the ledger on MongoDB from its parts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Self

from crawlcw.ledger import examination, protocol, queries
from crawlcw.ledger.admin import Admin
from crawlcw.ledger.copying import LedgerCopier
from crawlcw.ledger.item_keys import ItemKeys
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo.blobs import Blobs, Items
from crawlcw.ledger.mongo.changes import Changes
from crawlcw.ledger.mongo.connection import close_client, connected, mapped
from crawlcw.ledger.mongo.copying import LedgerContents
from crawlcw.ledger.mongo.groups import Groups
from crawlcw.ledger.mongo.host_leases import MongoHostLeases
from crawlcw.ledger.mongo.hosts import MongoHosts
from crawlcw.ledger.mongo.inspection import Inspection, Schema
from crawlcw.ledger.mongo.leases import Leases
from crawlcw.ledger.mongo.outcomes import Outcomes
from crawlcw.ledger.mongo.store import BY_LEFT, BY_OWNER, BY_READY, LONG_AGO, SCHEMA, MongoStore
from crawlcw.ledger.mongo.table import Index, Table
from crawlcw.ledger.mongo.task_table import Raw, Results, TaskTable
from crawlcw.ledger.mongo.tasks import Tasks
from crawlcw.ledger.notes import Notes, SpiderStates
from crawlcw.ledger.port import LedgerTables, Path
from crawlcw.ledger.sessions import Sessions
from crawlcw.ledger.workers import Rates, Workers

_IS_READY = {"ready_at": {"$gt": LONG_AGO}}
_OF_HOSTS = {
    Path.READY: Index(BY_READY, [("ready_at", 1)], _IS_READY),
    Path.LAST_READY: Index(BY_READY, [("ready_at", -1)], _IS_READY),
    Path.OWNER: Index(BY_OWNER, [("owner", 1)], {"owner": {"$gt": ""}}),
}
_OF_WORKERS = {Path.LEFT: Index(BY_LEFT, [("left_at", 1), ("_id", 1)])}


def ledger_tables_on(store: MongoStore, items: Items, blobs: Blobs) -> LedgerTables:
    """Return MongoDB's implementation of `port.LedgerTables`."""
    tasks = TaskTable(store, blobs)
    hosts = Table(store.hosts, nullable_fields=("owner",), indexes=_OF_HOSTS)
    return LedgerTables(
        marker=store.marker,
        state=store.state,
        hosts=hosts,
        # Leases of hosts need durable writes, because a failover that undoes a lease would leave a
        # host with two owners.
        host_leases=hosts,
        workers=Table(store.workers, nullable_fields=("left_at",), indexes=_OF_WORKERS),
        sessions=store.sessions,
        item_keys=store.item_keys,
        rates=store.rates,
        tasks=tasks,
        groups=Groups(store),
        results=Results(store, tasks, items),
        raw=Raw(store),
    )


class MongoLedger:
    """The ledger of one spider or use case in a MongoDB database."""

    def __init__(self, store: MongoStore) -> None:
        """Create the parts of the ledger; call `inspection.prepare` before their use."""
        self.store = store
        items, blobs, hosts = Items(store), Blobs(store), MongoHosts(store)
        store.ledger_tables = ledger_tables_on(store, items, blobs)
        self.hosts: protocol.Hosts = hosts
        self._schema = Schema(store)
        self.tasks: protocol.Tasks = Tasks(store, items)
        self.leases: protocol.Leases = Leases(store)
        self.outcomes: protocol.Outcomes = Outcomes(store, items)
        self.host_leases: protocol.HostLeases = MongoHostLeases(store, hosts)
        self.workers = Workers(store, hosts)
        self.rates = Rates(store)
        self.groups = queries.Groups(store)
        self.queries = queries.Queries(store)
        self.admin = Admin(store, hosts)
        self.notes = Notes(store)
        self.sessions = Sessions(store)
        self.item_keys = ItemKeys(store)
        self.spider_state = SpiderStates(store)
        self.copier = LedgerCopier(store, LedgerContents(store, items, blobs))
        self.blobs: protocol.Blobs = blobs
        self.changes: protocol.Changes = Changes(store)
        self.inspection: examination.Inspection = Inspection(store, self._schema)

    @classmethod
    async def open(
        cls,
        url: str,
        spider: str,
        *,
        driver: str = "pymongo",
        claims: str = "each",
        clock: Callable[[], datetime] | None = None,
        kind: LedgerKind | None = None,
        create: bool = True,
    ) -> Self:
        """Connect to *url* and prepare the collections of a spider or a use case.

        The database is the path of the URL, by default `crawlcw`. *driver* is `pymongo` or `motor`,
        and `MongoStore` describes *claims*. *kind* is the kind of the tasks; None means the
        recorded kind, or else the kind `SPIDER`. If *create* is false, `open` raises
        `UnknownNameError` for a missing name. If the ledger also has all its collections and
        indexes, `open` writes nothing. Raises `LedgerUnavailableError` if no server answers within
        5 s, and `LedgerConfigurationError` for an unsuitable server or missing privileges.
        """
        ledger = cls(_connected(url, spider, driver=driver, claims=claims, clock=clock, kind=kind))
        async with ledger._closed_on_error():
            marker = None
            if kind is None or not create:
                marker = await ledger._schema.read_marker(kind)
            if create or not await ledger._schema.is_complete(marker):
                await ledger._schema.prepare()
        return ledger

    async def reconnected(self) -> "MongoLedger":
        """See `Ledger.reconnected`; a ledger without a URL uses the same database object again."""
        store = self.store
        claims = "batch" if store.claims_in_batches else "each"
        options: dict[str, Any] = {"claims": claims, "clock": store.now, "kind": store.kind}
        if store.url is None:
            return MongoLedger(MongoStore(store.database, store.name, **options))
        return MongoLedger(_connected(store.url, store.name, driver=store.driver, **options))

    @classmethod
    async def open_existing(
        cls,
        url: str,
        spider: str,
        *,
        driver: str = "pymongo",
        clock: Callable[[], datetime] | None = None,
        kind: LedgerKind | None = None,
    ) -> Self:
        """Connect to *url* for inspection, without creating anything.

        `open_existing` has the arguments and errors of `open`. Missing or wrong indexes are no
        error; `health` reports them.
        """
        ledger = cls(_connected(url, spider, driver=driver, clock=clock, kind=kind))
        async with ledger._closed_on_error():
            await ledger._schema.read_marker(kind)
        return ledger

    @asynccontextmanager
    async def _closed_on_error(self) -> AsyncIterator[None]:
        """Check the server; close the ledger if the check or the `async with` block fails."""
        try:
            await self._schema.check_server()
            yield
        except BaseException:
            await self.close()
            raise

    @staticmethod
    async def discard(url: str, spider: str, *, driver: str = "pymongo") -> None:
        """Delete all data of a spider or a use case, of any format."""
        # Use the kind `USE_CASE`, because its collections include all collections of a spider.
        store = _connected(url, spider, driver=driver, clock=None, kind=LedgerKind.USE_CASE)
        try:
            await store.drop()
        finally:
            await store.close()

    @staticmethod
    async def recorded_names(url: str, *, driver: str = "pymongo") -> list[str]:
        """Return the sorted names of all spiders and use cases that have tasks."""
        client, database = connected(url, driver)
        try:
            with mapped():
                markers = await database[SCHEMA].find({}, {"_id": 1}).sort("_id", 1).to_list(None)
                return [
                    marker["_id"]
                    for marker in markers
                    if await database[marker["_id"]].find_one({}, {"_id": 1}) is not None
                ]
        finally:
            await close_client(client)

    @property
    def kind(self) -> LedgerKind:
        """See `Ledger.kind`."""
        return self.store.kind

    def now(self) -> datetime:
        """Return the server's time, computed from the last measurement of its clock."""
        return self.store.now()

    async def close(self) -> None:
        """Close the client if this ledger has opened the client."""
        await self.store.close()


def _connected(url: str, spider: str, *, driver: str, **options: Any) -> MongoStore:
    client, database = connected(url, driver)
    return MongoStore(database, spider, client=client, url=url, driver=driver, **options)
