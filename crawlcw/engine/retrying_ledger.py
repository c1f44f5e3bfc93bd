"""A ledger that waits while the real one is away (the Decorator pattern, with Retry).

What is asked of it is asked again until it is answered, see `Patience`: nobody who
uses a ledger has to think of outages. But for some things that are asked once: renewals,
because what is held changes while they wait, and what workers show of themselves, because the
next heartbeat or point is as good.
"""

from collections import Counter
from collections.abc import Awaitable
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
    {
        (protocol.Leases, "renew"),
        (protocol.HostLeases, "renew"),
        (protocol.Workers, "beat"),
        (protocol.Rates, "record"),
    }
)


def retrying(
    ledger: AnyLedger, patience: Patience, *, asked: Counter[str] | None = None
) -> AnyLedger:
    """Return *ledger* with every operation asked again while it is unavailable.

    *asked* counts how often each was, repetitions included, by a name such as `tasks.add`.
    The operations raise `LedgerUnavailableError` only where *patience* has ended.
    """
    return cast(
        "AnyLedger", _RetryingLedger(ledger, patience, Counter() if asked is None else asked)
    )


class _RetryingLedger:
    def __init__(self, ledger: Ledger, patience: Patience, counts: Counter[str]) -> None:
        self._ledger = ledger
        self._patience = patience
        self._counts = counts
        # Asked several times for each page.
        self.now = ledger.now

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if (facet := _FACETS.get(name)) is None:
            return found
        # Made once: the next access finds it in the instance.
        asking = _RetryingFacet(name, found, facet, self._patience, self._counts)
        setattr(self, name, asking)
        return getattr(self, name)


class _RetryingFacet:
    def __init__(
        self, name: str, facet: Any, protocol: type, patience: Patience, counts: Counter[str]
    ) -> None:
        self._name = name
        self._facet = facet
        self._counts = counts
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

        operation = f"{self._name}.{name}"

        async def asked(*args: Any, **kwargs: Any) -> Any:
            def once() -> Awaitable[Any]:
                self._counts[operation] += 1
                return cast("Awaitable[Any]", getattr(self._facet, name)(*args, **kwargs))

            return await self._patience.insist(once)

        setattr(self, name, asked)
        return asked
