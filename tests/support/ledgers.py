"""Tasks, clocks and ledgers for tests."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.port import LedgerTables
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger_opening import open_ledger
from crawlcw.model import transitions, urls
from crawlcw.model.identities import Identity
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import ChangedTask, Lease, ResponseInfo, Task, task_id
from crawlcw.model.transitions import Failed, Outcome, Settlement, Succeeded
from crawlcw.model.values import cleaned_item
from crawlcw.model.visits import Visit
from tests.support.mongod import with_database

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=60)
POLICY = RetryPolicy()
#: The stores of the contract tests. Quick runs use a file, thorough ones each store and driver.
BACKENDS = (
    pytest.param("sqlite", marks=pytest.mark.quick),
    "pymongo",
    pytest.param("mongomock", marks=pytest.mark.thorough),
    pytest.param("motor", marks=pytest.mark.thorough),
    pytest.param("pymongo-batch", marks=pytest.mark.thorough),
    pytest.param("postgres", marks=pytest.mark.thorough),
)


class PatchedFacet:
    """A facet of a ledger with some operations replaced by a test."""

    def __init__(self, facet: Any, **operations: Any) -> None:
        self._facet = facet
        vars(self).update(operations)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facet, name)


class PatchedLedger(SqliteLedger):
    """A ledger in a file of which a test's subclass replaces some operations.

    `patched` names them with their facets, as `tasks.add`; the method of the same name
    is called instead. `real` has the operations of the store.
    """

    patched: tuple[str, ...] = ()

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self.real = SqliteLedger(store)
        for name in self.patched:
            facet, operation = name.split(".")
            replaced = {operation: getattr(self, operation)}
            setattr(self, facet, PatchedFacet(getattr(self, facet), **replaced))
        self.begin_log()

    def begin_log(self) -> None:
        """Make the events and logs of a subclass."""


class FakeClock:
    """A frozen clock; only the test advances it."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time

    def advance(self, *, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class LedgerFactory:
    """Factory for clients of one ledger, which share a frozen clock."""

    def __init__(self, open_client: Callable[["LedgerFactory"], Awaitable[Ledger]]) -> None:
        self.clock = FakeClock()
        self._open_client = open_client
        self._opened = AsyncExitStack()

    async def open(self) -> Ledger:
        """Return another client, closed at the end of the test."""
        ledger = await self._open_client(self)
        self._opened.push_async_callback(ledger.close)
        return ledger

    async def close(self) -> None:
        await self._opened.aclose()


def on_sqlite(folder: Path, *, tracked: bool = False) -> LedgerFactory:
    path = folder / "ledger.db"
    # The default is the ledger of a spider.
    kind = LedgerKind.USE_CASE if tracked else None
    return LedgerFactory(lambda own: SqliteLedger.open(path, "books", clock=own.clock, kind=kind))


def on_mongomock(*, tracked: bool = False) -> LedgerFactory:
    # Only thorough tests need it, and the processes of others need not load it.
    from tests.support import mongomock_double

    database = mongomock_double.database()

    async def open_client(own: LedgerFactory) -> Ledger:
        ledger = mongomock_double.ledger(
            database, "books", clock=own.clock, kind=LedgerKind.of(tracked)
        )
        await ledger.inspection.prepare()
        return ledger

    return LedgerFactory(open_client)


def on_mongodb(
    uri: str, database: str, *, driver: str = "pymongo", claims: str = "each", tracked: bool = False
) -> LedgerFactory:
    url = with_database(uri, database)
    return LedgerFactory(
        lambda own: MongoLedger.open(
            url, "books", driver=driver, claims=claims, clock=own.clock, kind=LedgerKind.of(tracked)
        )
    )


def on_postgres(url: str, *, tracked: bool = False) -> LedgerFactory:
    # Only tests of this store need its driver.
    from crawlcw.ledger.postgres import PostgresLedger

    kind = LedgerKind.of(tracked)
    return LedgerFactory(lambda own: PostgresLedger.open(url, "books", clock=own.clock, kind=kind))


_POSTGRES_MARKER = "crawlcw.ledgers"


def empty_postgres(url: str) -> None:
    """Delete every row but a name's format, and leave the tables: to make them takes longest."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        names = db.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname LIKE 'crawlcw%'"
        ).fetchall()
        for (name,) in names:
            if name == _POSTGRES_MARKER:
                # Without its format the tables would be those of another version.
                kept = "tracked = NULL, policy = NULL, state = NULL, control = NULL"
                db.execute(f"UPDATE {name} SET {kept}".encode())
            else:
                db.execute(f"DELETE FROM {name}".encode())


def drop_postgres(url: str) -> None:
    """Drop a database, and end its connections.

    Each has some 300 files: to delete those of all tests at the end of a run takes minutes.
    """
    import psycopg

    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as db:
        db.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def on_backend(
    request: pytest.FixtureRequest, folder: Path, *, tracked: bool = False
) -> LedgerFactory:
    """Return a ledger on the store of a fixture's parameter, one of `BACKENDS`."""
    if request.param == "sqlite":
        return on_sqlite(folder, tracked=tracked)
    if request.param == "mongomock":
        return on_mongomock(tracked=tracked)
    if request.param == "postgres":
        return on_postgres(request.getfixturevalue("emptied_postgres"), tracked=tracked)
    driver, _, claims = request.param.partition("-")
    return on_mongodb(
        request.getfixturevalue("mongodb_uri"),
        request.getfixturevalue("emptied_database"),
        driver=driver,
        claims=claims or "each",
        tracked=tracked,
    )


def drop_database(uri: str, name: str) -> None:
    with pymongo.MongoClient(uri) as client:
        client.drop_database(name)


def empty_database(uri: str, name: str) -> None:
    """Delete every document, but keep collections and indexes: creating them takes longest."""
    with pymongo.MongoClient(uri) as client:
        for collection in client[name].list_collections():
            client[name][collection["name"]].delete_many({})


def make_task(url: str = "http://example.com/", **overrides: Any) -> Task:
    """Return a new task that is due at the clock's start."""
    location = urls.locate(url)
    found: dict[str, Any] = {
        "id": task_id(location),
        "url": location.url,
        "host": location.host,
        "due": START,
        "update_time": START,
        "create_time": START,
    }
    return Task(**found | overrides)


def make_lease(task: Task | None = None) -> Lease:
    """Return a lease that is in no ledger."""
    return Lease(task=task or make_task(), token="a:1", fence=1, expires=START + LEASE)


def changed_task(url: str, *, changed: datetime) -> ChangedTask:
    """Return a new task whose page has changed."""
    task = make_task(url)
    return ChangedTask(**{f.name: getattr(task, f.name) for f in fields(task)}, changed=changed)


def visit(**overrides: Any) -> Visit:
    """Return a visit at the clock's start."""
    return Visit(**{"time": START, "changed": START} | overrides)


async def url_of_one_task(folder: Path) -> str:
    """Return the URL of a new ledger in a file, with a task of the spider `books`."""
    url = f"sqlite:///{folder}/ledger.db"
    ledger = await open_ledger(url, "books")
    await ledger.tasks.add([make_task()])
    await ledger.close()
    return url


def make_tasks(number: int, **overrides: Any) -> list[Task]:
    return [make_task(f"http://example.com/{n}", **overrides) for n in range(number)]


async def sessions_in(ledger: Any) -> list[Identity]:
    """Return every session, by name."""

    async def names(tables: LedgerTables) -> list[str]:
        return [each["_id"] for each in await tables.sessions.scan({}, limit=1000)]

    found = [await ledger.sessions.get(name) for name in await ledger.store.reading(names)]
    return [each for each in found if each is not None]


async def claimed(ledger: Ledger, *, worker: str = "a", limit: int = 1000) -> list[Lease]:
    """Claim all due tasks."""
    page = await ledger.tasks.page(limit=limit)
    return list((await ledger.leases.claim(page, worker=worker, lease=LEASE, max_lost=3)).leases)


async def worked(ledger: Ledger, note: Callable[[str], None]) -> Lease:
    """Fail one of three tasks and release another, naming each write; return the third one's."""
    await ledger.tasks.add(make_tasks(3))
    note("add")
    first, second, third = await claimed(ledger)
    note("claim")
    await ledger.leases.begin(first)
    note("begin")
    await ledger.leases.renew([first, second, third], lease=LEASE)
    note("renew")
    await ledger.outcomes.commit([failure(ledger, first, Reason.TLS)])
    note("commit")
    await ledger.outcomes.release([second])
    note("release")
    return third


async def claimed_one(ledger: Ledger, *, worker: str = "a") -> Lease:
    (lease,) = await claimed(ledger, worker=worker)
    return lease


def settled(
    ledger: Ledger, lease: Lease, outcome: Outcome, *, policy: RetryPolicy = POLICY
) -> Settlement:
    return transitions.settle(lease, outcome, now=ledger.now(), policy=policy, chance=0.5)


def success(ledger: Ledger, lease: Lease, *items: Any, url: str | None = None) -> Settlement:
    """Settle a lease with cleaned items, as a crawl does."""
    response = ResponseInfo(status=200, final_url=url) if url else None
    cleaned = tuple(cleaned_item(item) for item in items)
    return settled(ledger, lease, Succeeded(response=response, items=cleaned))


def failure(
    ledger: Ledger,
    lease: Lease,
    reason: Reason = Reason.CONNECT,
    *,
    message: str = "",
    status: int | None = None,
    policy: RetryPolicy = POLICY,
) -> Settlement:
    outcome = Failed(reason=reason, message=message, status=status)
    return settled(ledger, lease, outcome, policy=policy)
