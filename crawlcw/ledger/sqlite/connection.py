"""Run operations on an SQLite file in a worker thread, and sync durable commits to the disk.

Every operation is one function, which runs on a worker thread in one transaction. The statements do
not run on the thread one by one, because a switch to a thread costs more than a statement. A
hundred claims take 0.2 ms; with a thread switch for each statement, they would take 6 to 12 ms.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, Lock, to_thread

from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerError,
    LedgerGoneError,
    LedgerUnavailableError,
)
from crawlcw.ledger.sql import database
from crawlcw.ledger.sqlite.file_modes import is_still, make_private

_P = ParamSpec("_P")
_T = TypeVar("_T")

_BUSY_TIMEOUT = 10.0
_BUSY_RETRY_PAUSE = 0.01
#: Read the file's name as bytes, because it may be in any encoding.
_FILE = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
#: macOS has no fdatasync.
_sync_file: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another process",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
    sqlite3.SQLITE_NOMEM: "needs more memory than is available",
    sqlite3.SQLITE_INTERRUPT: "was interrupted",
}
MISCONFIGURED = {
    sqlite3.SQLITE_READONLY: (
        "is read-only: to change it, give this user write access to its folder, to the file and to "
        "the -wal and -shm files beside it"
    ),
    sqlite3.SQLITE_PERM: "may not be opened by this user",
    sqlite3.SQLITE_AUTH: "may not be opened by this user",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: it is a folder, or this user may not write there",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore a copy, or recover it with `sqlite3 .recover`",
}


class Database(sqlite3.Connection):
    """An open connection; `unsynced` is true if a durable commit is not yet synced to the disk."""

    unsynced = False
    ledger_tables: Any = None

    #: `execute` streams rows, because SQLite finds a row only when the caller reads the row.
    stream = sqlite3.Connection.execute

    @contextmanager
    def transaction(self, *, durable: bool = False, begun: bool = True) -> Iterator[None]:
        """See `sql.database.Database.transaction`."""
        if begun:
            # Lock the file immediately. A transaction that begins with a read fails at its first
            # write if another process has written meanwhile.
            self.execute("BEGIN IMMEDIATE")
        try:
            yield
            if self.in_transaction:
                self.execute("COMMIT")
        except BaseException:
            # If the disk is full, SQLite may already have rolled back the transaction.
            if self.in_transaction:
                self.execute("ROLLBACK")
            raise
        self.unsynced |= durable

    def begin(self) -> None:
        """See `sql.database.Database.begin`."""
        if not self.in_transaction:
            self.execute("BEGIN IMMEDIATE")

    def restart(self) -> None:
        """See `sql.database.Database.restart`."""
        self.execute("ROLLBACK")
        self.execute("BEGIN IMMEDIATE")

    def snapshot(self) -> AbstractContextManager[Any]:
        """See `sql.database.Database.snapshot`."""
        self.execute("BEGIN")
        # An `sqlite3.Connection` is a context manager that ends the transaction.
        return self


class Connection(database.Connection):
    """A connection to the SQLite file of a ledger."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        # Use an absolute path, because a spider may change the current folder.
        self._file = path.absolute()
        self._identity: tuple[int, int] | None = None
        self._wal: int | None = None
        self._syncing = CapacityLimiter(1)
        self._turn_to_sync = Lock()
        #: Number of committed durable transactions, and how many of them are synced to the disk.
        self._committed = 0
        self._synced = 0

    async def run(
        self,
        work: Callable[Concatenate[Database, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """See `sql.database.Connection.run`.

        Raises `LedgerGoneError` if the file was removed or replaced.
        """

        def locked() -> tuple[_T, int]:
            with self._lock:
                try:
                    db = self._db or self._opened()
                    # Check for a deleted file, because SQLite would continue to write into the
                    # deleted file, and all these writes would be lost.
                    if _identity(self._file) != self._identity:
                        raise self._gone_error()
                    result = work(db, *args, **kwargs)
                    if not db.unsynced:
                        return result, 0
                    db.unsynced = False
                    self._committed += 1
                    return result, self._committed
                except (sqlite3.Error, OSError) as error:
                    raise _translated(error, self._path) from error

        result, committed = await to_thread.run_sync(locked, limiter=self._limiter)
        if self._synced < committed:
            # While a call waits for the lock, other calls may commit, and one sync then covers all
            # commits.
            async with self._turn_to_sync:
                if self._synced < committed:
                    await to_thread.run_sync(self._sync, limiter=self._syncing)
        return result

    def _sync(self) -> None:
        """Write all commits to the disk, so that they survive a power cut.

        `synchronous = FULL` syncs at each commit, but holds the file's only write lock meanwhile.
        `_sync` lets other processes write meanwhile.
        """
        # Read `_committed` before the sync, because the sync may miss commits that come while it
        # runs.
        committed = self._committed
        try:
            if self._wal is None:
                # Ask SQLite for the file's name, because SQLite has resolved symbolic links.
                with self._lock:
                    (name,) = (self._db or self._opened()).execute(_FILE).fetchone()
                file = Path(os.fsdecode(name))
                # Sync the folder too, so that a new file's entry in the folder survives a power
                # cut.
                _sync_folder(file.parent)
                self._wal = os.open(f"{file}-wal", os.O_RDONLY)
            _sync_file(self._wal)
            self._synced = max(self._synced, committed)
        except OSError as error:
            raise LedgerUnavailableError(
                f"The ledger {self._path} cannot be synced to its disk: {error.strerror}."
            ) from error

    def _opened(self) -> Database:
        if self._closed:
            raise LedgerUnavailableError(f"The ledger {self._path} was closed.")
        make_private(self._file)
        # Open a read-only file as immutable. Otherwise SQLite would create `-wal` and `-shm` files,
        # and these files would stay read-only when the file becomes writable.
        is_immutable = is_still(self._file)
        name = f"file:{quote(bytes(self._file))}?immutable=1" if is_immutable else self._file
        db = sqlite3.connect(
            name,
            uri=is_immutable,
            timeout=_BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            factory=Database,
        )
        db.row_factory = sqlite3.Row
        self._db = db
        self._identity = _identity(self._file)
        return db

    def _gone_error(self) -> LedgerGoneError:
        if _identity(self._file) is None:
            return LedgerGoneError(
                f"The ledger {self._path} was moved or removed while it was in use. If you moved "
                "it, first move it back beside its `-wal` file, which has the newest results. If "
                "it is lost, restore a copy, or run the command again to start from the beginning."
            )
        return LedgerGoneError(
            f"The ledger {self._path} was replaced by another file while it was in use, so the "
            "latest records are lost: run the command again to continue with the tasks of the new "
            "file."
        )

    async def close(self) -> None:
        """See `sql.database.Connection.close`."""
        await super().close()
        async with self._turn_to_sync:
            if self._wal is not None:
                os.close(self._wal)
                self._wal = None


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if no file has this name."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _translated(error: sqlite3.Error | OSError, path: Path) -> LedgerError:
    """Return crawlcw's error for an error of `sqlite3` or of the file system."""
    if isinstance(error, OSError):
        return LedgerConfigurationError(
            f"Cannot create the folder of the ledger {path}: {error.strerror}."
        )
    # The low byte of an error code is the class of the error (https://www.sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _UNAVAILABLE:
        return LedgerUnavailableError(f"The ledger {path} {_UNAVAILABLE[code]} ({error}).")
    if code in MISCONFIGURED:
        return LedgerConfigurationError(f"The ledger {path} {MISCONFIGURED[code]} ({error}).")
    return LedgerError(f"The ledger {path}: {error}.")


def enter_wal_mode(db: sqlite3.Connection) -> None:
    """Switch the file to WAL mode, even if several processes try this at the same time."""
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # If two processes switch to WAL at the same time, SQLite refuses one of them
            # immediately, without the busy timeout. So try again.
            is_busy = (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_RETRY_PAUSE)


def restrict_to_reading(db: sqlite3.Connection) -> None:
    """Forbid all writes on the connection."""
    db.execute("PRAGMA query_only = ON")
