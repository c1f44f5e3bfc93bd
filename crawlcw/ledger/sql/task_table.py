"""The tables for the tasks and results of `port` in an SQL database."""

# ruff: noqa: S608  # no SQL injection: names of tables are quoted, values are parameters

import heapq
from collections.abc import Sequence
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.port import MAX_LIMIT, Edit, Key, Listed, Path, Where, Within
from crawlcw.ledger.sql.database import Database, Row, number_of
from crawlcw.ledger.sql.rows import from_json, milliseconds, moment
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.table import Index, Table
from crawlcw.ledger.values import Count, Counts, Cursor, ItemRow
from crawlcw.model.task import Status

#: A batch ends when it has this number of rows, or this number of characters of JSON.
ITEM_ROWS = 500
ITEM_CHARACTERS = 1 << 20


class TaskTable(Table):
    """The table of tasks."""

    def __init__(self, db: Database, sql: Statements) -> None:
        tables = sql.tables
        due, revisit = f"INDEXED BY {tables.due_index}", f"INDEXED BY {tables.revisit_index}"
        is_due, order = "AND due IS NOT NULL", "priority DESC, due"
        indexes = {
            Path.DUE: Index(due, order, is_due),
            Path.HOST_DUE: Index(f"INDEXED BY {tables.host_due_index}", f"host, {order}", is_due),
            Path.REVISIT: Index(revisit, "revisit"),
            Path.STATUS: Index(
                f"INDEXED BY {tables.changed_index}", "status, update_time DESC, id DESC"
            ),
            Path.HOST: Index(f"INDEXED BY {tables.host_index}", "host, status"),
            Path.REASON: Index(f"INDEXED BY {tables.reason_index}", "reason, status"),
            Path.CALLBACK: Index(f"INDEXED BY {tables.callback_index}", "callback, depth, status"),
        }
        super().__init__(db, tables.tasks, tables.dialect, indexes=indexes)
        self._sql = sql

    async def listed(
        self, where: Where, *, limit: int, scan_limit: int, cursor: Cursor | None = None
    ) -> Listed:
        """See `port.Tasks.listed`; the method stops reading rows when it has *limit* tasks."""
        time_condition, bounds = self._time_condition(where, cursor)
        other_tests = {n: test for n, test in where.items() if n not in ("status", "update_time")}
        condition, operands = self._tests(other_tests)
        statement = (
            f"SELECT update_time, id, {condition} AS wanted FROM {self._from(Path.STATUS)} "
            f"WHERE status = ? AND {time_condition} ORDER BY update_time DESC, id DESC"
        )
        streams = [
            self._db.stream(statement, [*operands, status, *bounds])
            for status in sorted(set(where["status"].values))
        ]
        cursors: list[Cursor] = []
        rows = heapq.merge(*streams, key=_order, reverse=True)
        for number, row in enumerate(rows, 1):
            if row["wanted"]:
                cursors.append(_cursor(row))
            if len(cursors) == limit or number == scan_limit:
                return Listed(cursors, _cursor(row))
        return Listed(cursors, None)

    async def by_index(
        self, where: Where, *, by: Path, limit: int, cursor: Cursor | None = None
    ) -> list[Cursor]:
        """See `port.Tasks.by_index`."""
        from_clause, values = self._chosen(where, by, cursor)
        order = "ORDER BY update_time DESC, id DESC LIMIT ?"
        rows = self._db.execute(f"SELECT update_time, id {from_clause} {order}", [*values, limit])
        return list(map(_cursor, rows))

    async def count(self, where: Where, *, by: Path, limit: int = MAX_LIMIT) -> int:
        """See `port.Tasks.count`."""
        chosen, values = self._chosen(where, by)
        if limit == MAX_LIMIT:
            return number_of(self._db, f"SELECT count(*) {chosen}", values)
        subquery = f"(SELECT 1 {chosen} LIMIT {limit}) AS chosen"
        return number_of(self._db, f"SELECT count(*) FROM {subquery}", values)

    async def count_by_index(self, where: Where) -> int | None:
        """See `port.Tasks.count_by_index`; only the index of statuses can test times."""
        match sorted(where.keys() - {"status"}):
            case [] | ["update_time"]:
                return await self.count(where, by=Path.STATUS)
            case ["host" | "reason" | "callback" as name]:
                return await self.count(where, by=Path(name))
        return None

    def _from(self, by: Path) -> str:
        return f"{self._name} {self._indexes[by].of}"

    def _chosen(
        self, where: Where, by: Path, cursor: Cursor | None = None
    ) -> tuple[str, list[Any]]:
        """Return SQL and its parameters, to select the rows after *cursor* that pass *where*."""
        tests, values = self._tests({n: test for n, test in where.items() if n != "update_time"})
        time_condition, bounds = self._time_condition(where, cursor)
        return f"FROM {self._from(by)} WHERE {tests} AND {time_condition}", [*values, *bounds]

    def _time_condition(self, where: Where, cursor: Cursor | None) -> tuple[str, list[Any]]:
        """Return SQL that tests the time by *where* and *cursor*, and the SQL's parameters."""
        time_test = where.get("update_time", Within(None, None))
        if not isinstance(time_test, Within):
            return self._tests({"update_time": time_test})
        text, values = self._tests({"update_time": Within(time_test.first, None)})
        # The id b"" is below all ids, so it excludes tasks whose time is the end of the range.
        upper_bounds = [] if time_test.end is None else [(time_test.end, b"")]
        upper_bounds += [] if cursor is None else [(cursor.update_time, cursor.id)]
        if not upper_bounds:
            return text, values
        # Test only the earlier of the two upper bounds, because the index can use only one.
        time, identity = min(upper_bounds)
        return f"{text} AND (update_time, id) < (?, ?)", [*values, milliseconds(time), identity]

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """See `port.Tasks.change_all`; each task is changed by one statement."""
        changes, values = self._changes(edit)
        tests, operands = self._tests(where)
        self._db.begin()
        self._db.unsynced = True
        statement = f"UPDATE {self._name} SET {changes} WHERE id = ? AND {tests}"
        rows = [(*values, key, *operands) for key in keys]
        return self._db.executemany(statement, rows).rowcount if rows else 0

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """See `port.Tasks.delete_all`."""
        tests, operands = self._tests(where)
        sql = self._sql
        deleted_keys = [
            (key,)
            for key in keys
            if self._execute(f"DELETE FROM {self._name} WHERE id = ? AND {tests}", [key, *operands])
        ]
        for statement in (sql.forget_items, sql.forget_versions, sql.forget_blobs):
            self._db.executemany(statement, deleted_keys)
        return len(deleted_keys)

    async def counts(self) -> Counts:
        """See `port.Tasks.counts`."""
        rows = self._db.execute(
            f"SELECT status, count(*) FROM {self._from(Path.STATUS)} GROUP BY status"
        )
        counts = {Status(status): number for status, number in rows}
        return Counts(by_status=counts, redirects=number_of(self._db, self._sql.count_redirects))


class Results:
    """The tables of items."""

    def __init__(self, db: Database, sql: Statements) -> None:
        self._db = db
        self._sql = sql

    async def count(self, *, scan_limit: int | None = None) -> Count:  # noqa: ARG002  # not needed
        """See `port.Results.count`."""
        return Count(number=number_of(self._db, self._sql.count_items))

    async def of(self, keys: Sequence[Key]) -> tuple[list[ItemRow], int]:
        """See `port.Results.of`."""
        rows: list[ItemRow] = []
        characters = 0
        for number, key in enumerate(keys, 1):
            for row in self._db.execute(self._sql.items_of_task, (key,)):
                rows.append(_item(row))
                characters += len(row["item"])
            if len(rows) >= ITEM_ROWS or characters >= ITEM_CHARACTERS:
                return rows, number
        return rows, len(keys)

    async def items(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """See `port.Results.items`."""
        return self._results(self._sql.items, last_key)

    async def versions(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """See `port.Results.versions`."""
        return self._results(self._sql.versions, last_key)

    def _results(self, statement: str, last_id: Key) -> tuple[list[ItemRow], Key | None]:
        """Return a batch of items of tasks after *last_id*; it ends with a task's last item."""
        rows: list[ItemRow] = []
        characters = 0
        for row in self._db.stream(statement, (last_id,)):
            is_full = len(rows) >= ITEM_ROWS or characters >= ITEM_CHARACTERS
            if is_full and row["task_id"] != last_id:
                return rows, last_id
            rows.append(_item(row))
            characters += len(row["item"])
            last_id = row["task_id"]
        return rows, None


def _order(row: Row) -> tuple[int, bytes]:
    return row[0], row[1]


def _cursor(row: Row) -> Cursor:
    return Cursor(update_time=moment(row["update_time"]), id=row["id"])


def _item(row: Row) -> ItemRow:
    return ItemRow(
        item=documents.unescaped(from_json(row["item"])),
        url=row["url"],
        fetched_at=moment(row["fetched_at"]),
    )
