"""Bringing back what failed."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sqlite.chosen_statements import ChosenStatements
from crawlcw.ledger.sqlite.connection import number_of
from crawlcw.ledger.sqlite.hosts import Hosts
from crawlcw.ledger.sqlite.rows import milliseconds
from crawlcw.ledger.sqlite.walks import Walks, bounds_of, executing, narrowed
from crawlcw.model.transitions import RETRY


class Failures(Hosts, Walks):
    """Resets failed tasks, and wakes the hosts for them."""

    async def retry_failed(self, selection: TaskFilter, *, dry_run: bool = False) -> int:
        """See `Ledger.retry_failed`."""
        chosen = narrowed(selection, RETRY.from_statuses)
        sql = ChosenStatements(self._tables, chosen.statuses)
        if dry_run and chosen.ids is None:
            return await self._reader.run(number_of, sql.count_failed, bounds_of(chosen))
        if dry_run:
            rows = [{**bounds_of(chosen), "id": identity} for identity in set(chosen.ids or ())]
            return await self._reader.run(_sum_of, sql.count_failed_by_id, rows)
        now = milliseconds(self.now())
        change = executing(sql.retry)
        count = await self._change(chosen, walk=sql.walk_failed, change=change, now=now)
        if RETRY.wakes_hosts:
            await self.wake_all_hosts()
        return count


def _sum_of(db: sqlite3.Connection, statement: str, rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(number_of(db, statement, row) for row in rows)
