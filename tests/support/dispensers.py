"""Dispensers on a store whose clock stands still until a test moves it."""

from datetime import timedelta
from typing import Any, Self

from crawlcw.engine.watchdog import Watchdog
from crawlcw.tracking import Dispenser, Policy, Tracker, UseCase
from tests.support.ledgers import Ledgers

TTL = timedelta(seconds=60)


class Unwatched(Watchdog):
    """Watches nothing: between two steps of a test its loop stands still, and its clock as well."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def tracker_on(store: Ledgers, *, chain: tuple[str, ...] = (), **policy: Any) -> Tracker:
    """Return a tracker of its own client; the store closes that."""
    ledger: Any = await store.open()
    given = {"lease": TTL, "backoff_base": timedelta(seconds=4)} | policy
    tracker = Tracker(ledger, UseCase("books", chain=chain), Policy(**given), give_up=TTL)
    session = tracker.session
    session.watchdog = Unwatched(session.stats, limit=timedelta(0))
    return tracker


async def dispenser_on(store: Ledgers, **options: Any) -> Dispenser:
    """Return a dispenser with a tracker and a client of its own."""
    return Dispenser(await tracker_on(store, **options))
