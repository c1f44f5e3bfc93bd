"""Query plans of SQLite for chosen tasks: by one index, or by that of their statuses."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Status
from tests.support.ledgers import START, FakeClock, make_tasks


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books", clock=FakeClock())
    await ledger.tasks.add(make_tasks(9))
    yield ledger
    await ledger.close()


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a limit so that no index has few tasks."""
    monkeypatch.setattr("crawlcw.ledger.queries.SCAN_LIMIT", 1)


async def plans(ledger: SqliteLedger, asked: Awaitable[object]) -> list[str]:
    """Return the query plan of each statement that is not about a single task."""
    statements: list[str] = []

    def explained(db: sqlite3.Connection) -> list[str]:
        db.set_trace_callback(None)
        asked = [each for each in statements if each.startswith("SELECT")]
        found = [db.execute(f"EXPLAIN QUERY PLAN {each}").fetchall() for each in asked]
        shown = [" / ".join(row["detail"] for row in rows) for rows in found]
        return [each for each in shown if "sqlite_autoindex_books_1 (id=?)" not in each]

    await ledger.store.reader.run(lambda db: db.set_trace_callback(statements.append))
    await asked
    found = await ledger.store.reader.run(explained)
    assert found, "no statement was run"
    return found


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        (TaskFilter(host="h1.com"), "books.host_status"),
        (TaskFilter(host="h1.com", callback="parse"), "books.host_status"),
        (TaskFilter(host="h1.com", url_prefix="https://h1.com/x"), "books.host_status"),
        (TaskFilter(reason=Reason.TLS), "books.reason_status"),
        (TaskFilter(callback="parse"), "books.callback_depth_status"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_a_choice_is_answered_by_the_index_of_what_is_given(
    ledger: SqliteLedger, chosen: TaskFilter, index: str, whole: bool
):
    if not whole:
        chosen = TaskFilter(
            host=chosen.host,
            callback=chosen.callback,
            url_prefix=chosen.url_prefix,
            reason=chosen.reason,
            changed_since=START,
        )
    counting = await plans(ledger, ledger.queries.count(chosen))
    finding = await plans(ledger, ledger.queries.find(chosen, limit=5))
    failed = await plans(ledger, ledger.admin.count_failed(chosen))

    for found in (*counting, *finding, *failed):
        assert "SCAN books" not in found, found
        assert "INDEX books." in found, found
    assert all(f"INDEX {index} (" in found for found in (*counting, *finding))
    # A count by the indexed field alone reads only the index.
    alone = not (chosen.url_prefix or (chosen.host and chosen.callback))
    assert ("COVERING" in counting[-1]) == (whole and alone)


@pytest.mark.usefixtures("many")
async def test_what_is_changed_or_looked_for_is_walked_through_by_its_statuses(
    ledger: SqliteLedger,
):
    chosen = TaskFilter(url_prefix="https://h", changed_since=START)
    wanted = replace(chosen, containing="x")
    walked = [
        *await plans(ledger, ledger.queries.find(chosen, limit=2_000)),
        *await plans(ledger, ledger.queries.page(wanted, limit=5, scan_limit=5)),
        *await plans(ledger, ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)),
        *await plans(ledger, ledger.admin.retry_failed(chosen)),
        *await plans(
            ledger, ledger.queries.count(TaskFilter(statuses=[Status.TODO], changed_since=START))
        ),
    ]

    for found in walked:
        assert "books.status_update_time (status=? AND update_time>?" in found or (
            "INDEX books.host_status (" in found
        ), found
        assert "TEMP B-TREE" not in found, found


async def test_pages_due_to_be_visited_again_are_found_by_their_index(ledger: SqliteLedger):
    (found,) = await plans(ledger, ledger.admin.revisit_due())

    assert found == "SEARCH books USING INDEX books.revisit (revisit>? AND revisit<?)" or (
        found == "SEARCH books USING INDEX books.revisit (revisit<?)"
    )
