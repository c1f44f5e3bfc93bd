"""Implement the tables of the module `port` in an SQL database, by one statement an operation.

A unit of work is a coroutine that reads and writes tables. The coroutine never suspends, because
each operation on a table completes immediately. So one call of `send` runs the whole coroutine in
one transaction.
"""

# ruff: noqa: S608  # no SQL injection: names of tables are quoted, values are parameters

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
    """An index of a table, by which a query reads rows."""

    of: str  #: SQL text after the table's name, such as INDEXED BY
    order: str
    condition: str = ""  #: condition of a partial index, for the WHERE of a query


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise RuntimeError("a unit of work may wait only for its tables")


class Table:
    """A table whose columns are the fields of its documents.

    If *columns* is given, only these fields are columns; the column `content` has all other fields
    in a JSON object.
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
        # Encode the values before the transaction begins, because other writers wait for its end.
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
        # Read one key at a time, because for several keys the database may choose a wrong index.
        statement = f"SELECT {columns} FROM {self._name} WHERE {key} = ? AND {tests}"
        document_lists = (self._documents(statement, [entry, *values]) for entry in keys)
        return {entry["_id"]: entry for documents in document_lists for entry in documents}

    def _shown(self, fields: Collection[str]) -> str:
        names = (f"{self._key[0]} AS id" if field == "_id" else _quoted(field) for field in fields)
        return ", ".join(names) or "*"

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """See `port.Ordered.scan`; the database reads one range of an index."""
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
        """See `port.Documents.change`; a change of JSON fields is a SELECT and then an UPDATE."""
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
        """Return the UPDATE statement of a write, or None if the write changes a JSON column."""
        if self._is_within_json(write.edit):
            # Raise an error for a value that no row can hold, before the transaction begins.
            to_json([dict(write.edit.set), dict(write.edit.merge)])
            return None
        changes, values = self._changes(write.edit)
        tests, operands = self._tests({"_id": write.key, **write.where})
        return f"UPDATE {self._name} SET {changes} WHERE {tests}", [*values, *operands]

    def _is_within_json(self, edit: Edit) -> bool:
        names = {*edit.set, *edit.inc, *edit.raise_to}
        return bool(edit.merge or edit.without) or not all(map(self._is_column, names))

    def _edit(self, write: Write) -> int:
        """Read a document, apply the edit, and write the document, in one transaction."""
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
        """Return the columns of *document* that an edit changes, with their new values."""
        new_document = edit.applied(document)
        names = {*edit.set, *edit.inc, *edit.raise_to, *edit.merge, *edit.without}
        row = row_of({name: new_document[name] for name in names if self._is_column(name)})
        if self._columns is not None:
            rest = {name: v for name, v in new_document.items() if not self._is_column(name)}
            row["content"] = to_json({name: v for name, v in rest.items() if v is not None})
        return row

    def _changes(self, edit: Edit) -> tuple[str, list[Any]]:
        """Return the SQL assignments of an UPDATE for *edit*, and the parameters' values."""
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
        # SQL needs an assignment. Assign the key only if there is no other assignment, because an
        # assignment of the key rewrites the key's index.
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
        """Return the SQL condition of rows that pass *where*, and the values of its parameters."""
        values: list[Any] = []
        texts = [self._test(name, test, values) for name, test in where.items()]
        return " AND ".join(texts) or "TRUE", values

    def _test(self, name: str, test: Any, values: list[Any]) -> str:
        """Return the SQL condition for one test of a field; append its parameters to *values*."""
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
                    # IN (NULL) is always false; with IN, but not with FALSE, SQLite can use the
                    # column's partial index.
                    return f"{self._column(name)} IN (NULL)"
                values += (member for member in members if not isinstance(member, int))
                # Write numbers into the statement, so that SQLite finds a partial index whose
                # condition has these numbers.
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
        """Return the SQL comparison of a field with *value*; a key may be several columns."""
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
    # Quote the name, because a field may have the name of an SQL keyword.
    return f'"{name}"'
