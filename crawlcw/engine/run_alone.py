"""Run a quarantined task alone, so that the task that crashes its workers is found.

It begins when nothing else is under way in its process, which is written down, and nothing
else begins until its outcome is recorded: any page beside it could crash the worker as well.
Only a crash meanwhile counts against the task.
"""

import anyio
from anyio.lowlevel import checkpoint

from crawlcw.engine.leases import HeldLeases
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Lease
from crawlcw.model.transitions import is_quarantined


class RunAlone:
    """The tasks under way in one process, and the one that is alone, if any."""

    def __init__(self, ledger: Ledger, held: HeldLeases) -> None:
        self._ledger = ledger
        self._held = held
        #: Ids and fences: tasks that were claimed together have one token.
        self._under_way: set[tuple[bytes, int]] = set()
        self._left = anyio.Event()  #: set when nothing is under way any more
        self.alone: Lease | None = None  #: of the task that has begun alone and has not left
        self._free = anyio.Event()

    async def enter(self, lease: Lease) -> bool:
        """Return whether to begin with a task now; what has begun is to `leave`.

        False: another one had to end first, which it has, and the turn that the
        task's host had is over. Where the lease turns out to be lost, the
        work under it is cancelled, here.
        """
        if self.alone is not None:
            await self._free.wait()
            return False
        alone = is_quarantined(lease.task)
        try:
            if alone:
                self.alone = lease
                self._free = anyio.Event()
                while self._under_way:
                    self._left = anyio.Event()
                    await self._left.wait()
            self._under_way.add((lease.task.id, lease.fence))
            if alone and not await self._ledger.leases.begin(lease):
                self._held.lose([lease.task.id])
                await checkpoint()
        except BaseException:
            self.leave(lease)
            raise
        return True

    def leave(self, lease: Lease) -> None:
        """Note that the work on a task has ended, whatever came of it; it may not have begun."""
        self._under_way.discard((lease.task.id, lease.fence))
        if not self._under_way:
            self._left.set()
        if self.alone is lease:
            self.alone = None
            self._free.set()
