"""PostgreSQL alone: claims side by side, notifications, errors, and faults of the server."""

import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerKindError,
    LedgerUnavailableError,
)
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Added, Ledger, TaskFilter
from crawlcw.ledger_opening import open_ledger, recorded_names
from crawlcw.model.task import Lease
from tests.support import needed, postgres
from tests.support.commands import invoke
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    claimed,
    make_task,
    make_tasks,
    success,
    worked,
)
from tests.support.mongod import free_port

psycopg = needed.module("psycopg", extra="postgres")

from crawlcw.ledger.postgres import PostgresLedger, connection  # noqa: E402  # needs psycopg

SECRET = "se-cret"
CLAIMERS = 16
#: Commands, without the name, that only look at a ledger.
LOOKS = (
    ("stats",),
    ("hosts",),
    ("tasks",),
    ("export", "-o", "-"),
    ("state",),
    ("set",),
    ("doctor",),
    ("retry-failed", "--dry-run"),
)
#: Far longer than any step here.
ENOUGH = 30


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ledger(emptied_postgres: str, clock: FakeClock) -> AsyncIterator[PostgresLedger]:
    async with opened(emptied_postgres, clock=clock) as one:
        yield one


@asynccontextmanager
async def opened(url: str, name: str = "books", **options: Any) -> AsyncIterator[PostgresLedger]:
    ledger = await PostgresLedger.open(url, name, **options)
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def several(ledger: PostgresLedger, number: int) -> AsyncIterator[list[PostgresLedger]]:
    """Open more ledgers, each with connections of its own, that are connected already."""
    others = [await ledger.reconnected() for _ in range(number)]
    try:
        await asyncio.gather(*(other.tasks.page(limit=1) for other in others))
        yield others
    finally:
        for other in others:
            await other.close()


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a deadlock reach the caller, which is otherwise hidden by doing its operation again."""
    monkeypatch.setattr(connection, "_MAX_TRIES", 0)


@contextmanager
def interrupted(ledger: PostgresLedger, work: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Let other work follow the first statement of the ledger's next transaction."""
    loop = asyncio.get_running_loop()
    execute, db = connection.Database.execute, ledger.store.writer._db
    coming = [work]

    def followed(own: connection.Database, statement: str, values: Any = ()) -> Any:
        done = execute(own, statement, values)
        if own is db and own.in_transaction and coming:
            asyncio.run_coroutine_threadsafe(coming.pop()(), loop).result(ENOUGH)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.Database, "execute", followed)
        yield


async def until_done_or_waiting(operation: asyncio.Task[Any], url: str) -> None:
    """Wait until an operation is done, or waits for a lock of another one."""
    waiting = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(url, autocommit=True) as db:
        while not operation.done() and not db.execute(waiting).fetchone():
            await asyncio.sleep(0.01)


# --- side by side


@pytest.mark.usefixtures("one_try")
async def test_claimers_at_once_hold_each_task_once(ledger: PostgresLedger):
    tasks = make_tasks(400)
    await ledger.tasks.add(tasks)
    page = await ledger.tasks.page(limit=1000)

    async def claim(number: int, own: Ledger) -> tuple[Lease, ...]:
        mine = random.Random(number).sample(page, len(page))
        done = await own.leases.claim(mine, worker=f"w{number}", lease=LEASE, max_lost=3)
        assert len(done.leases) + done.missed == len(page)
        return done.leases

    async with several(ledger, CLAIMERS) as claimers:
        held = await asyncio.gather(*(claim(n, own) for n, own in enumerate(claimers)))

    ids = [lease.task.id for leases in held for lease in leases]
    assert len(ids) == len(set(ids))
    assert set(ids) == {task.id for task in tasks}


async def test_a_host_whose_lease_is_not_committed_is_not_leased(ledger: PostgresLedger):
    names = {f"h{n}.example" for n in range(4)}
    await ledger.hosts.wake(dict.fromkeys(names, START))
    held: list[str] = []
    async with several(ledger, 1) as (other,):

        async def lease(own: Ledger, worker: str, limit: int) -> None:
            leases = await own.host_leases.lease(worker=worker, limit=limit, lease=LEASE)
            held.extend(each.host.name for each in leases)

        with interrupted(ledger, lambda: lease(other, "b", 4)):
            await lease(ledger, "a", 2)

    assert sorted(held) == sorted(names)


@pytest.mark.usefixtures("one_try")
async def test_urls_added_in_opposite_order_are_added_once(
    ledger: PostgresLedger, emptied_postgres: str
):
    tasks = sorted(make_tasks(1000), key=lambda task: task.id)
    adding: list[asyncio.Task[Added]] = []
    async with several(ledger, 1) as (other,):

        async def add_in_opposite_order() -> None:
            adding.append(asyncio.create_task(other.tasks.add(tasks[::-1])))
            await until_done_or_waiting(adding[0], emptied_postgres)

        with interrupted(ledger, add_in_opposite_order):
            first = await ledger.tasks.add(tasks)
        added = [first, await adding[0]]

    assert sum(each.new for each in added) == len(tasks)
    assert [each.new + each.existing for each in added] == [len(tasks)] * 2


async def test_a_wake_up_beside_a_release_is_not_lost(ledger: PostgresLedger):
    """The waking process sees a host that is held, whose release is not committed yet."""
    task = make_task()
    await ledger.hosts.wake({task.host: START})
    (lease,) = await ledger.host_leases.lease(worker="a", limit=1, lease=LEASE)
    async with several(ledger, 1) as (other,):

        async def add() -> None:
            await other.tasks.add([task])
            await other.hosts.wake({task.host: START})

        with interrupted(ledger, add):
            await ledger.host_leases.release([(lease, replace(lease.host, ready_at=None))])

    assert await ledger.host_leases.lease(worker="b", limit=1, lease=LEASE)


async def test_a_process_that_is_silent_within_a_transaction_keeps_no_rows(
    ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
):
    await ledger.tasks.add(make_tasks(1))
    (lease,) = await claimed(ledger)
    settings = ["SET idle_in_transaction_session_timeout = '200ms'"]
    is_locked, is_renewed = threading.Event(), threading.Event()

    def stand_still(db: connection.Database) -> None:
        with db.transaction():
            db.execute(f"SELECT id FROM {ledger.store.tables.tasks} FOR UPDATE")
            is_locked.set()
            assert is_renewed.wait(ENOUGH)
            db.execute("SELECT 1")

    async with several(ledger, 1) as (silent,):
        monkeypatch.setattr(connection, "_SETTINGS", settings)
        standing = asyncio.create_task(silent.store.writer.run(stand_still))
        assert await asyncio.to_thread(is_locked.wait, ENOUGH)

        lost = await ledger.leases.renew([lease], lease=LEASE)
        is_renewed.set()
        with pytest.raises(LedgerUnavailableError, match="idle-in-transaction"):
            await standing

    assert lost == set()


# --- durability


async def test_claims_are_quick_and_outcomes_durable(
    ledger: PostgresLedger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    execute = psycopg.Connection.execute

    def noted(own: Any, statement: Any, *args: Any, **options: Any) -> Any:
        said.append(str(statement))
        return execute(own, statement, *args, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    durable: dict[str, bool] = {}

    def note(operation: str) -> None:
        (commit,) = [each for each in said if each.endswith("COMMIT") and "READ ONLY" not in each]
        durable[operation] = "synchronous_commit = off" not in commit
        said.clear()

    third = await worked(ledger, note)
    await ledger.hosts.wake({"example.com": START})
    note("wake")
    (host,) = await ledger.host_leases.lease(worker="a", limit=1, lease=LEASE)
    note("lease_hosts")
    await ledger.host_leases.renew([host], lease=LEASE)
    note("renew_hosts")
    await ledger.admin.retry_failed(TaskFilter())
    said.clear()
    await ledger.leases.begin(third)
    clock.advance(seconds=LEASE.total_seconds() + 1)
    page = await ledger.tasks.page(limit=3)
    said.clear()
    given_up = await ledger.leases.claim(page, worker="b", lease=LEASE, max_lost=1)
    note("abandon")

    assert given_up.abandoned == 1
    quick = {name for name, is_durable in durable.items() if not is_durable}
    assert quick == {"claim", "renew", "lease_hosts", "renew_hosts"}


async def test_a_server_without_synced_commits_is_told_to_sync_those_of_outcomes(
    postgres_url: str,
):
    with psycopg.connect(postgres_url, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")

    async with opened(postgres_url) as ledger:
        health = await ledger.inspection.health()

    assert health.facts["synchronous_commit"] == "on"


# --- notifications


async def test_a_task_that_is_due_is_told_of_and_a_renewal_is_not(emptied_postgres: str):
    async with opened(emptied_postgres, "use_case", kind=LedgerKind.USE_CASE) as ledger:
        channel = ledger.store.tables.channel
        with psycopg.connect(emptied_postgres, autocommit=True) as db:
            db.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))

            def mark(text: str) -> None:
                db.execute("SELECT pg_notify(%s, %s)", (channel, text))

            await ledger.tasks.add(make_tasks(2))
            mark("added")
            one, other = await claimed(ledger)
            await ledger.leases.begin(one)
            await ledger.leases.renew([one, other], lease=LEASE)
            await ledger.outcomes.commit([success(ledger, one)])
            mark("claimed, renewed and finished")
            await ledger.outcomes.release([other])
            mark("released")
            told = [each.payload for each in db.notifies(timeout=ENOUGH, stop_after=5)]

    assert told == ["", "added", "claimed, renewed and finished", "", "released"]


async def test_a_watch_yields_and_ends_with_its_connection(emptied_postgres: str):
    async with (
        opened(emptied_postgres, "use_case", kind=LedgerKind.USE_CASE) as ledger,
        aclosing(ledger.changes.watch()) as notices,
    ):
        await asyncio.wait_for(anext(notices), ENOUGH)
        await ledger.tasks.add([make_task()])
        await asyncio.wait_for(anext(notices), ENOUGH)

        with psycopg.connect(emptied_postgres, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            )
        with pytest.raises(LedgerUnavailableError, match="server closed the connection"):
            await asyncio.wait_for(anext(notices), ENOUGH)


# --- names


async def test_two_names_in_one_database_do_not_meet(postgres_url: str):
    async with opened(postgres_url, "books") as books, opened(postgres_url, "Books") as others:
        await books.tasks.add(make_tasks(2))
        assert await others.tasks.page(limit=10) == []
        await others.tasks.add(make_tasks(1))
        assert await recorded_names(postgres_url) == ["Books", "books"]
        await others.admin.drop()
        assert len(await books.tasks.page(limit=10)) == 2
    assert await recorded_names(postgres_url) == ["books"]


@pytest.mark.parametrize("name", ["a" * 55, "Upper-Case_9", "it's", 'say "so"', "a.b", "bücher"])
async def test_a_name_is_kept_as_it_is(postgres_url: str, name: str):
    async with (
        opened(postgres_url, name, kind=LedgerKind.USE_CASE) as ledger,
        aclosing(ledger.changes.watch()) as notices,
    ):
        await asyncio.wait_for(anext(notices), ENOUGH)
        await ledger.tasks.add([make_task()])
        await asyncio.wait_for(anext(notices), ENOUGH)
        assert await ledger.store.reader.run(ledger.store.tables.missing) == []

    assert await recorded_names(postgres_url) == [name]


async def test_a_name_that_is_too_long_is_refused(postgres_url: str):
    with pytest.raises(LedgerConfigurationError, match=r"is too long .*use at most 55 bytes"):
        await PostgresLedger.open(postgres_url, "a" * 56)


async def test_a_look_at_an_unknown_name_makes_nothing(postgres_url: str):
    def everything() -> list[Any]:
        with psycopg.connect(postgres_url) as db:
            return db.execute(
                "SELECT nspname, relname FROM pg_namespace LEFT JOIN pg_class "
                "ON relnamespace = pg_namespace.oid ORDER BY 1, 2"
            ).fetchall()

    def look(name: str) -> None:
        for command in LOOKS:
            looked = invoke(*command, name, "--ledger", postgres_url)
            assert looked.returncode == 2, command
            assert "nothing is recorded for a spider or use case named" in looked.stderr
        assert invoke("policy", name, "--ledger", postgres_url).returncode == 0

    before = everything()
    look("books")
    assert everything() == before

    async with opened(postgres_url, "books", kind=LedgerKind.SPIDER) as ledger:
        await ledger.tasks.add(make_tasks(1))
    before = everything()
    look("boks")
    assert everything() == before


async def test_a_name_is_of_one_kind(postgres_url: str):
    async with opened(postgres_url, kind=LedgerKind.SPIDER):
        with pytest.raises(LedgerKindError, match="the database holds a spider named books"):
            await PostgresLedger.open(postgres_url, "books", kind=LedgerKind.USE_CASE)


# --- URLs and rights


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:100%{SECRET}@127.0.0.1/x",
        f"postgresql://u:9/{SECRET}@127.0.0.1/x",
        f"postgresql://u:{SECRET}/{SECRET}@127.0.0.1/x",
        f"postgresql://u:9@{SECRET}@127.0.0.1/x",
        f"postgresql://u:9?{SECRET}=1@127.0.0.1/x",
        f"postgresql://u:9 {SECRET}@127.0.0.1/x",
        f"postgresql://127.0.0.1/x?password={SECRET}@",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str):
    told = invoke("stats", "books", "--ledger", url, "--log-level", "debug")

    assert told.returncode == 78
    assert "write postgresql://user:password@host:port/database" in told.stderr
    assert SECRET not in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("place", "code", "sentence"),
    [
        ("127.0.0.1:{closed}/x", 69, r"port \d+ failed: Connection refused\.$"),
        ("nowhere.invalid/x", 69, "failed to resolve host 'nowhere.invalid'"),
        ("127.0.0.1:99999/x", 78, r'invalid port number: "99999": give a port below 65536\.$'),
        ("127.0.0.1/x?wrong=1", 78, 'invalid URI query parameter: "wrong"'),
    ],
)
def test_a_server_that_is_not_there_is_named(place: str, code: int, sentence: str):
    place = place.format(closed=free_port())
    told = invoke("stats", "books", "--ledger", f"postgresql://u:{SECRET}@{place}")

    assert told.returncode == code
    assert re.search(sentence, told.stderr.rstrip("\n")), told.stderr
    assert told.stderr.count("\n") == 1
    assert SECRET not in told.stderr


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server of these tests, which may be frozen and restarted."""
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres.server(Path(folder) / "server", fsync=False) as own,
    ):
        own.database("ledgers")
        with psycopg.connect(own.url("ledgers"), autocommit=True) as db:
            for user in ("writer", "reader"):
                db.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
            db.execute("GRANT CREATE ON DATABASE ledgers TO writer")
            (rules,) = db.execute("SHOW hba_file").fetchone()
            others = Path(rules).read_text()
            hosts = "127.0.0.1/32 scram-sha-256"
            Path(rules).write_text(
                f"host all writer {hosts}\nhost all reader {hosts}\n"
                f"host all stranger 127.0.0.1/32 reject\n{others}"
            )
            db.execute("SELECT pg_reload_conf()")
            # The server has read the file when it refuses the user.
            deadline = time.monotonic() + ENOUGH
            while _is_admitted(url_of(own, "writer:wrong")):
                assert time.monotonic() < deadline
        yield own


def _is_admitted(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def url_of(server: postgres.Server, user: str, *, database: str = "ledgers") -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("user", "database", "sentence"),
    [
        ("writer:x-{secret}", "ledgers", r"authentication failed .*: check the user and the pass"),
        ("writer", "ledgers", "no password supplied: give the user's password"),
        ("stranger:{secret}", "ledgers", "no encryption: let pg_hba.conf admit the user"),
        ("nobody:{secret}", "ledgers", 'role "nobody" does not exist: name a user'),
        ("writer:{secret}", "none", 'database "none" does not exist: create it with createdb'),
    ],
)
def test_a_server_that_refuses_says_what_helps(
    server: postgres.Server, user: str, database: str, sentence: str
):
    url = url_of(server, user.format(secret=SECRET), database=database)
    told = invoke("stats", "books", "--ledger", url, "--log-level", "debug")

    assert told.returncode == 78
    assert re.search(sentence, told.stderr), told.stderr
    assert SECRET not in told.stderr


@pytest.mark.thorough
async def test_rights_to_read_suffice_to_look_and_not_to_crawl(server: postgres.Server):
    writer, reader = (url_of(server, f"{user}:{SECRET}") for user in ("writer", "reader"))
    async with opened(writer, "read") as ledger:
        await ledger.tasks.add(make_tasks(3))
    with psycopg.connect(writer, autocommit=True) as db:
        db.execute('GRANT USAGE ON SCHEMA crawlcw, "crawlcw.read" TO reader')
        db.execute('GRANT SELECT ON ALL TABLES IN SCHEMA crawlcw, "crawlcw.read" TO reader')

    for command in (
        ("stats", "read"),
        ("hosts", "read"),
        ("tasks", "read"),
        ("export", "read", "-o", "-"),
        ("retry-failed", "read", "--dry-run"),
        ("show", "read", make_tasks(1)[0].url),
        ("set", "read"),
        ("state", "read"),
        ("policy", "new"),
    ):
        looked = invoke(*command, "--ledger", reader)
        assert (looked.returncode, looked.stderr) == (0, ""), command
    unknown = invoke("stats", "raed", "--ledger", reader)
    assert (unknown.returncode, unknown.stderr.count("did you mean read?")) == (2, 1)
    told = invoke("stats", "read", "--ledger", reader, "--json")
    refused = invoke("retry-failed", "read", "--ledger", reader)
    assert (told.returncode, json.loads(told.stdout)["counts"]["todo"]) == (0, 3)
    ready = invoke("doctor", "read", "--ready", "--ledger", reader)
    new = invoke("doctor", "new", "--ready", "--ledger", reader)
    assert (refused.returncode, ready.returncode, new.returncode) == (78, 78, 78)
    assert ready.stderr == "crawlcw: the user may not write to the tables\n"
    assert new.stderr == "crawlcw: the user may not create tables in the database\n"
    assert invoke("doctor", "read", "--ready", "--ledger", writer).returncode == 0
    with pytest.raises(LedgerConfigurationError, match=r"permission denied .* needs CREATE on"):
        await PostgresLedger.open(reader, "new")
    assert SECRET not in told.stderr + refused.stderr


@pytest.mark.thorough
async def test_a_database_that_takes_no_writes_is_named(server: postgres.Server):
    url = url_of(server, f"writer:{SECRET}")
    async with opened(url, "standby") as ledger:
        await ledger.tasks.add(make_tasks(3))
    only = f"{url}?options=-c%20default_transaction_read_only%3Don"

    ready = invoke("doctor", "standby", "--ready", "--ledger", only)
    assert (ready.returncode, "default_transaction_read_only is on" in ready.stderr) == (78, True)
    assert invoke("stats", "standby", "--ledger", only).returncode == 0
    with pytest.raises(LedgerConfigurationError, match="read_only is on: set it to off"):
        await PostgresLedger.open(only, "standby")
    async with opened(only, "standby", create=False) as ledger:
        with pytest.raises(LedgerConfigurationError, match="read_only is on: set it to off"):
            await ledger.tasks.add(make_tasks(5))


@pytest.mark.thorough
async def test_a_database_that_lacks_characters_is_refused_at_the_opening(server: postgres.Server):
    with psycopg.connect(server.url("ledgers"), autocommit=True) as db:
        db.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")

    with pytest.raises(LedgerConfigurationError, match="encoding of the database is LATIN1, which"):
        await PostgresLedger.open(server.url("latin"), "books")
    ready = invoke("doctor", "books", "--ready", "--ledger", server.url("latin"))

    assert (ready.returncode, "LATIN1" in ready.stderr) == (78, True)


async def test_no_setting_of_a_user_changes_what_the_statements_mean(emptied_postgres: str):
    settings = {
        "standard_conforming_strings": "off",
        "lock_timeout": "1",
        "default_transaction_isolation": "serializable",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())

    def show(db: Any) -> list[str]:
        return [db.execute(f"SHOW {name}").fetchone()[0] for name in settings]

    async with opened(f"{emptied_postgres}?options={quote(options)}") as ledger:
        await ledger.tasks.add(make_tasks(3))
        (lease,) = await claimed(ledger, limit=1)
        await ledger.outcomes.commit([success(ledger, lease, {"path": "a\\b"})])
        in_use = await ledger.store.writer.run(show)

    assert in_use == ["on", "0", "read committed"]


# --- faults of the server


@pytest.mark.thorough
async def test_a_frozen_server_ends_an_operation_which_works_again_later(
    server: postgres.Server, monkeypatch: pytest.MonkeyPatch
):
    async with opened(server.url("ledgers"), "frozen") as ledger:
        await ledger.tasks.add(make_tasks(1))
        monkeypatch.setattr(connection, "_REPLY_TIMEOUT", 0.3)
        monkeypatch.setattr(connection, "_CONNECT_TIMEOUT", 2)
        with frozen(server):
            # Once on the connection that there is, and once where there is none.
            for _ in range(2):
                with pytest.raises(LedgerUnavailableError):
                    await asyncio.wait_for(ledger.tasks.add(make_tasks(2)), ENOUGH)
        monkeypatch.undo()

        await ledger.tasks.add(make_tasks(2))
        assert len(await ledger.tasks.page(limit=9)) == 2


@contextmanager
def frozen(server: postgres.Server) -> Iterator[None]:
    own = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    processes = [server.pid, *map(int, own)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def sleep(db: connection.Database) -> None:
    """Let the server sleep, and end with its client: a later test waits for connections to end."""
    db.execute("SET client_connection_check_interval = '100ms'")
    db.execute(f"SELECT pg_sleep({ENOUGH})")


@pytest.mark.parametrize("follows", ["an operation", "the end"])
async def test_an_operation_whose_caller_is_cancelled_keeps_no_other_waiting(
    ledger: PostgresLedger, emptied_postgres: str, monkeypatch: pytest.MonkeyPatch, follows: str
):
    time_of_clock = 0.0
    monkeypatch.setattr(connection, "monotonic", lambda: time_of_clock)
    has_begun = threading.Event()

    def wait_for_a_lock(db: connection.Database) -> None:
        has_begun.set()
        db.execute("SELECT pg_advisory_lock(1)")

    with psycopg.connect(emptied_postgres, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        waiting = asyncio.create_task(ledger.store.writer.run(wait_for_a_lock))
        assert await asyncio.to_thread(has_begun.wait, ENOUGH)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        time_of_clock = connection._REPLY_TIMEOUT

        if follows == "an operation":
            added = await asyncio.wait_for(ledger.tasks.add(make_tasks(1)), ENOUGH)
            assert added.new == 1
        else:
            await asyncio.wait_for(ledger.close(), ENOUGH)


async def test_a_ledger_is_closed_in_a_scope_that_is_cancelled(
    ledger: PostgresLedger, emptied_postgres: str
):
    """As a renewal beside a loop that stands still, which has its time and no more."""
    await ledger.tasks.add(make_tasks(1))
    with anyio.CancelScope() as scope:
        scope.cancel()

        await ledger.close()

    await until_none_is_connected(emptied_postgres)


@pytest.mark.thorough
async def test_the_first_operation_after_a_restart_connects_anew(server: postgres.Server):
    async with opened(server.url("ledgers"), "restart") as ledger:
        await ledger.tasks.add(make_tasks(2))
        await ledger.tasks.page(limit=9)
        server.stop("immediate")
        with pytest.raises(LedgerUnavailableError):
            await ledger.tasks.page(limit=9)
        server.start()

        assert len(await ledger.tasks.page(limit=9)) == 2
        lease, _ = await claimed(ledger)
        server.stop("immediate")
        server.start()
        await ledger.outcomes.commit([success(ledger, lease)])


@pytest.mark.thorough
async def test_a_restart_during_an_operation_ends_it(server: postgres.Server):
    async with opened(server.url("ledgers"), "during") as ledger:
        asleep = asyncio.create_task(
            ledger.store.writer.run(lambda db: db.execute(f"SELECT pg_sleep({ENOUGH})"))
        )
        await until_asleep(server.url("ledgers"))
        await asyncio.to_thread(server.stop, "immediate")
        with pytest.raises(LedgerUnavailableError):
            await asyncio.wait_for(asleep, ENOUGH)
        server.start()

        assert (await ledger.tasks.add(make_tasks(1))).new == 1


async def until_asleep(url: str) -> None:
    """Wait until an operation is at work on the server."""
    with psycopg.connect(url, autocommit=True) as db:
        is_asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        while not db.execute(is_asleep).fetchone():
            await asyncio.sleep(0.01)


async def until_none_is_connected(url: str) -> None:
    """Wait until no ledger has a connection."""
    there = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE application_name = 'crawlcw' AND datname = current_database()"
    )
    with psycopg.connect(url, autocommit=True) as db, anyio.fail_after(ENOUGH):
        while db.execute(there).fetchone():
            await asyncio.sleep(0.01)


# --- packages


def test_without_its_driver_the_store_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("crawlcw.ledger.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "psycopg"]:
        monkeypatch.setitem(sys.modules, name, None)
    told = invoke("stats", "books", "--ledger", "postgresql://127.0.0.1/x")

    assert told.returncode == 78
    assert "install it with `pip install 'crawlcw[postgres]'`" in told.stderr


STRANGER = """\
from crawlcw.ledger.sqlite import SqliteLedger

class Store:
    @staticmethod
    async def open(url, name, *, kind, create):
        return await SqliteLedger.open(url.partition("://")[2], name, kind=kind, create=create)

    @staticmethod
    async def open_existing(url, name):
        return await SqliteLedger.open_existing(url.partition("://")[2], name)

    @staticmethod
    async def recorded_names(url):
        return ["books"]

    @staticmethod
    async def discard(url, name):
        await SqliteLedger.discard(url.partition("://")[2], name)

class Empty:
    pass
"""


@pytest.fixture
def strangers_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers a store, and two that are none."""
    (tmp_path / "strangers_store.py").write_text(STRANGER)
    told = tmp_path / "strangers_store-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-store\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(
        "[crawlcw.stores]\nstrange = strangers_store:Store\n"
        "missing = strangers_store:Nothing\nempty = strangers_store:Empty\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (
            "missing",
            "the store 'missing' of strangers-store 1.0 cannot be loaded: Attr",
        ),
        ("empty", "the store of empty:// cannot be used: it needs `open`, `open_existing`, "),
    ],
)
@pytest.mark.usefixtures("strangers_package")
def test_a_store_of_another_package_that_is_none_is_named(scheme: str, said: str):
    told = invoke("stats", "books", "--ledger", f"{scheme}://x/y")

    assert told.returncode == 2
    assert said in told.stderr
    assert "crawlcw itself" not in told.stderr


@pytest.mark.usefixtures("strangers_package")
def test_a_misspelt_scheme_is_told_the_installed_one_that_is_near():
    told = invoke("stats", "books", "--ledger", "strang://x")

    assert (told.returncode, "did you mean strange://?" in told.stderr) == (2, True)


@pytest.mark.usefixtures("strangers_package")
async def test_a_store_of_another_package_is_opened_by_its_entry_point(tmp_path: Path):
    url = f"strange://{tmp_path}/ledger.db"

    ledger = await open_ledger(url, "books")
    await ledger.tasks.add(make_tasks(3))
    await ledger.close()

    told_of = invoke("stats", "books", "--ledger", url, "--json")
    assert json.loads(told_of.stdout)["counts"]["todo"] == 3
    assert invoke("doctor", "books", "--ledger", url).returncode == 0
    assert invoke("stats", "book", "--ledger", url).stderr.count("did you mean books?") == 1
    assert invoke("stats", "books", "--ledger", "stranger://x/y").returncode == 2
