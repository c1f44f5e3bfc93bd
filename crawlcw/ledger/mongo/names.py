"""Names of the spiders and use cases with tasks in a database."""

from crawlcw.ledger.mongo.connection import closed, connected, mapped
from crawlcw.ledger.mongo.store import SCHEMA


async def recorded_names(url: str, *, driver: str) -> list[str]:
    """Return the names in order; the arguments and errors are those of `MongoLedger.open`."""
    client, database = connected(url, driver)
    try:
        with mapped():
            markers = await database[SCHEMA].find({}, {"_id": 1}).sort("_id", 1).to_list(None)
            return [
                each["_id"]
                for each in markers
                if await database[each["_id"]].find_one({}, {"_id": 1}) is not None
            ]
    finally:
        await closed(client)
