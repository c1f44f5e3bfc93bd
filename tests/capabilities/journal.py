"""Every write to a use case's tasks, as recorded by the store itself."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pymongo

from crawlcw.ledger.sql.rows import EPOCH
from crawlcw.model.task import Status
from tests.capabilities.use_cases import UseCases

_FIELDS = ("status", "lock", "fence", "update_time")
_END = b"the end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The state of a task after one write."""

    id: bytes
    status: Status
    lock: str | None
    fence: int
    update_time: datetime


class Journal:
    """Log of writes from its construction on; the use case must exist."""

    def __init__(self, use_cases: UseCases, name: str) -> None:
        self._use_cases = use_cases
        self._name = name
        if use_cases.is_mongodb:
            self._client: Any = pymongo.MongoClient(use_cases.url, tz_aware=True)
            self._tasks = self._client.get_default_database()[name]
            self._stream = self._tasks.watch()
            return
        columns = ", ".join(("id", *_FIELDS))
        use_cases.execute(f'CREATE TABLE "{name}.journal" AS SELECT {columns} FROM "{name}"')
        for event in ("INSERT", "UPDATE"):
            new = ", ".join(f"new.{field}" for field in ("id", *_FIELDS))
            use_cases.execute(
                f'CREATE TRIGGER "{name}.{event}" AFTER {event} ON "{name}" '
                f'BEGIN INSERT INTO "{name}.journal" VALUES ({new}); END'
            )

    def close(self) -> None:
        if self._use_cases.is_mongodb:
            self._stream.close()
            self._client.close()

    def writes(self) -> list[Write]:
        """Return all writes so far; can be called once."""
        if self._use_cases.is_mongodb:
            return self._of_mongodb()
        # SQLite's triggers log statements, and a transaction may have two for a task.
        latest: dict[bytes, Write] = {}
        writes = []
        for write in self._of_sqlite():
            if latest.get(write.id) != write:
                writes.append(write)
            latest[write.id] = write
        return writes

    def _of_mongodb(self) -> list[Write]:
        self._tasks.insert_one({"_id": _END, "status": 0})
        documents: dict[bytes, dict[str, Any]] = {}
        writes = []
        for event in self._stream:
            task_id = bytes(event["documentKey"]["_id"])
            if task_id == _END:
                break
            if event["operationType"] == "delete":
                continue
            if event["operationType"] == "insert":
                documents[task_id] = event["fullDocument"]
            else:
                documents[task_id] |= event["updateDescription"]["updatedFields"]
            found = {field: documents[task_id][field] for field in _FIELDS}
            found["status"] = Status(found["status"])
            writes.append(Write(id=task_id, **found))
        self._tasks.delete_one({"_id": _END})
        return writes

    def _of_sqlite(self) -> list[Write]:
        with closing(sqlite3.connect(self._use_cases.path)) as db:
            rows = db.execute(f'SELECT * FROM "{self._name}.journal" ORDER BY rowid').fetchall()
        return [
            Write(
                id=task_id,
                status=Status(status),
                lock=lock,
                fence=fence,
                update_time=EPOCH + timedelta(milliseconds=update_time),
            )
            for task_id, status, lock, fence, update_time in rows
        ]
