"""Beginning with tasks that a crashed worker held, so that the one that crashed it is found out.

A worker that crashes loses every task it holds, and most of them have nothing
to do with it. So from the first loss on a fetcher writes down that it begins
with the task, and only a task that was begun counts another loss; and a task
that the next loss would end is the only one of its kind under way in a process.
Tasks that no worker was lost on cost nothing.
"""

import anyio
from anyio.lowlevel import checkpoint

from crawlcw.leases import HeldLeases
from crawlcw.ledger.protocol import Ledger
from crawlcw.patience import Patience
from crawlcw.task import Lease
from crawlcw.transitions import losses


class Quarantine:
    """The tasks of one process that were lost before."""

    def __init__(
        self, ledger: Ledger, held: HeldLeases, *, patience: Patience, max_lost: int
    ) -> None:
        self._ledger = ledger
        self._held = held
        self._patience = patience
        self._max_lost = max_lost
        self._alone: Lease | None = None
        self._free = anyio.Event()

    async def enter(self, lease: Lease) -> bool:
        """Say whether to begin with a task now; what has begun is to `leave`.

        False: another one had to end first, which it has, and the turn that the
        task's host had is over. Where the lease turns out to be lost, whoever
        works under it is cancelled, here.
        """
        lost = losses(lease.task)
        if not lost:
            return True
        if lost + 1 >= self._max_lost:
            if self._alone is not None:
                await self._free.wait()
                return False
            self._alone = lease
            self._free = anyio.Event()
        try:
            if not await self._patience.insist(lambda: self._ledger.begin(lease)):
                self._held.lose([lease.task.id])
                await checkpoint()
        except BaseException:
            self.leave(lease)
            raise
        return True

    def leave(self, lease: Lease) -> None:
        """Note that the work on a task has ended, whatever came of it."""
        if self._alone is lease:
            self._alone = None
            self._free.set()
