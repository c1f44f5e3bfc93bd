"""The port's tables in an SQL database: each primitive as a statement.

A unit of work is a coroutine that never waits, because each primitive completes immediately. One
`send` on the connection's thread runs all of it, in one transaction.
"""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

from collections.abc import Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import (
    OR,
    After,
    Among,
    AtMost,
    Containing,
    Edit,
    Key,
    Not,
    Path,
    Unchanged,
    Where,
    Within,
    Write,
)
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.rows import (
    column_value,
    documents_of,
    from_json,
    milliseconds,
    refusing,
    row_of,
    to_json,
)
from crawlcw.ledger.sql.schema import Dialect

_T = TypeVar("_T")
_COMPARISONS = {AtMost: "<=", After: ">"}


class Index(NamedTuple):
    """An index to read rows by."""

    of: str  #: text that follows the table's name in a statement
    order: str
    condition: str = ""  #: condition of the index's rows, follows other tests


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a unit of work, which runs immediately."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise RuntimeError("a unit of work may wait only for its tables")


class Table:
    """A table whose columns are the fields of its documents.

    Given *columns*, only these fields are columns; all other fields are members of the column
    `content`.
    """

    def __init__(
        self,
        db: Database,
        name: str,
        dialect: Dialect,
        *,
        key: tuple[str, ...] = ("id",),
        columns: Collection[str] | None = None,
        indexes: Mapping[Path, Index] | None = None,
        durable: bool = True,
    ) -> None:
        self._db = db
        self._name = name
        self._dialect = dialect
        self._key = key
        self._indexes = {Path.KEY: Index("", ", ".join(key)), **(indexes or {})}
        self._columns = columns
        self._durable = durable

    async def insert(self, documents: Sequence[Document]) -> int:
        """See `port.Documents.insert`."""
        # Encode before the transaction begins, because all other writers wait for its end.
        with refusing():
            rows = [*map(self._insertion, documents)]
        return sum(self._execute(f"{text} ON CONFLICT DO NOTHING", values) for text, values in rows)

    def _insertion(self, document: Document) -> tuple[str, list[Any]]:
        row = row_of({name: v for name, v in document.items() if self._is_column(name)})
        if self._columns is not None:
            content_fields = {name: v for name, v in document.items() if not self._is_column(name)}
            row["content"] = to_json(content_fields)
        placeholders = ", ".join("?" * len(row))
        names = ", ".join(map(_quoted, row))
        return f"INSERT INTO {self._name} ({names}) VALUES ({placeholders})", list(row.values())

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """See `port.Documents.read`."""
        (key,) = self._key
        columns = self._shown({"_id": None, **dict.fromkeys(fields)} if fields else ())
        tests, values = self._tests(where or {})
        # One key at a time: for several keys the database might use an index of another test.
        statement = f"SELECT {columns} FROM {self._name} WHERE {key} = ? AND {tests}"
        document_lists = (self._documents(statement, [entry, *values]) for entry in keys)
        return {entry["_id"]: entry for documents in document_lists for entry in documents}

    def _shown(self, fields: Collection[str]) -> str:
        names = (f"{self._key[0]} AS id" if field == "_id" else _quoted(field) for field in fields)
        return ", ".join(names) or "*"

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """See `port.Ordered.scan`: one range of an index."""
        tests, values = self._tests(where)
        index = self._indexes[by]
        statement = f"SELECT {self._shown(fields)} FROM {self._name} {index.of} WHERE {tests}"
        order = f"{index.condition} ORDER BY {index.order} LIMIT ?"
        return self._documents(f"{statement} {order}", [*values, limit])

    def _documents(self, statement: str, values: Sequence[Any]) -> list[Document]:
        rows = self._db.execute(statement, values)
        documents = documents_of(tuple([column[0] for column in rows.description]), rows)
        if self._columns is None:
            return documents
        return [from_json(document.pop("content")) | document for document in documents]

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Documents.change`: one statement a write, after a read if it changes JSON."""
        with refusing():
            prepared = [
                (write, write.new and self._insertion(write.new), self._update(write))
                for write in writes
            ]
        return sum(
            bool(new and self._execute(f"{new[0]} ON CONFLICT DO NOTHING", new[1]))
            or (self._execute(*update) if update is not None else self._edit(write))
            for write, new, update in prepared
        )

    def _update(self, write: Write) -> tuple[str, list[Any]] | None:
        """Return the statement of a write; None: it changes members of a JSON column."""
        if self._is_within_json(write.edit):
            # Refuse values that no row can hold before the transaction begins.
            to_json([dict(write.edit.set), dict(write.edit.merge)])
            return None
        changes, values = self._changes(write.edit)
        tests, operands = self._tests({"_id": write.key, **write.where})
        return f"UPDATE {self._name} SET {changes} WHERE {tests}", [*values, *operands]

    def _is_within_json(self, edit: Edit) -> bool:
        names = {*edit.set, *edit.inc, *edit.raise_to}
        return bool(edit.merge or edit.without) or not all(map(self._is_column, names))

    def _edit(self, write: Write) -> int:
        """Read a document and write its edited form, in one transaction."""
        self._db.begin()
        tests, operands = self._tests({"_id": write.key, **write.where})
        lock = self._dialect.for_update
        documents = self._documents(f"SELECT * FROM {self._name} WHERE {tests}{lock}", operands)
        for document in documents:
            with refusing():
                row = self._edited(write.edit, document)
            changes = ", ".join(f"{_quoted(name)} = ?" for name in row)
            key_test, key_values = self._tests({"_id": write.key})
            statement = f"UPDATE {self._name} SET {changes} WHERE {key_test}"
            self._execute(statement, [*row.values(), *key_values])
        return len(documents)

    def _edited(self, edit: Edit, document: Document) -> dict[str, Any]:
        """Return the columns that an edit changes, with their new values."""
        new_document = edit.applied(document)
        names = {*edit.set, *edit.inc, *edit.raise_to, *edit.merge, *edit.without}
        row = row_of({name: new_document[name] for name in names if self._is_column(name)})
        if self._columns is not None:
            rest = {name: v for name, v in new_document.items() if not self._is_column(name)}
            row["content"] = to_json({name: v for name, v in rest.items() if v is not None})
        return row

    def _changes(self, edit: Edit) -> tuple[str, list[Any]]:
        """Return the assignments of a statement, and their values."""
        assignments, values = list[str](), list[Any]()
        for name, value in row_of(edit.set).items():
            assignments.append(f"{_quoted(name)} = ?")
            values.append(value)
        for name, number in edit.inc.items():
            assignments.append(f"{_quoted(name)} = {_quoted(name)} + ?")
            values.append(number)
        for name, minimum in row_of(edit.raise_to).items():
            assignments.append(
                f"{_quoted(name)} = CASE WHEN {_quoted(name)} > ? THEN {_quoted(name)} ELSE ? END"
            )
            values += (minimum, minimum)
        # To set a key rewrites its index, so do it only if nothing else changes.
        return ", ".join(assignments) or f"{self._key[0]} = {self._key[0]}", values

    async def change_where(self, where: Where, edit: Edit, *, by: Path = Path.KEY) -> int:
        """See `port.Table.change_where`."""
        changes, values = self._changes(edit)
        tests, operands = self._tests(where)
        statement = f"UPDATE {self._name} {self._indexes[by].of} SET {changes} WHERE {tests}"
        return self._execute(statement, [*values, *operands])

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        tests, values = self._tests(where)
        return self._execute(f"DELETE FROM {self._name} WHERE {tests}", values)

    def _execute(self, statement: str, values: Sequence[Any]) -> int:
        self._db.begin()
        self._db.unsynced |= self._durable
        return self._db.execute(statement, values).rowcount

    def _tests(self, where: Where) -> tuple[str, list[Any]]:
        """Return the condition of rows that pass all tests, and its values."""
        values: list[Any] = []
        texts = [self._test(name, test, values) for name, test in where.items()]
        return " AND ".join(texts) or "TRUE", values

    def _test(self, name: str, test: Any, values: list[Any]) -> str:
        """Return a test of a field, and append the value that it compares with to *values*."""
        match test:
            case Within(first, end):
                bounds = ((">=", first), ("<", end))
                texts = [
                    self._compared(name, comparison, bound, values)
                    for comparison, bound in bounds
                    if bound is not None
                ]
                return " AND ".join(texts) or "TRUE"
            case None | Unchanged(None):
                return f"{self._column(name)} IS NULL"
            case Not(None):
                return f"{self._column(name)} IS NOT NULL"
            case AtMost(value) | After(value):
                return self._compared(name, _COMPARISONS[type(test)], value, values)
            case Not(value):
                other = self._compared(name, "<>", value, values)
                return f"({self._column(name)} IS NULL OR {other})"
            case Among(members):
                if not members:
                    # Unlike FALSE, this lets SQLite use the partial index of the column.
                    return f"{self._column(name)} IN (NULL)"
                values += (member for member in members if not isinstance(member, int))
                # Numbers are in the statement, so that it matches the condition of a partial
                # index.
                marks = (f"{member:d}" if isinstance(member, int) else "?" for member in members)
                return f"{self._column(name)} IN ({', '.join(marks)})"
            case Unchanged(value):
                values.append(milliseconds(value) if isinstance(value, datetime) else value)
                return f"{self._column(name)} = ?"
            case Containing(text, within):
                values.append(text)
                return f"instr({self._column(name)}, ?) > 0 AND {self._test(name, within, values)}"
            case alternatives if name == OR:
                texts = []
                for member in alternatives:
                    text, operands = self._tests(member)
                    texts.append(text)
                    values += operands
                return f"({' OR '.join(texts)})"
        return self._compared(name, "=", test, values)

    def _compared(self, name: str, comparison: str, value: Any, values: list[Any]) -> str:
        """Return the comparison of a field, or of all or the first columns of a key."""
        if name == "_id" and len(self._key) > 1:
            row = row_of(dict(zip(self._key, value, strict=False)))
            values += row.values()
            return f"({', '.join(row)}) {comparison} ({', '.join('?' * len(row))})"
        values.append(column_value(name, value) if self._is_column(name) else value)
        return f"{self._column(name)} {comparison} ?"

    def _is_column(self, name: str) -> bool:
        return self._columns is None or name in self._columns

    def _column(self, name: str) -> str:
        if name == "_id":
            return self._key[0]
        return _quoted(name) if self._is_column(name) else f"json_extract(content, '$.{name}')"


def _quoted(name: str) -> str:
    # The name may be a keyword of SQL.
    return f'"{name}"'
