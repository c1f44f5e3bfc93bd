"""A ledger that waits while the real one is away (the Decorator pattern, with Retry).

What is asked of it is asked again until it is answered, see `Patience`: nobody who
uses a ledger has to think of outages. But for two things that are asked once: renewals,
because what is held changes while they wait, and heartbeats, because the next one is as good.
"""

from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from crawlcw.engine.patience import Patience
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.tracked import TrackedLedger

AnyLedger = TypeVar("AnyLedger", bound=Ledger)

_ASKED_ONCE = frozenset({"renew", "renew_hosts", "beat", "another", "close"})
#: What is asked again; walks and the clock are the real ledger's as well.
_OPERATIONS = frozenset(
    name
    for protocol in (Ledger, TrackedLedger)
    for name, member in vars(protocol).items()
    if iscoroutinefunction(member) and name not in _ASKED_ONCE
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

    def __getattr__(self, name: str) -> Any:
        if name not in _OPERATIONS:
            return getattr(self._ledger, name)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            return await self._patience.insist(lambda: getattr(self._ledger, name)(*args, **kwargs))

        # Made once: the next access finds it in the instance.
        setattr(self, name, asked)
        return asked
