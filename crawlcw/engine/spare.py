"""Renewing, or giving back, what a process holds while its event loop stands still."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import anyio

from crawlcw.engine.leases import HeldLeases
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.hosts import HostLease

#: What giving back may take before the process ends.
_LAST_WORDS = 5.0


class SpareConnection:
    """Another connection to the ledger, opened when it is needed. Not for the ledger's own loop.

    What it finds out to be lost the loop finds out by its own next renewal.
    """

    def __init__(
        self,
        ledger: Ledger,
        held: HeldLeases,
        *,
        worker: str,
        lease: Callable[[], timedelta],
        beat: Callable[[Ledger], Awaitable[None]],
        hosts: Callable[[], Sequence[HostLease]] = lambda: (),
    ) -> None:
        self._source = ledger
        self._held = held
        self._worker = worker
        self._lease = lease
        self._beat = beat
        self._hosts = hosts
        self._ledger: Ledger | None = None

    async def renew(self) -> None:
        """Renew the leases of tasks and hosts, and say that this worker lives."""
        if self._ledger is None:
            self._ledger = await self._source.another()
        lease = self._lease()
        # As the ledger has them: of a claim whose answer is on its way the loop knows nothing.
        if held := await self._ledger.leases.held(self._worker):
            await self._ledger.leases.renew(held, lease=lease)
        if hosts := self._hosts():
            await self._ledger.host_leases.renew(hosts, lease=lease)
        await self._beat(self._ledger)

    async def close(self) -> None:
        """Close the connection, if it was opened."""
        if self._ledger is not None:
            await self._ledger.close()
            self._ledger = None

    def give_back(self) -> None:
        """Release everything at once, from a thread of its own; raises whatever it may."""
        anyio.run(self._give_back)

    async def _give_back(self) -> None:
        with anyio.move_on_after(_LAST_WORDS):
            ledger = await self._source.another()
            await ledger.outcomes.release(self._held.all())
            await ledger.workers.leave(self._worker)
