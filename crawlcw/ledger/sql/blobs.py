"""Values that are too large for a task's row, stored as rows of a separate table."""

from collections.abc import Collection
from typing import Any
from uuid import uuid4

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents
from crawlcw.ledger.sql.database import Database, update
from crawlcw.ledger.sql.rows import from_json, milliseconds, refusing, to_json
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.task import BlobRef


class Blobs:
    """Stores, reads and drops large values."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """See `protocol.Blobs.put`."""
        with refusing():
            content = to_json(documents.escaped(value))
        blob = BlobRef(id=uuid4().hex, size=len(content))
        row = {
            "id": blob.id,
            "task_id": task_id,
            "content": content,
            "create_time": milliseconds(self._store.now()),
        }
        await self._store.writer.run(update, self._store.sql.put_blob, row)
        return blob

    async def read(self, blob: BlobRef) -> Any:
        """See `protocol.Blobs.read`."""
        content = await self._store.reader.run(self._content, blob)
        if content is None:
            raise LedgerError(
                f"The ledger {self._store.location} no longer has the value {blob.id}."
            )
        return documents.unescaped(from_json(content))

    def _content(self, db: Database, blob: BlobRef) -> str | None:
        row = db.execute(self._store.sql.read_blob, (blob.id,)).fetchone()
        return None if row is None else row["content"]

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """See `protocol.Blobs.drop`."""
        if blobs:
            await self._store.writer.run(self._drop, [(blob.id,) for blob in blobs])

    def _drop(self, db: Database, ids: Collection[tuple[str]]) -> None:
        with db.transaction(durable=True):
            db.executemany(self._store.sql.drop_blob, ids)
