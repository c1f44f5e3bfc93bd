"""Hosts without an owner: waking them, giving them up, and reading their states."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Counts, Dimension
from crawlcw.ledger.sql.database import Database, Row, all_rows, descending, number_of, update
from crawlcw.ledger.sql.rows import INT64, document_of, milliseconds, moment, row_of
from crawlcw.ledger.sql.schema import HOST_COLUMNS
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.store import ITEM_CHARACTERS, ITEM_ROWS, SqlStore
from crawlcw.model.hosts import Calls, Host
from crawlcw.model.task import Status

#: One transaction gives up this many tasks, or wakes this many hosts: others wait meanwhile.
_BATCH = 5_000
#: The state of an unknown host, for `wake_host`.
NEW_HOST: Mapping[str, Any] = dict.fromkeys(HOST_COLUMNS) | row_of(
    documents.host_document(Host(name=""))
)


class Hosts:
    """Wakes hosts, gives them up and reads them."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def wake(self, dues: Mapping[str, datetime]) -> None:
        """See `protocol.Hosts.wake`."""
        rows = [{**NEW_HOST, "id": host, "due": milliseconds(due)} for host, due in dues.items()]
        for start in range(0, len(rows), _BATCH):
            await self._store.writer.run(self._wake, rows[start : start + _BATCH])

    def _wake(self, db: Database, rows: Sequence[Mapping[str, Any]]) -> None:
        # A host that is held when it is read needs no write, also if it is released
        # right after: the release looks for tasks, and the task that this is
        # about is in the ledger.
        late = [
            row for row in rows if not db.execute(self._store.sql.host_is_awake, row).fetchone()
        ]
        if late:
            # As durable as the task, which no process would find without it.
            with db.transaction(durable=True):
                db.executemany(self._store.sql.wake_host, late)

    async def wake_all(self) -> int:
        """See `protocol.Hosts.wake_all`."""
        now = {"now": milliseconds(self._store.now())}
        return await self._store.writer.run(update, self._store.sql.wake_all_hosts, now)

    async def give_up(
        self,
        host: str,
        *,
        reason: Reason,
        scheme: str | None = None,
        calls: Calls = Calls.NONE,
    ) -> int:
        """See `protocol.Hosts.give_up`."""
        sql, total, now = self._store.sql, 0, milliseconds(self._store.now())
        first, end = documents.urls_of(scheme)
        told, untold = sql.waiting_of_host, sql.waiting_of_host
        if calls is Calls.ERRBACK:
            told, untold = sql.waiting_with_errback, sql.waiting_without_errback
        for priority in await self._store.reader.run(self._priorities, host):
            bounds = {"host": host, "priority": priority, "first": first, "end": end}
            bounds |= {"why": str(reason), "now": now}
            if calls is not Calls.NONE:
                await self._change_waiting(told, sql.hasten, {**bounds, "due": now + 1})
            if calls is not Calls.ALL:
                every = {**bounds, "due": -INT64}
                total += await self._change_waiting(untold, sql.give_up, every)
        return total

    def _priorities(self, db: Database, host: str) -> list[int]:
        return list(descending(db, self._store.sql.next_priority_of_host, {"host": host}))

    async def _change_waiting(self, walk: str, change: str, bounds: dict[str, Any]) -> int:
        """Change the waiting tasks of one priority, from a `due` on; return how many.

        A changed task leaves that stretch of the index. Each batch begins where the last one
        ended, so the leased tasks are not read for each.
        """
        total = 0
        while True:
            changed, due = await self._store.writer.run(self._change_some, walk, change, bounds)
            if not changed:
                return total
            bounds["due"] = due
            total += changed

    @staticmethod
    def _change_some(
        db: Database, walk: str, change: str, bounds: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Change the next tasks of one priority; return how many, and the last one's `due`."""
        with db.transaction(durable=True):
            rows = db.execute(walk, {**bounds, "limit": _BATCH}).fetchall()
            for row in rows:
                db.execute(change, {**bounds, "id": row["id"]})
        return len(rows), rows[-1]["due"] if rows else bounds["due"]

    async def busiest(self, *, limit: int) -> tuple[list[Host], list[Host]]:
        """See `protocol.Hosts.busiest`."""
        held, waiting = await self._store.reader.run(self._busiest, limit)
        return (
            [documents.host(document_of(row)) for row in held],
            [documents.host(document_of(row)) for row in waiting if row["owner"] is None],
        )

    def _busiest(self, db: Database, limit: int) -> tuple[list[Row], list[Row]]:
        most = {"limit": limit}
        with db.snapshot():
            return (
                db.execute(self._store.sql.held_hosts, most).fetchall(),
                db.execute(self._store.sql.waiting_hosts, most).fetchall(),
            )

    async def all(self) -> AsyncIterator[Host]:
        """See `protocol.Hosts.all`."""
        last = ""
        while rows := await self._store.reader.run(self._some, last):
            for row in rows:
                yield documents.host(document_of(row))
            last = rows[-1]["id"]

    def _some(self, db: Database, after: str) -> list[Row]:
        rows: list[Row] = []
        characters = 0
        for row in db.execute(self._store.sql.hosts, (after,)):
            rows.append(row)
            characters += len(row["robots"] or "")
            if len(rows) >= ITEM_ROWS or characters >= ITEM_CHARACTERS:
                break
        return rows

    async def counts(self) -> dict[str, Counts]:
        """See `protocol.Hosts.counts`."""
        totals: dict[str, dict[Status, int]] = {}
        by_host = self._store.sql.groups[Dimension.HOST]
        for host, status, number in await self._store.reader.run(all_rows, by_host):
            totals.setdefault(host, {})[Status(status)] = number
        return {host: Counts(by_status=of_host) for host, of_host in totals.items()}

    async def get(self, names: Collection[str]) -> dict[str, Host]:
        """See `protocol.Hosts.get`."""
        wanted = list(names)
        hosts: dict[str, Host] = {}
        for start in range(0, len(wanted), _BATCH):
            rows = await self._store.reader.run(self._get_hosts, wanted[start : start + _BATCH])
            hosts |= {row["id"]: documents.host(document_of(row)) for row in rows}
        return hosts

    def _get_hosts(self, db: Database, names: Sequence[str]) -> list[Row]:
        return [row for name in names for row in db.execute(self._store.sql.get_host, (name,))]

    async def next_ready(self) -> datetime | None:
        """See `protocol.Hosts.next_ready`."""
        rows = await self._store.reader.run(all_rows, self._store.sql.next_ready)
        return moment(rows[0]["ready_at"]) if rows else None

    async def due(self, *, after: str, limit: int) -> list[str]:
        """See `protocol.Hosts.due`."""
        return await self._store.reader.run(self._due, after, limit)

    def _due(self, db: Database, after: str, limit: int) -> list[str]:
        names: list[str] = []
        while len(names) < limit:
            row = db.execute(self._store.sql.next_host, (after,)).fetchone()
            if row is None:
                break
            after = row["host"]
            names.append(after)
        return names

    async def earliest_due(self, host: str) -> datetime | None:
        """See `protocol.Hosts.earliest_due`."""
        due = await self._store.reader.run(earliest_due, self._store.sql, host)
        return None if due is None else moment(due)


def earliest_due(db: Database, sql: Statements, host: str) -> int | None:
    """Return when the next task of *host* is due, in milliseconds; None: never."""
    return min(
        (
            number_of(db, sql.first_due_of_host, {"host": host, "priority": priority})
            for priority in descending(db, sql.next_priority_of_host, {"host": host})
        ),
        default=None,
    )
