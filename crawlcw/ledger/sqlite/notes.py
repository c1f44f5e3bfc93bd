"""What crawls write down of themselves, beside the tasks."""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger.sqlite.connection import Database, durable_transaction
from crawlcw.ledger.sqlite.marker import (
    add_to_policy,
    change_control,
    change_state,
    control_of,
    policy_of,
    state_of,
)
from crawlcw.ledger.sqlite.store import SqliteStore


class Notes:
    """Keeps a few values in the marker."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def state(self) -> Mapping[str, Any]:
        """See `protocol.Notes.state`."""
        return await self._store.reader.run(state_of, self._store.name)

    async def set_state(self, state: Mapping[str, Any]) -> None:
        """See `protocol.Notes.set_state`."""
        await self._store.writer.run(self._set_state, state)

    def _set_state(self, db: Database, state: Mapping[str, Any]) -> None:
        with durable_transaction(db):
            change_state(db, self._store.name, state)

    async def control(self) -> Mapping[str, Any]:
        """See `protocol.Notes.control`."""
        return await self._store.reader.run(control_of, self._store.name)

    async def set_control(self, control: Mapping[str, Any]) -> None:
        """See `protocol.Notes.set_control`."""
        await self._store.writer.run(self._set_control, control)

    def _set_control(self, db: Database, control: Mapping[str, Any]) -> None:
        with durable_transaction(db):
            change_control(db, self._store.name, control)

    async def policy(self) -> Mapping[str, Any]:
        """See `protocol.Notes.policy`."""
        return await self._store.reader.run(policy_of, self._store.name)

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """See `protocol.Notes.set_policy`."""
        await self._store.writer.run(self._set_policy, policy)

    def _set_policy(self, db: Database, policy: Mapping[str, Any]) -> None:
        with durable_transaction(db):
            add_to_policy(db, self._store.name, policy)
