"""A connection to an SQL database, as the facets use it on its thread.

The statements are in SQLite's SQL, with `?` or `:name` for each value; `postgres.dialect`
translates them.
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

Row = Any  #: the values of a row, by the name or the number of the column
Values = Sequence[Any] | Mapping[str, Any]

#: A number that is larger than every number in an index.
_ABOVE_ALL = 1 << 62


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of rows that were changed."""

    @property
    def description(self) -> Any:
        """The columns; the first value of each column is its name."""

    def fetchone(self) -> Row | None:
        """Return the next row."""

    def fetchall(self) -> list[Row]:
        """Return all remaining rows."""

    def __iter__(self) -> Iterator[Row]:
        """Yield the remaining rows."""


class Database(Protocol):
    """A connection, used by one thread at a time."""

    unsynced: bool  #: whether a durable change was committed since the last sync
    ledger_tables: Any  #: the tables of the port on this connection, created once

    def execute(self, statement: str, values: Values = ..., /) -> Cursor:
        """Run a statement."""

    def stream(self, statement: str, values: Values = ..., /) -> Iterable[Row]:
        """Yield the rows of a SELECT; the caller may need only a few."""

    def executemany(self, statement: str, rows: Iterable[Values], /) -> Cursor:
        """Run a statement for the values of each row."""

    def transaction(
        self, *, durable: bool = False, begun: bool = True
    ) -> AbstractContextManager[None]:
        """Write all changes of the block, or none; *durable*: they even survive a power cut.

        Without *begun* the first write begins the transaction, see `begin`.
        """

    def begin(self) -> None:
        """Begin a transaction that writes, unless one has begun already."""

    def restart(self) -> None:
        """Undo everything in the transaction, and continue in a new one."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Read everything in the block as of one moment."""


class Connection(ABC):
    """A connection for the event loop, opened at its first use and used by one thread at a time."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        # The limiter makes calls wait without a thread. The lock is needed for a cancelled call,
        # which leaves the limiter while its thread still works.
        self._lock = threading.Lock()
        self._db: Any = None
        self._closed = False

    @abstractmethod
    async def run(
        self, work: Callable[Concatenate[Any, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Return *work(database, ...)*, run on a worker thread; raises `LedgerError`.

        A durable write is on the disk when this returns.
        """

    async def close(self) -> None:
        """Close the connection after the running operation."""

        def locked() -> None:
            with self._lock:
                self._closed = True
                if self._db is not None:
                    self._db.close()
                    self._db = None

        await to_thread.run_sync(locked, limiter=self._limiter)


async def once(connection: Connection, work: Callable[[Any], _T]) -> _T:
    """Return *work(database)*, run on a connection that is closed afterwards."""
    try:
        return await connection.run(work)
    finally:
        await run_shielded(connection.close())


def number_of(db: Database, statement: str, values: Values = ()) -> int:
    """Return the one number that a statement selects."""
    row = db.execute(statement, values).fetchone()
    assert row is not None
    number: int = row[0]
    return number


def descending(db: Database, statement: str, bounds: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each number in an index, the highest number first, by one seek a row."""
    above = _ABOVE_ALL
    while row := db.execute(statement, {**bounds, "above": above}).fetchone():
        above = row[0]
        yield row


def update(db: Database, statement: str, values: Mapping[str, Any]) -> int:
    """Change rows by one statement, durably; return the number of changed rows."""
    with db.transaction(durable=True):
        return db.execute(statement, values).rowcount
