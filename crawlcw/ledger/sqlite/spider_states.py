"""The state of a spider: a row for each value and each pending change, and one for the revision."""

import sqlite3
from collections.abc import Iterator

from crawlcw.ledger.documents import Document, escaped
from crawlcw.ledger.sqlite.connection import Database, durable_transaction, snapshot
from crawlcw.ledger.sqlite.rows import from_json, to_json
from crawlcw.ledger.sqlite.statements import Statements
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.ledger.state_documents import (
    STATE_ID,
    run_text,
    state_document,
    stored_state,
)
from crawlcw.model.spider_state import StoredState


class SpiderStates:
    """Keeps rows."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def read(self, *, known: int = 0) -> StoredState | None:
        """See `protocol.SpiderStates.read`."""
        return await self._store.reader.run(self._read, known)

    def _read(self, db: sqlite3.Connection, known: int) -> StoredState | None:
        with snapshot(db):
            if _revision(db, self._store.sql) == known:
                return None
            found = document_of_state(db, self._store.sql)
        return None if found is None else stored_state(found)

    async def change(self, before: StoredState, after: StoredState) -> bool:
        """See `protocol.SpiderStates.change`."""
        return await self._store.writer.run(self._change, before, after)

    def _change(self, db: Database, before: StoredState, after: StoredState) -> bool:
        # Encoded before the transaction begins, for it keeps all others waiting.
        new = [
            {"part": part, "name": name, "content": text}
            for part, name, text in _new(before, after)
        ]
        gone = [{"part": part, "name": name} for part, name in _gone(before, after)]
        with durable_transaction(db):
            if _revision(db, self._store.sql) != before.revision:
                # The answer to a change that was written may have been lost.
                found = document_of_state(db, self._store.sql)
                return found is not None and stored_state(found) == after
            db.executemany(self._store.sql.drop_state, gone)
            db.executemany(self._store.sql.put_state, new)
        return True

    async def forget(self) -> bool:
        """See `protocol.SpiderStates.forget`."""
        return await self._store.writer.run(self._forget)

    def _forget(self, db: Database) -> bool:
        with durable_transaction(db):
            found = document_of_state(db, self._store.sql)
            if found is None:
                return False
            db.execute(self._store.sql.forget_state)
            revision = to_json(found["revision"] + 1)
            row = {"part": "revision", "name": "", "content": revision}
            db.execute(self._store.sql.put_state, row)
        return bool(found["values"])


def document_of_state(db: sqlite3.Connection, sql: Statements) -> Document | None:
    """Return the document that the rows of a state hold, None where there are none."""
    found: Document = {"_id": STATE_ID, "values": {}, "pending": {}}
    for row in db.execute(sql.state):
        content = from_json(row["content"])
        if row["part"] == "revision":
            found["revision"] = content
        else:
            found[row["part"]][row["name"]] = content
    return found if "revision" in found else None


def rows_of_state(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yield the part, the name and the content of each row of a state's document."""
    yield "revision", "", to_json(document["revision"])
    for part in ("values", "pending"):
        for name, content in document[part].items():
            yield part, name, to_json(content)


def _revision(db: sqlite3.Connection, sql: Statements) -> int:
    row = db.execute(sql.revision).fetchone()
    revision: int = 0 if row is None else from_json(row["content"])
    return revision


def _new(before: StoredState, after: StoredState) -> Iterator[tuple[str, str, str]]:
    """Yield the rows that are other in *after*."""
    values = {n: each for n, each in after.values.items() if before.values.get(n) is not each}
    pending = {r: each for r, each in after.pending.items() if before.pending.get(r) != each}
    changed = StoredState(revision=after.revision, values=values, pending=pending)
    return rows_of_state(state_document(changed))


def _gone(before: StoredState, after: StoredState) -> Iterator[tuple[str, str]]:
    """Yield the part and the name of the rows that are not in *after*."""
    for name in escaped(dict.fromkeys(before.values.keys() - after.values.keys())):
        yield "values", name
    for run in before.pending.keys() - after.pending.keys():
        yield "pending", run_text(run)
