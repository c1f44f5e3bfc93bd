"""Changes of many tasks at once, by somebody who holds none of them."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.notes import Notes
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sqlite.chosen import ChosenTasks
from crawlcw.ledger.sqlite.chosen_statements import ENTERED, ChosenStatements
from crawlcw.ledger.sqlite.connection import Database, transaction, update_all
from crawlcw.ledger.sqlite.hosts import Hosts
from crawlcw.ledger.sqlite.marker import forget
from crawlcw.ledger.sqlite.rows import INT64, milliseconds
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger.sqlite.walks import (
    BATCH,
    Row,
    change_chosen,
    executing,
    in_batches,
)
from crawlcw.model.transitions import REOPEN, RETRY, REVISIT, WITHDRAW, BulkChange


class Admin:
    """Brings tasks back, withdraws, prioritises and purges them, or drops them all."""

    def __init__(self, store: SqliteStore, hosts: Hosts, notes: Notes) -> None:
        self._store = store
        self._hosts = hosts
        self._notes = notes
        #: Hosts of tasks that were admitted, and that may not have been woken yet.
        self._admitted_hosts: set[str] = set()
        #: Whether pages were made due again whose hosts may not have been woken yet.
        self._unwoken = False

    async def retry_failed(self, selection: TaskFilter, *, dry_run: bool = False) -> int:
        """See `protocol.Admin.retry_failed`."""
        chosen = selection.among(RETRY.from_statuses)
        if dry_run:
            tasks = ChosenTasks(self._store, chosen.counted_at(self._store.now()))
            return await self._store.reader.run(tasks.count_failed)
        sql = ChosenStatements(self._store.tables, chosen.statuses)
        now = milliseconds(self._store.now())
        change = executing(sql.retry)
        count = await change_chosen(
            self._store, chosen, walk=sql.walk_failed, change=change, now=now
        )
        if RETRY.wakes_hosts:
            await self._hosts.wake_all()
        return count

    async def withdraw(self, chosen: TaskFilter, *, reason: Reason) -> int:
        """See `protocol.Admin.withdraw`."""
        return await self._change(WITHDRAW, chosen, why=str(reason))

    async def reopen(
        self, chosen: TaskFilter, *, stage: str | None = None, anew: bool = False
    ) -> int:
        """See `protocol.Admin.reopen`."""
        # The host of a page is its URL's.
        stage = stage if self._store.kind.tracked else None
        return await self._change(REOPEN, chosen, ENTERED, stage=stage, anew=anew)

    async def revisit(self, chosen: TaskFilter) -> int:
        """See `protocol.Admin.revisit`."""
        return await self._change(REVISIT, chosen)

    async def _change(
        self, change: BulkChange, chosen: TaskFilter, *also: str, **values: Any
    ) -> int:
        now = self._store.now()
        count = 0
        for part in change.parts:
            freed = chosen.freed(part, now=now)
            sql = ChosenStatements(self._store.tables, freed.statuses)
            count += await change_chosen(
                self._store,
                freed,
                walk=sql.walk,
                change=executing(sql.changing(part, *also)),
                now=milliseconds(now),
                **values,
            )
        if change.wakes_hosts and not self._store.kind.tracked:
            await self._hosts.wake_all()
        return count

    async def revisit_due(self) -> int:
        """See `protocol.Admin.revisit_due`."""
        now = milliseconds(self._store.now())
        total = 0
        # What is changed is not found again.
        while ids := await self._store.reader.run(self._next_to_revisit, now):
            self._unwoken = REVISIT.wakes_hosts
            rows = [{"id": identity, "now": now} for identity in ids]
            total += await self._store.writer.run(update_all, self._store.sql.revisit_due, rows)
        if self._unwoken:
            await self._hosts.wake_all()
            self._unwoken = False
        return total

    def _next_to_revisit(self, db: sqlite3.Connection, now: int) -> list[bytes]:
        rows = db.execute(self._store.sql.next_to_revisit, {"now": now, "limit": BATCH})
        return [row["id"] for row in rows]

    async def prioritise(self, priorities: Mapping[bytes, int]) -> int:
        """See `protocol.Admin.prioritise`."""
        total = 0
        for some in in_batches(list(priorities.items())):
            rows = [{"id": identity, "priority": priority} for identity, priority in some]
            total += await self._store.writer.run(update_all, self._store.sql.prioritise, rows)
        return total

    async def purge(self, chosen: TaskFilter) -> int:
        """See `protocol.Admin.purge`."""
        sql = ChosenStatements(self._store.tables, chosen.statuses)

        def change(db: Database, row: Row) -> int:
            if not db.execute(sql.purge, row).rowcount:
                return 0
            of_tasks = self._store.sql
            for statement in (
                of_tasks.forget_items,
                of_tasks.forget_versions,
                of_tasks.forget_blobs,
            ):
                db.execute(statement, (row["id"],))
            return 1

        # First, for a crash must not leave seeds that are gone and taken to be there.
        await self._notes.set_state({"seeds": None})
        return await change_chosen(self._store, chosen, walk=sql.walk, change=change)

    async def drop(self) -> None:
        """Drop the tables in one transaction: all of them are gone, or none."""
        await self._store.writer.run(self._drop)

    def _drop(self, db: Database) -> None:
        with transaction(db, durable=True):
            for statement in self._store.tables.drop:
                db.execute(statement)
            forget(db, self._store.name)

    async def admit_to_depth(self, max_depth: int | None) -> int:
        """See `protocol.Admin.admit_to_depth`."""
        total = 0
        place: dict[str, Any] = {"before": INT64 - 1, "before_id": b"", "limit": BATCH}
        while rows := await self._store.reader.run(
            self._refused, {**place, "max_depth": max_depth}
        ):
            now = self._store.now()
            # Noted before: where an answer is lost, the next call wakes them.
            self._admitted_hosts.update(row["host"] for row in rows)
            values = {"max_depth": max_depth, "now": milliseconds(now)}
            admitted = [{**values, "id": row["id"]} for row in rows]
            total += await self._store.writer.run(update_all, self._store.sql.admit, admitted)
            await self._hosts.wake(dict.fromkeys(self._admitted_hosts, now))
            self._admitted_hosts.clear()
            place |= {"before": rows[-1]["update_time"], "before_id": rows[-1]["id"]}
        if self._admitted_hosts:
            await self._hosts.wake(dict.fromkeys(self._admitted_hosts, self._store.now()))
            self._admitted_hosts.clear()
        return total

    def _refused(self, db: sqlite3.Connection, place: Mapping[str, Any]) -> list[sqlite3.Row]:
        return db.execute(self._store.sql.walk_admitted, place).fetchall()
