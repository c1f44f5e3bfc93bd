"""What crawls write down of themselves, beside the tasks."""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger.sqlite.connection import Database, durable_transaction
from crawlcw.ledger.sqlite.marker import change_state, state_of
from crawlcw.ledger.sqlite.store import SqliteStore


class CrawlState(SqliteStore):
    """Keeps a few values in the marker."""

    async def state(self) -> Mapping[str, Any]:
        """See `Ledger.state`."""
        return await self._reader.run(state_of, self._name)

    async def set_state(self, state: Mapping[str, Any]) -> None:
        """See `Ledger.set_state`."""
        await self._writer.run(self._set_state, state)

    def _set_state(self, db: Database, state: Mapping[str, Any]) -> None:
        with durable_transaction(db):
            change_state(db, self._name, state)
