"""The state of a spider: one document, changed field by field where its revision is as it was."""

from typing import Any

from pymongo.errors import DuplicateKeyError

from crawlcw.ledger.documents import Document, escaped
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.state_documents import (
    STATE_ID,
    change_document,
    run_text,
    state_document,
    stored_state,
    value_document,
)
from crawlcw.model.spider_state import StoredState


class SpiderStates:
    """Keeps a document."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def read(self, *, known: int = 0) -> StoredState | None:
        """See `protocol.SpiderStates.read`."""
        with mapped():
            found = await self._store.state.find_one({"_id": STATE_ID, "revision": {"$ne": known}})
        return None if found is None else stored_state(found)

    async def change(self, before: StoredState, after: StoredState) -> bool:
        """Insert it, or update it where it has the revision of *before*."""
        with mapped():
            if not before.revision:
                try:
                    await self._store.state.insert_one(state_document(after))
                except DuplicateKeyError:
                    return await self.read() == after
                return True
            known = {"_id": STATE_ID, "revision": before.revision}
            update = _update(before, after)
            result = await self._store.state.update_one(known, update, hint="_id_")
        return result.matched_count == 1 or await self.read() == after

    async def forget(self) -> bool:
        """See `protocol.SpiderStates.forget`."""
        nothing = {"$set": {"values": {}, "pending": {}}, "$inc": {"revision": 1}}
        with mapped():
            known = {"_id": STATE_ID}
            found = await self._store.state.find_one_and_update(known, nothing, {"values": 1})
        return bool(found and found["values"])


def _update(before: StoredState, after: StoredState) -> Document:
    """Return what sets each value and each change by its own path: escaped, so it is one step."""
    new: Document = {"revision": after.revision}
    gone: Document = {}
    for name, value in after.values.items():
        if before.values.get(name) is not value:
            new[f"values.{_step(name)}"] = escaped(value_document(value))
    for name in before.values.keys() - after.values.keys():
        gone[f"values.{_step(name)}"] = ""
    for run, change in after.pending.items():
        if before.pending.get(run) != change:
            new[f"pending.{run_text(run)}"] = change_document(change)
    for run in before.pending.keys() - after.pending.keys():
        gone[f"pending.{run_text(run)}"] = ""
    return {"$set": new, "$unset": gone} if gone else {"$set": new}


def _step(name: str) -> Any:
    return next(iter(escaped({name: None})))
