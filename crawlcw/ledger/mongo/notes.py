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
        return await self._read("state")

    async def set_state(self, state: Mapping[str, Any]) -> None:
        """Set each value by its own path."""
        await self._change("state", state)

    async def control(self) -> Mapping[str, Any]:
        """Read its part of that document alone."""
        return await self._read("control")

    async def set_control(self, control: Mapping[str, Any]) -> None:
        """Set each value by its own path."""
        await self._change("control", control)

    async def _read(self, part: str) -> dict[str, Any]:
        with mapped():
            marker = await self._store.schema.find_one({"_id": self._store.spider}, {part: 1})
        found: dict[str, Any] = documents.unescaped((marker or {}).get(part) or {})
        return found

    async def _change(self, part: str, values: Mapping[str, Any]) -> None:
        update: dict[str, documents.Document] = {}
        # An escaped name has no dot, so it is one step of the path.
        for name, value in documents.escaped(dict(values)).items():
            operator = "$unset" if value is None else "$set"
            update.setdefault(operator, {})[f"{part}.{name}"] = "" if value is None else value
        if update:
            with mapped():
                await self._store.schema.update_one(
                    {"_id": self._store.spider}, update, hint="_id_"
                )

    async def policy(self) -> Mapping[str, Any]:
        """Read the settings from the document that says what the ledger is."""
        return await self._read("policy")

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
