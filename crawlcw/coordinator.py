"""Deciding what is worked on next: page, claim, lane, queue.

The coordinator never fetches and never parses. It claims ahead, on low water
rather than on a timer, at most twice as many tasks as there are fetchers, so
that they have work while the ledger is asked for more; it sleeps until
something changes or the next task is due; and it ends when the ledger has
nothing that ever will be due.
"""

import asyncio
import logging
import random
import time

import anyio
import anyio.abc

from crawlcw.errors import FetchError
from crawlcw.leases import HeldLeases
from crawlcw.ledger.protocol import Ledger
from crawlcw.patience import Patience
from crawlcw.politeness import Lanes
from crawlcw.printable import printable
from crawlcw.robots import Robots
from crawlcw.settings import Settings
from crawlcw.stats import Stats
from crawlcw.task import Lease, Task

logger = logging.getLogger(__name__)

_SHORTEST_IDLE = 0.05
_LONGEST_IDLE = 8.0
_LARGEST_PAGE = 5_000
_FEW_CLAIMS = 32
_MANY_CLAIMS = 64
_HOSTS_AT_ONCE = 100
_CROWDED_LOOK = 0.5
#: How many times the prefetch is held in all, hosts with a delay included.
_MOST_HELD = 4


class Coordinator:
    """Keeps the queue filled for the fetchers of one process."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        settings: Settings,
        robots: Robots,
        held: HeldLeases,
        stats: Stats,
        patience: Patience,
        worker: str,
    ) -> None:
        self.queue: asyncio.Queue[Lease] = asyncio.Queue()
        self._ledger = ledger
        self._settings = settings
        self._robots = robots
        self._held = held
        self._stats = stats
        self._patience = patience
        self._worker = worker
        self._lanes = Lanes(
            concurrency=settings.per_host_concurrency, delay=settings.delay, lease=settings.lease
        )
        self._opening: set[str] = set()
        #: Hosts that were seen to have more tasks due than there was room for.
        self._crowded: set[str] = set()
        self._in_flight = 0
        self._changed = asyncio.Event()
        self._seeding = True
        self._stopping = False
        self._prefetch = 2 * settings.concurrency
        self._page_size = self._prefetch
        # Claims take a while: let fetchers begin with the first ones.
        self._claims_at_once = _FEW_CLAIMS if settings.claim == "each" else _MANY_CLAIMS
        self._shuffles = False
        self._idle = _SHORTEST_IDLE
        self._look_at = 0.0  #: when a look at the ledger is next worth its while

    async def run(self) -> str:
        """Keep the queue filled until there is nothing more to do; return why it ended.

        `drained`: nothing in the ledger will ever be due. `max-pages`: enough
        pages are finished. `stopped`: `stop` was called.
        """
        async with anyio.create_task_group() as opening:
            while True:
                self._changed.clear()
                self.dispatch()
                if self._stopping:
                    reason = "stopped"
                    break
                if self._pages_left() <= 0:
                    reason = "max-pages"
                    break
                if await self._look(opening):
                    reason = "drained"
                    break
                self.dispatch()
                await self._wait()
            self._stopping = True
            opening.cancel_scope.cancel()
        return reason

    def seeded(self) -> None:
        """Note that all seeds are in the ledger."""
        self._seeding = False
        self.wake()

    def wake(self) -> None:
        """Look at the ledger again: there may be more to claim."""
        self._idle = _SHORTEST_IDLE
        # Where hosts have more than enough already, new tasks are seldom of others.
        soon = time.monotonic() + _CROWDED_LOOK if self._crowded else 0.0
        self._look_at = min(self._look_at, soon)
        self._changed.set()

    def written(self, *, more: bool) -> None:
        """Note that outcomes are in the ledger; *more* says that they left something to do."""
        if more or not self._held:
            self.wake()
        self._changed.set()

    def stop(self) -> None:
        """Claim and dispatch nothing more."""
        self._stopping = True
        self._changed.set()

    def fetched(self, lease: Lease) -> None:
        """Note that the request of a dispatched lease has ended."""
        self._in_flight -= 1
        self._lanes.finished(lease.task.host, now=time.monotonic())
        self.dispatch()
        host = lease.task.host
        hungry = host in self._crowded and self._lanes.is_hungry(host)
        if self._in_flight == 0 or hungry or self._is_low():
            self._changed.set()

    def lost(self, task_ids: set[bytes]) -> None:
        """Forget waiting tasks whose leases are lost."""
        self._lanes.drop(task_ids)

    def undispatched(self) -> list[Lease]:
        """Return the leases no fetcher has begun with, and forget them."""
        leases = list(self._lanes.empty())
        while not self.queue.empty():
            leases.append(self.queue.get_nowait())
            self._in_flight -= 1
        return leases

    async def idle(self) -> None:
        """Wait until no fetcher is at work."""
        while self._in_flight:
            self._changed.clear()
            await self._changed.wait()

    def dispatch(self) -> None:
        """Move leases whose turn has come to the queue, as many as fetchers are free."""
        now = time.monotonic()
        while (
            not self._stopping
            and self._in_flight < self._settings.concurrency
            and self._pages_left() > self._in_flight + self._unwritten()
        ):
            lease = self._lanes.take(now=now)
            if lease is None:
                return
            self._in_flight += 1
            self.queue.put_nowait(lease)

    def _pages_left(self) -> float:
        most = self._settings.max_pages
        return float("inf") if most is None else most - self._stats.pages

    def _unwritten(self) -> int:
        return max(0, len(self._held) - self._in_flight - self._lanes.waiting)

    def _room(self) -> int:
        """Return how many more tasks to hold: of hosts without a delay, and in all."""
        lanes = self._lanes
        fast = self._prefetch - (lanes.waiting - lanes.waiting_slow)
        return min(fast, _MOST_HELD * self._prefetch - lanes.waiting)

    def _is_low(self) -> bool:
        return self._room() >= max(1, self._prefetch // 2)

    def _hungry(self) -> list[str]:
        return [host for host in self._crowded if self._lanes.is_hungry(host)][:_HOSTS_AT_ONCE]

    async def _look(self, opening: anyio.abc.TaskGroup) -> bool:
        """Claim what there is room for; return whether the ledger is drained."""
        if (room := self._room()) <= 0:
            return False
        if hungry := self._hungry():
            await self._feed(hungry, room, opening)
            return False
        if not self._is_low() or time.monotonic() < self._look_at:
            return False
        return await self._look_around(room, opening)

    async def _feed(self, hosts: list[str], room: int, opening: anyio.abc.TaskGroup) -> None:
        """Claim tasks of hosts that were seen to have more than there was room for."""
        limit = min(room, sum(self._lanes.room(host) for host in hosts))
        page = await self._patience.insist(lambda: self._ledger.page(limit=limit, hosts=hosts))
        wanted = self._wanted(page, room)
        if len(page) < limit or not wanted:
            # All of it is seen, or only what is held already: asking again at
            # once would bring the same.
            self._crowded.difference_update(hosts)
        await self._claim_all(wanted, opening)

    async def _look_around(self, room: int, opening: anyio.abc.TaskGroup) -> bool:
        """Claim tasks of any host; return whether the ledger is drained."""
        page = await self._patience.insist(lambda: self._ledger.page(limit=self._page_size))
        wanted = self._wanted(page, room)
        whole = len(page) == self._page_size
        # Where most tasks seen belong to hosts that have no room, look further.
        crowded = whole and len(wanted) < room
        self._page_size = min(self._page_size * 2, _LARGEST_PAGE) if crowded else self._prefetch
        await self._claim_all(wanted, opening)
        if not wanted and not whole and not self._crowded:
            return await self._drained()
        if wanted and not crowded:
            self._idle = _SHORTEST_IDLE
            self._look_at = 0.0
        else:
            # Only time brings room, or new hosts.
            self._look_at = time.monotonic() + self._idle
            self._idle = min(self._idle * 2, _LONGEST_IDLE)
        return False

    async def _claim_all(self, wanted: list[Task], opening: anyio.abc.TaskGroup) -> None:
        for start in range(0, len(wanted), self._claims_at_once):
            await self._claim(wanted[start : start + self._claims_at_once], opening)
            self.dispatch()

    async def _claim(self, wanted: list[Task], opening: anyio.abc.TaskGroup) -> None:
        claimed = await self._patience.insist(
            lambda: self._ledger.claim(
                wanted,
                worker=self._worker,
                lease=self._settings.lease,
                max_lost=self._settings.max_lost,
            )
        )
        self._held.add(claimed.leases)
        self._stats.claims += len(wanted)
        self._stats.claims_missed += claimed.missed
        # Another coordinator is at the same tasks: begin elsewhere next time.
        self._shuffles = claimed.missed > len(wanted) // 2
        for lease in claimed.leases:
            host = lease.task.host
            closed = self._lanes.add(lease, now=time.monotonic())
            if closed and host not in self._opening:
                self._opening.add(host)
                opening.start_soon(self._open, host, lease.task.url)

    def _wanted(self, page: list[Task], room: int) -> list[Task]:
        """Return the tasks of *page* that are worth claiming, at most *room*."""
        if self._shuffles:
            random.shuffle(page)
        taken: dict[str, int] = {}
        wanted: list[Task] = []
        for task in page:
            if len(wanted) == room:
                break
            # A lease of ours that ran out during an outage shows up again.
            if task.id in self._held:
                continue
            ahead = taken.get(task.host, 0)
            if ahead < self._lanes.room(task.host):
                taken[task.host] = ahead + 1
                wanted.append(task)
            else:
                self._crowded.add(task.host)
        return wanted

    async def _open(self, host: str, url: str) -> None:
        """Learn the host's robots.txt, which may ask for a delay, before its first page."""
        delay = 0.0
        try:
            delay = (await self._robots.rules(url)).crawl_delay
        except FetchError as error:
            # The pages will fail for the same reason, each as its own outcome.
            logger.info("robots.txt of %s is not to be had: %s", printable(host), printable(error))
        finally:
            self._opening.discard(host)
        asked = self._settings.obey_robots
        self._lanes.open(host, crawl_delay=delay, now=time.monotonic(), asked=asked)
        if surplus := self._lanes.trim(host):
            await self._patience.insist(lambda: self._ledger.release(surplus))
            self._held.end(surplus)
        self._crowded.add(host)
        self._changed.set()

    async def _drained(self) -> bool:
        """Say whether nothing is left, here or in the ledger; else note when to look again."""
        horizon = await self._patience.insist(self._ledger.horizon)
        if horizon is None and not (self._held or self._seeding or self._changed.is_set()):
            return True
        idle = self._idle
        if horizon is not None:
            idle = min(idle, max(0.0, (horizon - self._ledger.now()).total_seconds()))
        self._look_at = time.monotonic() + max(idle, _SHORTEST_IDLE)
        self._idle = min(self._idle * 2, _LONGEST_IDLE)
        return False

    async def _wait(self) -> None:
        """Wait for a change, for the next turn of a lane, or for the next look at the ledger."""
        now = time.monotonic()
        until = self._look_at if self._is_low() else now + _LONGEST_IDLE
        if self._room() > 0 and self._hungry():
            return
        turn = self._lanes.next_turn()
        if turn is not None and self._in_flight < self._settings.concurrency:
            until = min(until, turn)
        with anyio.move_on_after(max(0.0, until - now)):
            await self._changed.wait()
