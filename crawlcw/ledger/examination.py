"""Read the raw documents of a ledger for `crawlcw doctor`, and name the kinds of violations.

A crawl does not use this module. `doctor` reads raw documents, because a document with wrong values
cannot be read as a task or a host.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.choosing import batches, resumed
from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import LedgerTables, Part, Store

#: Names of the task fields that a repair may change. The repair writes nothing if one of these
#: fields has changed since the document was read.
TASK_STATE = (
    *("status", "due", "lock", "lock_time", "fence", "settled", "quarantine_fence"),
    *("retry", "lost", "reason"),
)
#: Names of the host fields that a repair may change.
HOST_STATE = ("ready_at", "owner", "epoch", "released")
#: Number of document ids in one read.
_BATCH_SIZE = 100


class Kind(StrEnum):
    """Kinds of violations. The values are part of the JSON output of `crawlcw doctor`."""

    # Kinds of violations of a task, a host or a worker.
    MALFORMED = "malformed"
    LEASE_INCOMPLETE = "lease-incomplete"
    FIELD_LEFT = "field-left"
    DUE_MISSING = "due-missing"
    FENCE_BEHIND = "fence-behind"
    ITEM_LOST = "item-lost"
    BLOB_LOST = "blob-lost"
    BLOB_LEFT = "blob-left"
    HOST_ASLEEP = "host-asleep"
    WORKER_DEAD = "worker-dead"
    # The store.
    STORE_INCOMPLETE = "store-incomplete"
    STORE_DIFFERENT = "store-different"
    STORE_DAMAGED = "store-damaged"
    STORE_READ_ONLY = "store-read-only"
    NOT_WAL = "not-wal"
    NOT_DURABLE = "not-durable"
    MAY_NOT_WRITE = "may-not-write"
    STANDALONE = "standalone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that a document or the store violates, and the write that repairs the document."""

    kind: Kind
    detail: str  #: description of the violation; may contain text of the ledger
    mend: Mapping[str, Any] | None = None
    """Values of the fields that repair the document; a field with the value None is removed.

    `mend` is empty if a different write repairs the document, and None if no write is safe.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """State of the store itself, not of its documents."""

    recorded: bool  #: whether the ledger has any tasks
    facts: Mapping[str, str] = field(default_factory=dict)  #: for display
    violations: tuple[Violation, ...] = ()
    clock_offset: timedelta | None = None
    """Time by which the store's clock is ahead of this machine's; None if both are one clock."""


class Inspection(ABC):
    """The reads of `doctor`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @abstractmethod
    async def prepare(self) -> None:
        """Create missing tables and indexes, like the start of a crawl."""

    @abstractmethod
    async def write_refusal(self) -> str | None:
        """Return why the store refuses a write that changes nothing, or None if the write succeeds.

        `write_refusal` reads no task, so its time does not depend on the number of tasks. Raises
        `LedgerUnavailableError`.
        """

    @abstractmethod
    async def health(self) -> Health:
        """Examine the server, the tables and the indexes of the store, without a write."""

    async def examine(
        self, part: Part, *, wanted_ids: Collection[Any] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield a part's documents, or only those with *wanted_ids*, in constant memory.

        Each document is read by one query, as `port.Raw.read` describes. The result may lack
        documents that are added during the call. A document that is not a task may have an `_id` of
        any type. A blob is yielded only if its task does not refer to it.
        """
        for ids in [None] if wanted_ids is None else batches(wanted_ids, _BATCH_SIZE):
            cursor = None
            while True:
                batch, cursor = await resumed(self._store, _read, part, cursor, ids)
                for document in batch:
                    yield document
                if cursor is None:
                    break


async def _read(
    tables: LedgerTables, part: Part, cursor: Any, wanted_ids: Collection[Any] | None
) -> tuple[Sequence[Document], Any]:
    """Return the next batch of documents of a part, and the cursor after the batch."""
    batch, next_cursor = await tables.raw.read(part, cursor=cursor, wanted_ids=wanted_ids)
    if part is Part.TASKS:
        return await _with_lost_blobs(tables, batch), next_cursor
    return await _unreferenced(tables, batch) if part is Part.BLOBS else batch, next_cursor


async def _with_lost_blobs(tables: LedgerTables, tasks: Sequence[Document]) -> Sequence[Document]:
    blob_ids = {blob for task in tasks for blob in _blobs(task)}
    if not blob_ids:
        return tasks
    stored_ids = {
        document["_id"] async for document in _documents_with_ids(tables, Part.BLOBS, blob_ids)
    }
    for task in tasks:
        if lost_ids := [blob for blob in _blobs(task) if blob not in stored_ids]:
            task["blobs_lost"] = lost_ids
    return tasks


async def _unreferenced(tables: LedgerTables, blobs: Sequence[Document]) -> Sequence[Document]:
    tasks = _documents_with_ids(tables, Part.TASKS, {blob["task_id"] for blob in blobs})
    references = {(task["_id"], blob_id) async for task in tasks for blob_id in _blobs(task)}
    return [blob for blob in blobs if (blob["task_id"], blob["_id"]) not in references]


async def _documents_with_ids(
    tables: LedgerTables, part: Part, ids: Collection[Any]
) -> AsyncIterator[Document]:
    for batch_ids in batches(ids, _BATCH_SIZE):
        batch, _ = await tables.raw.read(part, wanted_ids=batch_ids)
        for document in batch:
            yield document


def _blobs(task: Document) -> list[str]:
    # Ignore an id that is no text, because a ledger writes only texts as ids of blobs.
    return [blob for blob in documents.blobs(task) if isinstance(blob, str)]
