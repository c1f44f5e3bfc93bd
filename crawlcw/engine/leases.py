"""The leases one process holds, from the claim to the commit, and their renewal."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

import anyio

from crawlcw.engine.ledger_retry import LedgerRetry
from crawlcw.engine.workers import reap_dead_workers
from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease, Task

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
        self._of_host: Counter[str] = Counter()
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
                self._of_host[lease.task.host] += 1
            self._held[lease.task.id] = lease

    def of_host(self, host: str) -> int:
        """Return how many tasks of *host* are held."""
        return self._of_host.get(host, 0)

    def all(self) -> list[Lease]:
        """Return the leases held."""
        return list(self._held.values())

    def settling(self, leases: Iterable[Lease]) -> None:
        """Note that the outcomes of *leases* are on their way to the ledger."""
        for lease in leases:
            self._settling.add(lease.task.id)

    def is_settling(self, task_id: bytes) -> bool:
        """Return whether an outcome of the task is on its way to the ledger."""
        return task_id in self._settling

    def end(self, leases: Iterable[Lease]) -> None:
        """Forget leases that were committed, released or lost."""
        for lease in leases:
            task = lease.task
            self._settling.discard(task.id)
            if self._held.pop(task.id, None) is None:
                continue
            if end := self._ends.pop(task.id, None):
                end.set()
            self._of_host[task.host] -= 1
            if not self._of_host[task.host]:
                del self._of_host[task.host]

    async def ended(self, lease: Lease) -> None:
        """Wait until *lease* was committed, released or lost."""
        if lease.task.id in self._held:
            await self._ends.setdefault(lease.task.id, anyio.Event()).wait()

    def lose(self, task_ids: Iterable[bytes]) -> None:
        """Forget leases that another worker holds now, and stop what runs under them."""
        for task_id in task_ids:
            if lease := self._held.get(task_id):
                self.end([lease])
            if scope := self.scopes.get(task_id):
                scope.cancel()


class Renewer:
    """Renews what is held every third of a lease, and takes back what dead neighbours held."""

    def __init__(
        self,
        ledger: Ledger,
        held: HeldLeases,
        *,
        lease: Callable[[], timedelta],
        retry: LedgerRetry,
        renew_hosts: Callable[[], Awaitable[None]] | None = None,
        on_lost: Callable[[set[bytes]], None],
        announce: Callable[[Iterable[Task]], Awaitable[None]] | None = None,
        renewing: Callable[[], None] = lambda: None,
    ) -> None:
        """*lease* returns how long a lease is just now; where that changes, call `hurry`.

        *renew_hosts* does for hosts what this does for tasks; *renewing* is called before.
        *announce* is told the tasks that were given back, for their work was cancelled.
        """
        self._ledger = ledger
        self._held = held
        self._lease = lease
        self._retry = retry
        self._renew_hosts = renew_hosts
        self._on_lost = on_lost
        self._announce = announce
        self._renewing = renewing
        self._hurried = anyio.Event()

    def hurry(self) -> None:
        """Renew at once, and by the lease of now from here on."""
        self._hurried.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        began = anyio.current_time()
        while True:
            # What took long, because the ledger was away, is not added to the pause:
            # the renewal grace of leases that ran out meanwhile is short.
            with anyio.CancelScope(deadline=began + self._lease().total_seconds() / 3):
                await self._hurried.wait()
            self._hurried = anyio.Event()
            began = anyio.current_time()
            self._renewing()
            await self._retry.insist(self._renew)
            if self._renew_hosts is not None:
                await self._retry.insist(self._renew_hosts)
            await self._release_orphans()
            try:
                await reap_dead_workers(self._ledger)
            except LedgerUnavailableError as error:
                logger.debug(
                    "no look at the workers: %s", printable(error), extra={"event": "not_reaped"}
                )

    async def _release_orphans(self) -> None:
        orphans, self._held.orphans = self._held.orphans, []
        if orphans:
            await self._retry.insist(lambda: self._ledger.outcomes.release(orphans))
            self._held.end(orphans)
            if (announce := self._announce) is not None:
                await self._retry.insist(lambda: announce([each.task for each in orphans]))

    async def _renew(self) -> None:
        lost = await self._ledger.leases.renew(self._held.all(), lease=self._lease())
        # What was committed meanwhile is not lost, nor is what may just have
        # been: of that the commit itself will tell.
        gone = {i for i in lost if i in self._held and not self._held.is_settling(i)}
        if gone:
            logger.warning(
                "%d leases are lost to other workers", len(gone), extra={"event": "lease_lost"}
            )
            self._on_lost(gone)
            self._held.lose(gone)
