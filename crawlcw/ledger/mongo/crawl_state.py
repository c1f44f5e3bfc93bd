"""What crawls write down of themselves, beside the tasks."""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore


class CrawlState(MongoStore):
    """Keeps a few values in the document that says what the ledger is."""

    async def state(self) -> Mapping[str, Any]:
        """Read that document."""
        with mapped():
            marker = await self._schema.find_one({"_id": self._spider}, {"state": 1})
        state: dict[str, Any] = documents.unescaped((marker or {}).get("state") or {})
        return state

    async def set_state(self, state: Mapping[str, Any]) -> None:
        """Set each value by its own path."""
        update: dict[str, documents.Document] = {}
        # An escaped name has no dot, so it is one step of the path.
        for name, value in documents.escaped(dict(state)).items():
            operator = "$unset" if value is None else "$set"
            update.setdefault(operator, {})[f"state.{name}"] = "" if value is None else value
        if update:
            with mapped():
                await self._schema.update_one({"_id": self._spider}, update, hint="_id_")
