"""A ledger that waits while the real one is away (the Decorator pattern, with Retry).

What is asked of it is asked again until it is answered, see `Patience`: nobody who
uses a ledger has to think of outages. But for two things that are asked once: renewals,
because what is held changes while they wait, and heartbeats, because the next one is as good.
"""

from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast, get_type_hints

from crawlcw.engine.patience import Patience
from crawlcw.ledger import protocol
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.tracked import TrackedLedger

AnyLedger = TypeVar("AnyLedger", bound=Ledger)

#: Their protocols, by their names. What has no coroutine functions passes as it is.
_FACETS = get_type_hints(TrackedLedger)
_ASKED_ONCE = frozenset(
    {(protocol.Leases, "renew"), (protocol.HostLeases, "renew"), (protocol.Workers, "beat")}
)


def retrying(ledger: AnyLedger, patience: Patience) -> AnyLedger:
    """Return *ledger* with every operation asked again while it is unavailable.

    The operations raise `LedgerUnavailableError` only where *patience* has ended.
    """
    return cast("AnyLedger", _RetryingLedger(ledger, patience))


class _RetryingLedger:
    def __init__(self, ledger: Ledger, patience: Patience) -> None:
        self._ledger = ledger
        self._patience = patience
        # Asked several times for each page.
        self.now = ledger.now

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if (facet := _FACETS.get(name)) is None:
            return found
        # Made once: the next access finds it in the instance.
        setattr(self, name, _RetryingFacet(found, facet, self._patience))
        return getattr(self, name)


class _RetryingFacet:
    def __init__(self, facet: Any, protocol: type, patience: Patience) -> None:
        self._facet = facet
        # Walks are the real ledger's.
        self._operations = {
            name
            for name, member in vars(protocol).items()
            if iscoroutinefunction(member) and (protocol, name) not in _ASKED_ONCE
        }
        self._patience = patience

    def __getattr__(self, name: str) -> Any:
        if name not in self._operations:
            return getattr(self._facet, name)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            return await self._patience.insist(lambda: getattr(self._facet, name)(*args, **kwargs))

        setattr(self, name, asked)
        return asked
