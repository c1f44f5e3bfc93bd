"""The ledger on PostgreSQL, with one object for each attribute of `protocol.Ledger`."""

from collections.abc import Callable
from datetime import datetime
from typing import Self

from crawlcw.ledger import protocol
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.postgres.changes import Changes
from crawlcw.ledger.postgres.connection import Connection
from crawlcw.ledger.postgres.inspection import Inspection
from crawlcw.ledger.postgres.schema import check_marker, marker_of, recorded_names
from crawlcw.ledger.postgres.store import PostgresStore
from crawlcw.ledger.sql.database import once
from crawlcw.ledger.sql.facets import Facets


class PostgresLedger(Facets):
    """The tasks of one spider or use case in a PostgreSQL database."""

    store: PostgresStore

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self.changes: protocol.Changes = Changes(store)
        self.inspection = Inspection(store)

    @classmethod
    async def open(
        cls,
        url: str,
        name: str,
        *,
        clock: Callable[[], datetime] | None = None,
        kind: LedgerKind | None = None,
        create: bool = True,
    ) -> Self:
        """Connect to *url* and create missing tables of *name*.

        *url* is a connection URL of libpq, such as `postgresql://user@host/database`. *kind* is the
        kind of the tasks; None means the recorded kind, or `SPIDER` for a new ledger. If *create*
        is false, `open` raises `UnknownNameError` for a missing name. Raises
        `LedgerUnavailableError` or `LedgerConfigurationError`.
        """
        store = PostgresStore(url, name, clock=clock)
        ledger = cls(store)
        try:
            await store.prepare(kind=kind, create=create)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @classmethod
    async def open_existing(
        cls,
        url: str,
        name: str,
        *,
        clock: Callable[[], datetime] | None = None,
        kind: LedgerKind | None = None,
    ) -> Self:
        """Connect to *url* for inspection; create nothing. Raises the same errors as `open`."""
        store = PostgresStore(url, name, clock=clock)
        ledger = cls(store)
        try:
            marker = await store.reader.run(marker_of, name)
            store.kind = check_marker(marker, name, kind=kind)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @staticmethod
    async def recorded_names(url: str) -> list[str]:
        """Return the sorted names of the spiders and use cases that have tasks."""
        return await once(Connection(url), recorded_names)

    @staticmethod
    async def discard(url: str, name: str) -> None:
        """Delete all data of *name*, whatever its format."""
        store = PostgresStore(url, name)
        try:
            await store.drop()
        finally:
            await store.close()

    async def reconnected(self) -> "PostgresLedger":
        """See `Ledger.reconnected`."""
        store = PostgresStore(self.store.url, self.store.name, clock=self.store.now)
        store.kind = self.store.kind
        return PostgresLedger(store)
