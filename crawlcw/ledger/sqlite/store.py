"""SQLite connections, statements and time of a ledger."""

import shutil
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from anyio import to_thread

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.port import P, T, Work
from crawlcw.ledger.sqlite.connection import Connection, Database, snapshot, transaction
from crawlcw.ledger.sqlite.file_modes import shut_out_others
from crawlcw.ledger.sqlite.marker import create, forget
from crawlcw.ledger.sqlite.rows import refusing, to_json
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.statements import Statements
from crawlcw.ledger.sqlite.table import driven
from crawlcw.ledger.sqlite.task_table import ITEM_CHARACTERS as ITEM_CHARACTERS
from crawlcw.ledger.sqlite.task_table import ITEM_ROWS as ITEM_ROWS
from crawlcw.ledger.sqlite.task_table import Unit


class SqliteStore:
    """The tables of one spider or use case in an SQLite file."""

    kind = LedgerKind.SPIDER  #: known once it is opened

    #: Folder of a temporary ledger's file, deleted when the ledger is closed.
    passing: Path | None = None

    def __init__(self, path: Path, name: str, *, clock: Callable[[], datetime]) -> None:
        self.path = path
        self.name = name
        self.tables = Tables(name)
        self.sql = Statements(self.tables)
        #: Returns this machine's time, which all processes on the file share.
        self.now = clock
        self.writer = Connection(path)
        # A separate one, so that `items` and `counts` do not delay claims.
        self.reader = Connection(path)
        #: Distinguishes the leases of a worker.
        self.numbers = count(1)

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`: all is read as of one moment."""

        def read(db: Database) -> T:
            with snapshot(db):
                return driven(work(self._unit(db), *args, **kwargs))

        return await self.reader.run(read)

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.writing`: one transaction, from its first write on."""

        def written(db: Database) -> T:
            with transaction(db, begun=False):
                return driven(work(self._unit(db), *args, **kwargs))

        return await self.writer.run(written)

    def _unit(self, db: Database) -> Unit:
        if db.unit is None:
            db.unit = Unit(db, self.sql)
        unit: Unit = db.unit
        return unit

    def text(self, value: Any) -> str:
        """Return a value as JSON; raises `LedgerError` if the ledger cannot hold it."""
        with refusing():
            return to_json(value)

    async def prepare(self, *, kind: LedgerKind | None) -> None:
        """Create missing tables and indexes, and check existing ones.

        Removes other users' access to a file of an older version.
        """
        self.kind = await self.writer.run(create, self.tables, self.name, self.path, kind=kind)
        # Not before: until then it may be another program's.
        shut_out_others(self.path)

    async def drop(self) -> None:
        """See `port.Store.drop`: in one transaction, so that all tables are gone, or none."""

        def drop(db: Database) -> None:
            with transaction(db, durable=True):
                for statement in self.tables.drop:
                    db.execute(statement)
                forget(db, self.name)

        await self.writer.run(drop)

    async def close(self) -> None:
        """See `Ledger.close`."""
        await self.reader.close()
        await self.writer.close()
        if self.passing is not None:
            await to_thread.run_sync(partial(shutil.rmtree, self.passing, ignore_errors=True))
