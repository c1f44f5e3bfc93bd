"""Session: a process as one worker on a ledger, with its leases and counters.

It has one name on the ledger's list of workers, one renewal, one heartbeat, one watchdog. Crawls
and the work on tracked tasks stand on one.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol

import anyio

from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.ledger_retry import LedgerRetry, retrying
from crawlcw.engine.stats import Instruments, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.engine.workers import Heartbeat, reap_dead_workers, this_worker
from crawlcw.errors import LedgerConfigurationError, LedgerUnavailableError, Reason
from crawlcw.ledger import copying
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.hosts import HostLease
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Task

logger = logging.getLogger(__name__)

#: Seconds for giving back before the process ends.
_LAST_WORDS = 5.0


class Hosts(Protocol):
    """The leases of hosts that a process holds."""

    def leases(self) -> Sequence[HostLease]:
        """Return them; for any thread."""

    async def renew(self) -> None:
        """Renew them; raises `LedgerUnavailableError`."""

    async def leave(self) -> None:
        """Give them back; raises `LedgerUnavailableError`."""


class Session:
    """The leases of one process on one ledger, and its place among the workers."""

    #: Those that it holds, of hosts; tracked tasks have none.
    hosts: Hosts | None = None
    instruments: Instruments | None = None  #: what is told of each step; None: nothing is

    def __init__(
        self,
        ledger: Ledger,
        *,
        lease: Callable[[], timedelta],
        give_up: timedelta,
        limit: timedelta = timedelta(0),
        deadlines: Mapping[Reason, float] = MappingProxyType({}),
    ) -> None:
        """Not on the list of workers yet, see `join`.

        *lease* returns how long a lease is just now. Gives up where the ledger has not
        answered for *give_up*. *limit* is how long the event loop may stand still, 0: for
        ever; for this and *deadlines* see `Watchdog`.
        """
        self.opened = ledger
        self.lease = lease
        self.retry = LedgerRetry(give_up)
        self.stats = Stats(ledger_operations=self.retry.asked)
        #: Waits where it is away; `opened` does not.
        self.ledger = retrying(ledger, self.retry)
        self.held = HeldLeases()
        self._this = this_worker(now=ledger.now())
        self.worker = self._this.name  #: the name of this process in the ledger
        self.began = self._this.started  #: of the ledger's time
        self._hurried = anyio.Event()
        self.watchdog = Watchdog(
            self.stats,
            limit=limit,
            renew_every=lease() / 3,
            renew=self._renew_beside,
            deadlines=deadlines,
        )
        self.heartbeat = Heartbeat(
            ledger,
            self.worker,
            self.stats,
            lease=lease,
            in_flight=self.held.__len__,
            lag=self.watchdog.lag,
        )

    async def join(self) -> None:
        """Take back what dead processes of this machine held, and enter the list of workers.

        Raises `LedgerConfigurationError` where the ledger is half of a copy.
        """
        if (await self.ledger.notes.state()).get(copying.UNFINISHED):
            raise LedgerConfigurationError(copying.HALF_COPIED)
        await reap_dead_workers(self.ledger)
        await self.ledger.workers.join(self._this)

    async def keep_up(
        self,
        *,
        on_lost: Callable[[set[bytes]], None],
        announce: Callable[[Iterable[Task]], Awaitable[None]] | None = None,
    ) -> None:
        """Renew and beat until cancelled; *on_lost* is told the tasks that others have now.

        Renews every third of a lease, and takes back what dead neighbours held. *announce* is
        told the tasks that were given back, for their work was cancelled. Where the lease
        changes meanwhile, call `lease_changed`.
        """
        self._hurried = anyio.Event()  # what has changed before is no reason
        async with anyio.create_task_group() as running:
            running.start_soon(self.heartbeat.run)
            began = anyio.current_time()
            while True:
                # What took long, because the ledger was away, is not added to the pause:
                # the renewal grace of leases that ran out meanwhile is short.
                with anyio.CancelScope(deadline=began + self.lease().total_seconds() / 3):
                    await self._hurried.wait()
                self._hurried = anyio.Event()
                began = anyio.current_time()
                self.watchdog.renewed()
                if lost := await self.retry.insist(self._renew_tasks):
                    on_lost(lost)
                if self.hosts is not None:
                    await self.retry.insist(self.hosts.renew)
                await self._release_orphans(announce)
                try:
                    await reap_dead_workers(self.opened)
                except LedgerUnavailableError as error:
                    told = {"event": "not_reaped"}
                    logger.debug("no look at the workers: %s", printable(error), extra=told)

    async def _renew_tasks(self) -> set[bytes]:
        return await self.held.renew(self.opened, lease=self.lease())

    async def _renew_beside(self) -> None:
        """Renew, and beat, in another loop and over a connection of its own: this one stands still.

        A lease that it finds lost the session finds lost by its own next renewal.
        """
        ledger = await self.opened.another()
        try:
            # As the ledger has them: of a claim whose answer is on its way the loop knows nothing.
            if held := await ledger.leases.held(self.worker):
                await ledger.leases.renew(held, lease=self.lease())
            if hosts := self.hosts.leases() if self.hosts is not None else ():
                await ledger.host_leases.renew(hosts, lease=self.lease())
            await self.heartbeat.beat(over=ledger)
        finally:
            await ledger.close()

    async def _release_orphans(
        self, announce: Callable[[Iterable[Task]], Awaitable[None]] | None
    ) -> None:
        orphans, self.held.orphans = self.held.orphans, []
        if orphans:
            await self.ledger.outcomes.release(orphans)
            self.held.end(orphans)
            if announce is not None:
                await announce([each.task for each in orphans])

    def lease_changed(self) -> None:
        """Renew what is held at once, and by the lease of now from here on.

        The next claims are for that one already: a shorter one would run out during the
        pause of the one before, and those held for a shorter one during that of a longer.
        """
        self.watchdog.renew_every = self.lease().total_seconds() / 3
        self._hurried.set()

    def abandon(self) -> None:
        """Give all tasks back from any other thread, and leave: the event loop stands still.

        Raises whatever the ledger does. The process is to end right afterwards.
        """
        anyio.run(self._abandon)

    async def _abandon(self) -> None:
        with anyio.move_on_after(_LAST_WORDS):
            ledger = await self.opened.another()
            await ledger.outcomes.release(self.held.all())
            await ledger.workers.leave(self.worker)

    async def release_all(self) -> int:
        """Give all tasks back that are held; return how many went back."""
        return await self.ledger.outcomes.release(self.held.all())

    async def leave(self) -> None:
        """Give back the hosts and leave the list of workers, the tasks having been given back.

        Raises `LedgerUnavailableError`; then the next process on this machine finds it out.
        """
        # While it is on the list its leases are its own, and what it has counted last is
        # kept when it leaves.
        if self.hosts is not None:
            await self.hosts.leave()
        await self.retry.insist(self.heartbeat.beat)
        await self.heartbeat.record(last=True)
        await self.ledger.workers.leave(self.worker)
