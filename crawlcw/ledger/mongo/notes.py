"""What crawls write down of themselves, beside the tasks."""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import MongoStore


class Notes:
    """Keeps a few values in the document that says what the ledger is."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def state(self) -> Mapping[str, Any]:
        """Read that document."""
        with mapped():
            marker = await self._store.schema.find_one({"_id": self._store.spider}, {"state": 1})
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
                await self._store.schema.update_one(
                    {"_id": self._store.spider}, update, hint="_id_"
                )

    async def policy(self) -> Mapping[str, Any]:
        """Read the settings from the document that says what the ledger is."""
        with mapped():
            marker = await self._store.schema.find_one({"_id": self._store.spider}, {"policy": 1})
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
            await self._store.schema.update_one(
                {"_id": self._store.spider}, {"$set": update}, hint="_id_"
            )
