"""Notifications of tasks that were added or may be due again (LISTEN and NOTIFY)."""

from collections.abc import AsyncGenerator

import psycopg
from psycopg.sql import SQL, Identifier

from crawlcw.ledger.postgres.connection import check, translated_error
from crawlcw.ledger.postgres.store import PostgresStore

_CONNECT_TIMEOUT = 5


class Changes:
    """Listens on a separate connection for the notifications of a trigger on the table `tasks`."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def watch(self) -> AsyncGenerator[None, None]:
        """See `protocol.Changes.watch`."""
        check(self._store.url)
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._store.url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT
            )
            async with connection:
                channel = Identifier(self._store.tables.channel)
                await connection.execute(SQL("LISTEN {}").format(channel))
                yield
                async for _ in connection.notifies():
                    yield
        except psycopg.Error as error:
            raise translated_error(error) from error
