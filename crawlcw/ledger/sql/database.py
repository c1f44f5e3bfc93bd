"""The interface of an SQL connection for functions that run on the connection's thread.

The statements are in SQLite's SQL, with `?` or `:name` for each value; module `postgres.dialect`
translates the statements.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from crawlcw.ledger.shielding import run_shielded

_P = ParamSpec("_P")
_T = TypeVar("_T")

Row = Any  #: values of a row, by column name or position
Values = Sequence[Any] | Mapping[str, Any]

#: Bound that is larger than every number in an index.
_ABOVE_ALL = 1 << 62


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement has changed."""

    @property
    def description(self) -> Any:
        """Columns of the result, a sequence of tuples; a tuple begins with the column's name."""

    def fetchone(self) -> Row | None:
        """Return the next row."""

    def fetchall(self) -> list[Row]:
        """Return all remaining rows."""

    def __iter__(self) -> Iterator[Row]:
        """Yield the remaining rows."""


class Database(Protocol):
    """An open connection to an SQL database, used by one thread at a time."""

    unsynced: bool  #: whether the disk still lacks committed changes that must be durable
    ledger_tables: Any  #: the `port.LedgerTables` of this connection

    def execute(self, statement: str, values: Values = ..., /) -> Cursor:
        """Run a statement."""

    def stream(self, statement: str, values: Values = ..., /) -> Iterable[Row]:
        """Yield the rows of a SELECT; read a row only when the caller asks for it."""

    def executemany(self, statement: str, rows: Iterable[Values], /) -> Cursor:
        """Run a statement once for each row of values."""

    def transaction(
        self, *, durable: bool = False, begun: bool = True
    ) -> AbstractContextManager[None]:
        """Commit all changes of the block, or none; if *durable*, they survive a power cut.

        If *begun* is false, the block must call `begin` before its first write.
        """

    def begin(self) -> None:
        """Begin a transaction that writes, unless one has begun already."""

    def restart(self) -> None:
        """Undo all changes of the transaction, and continue in a new transaction."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all reads in the block see the same state of the database."""


class Connection(ABC):
    """A connection for the event loop; its operations run on one thread at a time."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        # `_limiter` lets calls wait without occupying a thread. `_lock` is necessary too, because a
        # cancelled call leaves the limiter while the call's thread still uses the database.
        self._lock = threading.Lock()
        self._db: Any = None
        self._closed = False

    @abstractmethod
    async def run(
        self, work: Callable[Concatenate[Any, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run *work(database, ...)* on a worker thread, and return the result.

        Durable writes are on the disk when `run` returns. Raises `LedgerError`.
        """

    async def close(self) -> None:
        """Close the connection when the running operation has ended."""

        def locked() -> None:
            with self._lock:
                self._closed = True
                if self._db is not None:
                    self._db.close()
                    self._db = None

        await to_thread.run_sync(locked, limiter=self._limiter)


async def once(connection: Connection, work: Callable[[Any], _T]) -> _T:
    """Return the result of *work(database)*, and close the connection."""
    try:
        return await connection.run(work)
    finally:
        await run_shielded(connection.close())


def number_of(db: Database, statement: str, values: Values = ()) -> int:
    """Return the number in the first column of the first row that a statement selects."""
    row = db.execute(statement, values).fetchone()
    assert row is not None
    number: int = row[0]
    return number


def descending(db: Database, statement: str, bounds: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each different number in an index, highest first; each row needs one seek."""
    above = _ABOVE_ALL
    while row := db.execute(statement, {**bounds, "above": above}).fetchone():
        above = row[0]
        yield row


def update(db: Database, statement: str, values: Mapping[str, Any]) -> int:
    """Run one statement durably; return the number of changed rows."""
    with db.transaction(durable=True):
        return db.execute(statement, values).rowcount
