"""How SQLite finds and counts what is chosen: by an index, or as it lies in the file."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.prefixes import hosts_within
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.searching import Wanted
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.sqlite.chosen_statements import ChosenStatements
from crawlcw.ledger.sqlite.looking import looking
from crawlcw.ledger.sqlite.narrow_statements import NarrowStatements, narrowings
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.walks import bounds_of
from crawlcw.model.task import Status
from tests.support.ledgers import FakeClock

TABLES = Tables("books")


@pytest.fixture
async def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "ledger.db"
    await (await SqliteLedger.open(path, "books", clock=FakeClock())).close()
    with sqlite3.connect(path) as db:
        yield db
    db.close()


def plan(db: sqlite3.Connection, statement: str, chosen: TaskFilter) -> str:
    values = {**bounds_of(chosen), "status": 0, "limit": 50, "few": 50}
    values |= {"host_first": "h", "host_end": "i"}
    return " / ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values))


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        (TaskFilter(host="h1.com"), "books.host_status"),
        (TaskFilter(host="h1.com", callback="parse"), "books.host_status"),
        (TaskFilter(host="h1.com", url_prefix="https://h1.com/x"), "books.host_status"),
        (TaskFilter(reason=Reason.TLS), "books.reason_status"),
        (TaskFilter(callback="parse"), "books.callback_depth_status"),
        (TaskFilter(url_prefix="https://h"), "books.host_status"),
        (TaskFilter(url_prefix="https://h", reason=Reason.TLS), "books.host_status"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_choice_is_answered_by_the_index_of_what_is_given(
    db: sqlite3.Connection, chosen: TaskFilter, index: str, whole: bool
):
    narrowing = narrowings(TABLES, chosen, hosts_within(chosen, LedgerKind.SPIDER))[0]
    sql = NarrowStatements(TABLES, chosen, narrowing, whole=whole)

    for statement in (sql.few, sql.count, sql.count_failed, sql.find):
        found = plan(db, statement, chosen)
        assert "SCAN books" not in found, found
        assert f"INDEX {index} (" in found, found
    # The index alone tells how many, where nothing else is asked.
    alone = not (chosen.url_prefix or (chosen.host and chosen.callback))
    assert ("COVERING" in plan(db, sql.count, chosen)) == (whole and alone)


def test_each_thing_that_is_given_has_an_index():
    chosen = TaskFilter(host="h1.com", reason=Reason.TLS, callback="parse")

    names = [narrowing.name for narrowing in narrowings(TABLES, chosen, None)]

    assert names == [TABLES.by_host, TABLES.by_reason, TABLES.by_callback]
    assert narrowings(TABLES, TaskFilter(url_prefix="https://"), None) == []


def test_what_is_changed_is_walked_through_by_its_statuses(db: sqlite3.Connection):
    chosen = TaskFilter(url_prefix="https://h")
    sql = ChosenStatements(TABLES, list(Status))
    look = looking(TABLES, Wanted(chosen=chosen))

    for statement in (sql.find, sql.count, sql.few, sql.walk, sql.count_failed, look):
        found = plan(db, statement, chosen)
        assert "SCAN books" not in found, found
        assert "books.status_update_time (status=" in found, found


def test_what_no_index_narrows_down_is_read_as_it_lies(db: sqlite3.Connection):
    chosen = TaskFilter(url_prefix="https://")
    sql = NarrowStatements(TABLES, chosen, None, whole=False)

    for statement in (sql.find, sql.count, sql.count_failed):
        found = plan(db, statement, chosen)
        assert found.startswith("SCAN books"), found
        assert "INDEX" not in found, found
