"""A database of SQL in virtual time, behind the network of `fake_server`.

It is SQLite's, in memory. A transaction is one message to the server and back, which takes
effect as a whole or not at all, as on PostgreSQL: one whose client has given up is ended by
the server. A crash undoes transactions that are not durable.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo.errors import PyMongoError

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.sql.rows import document_of, from_json
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.ledger.sqlite.connection import Database
from crawlcw.ledger.sqlite.marker import Tables
from tests.faults.fake_server import Document, Network
from tests.faults.virtual import Process, Signal

#: Fields that a document has without a value, too.
_ALWAYS = ("lock", "lock_time")


@dataclass(slots=True)
class Transaction:
    """Work of a process on the server's thread for its connection."""

    sender: Process
    name: str
    work: Callable[..., Any]
    given: Sequence[Any]
    named: Mapping[str, Any]
    collection: str = "books"
    durable: bool = True


class SqlServer:
    """The tables, and a watcher of every changed task."""

    def __init__(self, watch: Callable[[Transaction, Document | None, Document], None]) -> None:
        self._watch = watch
        self._tables = Tables("books")
        self._db = sqlite3.connect(":memory:", isolation_level=None, factory=Database)
        self._db.row_factory = sqlite3.Row
        for statement in self._tables.create:
            self._db.execute(statement)
        self._tasks: dict[bytes, Document] = {}
        #: The database after the last durable transaction, and whether it has changed since.
        self._durable = self._db.serialize()
        self._is_ahead = False

    def documents(self, _: str) -> dict[Any, Document]:
        return self._tasks

    def run(self, transaction: Transaction) -> Any:
        """Do the work; return its result, or the error that it raises."""
        changes = self._db.total_changes
        self._db.unsynced = False
        result = transaction.work(self._db, *transaction.given, **transaction.named)
        if self._db.total_changes == changes:
            return result
        transaction.durable = self._db.unsynced
        self._is_ahead = not transaction.durable
        if transaction.durable:
            self._durable = self._db.serialize()
        for was, now in self._changes():
            self._watch(transaction, was, now)
        return result

    def _changes(self) -> list[tuple[Document | None, Document]]:
        found = self._read()
        changes = [
            (self._tasks.get(key), now) for key, now in found.items() if self._tasks.get(key) != now
        ]
        self._tasks.clear()
        self._tasks.update(found)
        return changes

    def _read(self) -> dict[bytes, Document]:
        found: dict[bytes, Document] = {}
        for row in self._db.execute(f"SELECT * FROM {self._tables.tasks}"):
            document = document_of(row)
            found[document["_id"]] = {
                name: value
                for name, value in document.items()
                if value is not None or name in _ALWAYS
            }
        items = f"SELECT task_id, item FROM {self._tables.items} ORDER BY task_id, n"
        for row in self._db.execute(items):
            found[row["task_id"]].setdefault("items", []).append(from_json(row["item"]))
        return found

    def roll_back(self, share: float) -> list[tuple[Document, Document | None]]:
        """Crash: undo all transactions since the last durable one, if *share* is large.

        Returns each old document with its present version.
        """
        if not self._is_ahead or share < 0.5:
            return []
        before = dict(self._tasks)
        self._db.deserialize(self._durable)
        self._is_ahead = False
        self._changes()
        return [
            (was, self._tasks.get(key))
            for key, was in before.items()
            if self._tasks.get(key) != was
        ]


class SqlNetwork(Network):
    """The network to an `SqlServer`."""

    def _arrive(self, transaction: Any, answered: Signal | None) -> None:
        # Nothing is repeated within a connection, and the server ends that of a client
        # that has given up.
        if answered is None or answered.come:
            return
        if self._timeline.now < self.away_until:
            self._break(answered)
            return
        self._answer(self._server.run(transaction), answered)  # type: ignore[attr-defined]  # an SqlServer


class SqlConnection:
    """A connection of one process to the server."""

    def __init__(self, network: SqlNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    async def run(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        name = getattr(work, "__name__", "")
        try:
            return await self._network.call(
                Transaction(self._process, name, work, given, named)  # type: ignore[arg-type]  # as a Command
            )
        except PyMongoError as error:
            raise LedgerUnavailableError(str(error)) from error

    async def close(self) -> None:
        """Do nothing."""


class SqlModelStore(SqlStore):
    """The store of one process."""

    def __init__(
        self, network: SqlNetwork, process: Process, clock: Callable[[], datetime]
    ) -> None:
        connection: Any = SqlConnection(network, process)
        super().__init__(
            "books",
            location="in the model",
            tables=Tables("books"),
            clock=clock,
            writer=connection,
            reader=connection,
        )

    async def drop(self) -> None:
        raise NotImplementedError
