"""Large values: put beside the task's document on their way in, and read on their way out."""

from typing import Any

from crawlcw.engine.patience import Patience
from crawlcw.ledger.tracked import TrackedLedger
from crawlcw.model import values
from crawlcw.model.task import Aside


class Asides:
    """What a ledger keeps beside its tasks."""

    def __init__(self, ledger: TrackedLedger, patience: Patience) -> None:
        self._ledger = ledger
        self._patience = patience

    async def stowed(self, task_id: bytes, value: Any, *, limit: int) -> Any:
        """Return a clean *value*, or what stands for it where it has more than *limit* bytes."""
        if value is None or values.size(value) <= limit:
            return value
        return await self._patience.insist(lambda: self._ledger.set_aside(task_id, value))

    async def whole(self, value: Any) -> Any:
        """Return what `stowed` was given; raises `LedgerError` where it is gone."""
        if not isinstance(value, Aside):
            return value
        return await self._patience.insist(lambda: self._ledger.read_aside(value))

    async def drop(self, *stowed: Any) -> None:
        """Delete those of the values that were put aside; nothing may refer to them any more."""
        asides = [each for each in stowed if isinstance(each, Aside)]
        if asides:
            await self._patience.insist(lambda: self._ledger.drop_asides(asides))
