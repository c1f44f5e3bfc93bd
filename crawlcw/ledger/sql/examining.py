"""Raw rows of a ledger for `doctor`."""

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.sql.database import Database, Row
from crawlcw.ledger.sql.rows import TIMES, moment
from crawlcw.ledger.sql.store import ITEM_CHARACTERS, ITEM_ROWS, SqlStore

#: The last millisecond of 9999.
_LATEST = 253_402_300_799_999


class Examining:
    """The tasks, hosts and values set aside, see `examination.Inspection`."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def examine(
        self, *, only: Collection[bytes] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `examination.Inspection.examine`."""
        sql = self._store.sql
        if only is not None:
            for identity in only:
                for _, found in await self._store.reader.run(
                    self._tasks_examined, sql.examine_one, (identity,)
                ):
                    yield found
        else:
            # By the row's number: ids that are no bytes have a place in its order too.
            last = self._store.tables.dialect.before_first(bytes)
            while tasks := await self._store.reader.run(self._tasks_examined, sql.examine, (last,)):
                for _, found in tasks:
                    yield found
                last, _ = tasks[-1]
        async for found in self._walk(
            sql.items_of_no_task, of_one=sql.items_of_no_such_task, only=only, after=b"", by="id"
        ):
            yield found

    def _tasks_examined(
        self, db: Database, statement: str, values: Sequence[Any]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return the next tasks of a walk, with the numbers of their rows."""
        # All of one moment, for a value is dropped when nothing refers to it any more.
        with db.snapshot():
            rows = _examined(db, statement, values)
            return [(row["row"], {**_raw(row), **self._blobs_lost(db, row)}) for row in rows]

    def _blobs_lost(self, db: Database, row: Row) -> dict[str, Any]:
        if not self._store.kind.tracked:
            return {}
        pointers = db.execute(self._store.sql.pointers, (row["id"],)).fetchone()
        found: dict[str, Any] = {}
        for name, text in dict(pointers or {}).items():
            # A text that is no JSON refers to nothing.
            with suppress(TypeError, ValueError):
                found[name] = json.loads(text)
        wanted = documents.blobs(found)
        lost = [
            each for each in wanted if not db.execute(self._store.sql.has_blob, (each,)).fetchone()
        ]
        return {"asides_lost": lost} if lost else {}

    def unreferenced_blobs(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `examination.Inspection.unreferenced_blobs`."""
        sql = self._store.sql
        return self._walk(
            sql.unreferenced_blobs, of_one=sql.unreferenced_blob, only=only, after="", by="id"
        )

    def examine_hosts(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """See `examination.Inspection.examine_hosts`."""
        sql = self._store.sql
        return self._walk(
            sql.examine_hosts,
            of_one=sql.examine_host,
            only=only,
            after=self._store.tables.dialect.before_first(str),
            by="row",
        )

    async def _walk(
        self, statement: str, *, of_one: str, only: Collection[Any] | None, after: Any, by: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the rows behind *after* in the order of *by*, or the row of each in *only*."""
        if only is not None:
            for identity in only:
                for row in await self._store.reader.run(_examined, of_one, (identity,)):
                    yield _raw(row)
            return
        while rows := await self._store.reader.run(_examined, statement, (after,)):
            for row in rows:
                yield _raw(row)
            after = rows[-1][by]


def _examined(db: Database, statement: str, values: Sequence[Any]) -> list[Row]:
    """Return the next rows of a walk through a table, few enough for the memory."""
    rows: list[Row] = []
    size = 0
    for row in db.stream(statement, values):
        rows.append(row)
        size += len(row["body"] or b"") if "body" in row.keys() else 0  # noqa: SIM118  # a Row's
        if len(rows) >= ITEM_ROWS or size >= ITEM_CHARACTERS:
            break
    return rows


def _raw(row: Row) -> dict[str, Any]:
    """Return a row as a document without nulls; values of wrong types as they are."""
    found = {name: row[name] for name in row.keys() if row[name] is not None}  # noqa: SIM118
    found.pop("row", None)
    for name in TIMES & found.keys():
        if isinstance(found[name], int) and abs(found[name]) < _LATEST:
            found[name] = moment(found[name])
    for name in ("counts", "options"):
        if isinstance(found.get(name), str):
            # Else it is shown as the text it is.
            with suppress(ValueError):
                found[name] = json.loads(found[name])
    if "id" in found:
        found["_id"] = found.pop("id")
    return found
