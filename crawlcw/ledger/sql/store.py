"""The connections, statements and clock of a ledger in an SQL database."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from itertools import count

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.port import LedgerTables, P, T, Work
from crawlcw.ledger.sql.database import Connection, Database
from crawlcw.ledger.sql.schema import Tables
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.table import run_to_end
from crawlcw.ledger.sql.unit import ledger_tables_on


class SqlStore(ABC):
    """The tables of one spider or use case in an SQL database."""

    kind = LedgerKind.SPIDER  #: kind of the tasks, set when the ledger is opened

    def __init__(
        self,
        name: str,
        *,
        location: str,
        tables: Tables,
        clock: Callable[[], datetime],
        writer: Connection,
        reader: Connection,
    ) -> None:
        """Use *clock* as the ledger's time; error messages name the *location* of the ledger.

        *reader* is a separate connection, so that long reads such as `items` do not delay claims.
        """
        self.name = name
        self.location = location
        self.tables = tables
        self.sql = Statements(tables)
        self.now = clock
        self.writer = writer
        self.reader = reader
        #: Numbers for the tokens of leases. No two tokens of a worker contain the same number.
        self.numbers = count(1)

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`; all reads of a unit of work see one snapshot."""

        def read(db: Database) -> T:
            with db.snapshot():
                return run_to_end(work(self._ledger_tables(db), *args, **kwargs))

        return await self.reader.run(read)

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.writing`; *work* is one transaction, which begins at its first write."""

        def written(db: Database) -> T:
            with db.transaction(begun=False):
                return run_to_end(work(self._ledger_tables(db), *args, **kwargs))

        return await self.writer.run(written)

    @abstractmethod
    async def drop(self) -> None:
        """See `port.Store.drop`."""

    def _ledger_tables(self, db: Database) -> LedgerTables:
        if db.ledger_tables is None:
            db.ledger_tables = ledger_tables_on(db, self.sql)
        ledger_tables: LedgerTables = db.ledger_tables
        return ledger_tables

    async def close(self) -> None:
        """See `Ledger.close`."""
        await self.reader.close()
        await self.writer.close()
