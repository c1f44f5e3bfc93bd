"""Showing tasks that somebody has chosen, and changing or deleting them."""

import heapq
import sqlite3
from collections.abc import Mapping
from itertools import islice

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Cursor, TaskFilter
from crawlcw.ledger.sqlite.chosen_statements import ChosenStatements
from crawlcw.ledger.sqlite.connection import Database, snapshot
from crawlcw.ledger.sqlite.crawl_state import CrawlState
from crawlcw.ledger.sqlite.hosts import Hosts
from crawlcw.ledger.sqlite.rows import document_of, milliseconds
from crawlcw.ledger.sqlite.walks import (
    Row,
    Walks,
    bounds_of,
    change_some,
    executing,
    in_batches,
    narrowed,
)
from crawlcw.model import transitions
from crawlcw.model.task import Record


class Selections(Hosts, Walks, CrawlState):
    """Finds tasks; withdraws, reopens, prioritises and purges them."""

    async def find(
        self, chosen: TaskFilter, *, limit: int, after: Cursor | None = None
    ) -> list[Record]:
        """See `Ledger.find`."""
        sql = ChosenStatements(self._tables, chosen.statuses)
        bounds = {**bounds_of(chosen, after), "limit": max(limit, 0)}
        rows = await self._reader.run(self._find, sql, chosen, bounds)
        return [documents.record(document_of(row)) for row in rows]

    def _find(
        self, db: sqlite3.Connection, sql: ChosenStatements, chosen: TaskFilter, bounds: Row
    ) -> list[sqlite3.Row]:
        if chosen.ids is not None:
            found = [
                row
                for identity in set(chosen.ids)
                for row in db.execute(sql.find_by_id, {**bounds, "id": identity})
            ]
            return heapq.nlargest(bounds["limit"], found, key=_place)
        # Of one moment, so that what changes its status meanwhile is not overlooked. Each
        # status is in order and is read only as far as its tasks are taken.
        with snapshot(db):
            streams = [
                db.execute(sql.find, {**bounds, "status": status})
                for status in sorted(set(chosen.statuses))
            ]
            return list(islice(heapq.merge(*streams, key=_place, reverse=True), bounds["limit"]))

    async def withdraw(self, chosen: TaskFilter, *, reason: Reason) -> int:
        """See `Ledger.withdraw`."""
        chosen = narrowed(chosen, transitions.WITHDRAW.from_statuses)
        sql = ChosenStatements(self._tables, chosen.statuses)
        return await self._change(
            chosen,
            walk=sql.walk,
            change=executing(sql.withdraw),
            now=milliseconds(self.now()),
            why=str(reason),
        )

    async def reopen(
        self, chosen: TaskFilter, *, stage: str | None = None, anew: bool = False
    ) -> int:
        """See `Ledger.reopen`."""
        chosen = narrowed(chosen, transitions.REOPEN.from_statuses)
        sql = ChosenStatements(self._tables, chosen.statuses)
        count = await self._change(
            chosen,
            walk=sql.walk,
            change=executing(sql.reopen),
            now=milliseconds(self.now()),
            # The host of a page is its URL's.
            stage=stage if self.tracked else None,
            anew=anew,
        )
        if transitions.REOPEN.wakes_hosts and not self.tracked:
            await self.wake_all_hosts()
        return count

    async def prioritise(self, priorities: Mapping[bytes, int]) -> int:
        """See `Ledger.prioritise`."""
        total = 0
        change = executing(self._sql.prioritise)
        for some in in_batches(list(priorities.items())):
            rows = [{"id": identity, "priority": priority} for identity, priority in some]
            total += await self._writer.run(change_some, change, rows)
        return total

    async def purge(self, chosen: TaskFilter) -> int:
        """See `Ledger.purge`."""
        sql = ChosenStatements(self._tables, chosen.statuses)

        def change(db: Database, row: Row) -> int:
            if not db.execute(sql.purge, row).rowcount:
                return 0
            for statement in (self._sql.forget_items, self._sql.forget_blobs):
                db.execute(statement, (row["id"],))
            return 1

        # First, for a crash must not leave seeds that are gone and taken to be there.
        await self.set_state({"seeds": None})
        return await self._change(chosen, walk=sql.walk, change=change)


def _place(row: sqlite3.Row) -> tuple[int, bytes]:
    return row["update_time"], row["id"]
