"""Dispensers on a store with a frozen clock."""

from datetime import timedelta
from typing import Any, Self

from crawlcw.engine.watchdog import Watchdog
from crawlcw.tracking import Dispenser, Policy, Tracker, UseCase
from tests.support.ledgers import LedgerFactory

TTL = timedelta(seconds=60)


class NoWatchdog(Watchdog):
    """Watchdog that does nothing: loop and clock stand still between the steps of a test."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def tracker_on(
    store: LedgerFactory, *, chain: tuple[str, ...] = (), **policy: Any
) -> Tracker:
    """Return a tracker with a client of its own, which the store closes."""
    ledger: Any = await store.open()
    given = {"lease": TTL, "backoff_base": timedelta(seconds=4)} | policy
    tracker = Tracker(ledger, UseCase("books", chain=chain), Policy(**given), give_up=TTL)
    session = tracker.session
    session.watchdog = NoWatchdog(session.stats, limit=timedelta(0))
    return tracker


async def dispenser_on(store: LedgerFactory, **options: Any) -> Dispenser:
    """Return a dispenser with a tracker and a client of its own."""
    return Dispenser(await tracker_on(store, **options))
