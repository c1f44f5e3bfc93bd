"""Rows of a ledger as they are, for `doctor`."""

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import Part
from crawlcw.ledger.sql.database import Database, Row
from crawlcw.ledger.sql.rows import TIMES, moment
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.task_table import ITEM_CHARACTERS, ITEM_ROWS

_LARGE = frozenset({"body", "context", "data", "results"})
_JSON = frozenset({"options", "context", "data", "results"})
#: The last millisecond of 9999.
_LATEST = 253_402_300_799_999


class Raw:
    """Rows whose values may be of any types."""

    def __init__(self, db: Database, sql: Statements) -> None:
        self._db = db
        self._sql = sql

    async def read(
        self, part: Part, *, after: Any = None, only: Collection[Any] | None = None
    ) -> tuple[list[Document], Any]:
        """See `port.Raw.read`; by the rows' numbers, for ids that are no bytes have one too."""
        columns, place = self._sql.raw[part]
        select, order = f"SELECT {place} AS row, {columns}", f"ORDER BY {place}"
        if only is not None:
            marks = ", ".join("?" * len(only))
            rows = self._db.execute(f"{select} WHERE id IN ({marks}) {order}", [*only])
            return [*map(_document, rows)], None
        behind, values = ("", []) if after is None else (f"WHERE {place} > ?", [after])
        found: list[Document] = []
        size = 0
        for row in self._db.stream(f"{select} {behind} {order}", values):
            found.append(_document(row))
            large = [row[name] for name in _LARGE & found[-1].keys()]
            size += sum(len(value) for value in large if isinstance(value, str | bytes))
            if len(found) >= ITEM_ROWS or size >= ITEM_CHARACTERS:
                return found, row["row"]
        return found, None


def _document(row: Row) -> Document:
    """Return a row as a document without nulls; values of wrong types as they are."""
    found = {name: value for name, value in dict(row).items() if value is not None}
    found["_id"] = found.pop("id")
    del found["row"]
    for name in TIMES & found.keys():
        if isinstance(found[name], int) and abs(found[name]) < _LATEST:
            found[name] = moment(found[name])
    for name in _JSON & found.keys():
        # Else it is shown as it is.
        with suppress(TypeError, ValueError):
            found[name] = json.loads(found[name])
    return found
