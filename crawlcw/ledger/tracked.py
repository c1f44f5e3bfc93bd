"""What a ledger of tracked tasks can do besides: those of one use case instead of a spider.

It is written down which of the two a ledger is: neither can be opened as the
other. Claims of such a ledger return what their tasks carry (`Task.carried`).
"""

from collections.abc import AsyncIterator, Collection, Mapping
from datetime import timedelta
from typing import Any, Protocol

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import BlobRef, Lease


class TrackedLedger(Ledger, Protocol):
    """The tasks of one use case, durable and shared."""

    async def policy(self) -> Mapping[str, Any]:
        """Return the use case's settings as they are written down; empty where none are."""

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Write settings down, durably, beside those that are not named."""

    async def save(
        self, lease: Lease, *, data: Mapping[str, Any] | BlobRef, duration: timedelta
    ) -> bool:
        """Write a held task's data, durably, and let its lease end *duration* from now, or later.

        Return whether the lease still holds; where not, nothing is written.
        `update_time` stays: the status has not changed.
        """

    async def held(self, worker: str) -> list[Lease]:
        """Return the leases whose tokens begin with `worker:`, the longest held first.

        Those that ran out as well, as long as nobody took them over. The task of
        each is as `release` is to leave it: `failed` where it has failed before,
        else `todo`, due since it was claimed.
        """

    async def put_blob(self, task_id: bytes, value: Any) -> BlobRef:
        """Keep a clean value beside its task, durably; nothing refers to it yet."""

    async def read_blob(self, blob: BlobRef) -> Any:
        """Return a value that was set aside; raises `LedgerError` where it is gone."""

    async def drop_blobs(self, blobs: Collection[BlobRef]) -> None:
        """Delete values that nothing refers to any more."""

    def changes(self) -> AsyncIterator[None]:
        """Yield once at first, and then whenever a task was added or may be due again.

        A hint: it may be early, late, or one for many. Where the store tells
        nobody, it ends after the first; it raises `LedgerUnavailableError`
        where the connection breaks.
        """
