"""Poll the file for writes, to find out when tasks were added or may be due again."""

from collections.abc import AsyncIterator

import anyio

from crawlcw.ledger.sql.database import number_of
from crawlcw.ledger.sqlite.store import SqliteStore

_VERSION = "PRAGMA data_version"
_POLL_EVERY = 0.25


class Changes:
    """Polls the file for writes of other connections."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def watch(self) -> AsyncIterator[None]:
        """See `protocol.Changes.watch`.

        SQLite sends no notifications. `PRAGMA data_version` tells whether another connection has
        written to the file.
        """
        version: int | None = None
        while True:
            # `data_version` changes with the commits of other connections, not with this
            # connection's own.
            current_version = await self._store.writer.run(number_of, _VERSION)
            if current_version != version:
                version = current_version
                yield
            await anyio.sleep(_POLL_EVERY)
