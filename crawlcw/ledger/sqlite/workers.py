"""The workers: who is at work, what each has counted, and what it leaves behind."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Counters, Worker
from crawlcw.ledger.sqlite.connection import (
    Database,
    all_rows,
    snapshot,
    transaction,
    update,
)
from crawlcw.ledger.sqlite.hosts import NEW_HOST
from crawlcw.ledger.sqlite.rows import document_of, from_json, milliseconds, row_of
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.rates import Vitals


class Workers:
    """Keeps a row for each worker."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def join(self, worker: Worker) -> None:
        """See `protocol.Workers.join`."""
        row = row_of(documents.worker_document(worker))
        await self._store.writer.run(update, self._store.sql.join, row)

    async def all(self) -> list[Worker]:
        """See `protocol.Workers.all`."""
        return await self._store.reader.run(self._all)

    def _all(self, db: sqlite3.Connection) -> list[Worker]:
        with snapshot(db):
            rows = all_rows(db, self._store.sql.workers)
            shown = {row["worker"]: row["vitals"] for row in db.execute(self._store.sql.shown)}
        found = [dict(row) | {"vitals": shown.get(row["id"])} for row in rows]
        return [documents.worker(document_of(row)) for row in found]

    async def beat(
        self, name: str, tally: Counters, *, hungry: bool = False, vitals: Vitals | None = None
    ) -> None:
        """See `protocol.Workers.beat`."""
        counted = documents.tally_document(tally)
        news = {"_id": name, "heartbeat": self._store.now(), "hungry": hungry, "tally": counted}
        shown = None if vitals is None else documents.vitals_document(vitals)
        await self._store.writer.run(self._beat, row_of({**news, "vitals": shown}))

    def _beat(self, db: Database, news: Mapping[str, Any]) -> None:
        with transaction(db, durable=True):
            db.execute(self._store.sql.beat, news)
            if news["vitals"] is not None:
                db.execute(self._store.sql.show, news)

    async def tally(self) -> Counters:
        """See `protocol.Workers.tally`."""
        rows = await self._store.reader.run(all_rows, self._store.sql.tallies)
        return sum((documents.tally(from_json(row["tally"])) for row in rows), Counters())

    async def leave(self, name: str) -> int:
        """See `protocol.Workers.leave`."""
        return await self._store.writer.run(self._leave, name, milliseconds(self._store.now()))

    def _leave(self, db: Database, name: str, now: int) -> int:
        tokens = {"name": name, "first": f"{name}:", "end": f"{name};", "now": now}
        with transaction(db):
            db.execute(self._store.sql.leave, tokens)
            db.execute(self._store.sql.show_no_more, tokens)
            db.execute(self._store.sql.forget_workers, {"kept": documents.KEPT_WORKERS})
            db.execute(self._store.sql.end_host_leases, tokens)
            db.execute(self._store.sql.end_logins, tokens)
            ended = db.execute(self._store.sql.end_leases, tokens).rowcount
            if ended and not self._store.kind.tracked:
                # Hosts of others, too, which come back when the leases would have run out.
                hosts = db.execute(self._store.sql.hosts_of_leases, tokens).fetchall()
                late = [{**NEW_HOST, "id": row["host"], "due": now} for row in hosts]
                db.executemany(self._store.sql.wake_host, late)
        return ended
