"""The document of a spider's state: a row for each value and pending change, and its revision."""

# ruff: noqa: S608  # the table's name is quoted; every value is a parameter

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import Key, Not, Where, Write
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.dialect import Dialect
from crawlcw.ledger.sql.rows import from_json, refusing, to_json

_PARTS = ("values", "pending")


class StateTable:
    """Rows of the name of a part, of a member of it, and of that one's content."""

    def __init__(self, db: Database, name: str, dialect: Dialect) -> None:
        self._db = db
        self._name = name
        self._dialect = dialect

    async def insert(self, documents: Sequence[Document]) -> int:
        """See `port.Documents.insert`."""
        (new,) = documents
        with refusing():
            first = _rows({"revision": {"": new["revision"]}})
            rows = _rows({name: new[name] for name in _PARTS})
        self._db.begin()
        statement = f"INSERT INTO {self._name} VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        if not self._db.executemany(statement, first).rowcount:
            return 0
        self._put(rows)
        return 1

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """See `port.Documents.read`."""
        (key,) = keys
        if not self._passes(where or {}):
            return {}
        return {key: {"_id": key, **{n: self._field(n) for n in fields or ("revision", *_PARTS)}}}

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Documents.change`."""
        (write,) = writes
        edit = write.edit
        # Before the transaction begins, which keeps all others waiting.
        with refusing():
            rows = _rows(edit.merge)
        self._db.begin()
        held = f"SELECT 1 FROM {self._name} WHERE part = 'revision'{self._dialect.for_update}"
        self._db.execute(held)
        if not self._passes(write.where):
            return 0
        for part in edit.set.keys() & set(_PARTS):
            self._db.execute(f"DELETE FROM {self._name} WHERE part = ?", (part,))
        gone = [(part, name) for part, names in edit.without.items() for name in names]
        self._db.executemany(f"DELETE FROM {self._name} WHERE part = ? AND name = ?", gone)
        revision = edit.set.get("revision", self._field("revision")) + edit.inc.get("revision", 0)
        self._put(rows + _rows({"revision": {"": revision}}))
        return 1

    def _put(self, rows: Sequence[tuple[str, str, str]]) -> None:
        self._db.executemany(
            f"INSERT INTO {self._name} VALUES (?, ?, ?) "
            "ON CONFLICT (part, name) DO UPDATE SET content = excluded.content",
            rows,
        )
        self._db.unsynced = True

    def _passes(self, where: Where) -> bool:
        """Return whether there is a state that passes all tests."""
        found = {name: self._field(name) for name in ("revision", *where)}
        return found["revision"] is not None and all(
            found[name] != test.value if isinstance(test, Not) else found[name] == test
            for name, test in where.items()
        )

    def _field(self, name: str) -> Any:
        rows = self._db.execute(f"SELECT name, content FROM {self._name} WHERE part = ?", (name,))
        found = {row["name"]: from_json(row["content"]) for row in rows}
        return found.get("") if name == "revision" else found


def _rows(parts: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (part, n, to_json(each)) for part, members in parts.items() for n, each in members.items()
    ]
