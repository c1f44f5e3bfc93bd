"""The ledger in an SQLite file; the ledger consists of facets that share one store."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from anyio import to_thread

from crawlcw.ledger import examination, protocol
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.sql.database import number_of
from crawlcw.ledger.sql.facets import Facets
from crawlcw.ledger.sql.rows import EPOCH, moment
from crawlcw.ledger.sql.schema import Tables
from crawlcw.ledger.sqlite.changes import Changes
from crawlcw.ledger.sqlite.connection import Database, restrict_to_reading
from crawlcw.ledger.sqlite.inspection import Inspection
from crawlcw.ledger.sqlite.marker import check_marker, names_in
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.clock import LedgerClock


class SqliteLedger(Facets):
    """The tasks of one spider or use case in an SQLite file."""

    store: SqliteStore

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self.changes: protocol.Changes = Changes(store)
        self.inspection: examination.Inspection = Inspection(store)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        name: str,
        *,
        clock: Callable[[], datetime] | None = None,
        kind: LedgerKind | None = None,
        create: bool = True,
    ) -> Self:
        """Return the ledger of *name* in the file at *path*; create a missing file or ledger.

        *kind* says whether the tasks are a use case's or a spider's; None means the recorded kind.
        If no kind is recorded, the tasks are a spider's. Without *create*, `open` raises
        `UnknownNameError` for a missing name. Raises `LedgerConfigurationError` for a file that is
        not a ledger of this kind.
        """
        async with cls._opening(path, name, clock) as ledger:
            await ledger.store.prepare(kind=kind, create=create)
        return ledger

    @classmethod
    async def open_temporary(cls, name: str, *, kind: LedgerKind | None = None) -> Self:
        """Return a new temporary ledger of *name*, which `close` deletes.

        The ledger is a file in the system's temporary folder. The ledger is not in memory, because
        in memory one connection cannot read while another connection writes.
        """
        folder = Path(await to_thread.run_sync(partial(tempfile.mkdtemp, prefix="crawlcw-")))
        ledger = await cls.open(folder / "ledger.db", name, kind=kind)
        ledger.store.temporary_folder = folder
        return ledger

    @classmethod
    async def open_existing(
        cls,
        path: str | Path,
        name: str,
        *,
        clock: Callable[[], datetime] | None = None,
        kind: LedgerKind | None = None,
    ) -> Self:
        """Return the ledger of *name* in the file at *path* for inspection; change nothing.

        *kind* has the same meaning as in `open`. Raises `LedgerConfigurationError` for a file that
        is not a ledger, or a ledger of another format or kind.
        """
        async with cls._opening(path, name, clock) as ledger:
            store = ledger.store
            store.kind = await store.reader.run(check_marker, name, store.path, kind=kind)
        return ledger

    @classmethod
    @asynccontextmanager
    async def _opening(
        cls, path: str | Path, name: str, clock: Callable[[], datetime] | None
    ) -> AsyncIterator[Self]:
        """Open the ledger, run the block, then set the clock; close the ledger after an error."""
        machine = LedgerClock(time_of_day=partial(datetime.now, UTC))
        store = SqliteStore(Path(path), name, clock=clock or machine.now)
        ledger = cls(store)
        try:
            yield ledger
            await store.reader.run(restrict_to_reading)
            # Never set the clock below the latest recorded time, because it would delay due tasks.
            latest = await store.reader.run(_latest, store.tables, name)
            reading = machine.monotonic()
            if latest > machine.now():
                machine.set(latest, asked_at=reading, answered_at=reading)
        except BaseException:
            await ledger.close()
            raise

    @staticmethod
    async def discard(path: str | Path, name: str) -> None:
        """Delete all data of *name* in the file at *path*, whatever its format."""
        store = SqliteStore(Path(path), name, clock=partial(datetime.now, UTC))
        try:
            await store.drop()
        finally:
            await store.close()

    async def reconnected(self) -> "SqliteLedger":
        """See `Ledger.reconnected`."""
        store = SqliteStore(self.store.path, self.store.name, clock=self.store.now)
        store.kind = self.store.kind
        return SqliteLedger(store)


def _latest(db: Database, tables: Tables, name: str) -> datetime:
    """Return the latest time that a worker has recorded in the ledger."""
    if f"{name}.workers" not in names_in(db):
        return EPOCH
    latest = f"SELECT max(max(heartbeat, coalesce(left_at, 0))) FROM {tables.workers}"  # noqa: S608  # the table's name is quoted
    return moment(number_of(db, latest) or 0)
