"""Questions on all the tasks of a spider: how many there are, and when the next one is due."""

import sqlite3
from datetime import datetime

from crawlcw.ledger.protocol import Counts
from crawlcw.ledger.sqlite.connection import all_rows, number_of, snapshot
from crawlcw.ledger.sqlite.priorities import Priorities
from crawlcw.ledger.sqlite.rows import moment
from crawlcw.task import Status


class Questions(Priorities):
    """Counts tasks, and looks for the earliest."""

    async def horizon(self) -> datetime | None:
        """See `Ledger.horizon`."""
        return await self._reader.run(self._horizon)

    def _horizon(self, db: sqlite3.Connection) -> datetime | None:
        # One look a priority: the earliest due of each is the first in the index.
        # All of one moment: links may be added above a priority already seen
        # while their page, below it, is finished, and nothing would be found.
        with snapshot(db):
            firsts = [
                number_of(db, self._sql.first_due, {"priority": priority})
                for priority in self._priorities(db)
            ]
        return moment(min(firsts)) if firsts else None

    async def counts(self) -> Counts:
        """See `Ledger.counts`."""
        rows = await self._reader.run(all_rows, self._sql.counts)
        return Counts(by_status={Status(status): count for status, count in rows})

    async def reasons(self) -> dict[str, int]:
        """See `Ledger.reasons`."""
        rows = await self._reader.run(all_rows, self._sql.reasons)
        return {row["reason"]: row["tasks"] for row in rows}
