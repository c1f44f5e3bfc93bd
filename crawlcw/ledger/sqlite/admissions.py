"""Links that were refused for depth, and may be followed now."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from crawlcw.ledger.sqlite.connection import Database, durable_transaction
from crawlcw.ledger.sqlite.hosts import Hosts
from crawlcw.ledger.sqlite.rows import INT64, milliseconds
from crawlcw.ledger.sqlite.walks import BATCH
from crawlcw.model.task import Task


class Admissions(Hosts):
    """Lets links in that lay too deep."""

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """See `Ledger.admit_nearer`."""
        now = milliseconds(self.now())
        rows = [
            {"id": task.id, "depth": task.depth, "parent": task.parent, "now": now}
            for task in tasks
        ]
        return await self._writer.run(_all_of, self._sql.admit_nearer, rows)

    async def admit_to_depth(self, max_depth: int | None) -> int:
        """See `Ledger.admit_to_depth`."""
        total = 0
        place: dict[str, Any] = {"before": INT64 - 1, "before_id": b"", "limit": BATCH}
        while rows := await self._reader.run(self._refused, {**place, "max_depth": max_depth}):
            now = self.now()
            # Noted before: where an answer is lost, the next call wakes them.
            self._admitted_hosts.update(row["host"] for row in rows)
            values = {"max_depth": max_depth, "now": milliseconds(now)}
            admitted = [{**values, "id": row["id"]} for row in rows]
            total += await self._writer.run(_all_of, self._sql.admit, admitted)
            await self.wake_hosts(dict.fromkeys(self._admitted_hosts, now))
            self._admitted_hosts.clear()
            place |= {"before": rows[-1]["update_time"], "before_id": rows[-1]["id"]}
        if self._admitted_hosts:
            await self.wake_hosts(dict.fromkeys(self._admitted_hosts, self.now()))
            self._admitted_hosts.clear()
        return total

    def _refused(self, db: sqlite3.Connection, place: Mapping[str, Any]) -> list[sqlite3.Row]:
        return db.execute(self._sql.walk_admitted, place).fetchall()


def _all_of(db: Database, statement: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Change rows by one statement each, durably; return how many were changed."""
    with durable_transaction(db):
        return db.executemany(statement, rows).rowcount if rows else 0
