"""The leases of tasks that one process holds, from the claim to the commit."""

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

import anyio

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Lease

logger = logging.getLogger(__name__)


class HeldLeases:
    """Every lease that this process has claimed and not yet ended."""

    def __init__(self) -> None:
        self._held: dict[bytes, Lease] = {}
        #: By the task, what to cancel should its lease be lost.
        self.scopes: dict[bytes, anyio.CancelScope] = {}
        #: Leases to be released, for the work under them was cancelled.
        self.orphans: list[Lease] = []
        self._settling: set[bytes] = set()
        self.of_host: Counter[str] = Counter()  #: tasks held, by the host
        self._ends: dict[bytes, anyio.Event] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, task_id: bytes) -> bool:
        return task_id in self._held

    def holds(self, lease: Lease) -> bool:
        """Return whether *lease* itself is held, and not another one of its task."""
        held = self._held.get(lease.task.id)
        return held is not None and held.fence == lease.fence

    def add(self, leases: Iterable[Lease]) -> None:
        """Take charge of leases just claimed."""
        for lease in leases:
            if lease.task.id not in self._held:
                self.of_host[lease.task.host] += 1
            self._held[lease.task.id] = lease

    def all(self) -> list[Lease]:
        """Return the leases held."""
        return list(self._held.values())

    def settling(self, leases: Iterable[Lease]) -> None:
        """Note that the outcomes of *leases* are on their way to the ledger."""
        for lease in filter(self.holds, leases):
            self._settling.add(lease.task.id)

    def end(self, leases: Iterable[Lease]) -> None:
        """Forget leases that were committed, released or lost."""
        # Not a later lease of the same task: it would run out.
        for lease in filter(self.holds, leases):
            task = lease.task
            self._settling.discard(task.id)
            del self._held[task.id]
            if end := self._ends.pop(task.id, None):
                end.set()
            self.of_host[task.host] -= 1
            if not self.of_host[task.host]:
                del self.of_host[task.host]

    async def ended(self, lease: Lease) -> None:
        """Wait until *lease* was committed, released or lost."""
        if self.holds(lease):
            await self._ends.setdefault(lease.task.id, anyio.Event()).wait()

    def lose(self, task_ids: Iterable[bytes]) -> None:
        """Forget leases that another worker holds now, and stop what runs under them."""
        for task_id in task_ids:
            if lease := self._held.get(task_id):
                self.end([lease])
            if scope := self.scopes.get(task_id):
                scope.cancel()

    async def renew(self, ledger: Ledger, *, lease: timedelta) -> set[bytes]:
        """Renew the leases held; return the lost tasks, which are forgotten here as by `lose`."""
        asked = self.all()
        lost = await ledger.leases.renew(asked, lease=lease) - self._settling
        # A task that was committed meanwhile is not lost, nor is one that may just have
        # been: of that the commit itself will tell.
        gone = {each.task.id for each in asked if each.task.id in lost and self.holds(each)}
        if gone:
            logger.warning(
                "%d leases are lost to other workers", len(gone), extra={"event": "lease_lost"}
            )
            self.lose(gone)
        return gone
