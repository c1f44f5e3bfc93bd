"""A ledger on MongoDB, and the commands that it sends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pymongo
from pymongo.monitoring import CommandListener

from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import MongoStore
from tests.support.ledgers import FakeClock


class CommandLog(CommandListener):
    """The commands of one client, as they were sent."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event) -> None:
        self.commands.append(dict(event.command))

    def succeeded(self, event) -> None:
        pass

    def failed(self, event) -> None:
        pass


@asynccontextmanager
async def logged(
    uri: str, database: str, log: CommandLog, *, clock: FakeClock | None = None, **options: Any
) -> AsyncIterator[MongoLedger]:
    """Open a ledger that is prepared, with every command in *log*."""
    client: Any = pymongo.AsyncMongoClient(uri, tz_aware=True, event_listeners=[log])
    store = MongoStore(client[database], "books", clock=clock or FakeClock(), **options)
    ledger = MongoLedger(store)
    await ledger.inspection.prepare()
    yield ledger
    await client.close()
