"""Large values: put beside the task's document on their way in, and read on their way out."""

from typing import Any

from crawlcw.ledger.protocol import Ledger
from crawlcw.model import values
from crawlcw.model.task import BlobRef


class Blobs:
    """The large values that a ledger keeps beside its tasks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def offload(self, task_id: bytes, value: Any, *, limit: int) -> Any:
        """Return a clean *value*, or what stands for it where it has more than *limit* bytes."""
        if value is None or values.size(value) <= limit:
            return value
        return await self._ledger.blobs.put(task_id, value)

    async def load(self, value: Any) -> Any:
        """Return what `offload` was given; raises `LedgerError` where it is gone."""
        if not isinstance(value, BlobRef):
            return value
        return await self._ledger.blobs.read(value)

    async def drop(self, *offload: Any) -> None:
        """Delete those of the blobs; nothing may refer to them any more."""
        blobs = [each for each in offload if isinstance(each, BlobRef)]
        if blobs:
            await self._ledger.blobs.drop(blobs)
