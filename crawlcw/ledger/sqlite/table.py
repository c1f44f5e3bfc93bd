"""The port's tables in an SQLite file: what they are asked for, as statements.

A unit of work is a coroutine that never waits, for each primitive is done at once: one
`send` on the connection's thread is the whole of it, in one transaction.
"""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import RATE_KEY, AtMost, Key, Where, Within, Write
from crawlcw.ledger.sqlite.connection import Database
from crawlcw.ledger.sqlite.rows import documents_of, row_of
from crawlcw.ledger.sqlite.schema import Tables

_T = TypeVar("_T")


class Unit:
    """The tables of one ledger on one connection."""

    def __init__(self, db: Database, tables: Tables) -> None:
        self.rates = Table(db, tables.rates, key=RATE_KEY)


def driven(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a unit of work, which is done here and now."""
    try:
        work.send(None)
    except StopIteration as end:
        found: _T = end.value
        return found
    work.close()
    raise RuntimeError("a unit of work has waited for something else than its tables")


class Table:
    """A table whose columns are the fields of its documents."""

    def __init__(self, db: Database, name: str, *, key: tuple[str, ...]) -> None:
        self._db = db
        self._name = name
        self._key = key

    async def scan(
        self, where: Where, *, limit: int, after: Key | None = None
    ) -> Sequence[Document]:
        """See `port.Table.scan`: one stretch of the primary key."""
        tests, values = self._tests(where, after)
        found = self._db.execute(
            f"SELECT * FROM {self._name} WHERE {tests} ORDER BY {', '.join(self._key)} LIMIT ?",
            (*values, limit),
        )
        return list(documents_of([name for name, *_ in found.description], found))

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Table.change`: a statement each."""
        return sum(self._change(write) for write in writes)

    def _change(self, write: Write) -> int:
        row = row_of(write.edit.set)
        changes = ", ".join(f"{name} = ?" for name in row)
        if write.new is None:
            tests, values = self._tests({"_id": write.key, **write.where})
            statement = f"UPDATE {self._name} SET {changes} WHERE {tests}"
            return self._db.execute(statement, (*row.values(), *values)).rowcount
        new = row_of(write.new)
        tests, values = self._tests(write.where)
        statement = (
            f"INSERT INTO {self._name} ({', '.join(new)}) VALUES ({', '.join('?' * len(new))}) "
            f"ON CONFLICT ({', '.join(self._key)}) DO UPDATE SET {changes} WHERE {tests}"
        )
        return self._db.execute(statement, (*new.values(), *row.values(), *values)).rowcount

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        tests, values = self._tests(where)
        return self._db.execute(f"DELETE FROM {self._name} WHERE {tests}", values).rowcount

    def _tests(self, where: Where, after: Key | None = None) -> tuple[str, list[Any]]:
        """Return the condition of rows that pass all tests, and its values."""
        texts, values = ["TRUE"], list[Any]()
        for test, row in self._compared(where, after):
            columns, marks = ", ".join(row), ", ".join("?" * len(row))
            texts.append(f"({columns}) {test} ({marks})")
            values += row.values()
        return " AND ".join(texts), values

    def _compared(self, where: Where, after: Key | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each comparison, and the columns that are compared with values."""
        for name, test in where.items():
            match test:
                case Within(first, end):
                    if after is None:
                        yield ">=", self._keyed(first)
                    yield "<", self._keyed(end)
                case AtMost(value):
                    yield "<=", row_of({name: value})
                case _:
                    yield "IS", self._keyed(test) if name == "_id" else row_of({name: test})
        if after is not None:
            yield ">", self._keyed(after)

    def _keyed(self, key: Key) -> dict[str, Any]:
        """Return the columns of a key, or of the beginning of one."""
        return row_of(dict(zip(self._key, key, strict=False)))
