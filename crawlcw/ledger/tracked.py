"""What a ledger of tracked tasks can do besides: those of one use case instead of a spider.

It is written down which of the two a ledger is: neither can be opened as the
other. Claims of such a ledger return what their tasks carry (`Task.carried`).
"""

from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import BlobRef


class Blobs(Protocol):
    """Values that are too large for their tasks."""

    async def put(self, task_id: bytes, value: Any) -> BlobRef:
        """Keep a clean value beside its task, durably; nothing refers to it yet."""

    async def read(self, blob: BlobRef) -> Any:
        """Return a value that was set aside; raises `LedgerError` where it is gone."""

    async def drop(self, blobs: Collection[BlobRef]) -> None:
        """Delete values that nothing refers to any more."""


class Changes(Protocol):
    """Being told of tasks."""

    def watch(self) -> AsyncIterator[None]:
        """Yield once at first, and then whenever a task was added or may be due again.

        A hint: it may be early, late, or one for many. Where the store tells
        nobody, it ends after the first; it raises `LedgerUnavailableError`
        where the connection breaks.
        """


class TrackedLedger(Ledger, Protocol):
    """The tasks of one use case, durable and shared."""

    blobs: Blobs
    changes: Changes
