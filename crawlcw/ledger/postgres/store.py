"""Connect a ledger to PostgreSQL, and read the server's clock."""

from collections.abc import Callable
from datetime import datetime

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.postgres import schema
from crawlcw.ledger.postgres.connection import Connection, Database
from crawlcw.ledger.postgres.schema import Tables
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.clock import LedgerClock

#: Seconds between two measurements of the server's time.
_CLOCK_CHECK = 15.0


class PostgresStore(SqlStore):
    """The tables of one spider or use case in a PostgreSQL database."""

    tables: Tables

    def __init__(self, url: str, name: str, *, clock: Callable[[], datetime] | None = None) -> None:
        """Use *clock* as the ledger's time; None means the server's time."""
        self.url = url
        self.clock = LedgerClock()
        self._own_clock = clock is None
        self._clock_checked = float("-inf")
        super().__init__(
            name,
            location="on PostgreSQL",
            tables=Tables(name),
            clock=clock or self.clock.now,
            writer=Connection(url, begun=self._check_clock),
            reader=Connection(url),
        )

    def _check_clock(self, db: Database) -> None:
        """Measure the server's time if the last measurement is old."""
        if self._own_clock and self.clock.monotonic() - self._clock_checked > _CLOCK_CHECK:
            self.set_clock(db)

    def set_clock(self, db: Database) -> None:
        """Read the server's time."""
        asked_at = self.clock.monotonic()
        (time,) = db.execute("SELECT clock_timestamp()").fetchone()
        answered_at = self.clock.monotonic()
        self.clock.set(time, asked_at=asked_at, answered_at=answered_at)
        self._clock_checked = answered_at

    async def prepare(self, *, kind: LedgerKind | None, create: bool = True) -> None:
        """Create missing tables; see `schema.prepare`."""
        self.kind = await self.writer.run(
            schema.prepare, self.tables, self.name, kind=kind, create=create
        )

    async def drop(self) -> None:
        """See `port.Store.drop`."""
        await self.writer.run(schema.drop, self.tables, self.name)
