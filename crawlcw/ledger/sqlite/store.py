"""The connections of a ledger to an SQLite file, and the ledger's clock."""

import shutil
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from anyio import to_thread

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.ledger.sqlite.connection import Connection, Database
from crawlcw.ledger.sqlite.file_modes import shut_out_others
from crawlcw.ledger.sqlite.marker import Tables, forget, prepare


class SqliteStore(SqlStore):
    """The tables of one spider or use case in an SQLite file."""

    tables: Tables

    #: Folder of a temporary ledger's file, which `close` deletes.
    temporary_folder: Path | None = None

    def __init__(self, path: Path, name: str, *, clock: Callable[[], datetime]) -> None:
        """*clock* must return this machine's time, which all processes of a file share."""
        self.path = path
        super().__init__(
            name,
            location=str(path),
            tables=Tables(name),
            clock=clock,
            writer=Connection(path),
            reader=Connection(path),
        )

    async def prepare(self, *, kind: LedgerKind | None, create: bool = True) -> None:
        """Create missing tables and indexes, and check existing tables; see `marker.prepare`.

        `prepare` also removes other users' access to the file.
        """
        self.kind = await self.writer.run(
            prepare, self.tables, self.name, self.path, kind=kind, create=create
        )
        # Change the mode only after `prepare` has checked that the file is not another program's.
        shut_out_others(self.path)

    async def drop(self) -> None:
        """See `port.Store.drop`; one transaction deletes all tables or none."""

        def drop(db: Database) -> None:
            with db.transaction(durable=True):
                for statement in self.tables.drop:
                    db.execute(statement)
                forget(db, self.name)

        await self.writer.run(drop)

    async def close(self) -> None:
        """See `Ledger.close`; a temporary ledger's file is deleted."""
        await super().close()
        if self.temporary_folder is not None:
            await to_thread.run_sync(
                partial(shutil.rmtree, self.temporary_folder, ignore_errors=True)
            )
