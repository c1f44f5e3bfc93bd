"""The ledger in an SQLite file, put together."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from crawlcw.ledger.sqlite.admissions import Admissions
from crawlcw.ledger.sqlite.claims import Claims
from crawlcw.ledger.sqlite.clock import machine_clock
from crawlcw.ledger.sqlite.connection import number_of, restrict_to_reading
from crawlcw.ledger.sqlite.crawl_state import CrawlState
from crawlcw.ledger.sqlite.examination import Examination
from crawlcw.ledger.sqlite.failures import Failures
from crawlcw.ledger.sqlite.host_leases import HostLeases
from crawlcw.ledger.sqlite.hosts import Hosts
from crawlcw.ledger.sqlite.items import Items
from crawlcw.ledger.sqlite.marker import check_marker, create, names_in
from crawlcw.ledger.sqlite.outcomes import Outcomes
from crawlcw.ledger.sqlite.questions import Questions
from crawlcw.ledger.sqlite.rows import EPOCH, moment
from crawlcw.ledger.sqlite.selections import Selections
from crawlcw.ledger.sqlite.statements import Statements
from crawlcw.ledger.sqlite.tasks import Tasks
from crawlcw.ledger.sqlite.tracked import Tracked
from crawlcw.ledger.sqlite.workers import Workers
from crawlcw.model.clock import LedgerClock


class SqliteLedger(
    Tasks,
    Admissions,
    Claims,
    Outcomes,
    Items,
    Failures,
    Selections,
    Questions,
    HostLeases,
    Hosts,
    Workers,
    CrawlState,
    Tracked,
    Examination,
):
    """A `Ledger` in an SQLite file, or a `TrackedLedger`."""

    @classmethod
    async def open(
        cls,
        path: str | Path,
        name: str,
        *,
        clock: Callable[[], datetime] | None = None,
        tracked: bool | None = None,
    ) -> Self:
        """Return the ledger of *name* in the file at *path*, both made where they do not exist.

        *tracked* says whether it holds the tasks of a use case or of a spider;
        None: whatever is written down there, a spider's where nothing is. Raises
        `LedgerConfigurationError` for a file that is not such a ledger.
        """
        machine = LedgerClock()
        ledger = cls(Path(path), name, clock=clock or machine_clock(machine))
        try:
            await ledger._prepare(tracked=tracked)
            await ledger._reader.run(restrict_to_reading)
            await ledger._go_on_from_the_latest(machine)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @classmethod
    async def look(
        cls,
        path: str | Path,
        name: str,
        *,
        clock: Callable[[], datetime] | None = None,
        tracked: bool | None = None,
    ) -> Self:
        """Return the ledger of *name* in the file at *path* as it is, to be examined.

        Nothing is made or switched; *tracked* as for `open`. Raises
        `LedgerConfigurationError` for a file that is no ledger, or one of
        another version or kind.
        """
        machine = LedgerClock()
        ledger = cls(Path(path), name, clock=clock or machine_clock(machine))
        try:
            await ledger._reader.run(restrict_to_reading)
            ledger.tracked = await ledger._reader.run(
                check_marker, name, ledger._path, tracked=tracked, upgrades={}
            )
            await ledger._go_on_from_the_latest(machine)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def another(self) -> "SqliteLedger":
        """See `Ledger.another`."""
        ledger = SqliteLedger(self._path, self._name, clock=self._clock)
        ledger.tracked = self.tracked
        return ledger

    async def prepare(self) -> None:
        """Make the tables and indexes that are missing, and check what is there."""
        await self._prepare(tracked=None)

    async def _prepare(self, *, tracked: bool | None) -> None:
        self.tracked = await self._writer.run(
            create, self._tables, self._name, self._path, tracked=tracked
        )

    async def _go_on_from_the_latest(self, machine: LedgerClock) -> None:
        """Set the clock to what a worker has last shown, should that be later than it is."""
        # The machine's clock was set back since: else what is due would be due much later.
        latest = await self._reader.run(_latest, self._sql, self._name)
        reading = machine.monotonic()
        if latest > machine.now():
            machine.set(latest, asked=reading, answered=reading)


def _latest(db: sqlite3.Connection, sql: Statements, name: str) -> datetime:
    """Return the latest time that a worker has written down."""
    if f"{name}.workers" not in names_in(db):
        return EPOCH
    return moment(number_of(db, sql.latest, {}) or 0)
