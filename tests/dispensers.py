"""Dispensers on a store whose clock stands still until a test moves it."""

from datetime import timedelta
from typing import Any

from crawlcw.tracking import Dispenser, Policy, Tracker, UseCase
from tests.ledgers import Ledgers

TTL = timedelta(seconds=60)


async def tracker_on(store: Ledgers, *, chain: tuple[str, ...] = (), **policy: Any) -> Tracker:
    """Return a tracker of its own client; the store closes that."""
    ledger: Any = await store.open()
    given = {"lease": TTL, "backoff": timedelta(seconds=4)} | policy
    return Tracker(ledger, UseCase("books", chain=chain), Policy(**given), give_up=TTL)


async def dispenser_on(store: Ledgers, **options: Any) -> Dispenser:
    """Return a dispenser with a tracker and a client of its own."""
    return Dispenser(await tracker_on(store, **options))
