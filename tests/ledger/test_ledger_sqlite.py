"""Features of SQLite only: the file, query plans, and the mapping of its errors."""

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw.engine.workers import this_worker
from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerGoneError,
    LedgerUnavailableError,
    Reason,
)
from crawlcw.ledger import documents
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sql import rows, task_table
from crawlcw.ledger.sqlite import SqliteLedger, connection
from crawlcw.ledger.sqlite.connection import Database
from crawlcw.model.task import Status
from tests.support.commands import invoke
from tests.support.ledgers import (
    LEASE,
    START,
    FakeClock,
    claimed,
    claimed_one,
    failure,
    make_task,
    make_tasks,
    success,
)


def pragma(db: Database, words: str) -> Any:
    """Return a setting of the connection."""
    return db.execute(f"PRAGMA {words}").fetchone()[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def test_the_folders_of_the_file_are_made(tmp_path: Path):
    path = tmp_path / "a" / "b" / "ledger.db"

    ledger = await SqliteLedger.open(str(path), "books")
    await ledger.close()

    assert path.exists()


async def test_many_may_open_a_new_file_at_the_same_moment(tmp_path: Path):
    # Many rounds: the race that refuses a client is rare (one in twenty).
    for number in range(40):
        path = tmp_path / f"{number}.db"
        opened = await asyncio.gather(*(SqliteLedger.open(path, "books") for _ in range(8)))
        for ledger in opened:
            await ledger.close()


async def test_a_file_that_is_gone_is_noticed_by_whatever_is_done_next(path: Path):
    ledger = await SqliteLedger.open(path, "books")
    away = path.rename(path.with_name("away.db"))

    for operation in (
        ledger.queries.next_due,
        ledger.queries.counts,
        lambda: ledger.tasks.add(make_tasks(1)),
    ):
        with pytest.raises(LedgerGoneError, match="was moved or removed while it was in use"):
            await operation()
    path.write_bytes(away.read_bytes())
    for operation in (ledger.queries.next_due, lambda: ledger.workers.leave("a")):
        with pytest.raises(LedgerGoneError, match="was replaced by another file"):
            await operation()

    away.replace(path)
    assert await ledger.queries.next_due() is None, "the original file is back"
    await ledger.close()


async def test_a_file_is_the_same_by_any_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    linked = await SqliteLedger.open("link.db", "books")
    real = await SqliteLedger.open("real.db", "books")

    # A spider may change the working directory.
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert (await linked.tasks.add(make_tasks(1))).new == 1
    assert (await real.queries.counts()).total == 1
    await linked.close()
    await real.close()


async def test_spiders_share_a_file_and_nothing_else(path: Path):
    books = await SqliteLedger.open(path, "books", clock=FakeClock())
    films = await SqliteLedger.open(path, "films-2", clock=FakeClock())
    await books.tasks.add([make_task()])

    assert (await films.tasks.add([make_task()])).new == 1
    await books.outcomes.commit([success(books, await claimed_one(books), {"n": 1})])

    assert (await films.queries.counts()).by_status == {Status.TODO: 1}
    assert await films.queries.item_count() == 0
    await books.close()
    await films.close()


@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_look_at_an_unknown_name_makes_nothing(path: Path, is_empty: bool):
    path.parent.mkdir(exist_ok=True)
    path.touch()
    if not is_empty:
        ledger = await SqliteLedger.open(path, "books")
        await ledger.tasks.add([make_task()])
        await ledger.close()
    before = path.read_bytes()

    for command in ("stats", "hosts", "tasks", "state", "set", "doctor", "retry-failed"):
        looked = invoke(command, "boks", "--ledger", f"sqlite:///{path}")
        assert looked.returncode == 2, command
        assert "nothing is recorded for a spider or use case named 'boks'" in looked.stderr
        assert ("did you mean books?" in looked.stderr) is not is_empty
    assert invoke("policy", "boks", "--ledger", f"sqlite:///{path}").returncode == 0

    assert path.read_bytes() == before


async def test_spiders_that_differ_by_case_only_are_not_mixed(path: Path):
    await (await SqliteLedger.open(path, "books")).close()

    with pytest.raises(LedgerConfigurationError, match="has a spider books, which SQLite"):
        await SqliteLedger.open(path, "Books")


async def test_what_was_said_of_tasks_that_somebody_has_dropped_is_void(path: Path):
    first = await SqliteLedger.open(path, "books")
    await first.notes.set_state({"seeds": {"hosts": []}})
    await first.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute('DROP TABLE "books"')
    db.close()

    second = await SqliteLedger.open(path, "books")

    assert await second.notes.state() == {}
    await second.close()


async def test_a_database_of_another_program_is_refused(path: Path):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE books (title TEXT)")
    db.close()
    before = path.read_bytes()

    with pytest.raises(LedgerConfigurationError, match="of another program"):
        await SqliteLedger.open(path, "books")
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(path: Path):
    path.write_text("this is a text, and no database " * 10)

    with pytest.raises(LedgerConfigurationError, match=r"ledger\.db is not an SQLite database"):
        await SqliteLedger.open(path, "books")


async def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(LedgerConfigurationError, match="cannot be opened"):
        await SqliteLedger.open(tmp_path, "books")


async def test_a_folder_that_cannot_be_made_is_refused(path: Path):
    path.write_text("")

    with pytest.raises(LedgerConfigurationError, match="Cannot create the folder of the ledger"):
        await SqliteLedger.open(path / "ledger.db", "books")


async def test_a_damaged_file_is_refused(path: Path):
    ledger = await SqliteLedger.open(path, "books")
    await ledger.tasks.add(make_tasks(200))
    await ledger.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)

    with pytest.raises(LedgerConfigurationError, match=r"ledger\.db is damaged"):
        await SqliteLedger.open(path, "books")


async def test_a_file_locked_by_another_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "_BUSY_TIMEOUT", 0.01)
    ledger = await SqliteLedger.open(path, "books")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(LedgerUnavailableError, match=r"ledger\.db is locked by another process"):
        await ledger.tasks.add([make_task()])
    # Readers do not wait for a writer.
    assert (await ledger.queries.counts()).total == 0

    other.execute("ROLLBACK")
    other.close()
    assert (await ledger.tasks.add([make_task()])).new == 1
    await ledger.close()


@pytest.mark.parametrize("line", ["stats", "tasks", "hosts"])
async def test_a_command_that_only_reads_does_not_wait_for_a_writer(
    line: str, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "_BUSY_TIMEOUT", 0.01)
    ledger = await SqliteLedger.open(path, "books")
    await ledger.tasks.add([make_task()])
    await ledger.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        done = invoke(*line.split(), "books", "--ledger", f"sqlite:///{path}")

    assert (done.returncode, done.stderr) == (0, "")


async def test_a_full_disk_is_unavailable_and_nothing_is_half_written(path: Path):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    await ledger.tasks.add(make_tasks(2))
    first, second = await claimed(ledger)
    pages = await ledger.store.writer.run(pragma, "page_count")
    await ledger.store.writer.run(pragma, f"max_page_count = {pages + 5}")

    with pytest.raises(LedgerUnavailableError, match="the disk is full"):
        await ledger.outcomes.commit(
            [success(ledger, first, {"n": 1}), success(ledger, second, {"v": "x" * 100_000})]
        )

    assert (await ledger.queries.counts()).by_status == {Status.PROCESSING: 2}
    assert await ledger.queries.item_count() == 0
    assert (await ledger.outcomes.commit([success(ledger, first, {"n": 1})])).lost == ()
    await ledger.close()


async def test_a_value_over_the_limit_is_rejected_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows, "_LARGEST_VALUE", 1000)
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    long = make_task(context={"v": "é" * 500})
    body = make_task("http://example.com/2", body=b"x" * 1001)

    added = await ledger.tasks.add([long, body, make_task("http://example.com/3")])

    assert [task for task, _ in added.rejected] == [long, body]
    assert added.rejected[0][1] == "a value of 1008 bytes, but at most 1000 are allowed"
    lease = await claimed_one(ledger)
    answer = await ledger.outcomes.commit([success(ledger, lease, {"v": "x" * 1000})])
    assert [lease for lease, _ in answer.rejected] == [lease]
    assert await ledger.queries.reasons() == {"store-rejected": 1}
    await ledger.close()


async def test_an_operation_waits_for_a_cancelled_one_that_is_not_over(path: Path):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    started, end = threading.Event(), threading.Event()

    def slow(db: Database) -> None:
        with db.transaction():
            started.set()
            end.wait(10)

    cancelled = asyncio.create_task(ledger.store.writer.run(slow))
    await asyncio.to_thread(started.wait, 10)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    adding = asyncio.create_task(ledger.tasks.add(make_tasks(3)))
    done, _ = await asyncio.wait([adding], timeout=0.1)
    assert not done

    end.set()

    assert (await adding).new == 3
    await ledger.close()


class Disk:
    """The data that would survive a power cut: the WAL at its last sync."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._wal = path.with_name(f"{path.name}-wal")
        self._sync_file = connection._sync_file
        self._synced = b""
        self.syncs = 0
        monkeypatch.setattr(connection, "_sync_file", self._sync)

    def _sync(self, file: int) -> None:
        assert os.path.samestat(os.fstat(file), self._wal.stat())
        self._synced = self._wal.read_bytes()
        self._sync_file(file)
        self.syncs += 1

    def has_everything(self) -> bool:
        return self._synced == self._wal.read_bytes()


async def test_claims_are_quick_and_outcomes_durable(path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Disk(path, monkeypatch)
    clock = FakeClock()
    ledger = await SqliteLedger.open(path, "books", clock=clock)
    durable = {"open": disk.has_everything()}

    def note(operation: str) -> None:
        durable[operation] = disk.has_everything()

    await ledger.tasks.add(make_tasks(2))
    note("add")
    first, second = await claimed(ledger)
    note("claim")
    await ledger.outcomes.commit([failure(ledger, first, Reason.TLS)])
    note("commit")
    await ledger.leases.renew([second], lease=LEASE * 2)
    note("renew")
    await ledger.outcomes.release([second])
    note("release")
    await ledger.admin.retry_failed(TaskFilter())
    note("retry_failed")
    held = await claimed(ledger)
    for lease in held:
        await ledger.leases.begin(lease)
    clock.advance(seconds=61)
    given_up = await ledger.leases.claim(
        await ledger.tasks.page(limit=1), worker="b", lease=LEASE, max_lost=1
    )
    assert given_up.abandoned == 1
    note("abandon")
    # Leases need not be durable: a power cut ends all processes.
    await ledger.hosts.wake({"new.example": START})
    note("wake_hosts")
    hosts = await ledger.host_leases.lease(worker="a", limit=1, lease=LEASE)
    note("lease_hosts")
    await ledger.host_leases.release([(host, host.host) for host in hosts])
    note("release_hosts")
    await ledger.tasks.add([make_task("http://waiting.example/")])
    assert await ledger.hosts.give_up("waiting.example", reason=Reason.HOST_UNREACHABLE) == 1
    note("give_up_host")
    assert await ledger.hosts.wake_all() == 1
    note("wake_all_hosts")
    assert await ledger.store.writer.run(pragma, "journal_mode") == "wal"
    await ledger.close()

    quick = {"claim", "renew", "lease_hosts", "release_hosts"}
    assert {operation for operation, is_durable in durable.items() if not is_durable} == quick


def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Block syncs until the second event is set; the first event is set when a sync begins."""
    sync, started, end = connection._sync_file, threading.Event(), threading.Event()

    def slow(file: int) -> None:
        started.set()
        assert end.wait(10)
        sync(file)

    monkeypatch.setattr(connection, "_sync_file", slow)
    return started, end


async def test_while_one_outcome_is_synced_others_may_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, other = [await SqliteLedger.open(path, "books", clock=FakeClock()) for _ in range(2)]
    await one.tasks.add(make_tasks(3))
    first, second = await claimed(one, limit=2)
    started, end = held_up(monkeypatch)
    committing = asyncio.create_task(one.outcomes.commit([success(one, first)]))
    await asyncio.to_thread(started.wait, 10)

    assert await other.leases.renew([second], lease=LEASE) == set()
    assert len(await claimed(one)) == 1
    assert not committing.done(), "the outcome is not durable yet"
    end.set()

    assert (await committing).lost == ()
    await one.close()
    await other.close()


async def test_what_is_committed_while_a_slow_disk_syncs_is_durable_by_one_sync_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    disk = Disk(path, monkeypatch)
    started, end = held_up(monkeypatch)
    tasks = make_tasks(5)
    adding = [asyncio.create_task(ledger.tasks.add(tasks[:1]))]
    await asyncio.to_thread(started.wait, 10)
    adding += [asyncio.create_task(ledger.tasks.add([task])) for task in tasks[1:]]
    while await number_of_tasks(ledger) < 5:
        await asyncio.sleep(0)
    assert not any(task.done() for task in adding), "no outcome is durable yet"
    end.set()
    await asyncio.gather(*adding)

    assert disk.syncs == 2
    assert disk.has_everything()
    await ledger.close()


async def test_a_ledger_that_is_closed_while_its_disk_syncs_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    started, end = held_up(monkeypatch)
    adding = asyncio.create_task(ledger.tasks.add(make_tasks(1)))
    await asyncio.to_thread(started.wait, 10)
    closing = asyncio.create_task(ledger.close())
    with pytest.raises(LedgerUnavailableError, match="was closed"):
        while True:
            await ledger.store.writer.run(lambda db: None)
    assert not closing.done()
    end.set()

    # The sync would fail if its file had been closed.
    assert (await adding).new == 1
    await closing


async def number_of_tasks(ledger: SqliteLedger) -> int:
    return len(await ledger.tasks.page(limit=10))


async def test_a_disk_that_cannot_be_synced_is_a_ledger_that_is_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())

    def broken(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_sync_file", broken)
        with pytest.raises(LedgerUnavailableError, match="cannot be synced to its disk: Input"):
            await ledger.tasks.add(make_tasks(2))

    assert (await ledger.tasks.add(make_tasks(2))).existing == 2
    await ledger.close()


CLAIMER = """
import asyncio, sys
from datetime import UTC, datetime, timedelta
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model import urls
from crawlcw.model.task import Task, task_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)

def task(number):
    at = urls.locate(f"http://example.com/{number}")
    times = {"due": NOW, "update_time": NOW, "create_time": NOW}
    return Task(id=task_id(at), url=at.url, host=at.host, **times)

async def main(path, name):
    ledger = await SqliteLedger.open(path, "books", clock=lambda: NOW)
    await ledger.tasks.add([task(number) for number in range(200)])
    while page := await ledger.tasks.page(limit=10):
        for lease in (
            await ledger.leases.claim(page, worker=name, lease=timedelta(60), max_lost=3)
        ).leases:
            print(lease.task.url)
    await ledger.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_start_together_share_the_tasks_of_one_new_file(path: Path):
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, str(path), f"w{n}"],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    outputs = [process.communicate(timeout=60) for process in processes]

    assert [error for _, error in outputs] == [""] * 4
    urls = [url for output, _ in outputs for url in output.split()]
    assert len(urls) == len(set(urls)) == 200


# --- plans


async def plans(ledger: SqliteLedger, statement: str, values: dict) -> list[str]:
    def explain(db: sqlite3.Connection) -> list[str]:
        rows = db.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        return [row["detail"] for row in rows]

    return await ledger.store.reader.run(explain)


BOUNDS = {
    "host": "h",
    "priority": 0,
    "now": 0,
    "limit": 10,
    "above": 5,
    "due": 0,
    "first": "a:",
    "end": "a;",
    "errback": None,
}


@pytest.mark.parametrize(
    ("statement", "plan"),
    [
        ("page", "USING INDEX books.due (priority=? AND due<?)"),
        ("page_of_host", "USING INDEX books.host_due (host=? AND priority=? AND due<?)"),
        ("next_due", "USING COVERING INDEX books.due (priority<?)"),
        ("next_due_of_host", "USING COVERING INDEX books.host_due (host=? AND priority<?)"),
        ("ready_hosts", "USING INDEX books.hosts_ready_at (ready_at<?)"),
    ],
)
async def test_the_frontier_is_read_by_its_index_without_a_sort(
    path: Path, statement: str, plan: str
):
    ledger = await SqliteLedger.open(path, "books")

    (found,) = await plans(ledger, getattr(ledger.store.sql, statement), BOUNDS)

    assert found.endswith(plan)
    await ledger.close()


@pytest.mark.parametrize(
    ("operation", "plans"),
    [
        (
            lambda ledger: ledger.queries.next_due(),
            ["SCAN books USING COVERING INDEX books.due"]
            + ["SEARCH books USING COVERING INDEX books.due (priority<?)"] * 2,
        ),
        (
            lambda ledger: ledger.hosts.earliest_due("example.com"),
            ["SEARCH books USING COVERING INDEX books.host_due (host=? AND priority<?)"] * 3,
        ),
        (
            lambda ledger: ledger.hosts.due(last_host="", limit=9),
            ["SEARCH books USING COVERING INDEX books.host_due (host>?)"] * 2,
        ),
        (
            lambda ledger: ledger.hosts.next_ready(),
            ["SEARCH books.hosts USING COVERING INDEX books.hosts_ready_at (ready_at>?)"],
        ),
        (
            lambda ledger: ledger.hosts.busiest(limit=9),
            [
                "SEARCH books.hosts USING INDEX books.hosts_owner (owner>?)",
                "SEARCH books.hosts USING INDEX books.hosts_ready_at (ready_at>?)",
            ],
        ),
        (
            lambda ledger: ledger.hosts.give_up("example.com", reason=Reason.HOST_UNREACHABLE),
            [
                f"SEARCH books USING INDEX books.host_due (host=?{stretch})"
                for stretch in (
                    "",
                    " AND priority=? AND due>?",
                    " AND priority<?",
                    " AND priority=? AND due>?",
                    " AND priority<?",
                )
            ],
        ),
    ],
    ids=["horizon", "earliest_due", "due", "next_ready", "busiest", "give_up"],
)
async def test_hosts_and_due_tasks_are_found_by_an_index_without_a_sort(
    path: Path,
    operation: Callable[[SqliteLedger], Awaitable[object]],
    plans: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("crawlcw.ledger.hosts.BATCH", 1)
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    await ledger.tasks.add([make_task(f"http://example.com/{n}", priority=n) for n in range(2)])
    await ledger.hosts.wake({"example.com": START})
    statements: list[str] = []
    connections = (ledger.store.reader, ledger.store.writer)
    for each in connections:
        await each.run(lambda db: db.set_trace_callback(statements.append))

    await operation(ledger)

    for each in connections:
        await each.run(lambda db: db.set_trace_callback(None))
    asked = [each for each in statements if each.startswith("SELECT")]
    found = [
        row["detail"]
        for statement in asked
        for row in await ledger.store.reader.run(
            lambda db, asked: db.execute(f"EXPLAIN QUERY PLAN {asked}").fetchall(), statement
        )
    ]
    assert found == plans
    await ledger.close()


async def test_a_page_reads_no_deferred_task(path: Path):
    """It must not read a million tasks of next week to find that none is due."""
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    later = START + timedelta(days=7)
    await ledger.tasks.add(make_tasks(4_000, due=later, priority=1))
    due = make_task("http://example.com/due")
    await ledger.tasks.add([due])
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    await ledger.store.reader.run(Database.set_progress_handler, count, 10)
    assert await ledger.tasks.page(limit=10) == [due]
    assert await ledger.tasks.page(limit=10, hosts=["example.com"]) == [due]
    assert await ledger.queries.next_due() == START
    # 4,000 tasks would take SQLite at least 20,000 instructions.
    assert steps * 10 < 2_000
    await ledger.close()


async def test_a_stream_of_items_holds_no_lock_and_little_memory(path: Path):
    ledger = await SqliteLedger.open(path, "books", clock=FakeClock())
    await ledger.tasks.add(make_tasks(40))
    leases = await claimed(ledger)
    await ledger.outcomes.commit([success(ledger, lease, {"v": "x" * 100_000}) for lease in leases])
    stream = ledger.queries.items()
    await anext(stream)

    # The size of a batch bounds the memory.
    rows, _ = await ledger.store.reading(lambda tables: tables.results.items(b""))
    assert len(rows) == 11
    assert not await ledger.store.reader.run(lambda db: db.in_transaction)
    assert (await ledger.tasks.add([make_task("http://example.com/more")])).new == 1
    assert 1 + len([row async for row in stream]) == 40
    await ledger.close()


# --- time


@pytest.mark.parametrize("look", [False, True])
async def test_a_ledgers_time_goes_on_from_what_a_worker_has_shown(path: Path, look: bool):
    later = FakeClock()
    later.time = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    before = await SqliteLedger.open(path, "books", clock=later)
    await before.tasks.add([make_task("http://a.example/", due=before.now())])
    await before.workers.join(this_worker(now=before.now()))
    await before.close()

    after = await (SqliteLedger.open_existing if look else SqliteLedger.open)(path, "books")

    assert timedelta() <= after.now() - later.time < timedelta(minutes=1)
    assert len(await after.tasks.page(limit=2)) == 1
    await after.close()


async def test_the_horizon_is_of_one_moment(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A page adds its links and finishes while the horizon is computed."""
    reading = await SqliteLedger.open(path, "books", clock=FakeClock())
    writing = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    await reading.tasks.add([make_task("http://a.example/page")])
    link = documents.document(make_task("http://a.example/link", priority=5))
    scan = task_table.TaskTable.scan

    async def changed_behind_the_first(self, *args, **options):
        if found := await scan(self, *args, **options):
            writing.execute(
                "INSERT INTO books (id, url, host, callback, depth, priority, status, due, "
                "update_time, create_time, fence, settled, retry, lost) "
                "VALUES (?, ?, ?, 'parse', 1, 5, 0, 1, 1, 1, 0, 0, 0, 0)",
                (link["_id"], link["url"], link["host"]),
            )
            writing.execute("UPDATE books SET status = 50, due = NULL WHERE priority = 0")
        return found

    monkeypatch.setattr(task_table.TaskTable, "scan", changed_behind_the_first)

    assert await reading.queries.next_due() == START

    writing.close()
    await reading.close()
