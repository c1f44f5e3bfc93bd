"""Copy a ledger into an empty ledger of any store, and check that all documents have arrived."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Protocol

from crawlcw.errors import LedgerError
from crawlcw.ledger.choosing import after_key, resumed
from crawlcw.ledger.documents import Document
from crawlcw.ledger.notes import STATE_ID
from crawlcw.ledger.port import LedgerTables, Store, Table
from crawlcw.ledger.protocol import Ledger


class Part(StrEnum):
    """Parts of a ledger in the order of copying: `copy` writes the tasks before the hosts."""

    BLOBS = "blobs"
    TASKS = "tasks"
    HOSTS = "hosts"
    WORKERS = "workers"
    SESSIONS = "sessions"
    ITEM_KEYS = "item keys"
    STATE = "states"


#: Name of the note that marks a ledger whose copy is incomplete.
UNFINISHED = "copying"
HALF_COPIED = "The ledger has only a part of the copied tasks: run the same copy command again."
#: Number of documents in one read. The number is small for hosts, because a host's document
#: contains its robots.txt, and for sessions, because a session may have thousands of cookies.
_BATCH_SIZE = {Part.HOSTS: 100, Part.WORKERS: 1_000, Part.SESSIONS: 10, Part.ITEM_KEYS: 1_000}
#: Names of fields that a document has even if the value is null; other null fields are left out.
_NULLABLE_FIELDS = {Part.HOSTS: {"owner"}, Part.WORKERS: {"left_at"}}
_CONTENT_PARTS = (Part.TASKS, Part.BLOBS)
#: Number of documents between two calls of `on_progress`.
_PROGRESS_EVERY = 100_000
_DIGEST_BYTES = 16
_DIGEST_COUNT = 1 << (8 * _DIGEST_BYTES)


class LedgerContents(Protocol):
    """Reads and writes tasks and blobs. Each store keeps tasks and blobs in its own form."""

    def read(self, part: Part) -> AsyncGenerator[Sequence[Document], None]:
        """Yield all tasks, or all blobs, as `LedgerCopier.read` describes them."""

    async def write(self, part: Part, documents: Sequence[Document]) -> None:
        """Durably write each of *documents* that the store does not have yet."""


class LedgerCopier:
    """Reads documents from a ledger, and writes them unchanged to its copy."""

    def __init__(self, store: Store, contents: LedgerContents) -> None:
        self._store = store
        self._contents = contents

    async def read(self, part: Part) -> AsyncIterator[Sequence[Document]]:
        """Yield the documents of a part of the ledger, a batch at a time to save memory.

        The documents have the form that `ledger.documents` describes, on every store. A task's
        document has the field `items` with all items in order. The task's field `items_from` has no
        fence, and its field `versions` has the items of each version. A blob is `{_id, task_id,
        value}`. Keys stay escaped.
        """
        if part in _CONTENT_PARTS:
            async with aclosing(self._contents.read(part)) as batches:
                async for batch in batches:
                    yield batch
            return
        last_id: str | None = None
        while batch := await resumed(self._store, _next, part, last_id):
            yield [_copied(part, document) for document in batch]
            last_id = batch[-1]["_id"]

    async def write(self, part: Part, documents: Sequence[Document]) -> None:
        """Durably write each of *documents* that the store does not have yet."""
        if part in _CONTENT_PARTS:
            await self._contents.write(part, documents)
        else:
            await self._store.writing(_insert, part, documents)


async def _next(tables: LedgerTables, part: Part, last_id: str | None) -> Sequence[Document]:
    """Return the next batch of documents of a part, after the id *last_id*."""
    if part is Part.STATE:
        return [*(await tables.state.read([STATE_ID])).values()] if last_id is None else []
    return await _table(tables, part).scan(after_key(last_id), limit=_BATCH_SIZE[part])


async def _insert(tables: LedgerTables, part: Part, documents: Sequence[Document]) -> int:
    return await (tables.state if part is Part.STATE else _table(tables, part)).insert(documents)


def _table(tables: LedgerTables, part: Part) -> Table:
    return {
        Part.HOSTS: tables.hosts,
        Part.WORKERS: tables.workers,
        Part.SESSIONS: tables.sessions,
        Part.ITEM_KEYS: tables.item_keys,
    }[part]


def _copied(part: Part, document: Document) -> Document:
    """Return a document without the fields that a ledger in another store does not need."""
    nulls = _NULLABLE_FIELDS.get(part, ())
    copied_document = {
        name: value for name, value in document.items() if value is not None or name in nulls
    }
    if part is Part.WORKERS:
        copied_document["idle"] = bool(copied_document["idle"])
        # The measurements, loan and report of an ended worker have no meaning.
        for name in ("vitals", "loan", "report"):
            copied_document.pop(name, None)
    return copied_document


class CopiedLedger(Ledger, Protocol):
    """A ledger with a copier, so that `copy` can copy it."""

    copier: LedgerCopier


@dataclass(slots=True)
class Digest:
    """Digest of a set of documents, independent of their order."""

    number: int = 0
    items: int = 0
    sum: int = 0

    def take(self, documents: Sequence[Document]) -> None:
        """Add documents."""
        for document in documents:
            self.number += 1
            self.items += len(document.get("items", ()))
            document_json = json.dumps(
                document, sort_keys=True, ensure_ascii=False, default=_comparable
            )
            digest = blake2b(
                document_json.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES
            )
            self.sum = (self.sum + int.from_bytes(digest.digest())) % _DIGEST_COUNT


def _comparable(value: object) -> dict[str, str]:
    # Compare times as ISO texts, because the `repr` of a time differs between the drivers.
    text = value.isoformat() if isinstance(value, datetime) else repr(value)
    return {type(value).__name__: text}


async def copy(
    source: CopiedLedger, target: CopiedLedger, *, on_progress: Callable[[Part, int], None]
) -> dict[Part, Digest]:
    """Copy all of *source* into *target*, which is empty; return the digests of its parts.

    *source* and *target* have the same name and kind, and no worker runs on either ledger. `copy`
    calls *on_progress* from time to time, with the number of documents of a part that are written
    so far. The target has the note `UNFINISHED` until the copy is complete. Raises `LedgerError` if
    the documents that are read back from the target differ from the written documents.
    """
    await target.notes.set_state({UNFINISHED: True})
    copied: dict[Part, Digest] = {}
    for part in Part:
        written_digest = copied[part] = Digest()
        async for batch in source.copier.read(part):
            previous_number = written_digest.number
            await target.copier.write(part, batch)
            written_digest.take(batch)
            if written_digest.number // _PROGRESS_EVERY > previous_number // _PROGRESS_EVERY:
                on_progress(part, written_digest.number)
    for part, written_digest in copied.items():
        target_digest = Digest()
        async for batch in target.copier.read(part):
            target_digest.take(batch)
        if target_digest != written_digest:
            raise LedgerError(
                f"The copy is not the same as the original: {written_digest.number} {part} were "
                f"written, and {target_digest.number} were read back: start the copy again."
            )
    await target.notes.set_policy(await source.notes.policy())
    await target.notes.set_control(await source.notes.control())
    await target.notes.set_state({**await source.notes.state(), UNFINISHED: None})
    return copied
