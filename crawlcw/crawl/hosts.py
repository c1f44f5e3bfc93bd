"""Hosts that this process may ask: their leases, pace and turns.

Synchronous and without I/O. `causes` changes a host when its requests end. `host_leases` leases,
saves and releases hosts as this module says. Only this module writes the sets of hosts. An owner
lends slots of a host without a delay, and a borrower asks the host beside its owner, see `lending`.

              robots.txt is known, and a good page was answered
    leased ──> OPENING ─────────────────────────────────────────> SERVING
                 ^ │ ^ <───────── its breaker opened ───────────── │ ^
                 │ v └───────────── leased again ─────────────┐    v │
                 └─────────────────────────────────────────── LEAVING

Only a SERVING host has an open queue. While a host is LEAVING, its requests in progress end, and
then it is released. If it is leased again before that, or if one of these requests takes long, it
continues as a newly leased host does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto

import anyio.abc

from crawlcw.api.host_limits import HostLimit, Limits, limit_of
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.host_queues import AHEAD, HostQueue, HostQueues
from crawlcw.engine.session import TaskLeases
from crawlcw.errors import Reason
from crawlcw.model import urls
from crawlcw.model.health import Origin, Uplink
from crawlcw.model.hosts import Calls, Host, HostLease, RobotsRecord, SlowStart
from crawlcw.model.loans import Fault, Loan
from crawlcw.model.task import Lease, Task

#: Unused share of a lease, because clocks and the network are not exact.
_MARGIN = 0.15
#: Seconds that a host rests if it reaches `max_pages_per_host` while `start` runs.
_UNSEEDED_REST = 10.0
#: Seconds without a response after which a host gets one more concurrent request.
_STEP_ANYWAY = 60.0


class Phase(Enum):
    """The phase of a process's work on a host."""

    OPENING = auto()  #: only its robots.txt is requested and, after a failure, a probe page
    SERVING = auto()  #: its tasks get their turns
    LEAVING = auto()  #: no request starts; the host is released next


@dataclass(slots=True, eq=False, kw_only=True)
class HeldHost:
    """A host that this process may ask."""

    frontier: "Frontier"
    name: str  #: the politeness key
    queue: HostQueue  #: has the current delay
    state: Host  #: its record in the ledger, as this process knows it
    lease: HostLease | None  #: None: another process owns it
    limit: HostLimit
    borrowed: Loan | None = None  #: set if we borrow it from another process
    loans: dict[str, Loan] = field(default_factory=dict)  #: loans in use, by borrower
    #: failures that a borrower reports to the owner
    faults: list[Fault] = field(default_factory=list)
    pages: int = 0  #: pages that we finished as its borrower
    #: Tasks that may be claimed until the next poll of `Lending`; None if the host is not shared.
    quota: int | None = None
    since: float
    left_at: float = float("-inf")  #: when it was last released for others, if it was
    answered: int = 0  #: responses in this time slice
    fed: float = 0.0  #: when its tasks were last claimed
    priority: int = 0  #: of its best task, when its tasks were last read
    crawl_delay: float = 0.0  #: the delay of its robots.txt, in seconds
    opened: bool = False  #: whether its robots.txt is known
    is_busy: bool = False  #: whether background work runs on it, see `work`
    is_stale: bool = True  #: whether its due tasks must be read again, see `poll`
    phase: Phase = Phase.OPENING  #: only `enter` changes it
    slow_start: SlowStart = field(default_factory=SlowStart)

    # --- serving it

    def poll(self, *, wanted: bool = True) -> None:
        """Request a read of its due tasks; with *wanted* False, note that the read starts now."""
        self.is_stale = wanted
        self.frontier.queues.changed.add(self.name)

    def work(self, background: anyio.abc.TaskGroup, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* in the background; until it ends, the host is neither fed nor released."""

        async def until_done() -> None:
            await work()
            self.is_busy = False
            self.poll()
            self.frontier.poll_wanted.set()

        self.is_busy = True
        self.poll()
        background.start_soon(until_done)

    def open(
        self,
        *,
        crawl_delay: float = 0.0,
        robots: RobotsRecord | None = None,
        asked: bool = False,
    ) -> None:
        """Note that its robots.txt is known, so it may be served; *asked*: it was just fetched."""
        self.opened = True
        self.poll()
        self.crawl_delay = crawl_delay
        self.pace()
        if robots is not None:
            self.state.robots = robots
            if not self.queue.delay:
                self.frontier.pending.save(self)  # borrowers read it
        if asked:
            self.frontier.sent(self.name, at=self.frontier.clock())
        elif self.lease is not None and not self.lease.clean:
            # As in `Frontier.begin`, which did not know the delay of robots.txt yet.
            self.frontier.sent(self.name, at=self.since)
        if self.phase is Phase.OPENING:
            self.enter(Phase.SERVING)

    def enter(self, phase: Phase) -> None:
        """Change its phase, and open or close its queue to match."""
        self.phase = phase
        frontier, queues = self.frontier, self.frontier.queues
        (frontier.opening.add if phase is Phase.OPENING else frontier.opening.discard)(self)
        if phase is Phase.SERVING:
            queues.open(self.name, now=frontier.clock())
        else:
            self.queue.opened = False
            if self.borrowed:
                # No hop starts either, and no task that a fetcher has already taken.
                self.queue.deadline = float("-inf")
            if self.loans or self.borrowed:
                frontier.loans_changed.set()
        if phase is Phase.LEAVING:
            frontier.pending.release(queues.withdraw(host=self.name))
        queues.changed.add(self.name)
        frontier.poll_wanted.set()

    def pace(self, *, limit: int | None = None) -> None:
        """Set the pace of its queue by its health and limits; *limit* is set if the limits are new.

        The longest of its delays counts. A failing host gets one request at a time until it
        answers.
        """
        concurrency = self.limit.concurrency
        if self.borrowed is not None:
            allowed = self.borrowed.slots
        else:
            allowed = min(concurrency, self.slow_start.window(finished=self.state.finished))
            if self.loans and concurrency:
                # Never 0, because 0 means no limit.
                allowed = max(1, allowed - self.lent)
        self.frontier.queues.pace(
            self.name,
            delay=max(self.limit.delay, self.crawl_delay, self.state.delay),
            allowed=1 if self.state.failures else allowed,
            limit=limit,
            now=self.frontier.clock(),
        )
        if (self.loans or self.borrowed) and not self.is_healthy:
            self.frontier.loans_changed.set()

    @property
    def lent(self) -> int:
        """The slots that count as lent."""
        return sum(loan.slots for loan in self.loans.values())

    @property
    def is_healthy(self) -> bool:
        """Whether its pages are requested without a delay and none of its origins fails."""
        return (
            self.phase is Phase.SERVING
            and not (self.queue.delay or self.state.failures or self.state.given_up)
            and all(origin.is_closed for origin in self.state.origins.values())
        )

    def rest(self, *, seconds: float) -> None:
        """Send it no request for some *seconds*."""
        self.frontier.queues.rest(self.name, until=self.frontier.clock() + seconds)

    def extend(self, loan: Loan) -> None:
        """Continue to ask it, with a renewed loan."""
        frontier, now = self.frontier, self.frontier.clock()
        self.borrowed = loan
        left = (loan.expires - frontier.ledger_now()).total_seconds()
        frontier.queues.extend(self.name, deadline=now + (1 - _MARGIN) * left, now=now)

    def widen(self) -> None:
        """Allow one more concurrent page if those in progress take long.

        Its first page may be a film: other pages must not wait until that ends.
        """
        queue = self.queue
        may_grow = queue.is_full and not self.state.failures
        if may_grow and self.frontier.clock() - queue.began >= _STEP_ANYWAY:
            self.slow_start.steps += 1
            self.pace()

    def renewed(self, *, asked: float) -> None:
        """Note that its lease was renewed; the request for that was sent at *asked*."""
        deadline = asked + self.frontier.usable
        self.frontier.queues.extend(self.name, deadline=deadline, now=self.frontier.clock())

    # --- the origins of its tasks

    def origin(self, task: Task) -> Origin:
        """Return the breaker of a task's origin."""
        return self.state.origins[urls.scheme_of(task.url)]

    def obstacle(self, task: Task) -> Reason | datetime | None:
        """Return the obstacle of a task: when its origin's rest ends, or why the origin has ended.

        Tasks of a given-up origin begin to be ignored, unless each is settled by itself.
        """
        scheme = urls.scheme_of(task.url)
        origin = self.state.origins[scheme]
        if origin.given_up is None:
            if origin.rest_end is None:  # the usual case
                return None
            return self.state.resting_until(scheme, now=self.frontier.ledger_now())
        if not self.frontier.calls.include(task.errback):
            self.frontier.pending.ignore(self)
        return origin.given_up

    def probe_url(self) -> str | None:
        """Return the probe page that must be asked before any other page, if there is one."""
        return self.state.probe_url(now=self.frontier.ledger_now())


@dataclass(slots=True, kw_only=True)
class PageLimit:
    """The maximum number of pages of a host."""

    most: int | None
    full: set[str]  #: hosts that have reached it
    unlimited: set[str] = field(default_factory=set)  #: hosts that have no such limit

    def is_reached(self, state: Host) -> bool:
        """Return whether a host has reached its limit."""
        is_at_limit = self.most is not None and state.finished >= self.most
        return is_at_limit and state.name not in self.unlimited


class Pending:
    """Work on hosts and tasks that waits for the coordinator."""

    def __init__(self) -> None:
        self.unsaved: set[HeldHost] = set()  #: hosts whose state must be saved at once
        #: hosts with given-up origins, whose tasks must be ignored
        self.losing: set[HeldHost] = set()
        self.returned: list[Lease] = []  #: tasks to release

    def save(self, host: HeldHost) -> None:
        """Have the state of a host saved at once, if we own the host."""
        if host.lease is not None:
            self.unsaved.add(host)
            host.frontier.poll_wanted.set()

    def ignore(self, host: HeldHost) -> None:
        """Have the tasks of a host's given-up origins ignored, if we own the host."""
        if host.lease is not None:
            self.losing.add(host)

    def release(self, leases: Iterable[Lease]) -> None:
        """Have tasks released."""
        self.returned += leases

    def forget(self, host: HeldHost) -> None:
        """Drop the work on a host, because we do not own it any more."""
        self.unsaved.discard(host)
        self.losing.discard(host)

    def take_unsaved(self) -> set[HeldHost]:
        """Return the hosts to save, and forget them."""
        unsaved, self.unsaved = self.unsaved, set()
        return unsaved

    def take_losing(self) -> list[HeldHost]:
        """Return the hosts with tasks to ignore, except the busy ones, and forget them."""
        losing = [host for host in self.losing if not host.is_busy]
        self.losing.difference_update(losing)
        return losing

    def take_returned(self) -> list[Lease]:
        """Return the tasks to release, and forget them."""
        returned, self.returned = self.returned, []
        return returned


class Frontier:
    """The hosts that one process may ask."""

    def __init__(
        self,
        spider: Spider,
        settings: Settings,
        *,
        held: TaskLeases,
        page_limit: PageLimit,
        clock: Callable[[], float],
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Start without hosts. *held* are the tasks' leases; *clock* is monotonic, in seconds."""
        # If the spider has no `on_error`, only a page with an errback must be settled by itself.
        has_own = getattr(spider.on_error, "__func__", None) is not Spider.on_error
        self.policy = settings.host_policy
        #: Tasks of a given-up origin that are settled one by one.
        self.calls = Calls.ALL if has_own else Calls.ERRBACK
        self.page_limit = page_limit
        #: Whether all start URLs are known. The crawl's own hosts are unknown before that.
        self.seeded = False
        self.clock = clock
        self.ledger_now = ledger_now
        self.queues = HostQueues(half_lease=settings.lease.total_seconds() / 2)
        self.uplink = Uplink()
        #: Set if there is new work for the coordinator.
        self.poll_wanted = asyncio.Event()
        self.lends = True  #: whether slots are lent and borrowed; False while the crawl ends
        #: Set if owners and borrowers must know a change at once, see `lending`.
        self.loans_changed = asyncio.Event()
        self.borrowed: HeldHost | None = None  #: the host that this process borrows
        self.hosts: dict[str, HeldHost] = {}
        self.leased: dict[str, HeldHost] = {}  #: hosts leased to this process
        self.opening: set[HeldHost] = set()  #: hosts in phase OPENING
        self.pending = Pending()
        self._held = held
        self._limits = Limits(spider.limits)
        self.follow(settings)
        self.usable = settings.lease.total_seconds() * (1 - _MARGIN)  #: usable seconds of a lease
        self._low: set[HeldHost] = set()  #: hosts that need more tasks for their next turns
        self._ended: set[HeldHost] = set()  #: hosts without work here

    # --- holding hosts

    def begin(self, lease: HostLease, *, asked: float) -> HeldHost:
        """Start to work on a leased host; the request for the lease was sent at *asked*."""
        state, name, now = lease.host.copy(), lease.host.name, self.clock()
        if state.given_up is Reason.HOST_FULL and not self.page_limit.is_reached(state):
            state.given_up = None  # the limit has been raised
        host = self.hosts.get(name)
        if host is not None:
            # It was borrowed until now, or lost and leased again before its last request ended.
            self.give_back(host)
            host.lease, host.state = lease, state
            host.answered, host.since = 0, now
            host.poll()
            host.pace()
            if host.phase is Phase.LEAVING:
                host.enter(Phase.SERVING if host.opened else Phase.OPENING)
            host.renewed(asked=asked)
        else:
            host = self._add(state, lease, asked=asked)
        self.leased[name] = host
        if state.lost_origins:
            # The previous owner may have died before the waiting tasks were ignored.
            self.pending.ignore(host)
        for origin in state.origins.values():
            if origin.probe_page is not None and not origin.failures:
                self.uplink.learned(name, origin.probe_page)
        if state.not_before is not None:
            rest_s = (state.not_before - self.ledger_now()).total_seconds()
            self.queues.rest(name, until=now + rest_s)
        if not lease.clean:
            # The time of the previous owner's last request is unknown.
            self.sent(name, at=now)
        if host.queue.next_start - now > AHEAD or state.given_up is not None:
            host.enter(Phase.LEAVING)
        if state.given_up is Reason.HOST_FULL:
            self.page_limit.full.add(name)
        elif self.page_limit.is_reached(state):
            self.fill(host)
        return host

    def fill(self, host: HeldHost) -> None:
        """Request no more pages of a host, because it has reached `max_pages_per_host`.

        While `start` runs, the host may still become one of the crawl's own hosts, which have no
        limit. So it only rests.
        """
        if self.seeded:
            self.page_limit.full.add(host.name)
            host.state.given_up = Reason.HOST_FULL
        else:
            host.rest(seconds=_UNSEEDED_REST)
        host.enter(Phase.LEAVING)

    def borrow(self, state: Host, loan: Loan) -> HeldHost:
        """Ask a host of another process, with a *loan*."""
        host = self.hosts.get(state.name)
        if host is None:
            host = self._add(state, None, asked=self.clock())
        self.borrowed = host
        host.state, host.faults, host.pages = state, [], 0
        host.extend(loan)
        host.pace()
        host.poll()
        return host

    def give_back(self, host: HeldHost) -> None:
        """Stop using the loan of a host, because none of its slots is in use any more."""
        host.borrowed = None
        if self.borrowed is host:
            self.borrowed = None
        host.poll(wanted=False)
        self.poll_wanted.set()

    def _add(self, state: Host, lease: HostLease | None, *, asked: float) -> HeldHost:
        now, limit = self.clock(), limit_of(state.name, self._limits, self._settings)
        queue = self.queues.begin(
            state.name,
            limit=limit.concurrency,
            next_start=now,
            deadline=asked + self.usable,
        )
        host = self.hosts[state.name] = HeldHost(
            frontier=self,
            name=state.name,
            queue=queue,
            state=state,
            lease=lease,
            limit=limit,
            since=now,
        )
        host.enter(Phase.OPENING)
        host.pace()
        return host

    def lose(self, name: str) -> None:
        """Note that this process has lost the lease of a host."""
        if host := self.hosts.get(name):
            host.lease = None
            host.loans.clear()  # they expire before the next lease
            self.leased.pop(name, None)
            self.pending.forget(host)
            host.enter(Phase.LEAVING)
            self.queues.extend(name, deadline=float("-inf"), now=self.clock())

    def forget(self, host: HeldHost) -> Host:
        """Forget a host; return its state for the ledger."""
        rest_s = host.queue.next_start - self.clock()
        self.queues.end(host.name)
        del self.hosts[host.name]
        self.leased.pop(host.name, None)
        self.pending.forget(host)
        for host_set in (self.opening, self._low, self._ended):
            host_set.discard(host)
        moment = self.ledger_now()
        not_before = moment + timedelta(seconds=rest_s) if rest_s > 0 else None
        if host.loans:
            # Rest until the loans end: the next owner does not search for loans, because this one
            # released the host.
            loans_end = max(loan.expires for loan in host.loans.values())
            not_before = max(not_before or moment, loans_end)
        # If more tasks remain, say so: the ledger need not search for them.
        more = host.is_stale and host.state.given_up is None
        ready_at = (not_before or moment) if more else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)

    # --- limits and pace

    def may_lend(self, host: HeldHost) -> bool:
        """Return whether slots of a host may be lent, or stay lent."""
        pages = self.page_limit
        # Only the owner counts the pages of a host.
        counts_pages = pages.most is not None and host.name not in pages.unlimited
        fits = not host.limit.concurrency or host.lent < host.limit.concurrency
        is_lendable = self.lends and host.lease is not None and host.is_healthy
        return is_lendable and fits and not counts_pages

    def follow(self, settings: Settings) -> None:
        """Use other settings from now on, also for the present hosts."""
        self._settings = settings
        for host in [*self.hosts.values()]:
            host.limit = limit_of(host.name, self._limits, settings)
            host.pace(limit=host.limit.concurrency)

    def limit(self, name: str) -> HostLimit:
        """Return the limit that the user has set for a host."""
        return limit_of(name, self._limits, self._settings)

    def sent(self, name: str, *, at: float) -> None:
        """Note when a request to a host was sent: the next one keeps its delay from then."""
        host = self.hosts.get(name)
        # Skip hosts without a delay, because this runs twice for each page.
        if host is not None and (delay := host.queue.delay):
            self.queues.rest(name, until=at + delay, sent=at)

    def may_begin(self, task: Task, *, now: float) -> bool:
        """Return whether a task's origin may be asked *now*."""
        host = self.hosts.get(task.host)
        # After a stall of the event loop the host may have a new owner: do not ask it.
        if self.uplink.is_blocked or host is None or now >= host.queue.deadline:
            return False
        return host.obstacle(task) is None

    def given_up(self, task: Task) -> Reason | None:
        """Return why a task's origin has been given up, if the spider must hear of it."""
        host = self.hosts.get(task.host)
        reason = None if host is None else host.origin(task).given_up
        return reason if self.calls.include(task.errback) else None

    # --- work left to do

    def poll(self, *names: str) -> None:
        """Note that hosts may have more due tasks."""
        for name in names:
            if host := self.hosts.get(name):
                host.poll()

    def _sort(self) -> None:
        """Sort each host that has changed since the last call; a forgotten host is in no set."""
        changed = self.queues.changed
        while changed:
            host = self.hosts.get(changed.pop())
            if host is None:
                continue
            queue = host.queue
            is_polled = host.is_stale and host.phase is not Phase.LEAVING
            # At least half of the useful leases are used up. A shared host has a quota as well.
            is_low = is_polled and not host.is_busy and len(queue.waiting) <= queue.most // 2
            is_low = is_low and host.quota != 0
            (self._low.add if is_low else self._low.discard)(host)
            # A task with a lost lease may still be in progress, so the queue is active.
            # Hops that wait at a host that we do not own any more continue without it.
            hops = queue.hops if host.lease is not None else ()
            has_work = is_polled or host.is_busy or queue.active or queue.waiting or hops
            # A borrower returns the loan itself.
            has_ended = not (has_work or host.loans or host.borrowed)
            (self._ended.add if has_ended else self._ended.discard)(host)

    def wanted(self) -> tuple[list[HeldHost], float]:
        """Return the hosts that need tasks for their next turns, and when the next one will."""
        self._sort()
        now, next_at = self.clock(), float("inf")
        low_hosts = []
        for host in self._low:
            needed_at = host.queue.next_start - AHEAD
            # Nothing can start before the lease is renewed.
            if now < host.queue.deadline:
                next_at = min(next_at, needed_at)
                if needed_at <= now:
                    low_hosts.append(host)
        return low_hosts, next_at

    def idle(self) -> list[HeldHost]:
        """Return the hosts with nothing in progress and no tasks to read."""
        self._sort()
        return [
            host
            for host in self._ended
            if host not in self.pending.losing and not self._held.count_by_host[host.name]
        ]
