"""What a ledger of tracked tasks can do besides: the use case's settings, and what is held."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.encoding import encoding_error
from crawlcw.ledger.mongo.indexes import BY_STATUS
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.mongo.updates import mine
from crawlcw.model.task import BlobRef, Lease, Status
from crawlcw.model.transitions import lease_of

#: What a lease has no use for.
_RESULTS = dict.fromkeys(("errors", "response", "items", "trace"), 0)


class Tracked(MongoStore):
    """Keeps a use case's settings, and saves what its tasks carry while they are held."""

    async def policy(self) -> Mapping[str, Any]:
        """Read the settings from the document that says what the ledger is."""
        with mapped():
            marker = await self._schema.find_one({"_id": self._spider}, {"policy": 1})
        policy: dict[str, Any] = documents.unescaped((marker or {}).get("policy") or {})
        return policy

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Set each setting by its own path."""
        if not policy:
            return
        # An escaped name has no dot, so it is one step of the path.
        settings = documents.escaped(dict(policy))
        update = {f"policy.{name}": value for name, value in settings.items()}
        with mapped():
            await self._schema.update_one({"_id": self._spider}, {"$set": update}, hint="_id_")

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """Set the data and move the lease's end by one fenced update."""
        saved = {"data": documents.value_document(data)}
        if error := encoding_error(saved):
            raise LedgerError(f"the data cannot be kept in the task: {error}")
        # As for a renewal: one that was delayed on its way must not shorten the lease.
        update = {"$set": saved, "$max": {"due": self.now() + duration}}
        with mapped():
            result = await self._durable.update_one(mine(lease), update, hint="_id_")
        matched: int = result.matched_count
        return matched == 1

    async def held(self, worker: str) -> list[Lease]:
        """Read what is processing, whosever it is, and keep what is the worker's."""
        tokens = {"$regex": f"^{re.escape(worker)}:"}
        held = {"status": int(Status.PROCESSING), "lock": tokens}
        with mapped():
            found = await self._tasks.find(held, {**_RESULTS}).hint(BY_STATUS).to_list(None)
        found.sort(key=lambda each: (each["lock_time"], bytes(each["_id"])))
        return [lease_of(documents.task(each)) for each in found]
