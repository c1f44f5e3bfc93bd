"""What only the tasks of a use case have: a policy, data, values that are set aside."""

import sqlite3
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import anyio

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents
from crawlcw.ledger.sqlite.changes import mine
from crawlcw.ledger.sqlite.connection import Database, durable_transaction, number_of, update
from crawlcw.ledger.sqlite.marker import add_to_policy, policy_of
from crawlcw.ledger.sqlite.rows import (
    UNHOLDABLE,
    describe_sqlite_error,
    document_of,
    from_json,
    milliseconds,
    to_json,
)
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.task import BlobRef, Lease
from crawlcw.model.transitions import lease_of

_VERSION = "PRAGMA data_version"
_LOOK_EVERY = 0.25


class Tracked(SqliteStore):
    """Fulfils what `TrackedLedger` has beyond `Ledger`."""

    async def policy(self) -> Mapping[str, Any]:
        """See `TrackedLedger.policy`."""
        return await self._reader.run(policy_of, self._name)

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """See `TrackedLedger.set_policy`."""
        await self._writer.run(self._set_policy, policy)

    def _set_policy(self, db: Database, policy: Mapping[str, Any]) -> None:
        with durable_transaction(db):
            add_to_policy(db, self._name, policy)

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """See `TrackedLedger.save`."""
        values = {
            **mine(lease),
            "id": lease.task.id,
            "data": self._text(documents.value_document(data)),
            "due": milliseconds(self.now() + duration),
        }
        return await self._writer.run(update, self._sql.save, values) == 1

    async def held(self, worker: str) -> list[Lease]:
        """See `TrackedLedger.held`."""
        # ';' follows ':', so these are the tokens that begin with `worker:`.
        tokens = {"first": f"{worker}:", "end": f"{worker};"}
        return await self._reader.run(self._held, tokens)

    def _held(self, db: sqlite3.Connection, tokens: Mapping[str, Any]) -> list[Lease]:
        rows = db.execute(self._sql.held, tokens)
        return [lease_of(documents.task(document_of(row))) for row in rows]

    async def put_blob(self, task_id: bytes, value: Any) -> BlobRef:
        """See `TrackedLedger.put_blob`."""
        content = self._text(documents.escaped(value))
        blob = BlobRef(id=uuid4().hex, size=len(content))
        row = {
            "id": blob.id,
            "task_id": task_id,
            "content": content,
            "create_time": milliseconds(self.now()),
        }
        await self._writer.run(update, self._sql.put_blob, row)
        return blob

    def _text(self, value: Any) -> str:
        try:
            return to_json(value)
        except UNHOLDABLE as error:
            raise LedgerError(
                f"The ledger {self._path} cannot hold it: {describe_sqlite_error(error)}."
            ) from error

    async def read_blob(self, blob: BlobRef) -> Any:
        """See `TrackedLedger.read_blob`."""
        content = await self._reader.run(self._content, blob)
        if content is None:
            raise LedgerError(f"The ledger {self._path} has no value {blob.id} any more.")
        return documents.unescaped(from_json(content))

    def _content(self, db: sqlite3.Connection, blob: BlobRef) -> str | None:
        row = db.execute(self._sql.read_blob, (blob.id,)).fetchone()
        return None if row is None else row["content"]

    async def drop_blobs(self, blobs: Collection[BlobRef]) -> None:
        """See `TrackedLedger.drop_blobs`."""
        if blobs:
            await self._writer.run(self._drop_blobs, [(blob.id,) for blob in blobs])

    def _drop_blobs(self, db: Database, ids: Collection[tuple[str]]) -> None:
        with durable_transaction(db):
            db.executemany(self._sql.drop_blob, ids)

    async def changes(self) -> AsyncIterator[None]:
        """See `TrackedLedger.changes`.

        SQLite tells nobody, but it can be asked whether anybody else has written
        anything, which reads no table.
        """
        version: int | None = None
        while True:
            # The writer's own commits do not count, those of all other connections do.
            found = await self._writer.run(number_of, _VERSION, {})
            if found != version:
                version = found
                yield
            await anyio.sleep(_LOOK_EVERY)
