"""Add tasks, read due tasks, and read the whole record of a task."""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.admin import Reopening
from crawlcw.ledger.item_files import fill_files
from crawlcw.ledger.protocol import Added
from crawlcw.ledger.sql.database import Database, Row, descending
from crawlcw.ledger.sql.outcomes import insert
from crawlcw.ledger.sql.rows import (
    UNSTORABLE_ERRORS,
    describe_unholdable,
    document_of,
    documents_of,
    from_json,
    milliseconds,
    row_of,
)
from crawlcw.ledger.sql.statements import READ
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.task import Record, Task


class Tasks(Reopening):
    """Adds tasks to an SQL ledger and reads tasks."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self._store = store

    async def add(self, tasks: Sequence[Task]) -> Added:
        """See `protocol.Tasks.add`."""
        return await self._store.writer.run(self._add, tasks)

    def _add(self, db: Database, tasks: Sequence[Task]) -> Added:
        rows: list[dict[str, Any]] = []
        rejected: list[tuple[Task, str]] = []
        for task in tasks:
            try:
                rows.append(row_of(documents.document(task)))
            except UNSTORABLE_ERRORS as error:
                rejected.append((task, describe_unholdable(error)))
        # A database that locks rows needs the rows in the order of ids. For SQLite, keep the order
        # of the links on a page, because workers claim the task first that was added first.
        if self._store.tables.dialect.locks_rows:
            rows.sort(key=itemgetter("id"))
        with db.transaction(durable=True):
            new = insert(db, self._store.tables.tasks, rows)
        return Added(new=new, existing=len(rows) - new, rejected=tuple(rejected))

    async def page(self, *, limit: int, hosts: Collection[str] | None = None) -> list[Task]:
        """See `protocol.Tasks.page`."""
        return await self._store.reader.run(
            self._page, limit, hosts, milliseconds(self._store.now())
        )

    def _page(
        self, db: Database, limit: int, hosts: Collection[str] | None, now: int
    ) -> list[Task]:
        if hosts is None:
            due = self._due(db, limit, now)
        else:
            # Merge the sorted due tasks of the hosts, and stop at *limit*, so that the merge does
            # not take longer if there are many due tasks.
            lines = [self._due_of_host(db, limit, now, host) for host in set(hosts)]
            due = heapq.merge(*lines, key=lambda row: (-row["priority"], row["due"]))
        return [*map(documents.task, documents_of(READ, islice(due, limit)))]

    async def page_each(self, limit_by_host: Mapping[str, int]) -> list[Task]:
        """See `protocol.Tasks.page_each`."""
        return await self._store.reader.run(
            self._page_each, limit_by_host, milliseconds(self._store.now())
        )

    def _page_each(self, db: Database, limit_by_host: Mapping[str, int], now: int) -> list[Task]:
        rows: list[Row] = []
        for host, limit in limit_by_host.items():
            rows += islice(self._due_of_host(db, limit, now, host), limit)
        return [*map(documents.task, documents_of(READ, rows))]

    def _due(self, db: Database, limit: int, now: int) -> Iterator[Row]:
        bounds = {"now": now, "limit": limit}
        for priority, due in descending(db, self._store.sql.next_due, {}):
            if due <= now:
                yield from db.execute(self._store.sql.page, bounds | {"priority": priority})

    def _due_of_host(self, db: Database, limit: int, now: int, host: str) -> Iterator[Row]:
        bounds: dict[str, Any] = {"host": host, "now": now, "limit": limit}
        for priority, due in descending(db, self._store.sql.next_due_of_host, bounds):
            if due <= now:
                yield from db.execute(self._store.sql.page_of_host, bounds | {"priority": priority})

    async def get(self, task_id: bytes) -> Record | None:
        """See `protocol.Tasks.get`."""
        record = await self._store.reader.run(self._get, task_id)
        if record is not None:
            await fill_files(self._store, record.items)
        return record

    def _get(self, db: Database, task_id: bytes) -> Record | None:
        # Use one statement for the task and its items, so that both have the same state.
        rows = db.execute(self._store.sql.get, (task_id,)).fetchall()
        if not rows:
            return None
        document = document_of(rows[0])
        document["items"] = [from_json(row["item"]) for row in rows if row["item"] is not None]
        return documents.record(document)
