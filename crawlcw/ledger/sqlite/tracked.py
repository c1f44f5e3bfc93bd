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
    document_of,
    from_json,
    milliseconds,
    said,
    to_json,
)
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.task import Aside, Lease
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
        self, lease: Lease, *, data: Mapping[str, Any] | Aside, duration: timedelta
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

    async def set_aside(self, task_id: bytes, value: Any) -> Aside:
        """See `TrackedLedger.set_aside`."""
        content = self._text(documents.escaped(value))
        aside = Aside(id=uuid4().hex, size=len(content))
        row = {
            "id": aside.id,
            "task_id": task_id,
            "content": content,
            "create_time": milliseconds(self.now()),
        }
        await self._writer.run(update, self._sql.set_aside, row)
        return aside

    def _text(self, value: Any) -> str:
        try:
            return to_json(value)
        except UNHOLDABLE as error:
            raise LedgerError(f"The ledger {self._path} cannot hold it: {said(error)}.") from error

    async def read_aside(self, aside: Aside) -> Any:
        """See `TrackedLedger.read_aside`."""
        content = await self._reader.run(self._content, aside)
        if content is None:
            raise LedgerError(f"The ledger {self._path} has no value {aside.id} any more.")
        return documents.unescaped(from_json(content))

    def _content(self, db: sqlite3.Connection, aside: Aside) -> str | None:
        row = db.execute(self._sql.read_aside, (aside.id,)).fetchone()
        return None if row is None else row["content"]

    async def drop_asides(self, asides: Collection[Aside]) -> None:
        """See `TrackedLedger.drop_asides`."""
        if asides:
            await self._writer.run(self._drop_asides, [(aside.id,) for aside in asides])

    def _drop_asides(self, db: Database, ids: Collection[tuple[str]]) -> None:
        with durable_transaction(db):
            db.executemany(self._sql.drop_aside, ids)

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
