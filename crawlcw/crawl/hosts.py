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
from crawlcw.crawl.host_queues import CLAIM_AHEAD_S, HostQueue, HostQueues
from crawlcw.engine.session import TaskLeases
from crawlcw.errors import Reason
from crawlcw.model import urls
from crawlcw.model.health import Origin, Uplink
from crawlcw.model.hosts import FailureCalls, Host, HostLease, RobotsRecord, SlowStart
from crawlcw.model.loans import Fault, Loan
from crawlcw.model.task import Lease, Task

#: Unused share of a lease, because clocks and the network are not exact.
_LEASE_MARGIN = 0.15
#: Seconds that a host rests if it reaches `max_pages_per_host` while `start` runs.
_UNSEEDED_REST_S = 10.0
#: Seconds without a response after which a host gets one more concurrent request.
_SLOW_PAGE_S = 60.0


class Phase(Enum):
    """The phase of a process's work on a host."""

    OPENING = auto()  #: only its robots.txt is requested and, after a failure, a probe page
    SERVING = auto()  #: its tasks get their turns
    LEAVING = auto()  #: no request starts; the host is released next


@dataclass(slots=True, eq=False, kw_only=True)
class FrontierHost:
    """A host that this process may ask."""

    frontier: "Frontier"
    name: str  #: the politeness key
    queue: HostQueue  #: its queue, with the current delay
    state: Host  #: its record in the ledger, as this process knows it
    lease: HostLease | None  #: None: another process owns it
    limit: HostLimit
    borrowed_loan: Loan | None = None  #: set if we borrow it from another process
    loans: dict[str, Loan] = field(default_factory=dict)  #: loans in use, by borrower
    #: failures that a borrower reports to the owner
    faults: list[Fault] = field(default_factory=list)
    pages: int = 0  #: pages that we finished as its borrower
    #: Tasks that may be claimed until the next poll of `Lending`; None if the host is not shared.
    quota: int | None = None
    slice_start: float
    left_at: float = float("-inf")  #: when it was last released for other workers, if ever
    slice_responses: int = 0  #: responses in this time slice
    last_claimed_at: float = 0.0  #: when its tasks were last claimed
    priority: int = 0  #: the priority of its best task when its tasks were last read
    crawl_delay: float = 0.0  #: the delay of its robots.txt, in seconds
    is_open: bool = False  #: whether its robots.txt is known
    is_busy: bool = False  #: whether background work runs on it, see `work`
    is_stale: bool = True  #: whether its due tasks must be read again, see `poll`
    phase: Phase = Phase.OPENING  #: only `enter` changes it
    slow_start: SlowStart = field(default_factory=SlowStart)

    # --- serving it

    def poll(self, *, is_stale: bool = True) -> None:
        """Request a read of its due tasks; with *is_stale* False, note that the read starts now."""
        self.is_stale = is_stale
        self.frontier.queues.changed.add(self.name)

    def work(self, background: anyio.abc.TaskGroup, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* in the background; until it ends, the host is neither fed nor released."""

        async def work_and_poll() -> None:
            await work()
            self.is_busy = False
            self.poll()
            self.frontier.poll_wanted.set()

        self.is_busy = True
        self.poll()
        background.start_soon(work_and_poll)

    def open(
        self,
        *,
        crawl_delay: float = 0.0,
        robots: RobotsRecord | None = None,
        was_fetched: bool = False,
    ) -> None:
        """Note that its robots.txt is known; *was_fetched* says that we have just fetched it."""
        self.is_open = True
        self.poll()
        self.crawl_delay = crawl_delay
        self.pace()
        if robots is not None:
            self.state.robots = robots
            if not self.queue.delay:
                self.frontier.pending.save(self)  # borrowers read it
        if was_fetched:
            self.frontier.note_request(self.name, sent_at=self.frontier.clock())
        elif self.lease is not None and not self.lease.clean:
            # As in `Frontier.add_leased`, which did not know the delay of robots.txt yet.
            self.frontier.note_request(self.name, sent_at=self.slice_start)
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
            self.queue.is_open = False
            if self.borrowed_loan:
                # Neither a hop starts, nor a task that a fetcher has already taken.
                self.queue.deadline = float("-inf")
            if self.loans or self.borrowed_loan:
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
        if self.borrowed_loan is not None:
            slots = self.borrowed_loan.slots
        else:
            slots = min(concurrency, self.slow_start.window(finished=self.state.finished))
            if self.loans and concurrency:
                # Never 0, because 0 means no limit.
                slots = max(1, slots - self.lent_slots)
        self.frontier.queues.pace(
            self.name,
            delay=max(self.limit.delay, self.crawl_delay, self.state.delay),
            slots=1 if self.state.failures else slots,
            limit=limit,
            now=self.frontier.clock(),
        )
        if (self.loans or self.borrowed_loan) and not self.is_healthy:
            self.frontier.loans_changed.set()

    @property
    def lent_slots(self) -> int:
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
        self.frontier.queues.rest(self.name, rest_end=self.frontier.clock() + seconds)

    def extend_loan(self, loan: Loan) -> None:
        """Continue to ask it, with a renewed loan."""
        frontier, now = self.frontier, self.frontier.clock()
        self.borrowed_loan = loan
        remaining_s = (loan.expires - frontier.ledger_now()).total_seconds()
        frontier.queues.extend(self.name, deadline=now + (1 - _LEASE_MARGIN) * remaining_s, now=now)

    def add_slot(self) -> None:
        """Allow one more concurrent page if the pages in progress take long.

        Its first page may be a film: other pages must not wait until the film ends.
        """
        queue = self.queue
        may_grow = queue.is_full and not self.state.failures
        if may_grow and self.frontier.clock() - queue.last_sent_at >= _SLOW_PAGE_S:
            self.slow_start.steps += 1
            self.pace()

    def extend_lease(self, *, sent_at: float) -> None:
        """Use its renewed lease; the request for the renewal was sent at *sent_at*."""
        deadline = sent_at + self.frontier.usable_lease_s
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

    max_pages: int | None
    full_hosts: set[str]  #: hosts that have reached the maximum
    unlimited_hosts: set[str] = field(default_factory=set)  #: hosts without a maximum

    def is_reached(self, state: Host) -> bool:
        """Return whether a host has reached its limit."""
        is_at_limit = self.max_pages is not None and state.finished >= self.max_pages
        return is_at_limit and state.name not in self.unlimited_hosts


class Pending:
    """Work on hosts and tasks that waits for the coordinator."""

    def __init__(self) -> None:
        self.unsaved: set[FrontierHost] = set()  #: hosts whose state must be saved at once
        #: hosts with given-up origins, whose tasks must be ignored
        self.to_ignore: set[FrontierHost] = set()
        self.to_release: list[Lease] = []  #: tasks to release

    def save(self, host: FrontierHost) -> None:
        """Have the state of a host saved at once, if we own the host."""
        if host.lease is not None:
            self.unsaved.add(host)
            host.frontier.poll_wanted.set()

    def ignore(self, host: FrontierHost) -> None:
        """Have the tasks of a host's given-up origins ignored, if we own the host."""
        if host.lease is not None:
            self.to_ignore.add(host)

    def release(self, leases: Iterable[Lease]) -> None:
        """Have tasks released."""
        self.to_release += leases

    def forget(self, host: FrontierHost) -> None:
        """Drop the work on a host, because we do not own it any more."""
        self.unsaved.discard(host)
        self.to_ignore.discard(host)

    def take_unsaved(self) -> set[FrontierHost]:
        """Return the hosts to save, and forget them."""
        unsaved, self.unsaved = self.unsaved, set()
        return unsaved

    def take_to_ignore(self) -> list[FrontierHost]:
        """Return and forget the hosts with tasks to ignore, except the busy hosts."""
        hosts = [host for host in self.to_ignore if not host.is_busy]
        self.to_ignore.difference_update(hosts)
        return hosts

    def take_to_release(self) -> list[Lease]:
        """Return the tasks to release, and forget them."""
        leases, self.to_release = self.to_release, []
        return leases


class Frontier:
    """The hosts that one process may ask."""

    def __init__(
        self,
        spider: Spider,
        settings: Settings,
        *,
        task_leases: TaskLeases,
        page_limit: PageLimit,
        clock: Callable[[], float],
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Start without hosts. *clock* is monotonic, in seconds."""
        # If the spider has no `on_error`, only a page with an errback must be settled by itself.
        has_on_error = getattr(spider.on_error, "__func__", None) is not Spider.on_error
        self.policy = settings.host_policy
        #: Tasks of a given-up origin that are settled one by one.
        self.calls = FailureCalls.ALL if has_on_error else FailureCalls.ERRBACK
        self.page_limit = page_limit
        #: Whether all start URLs are known. Until then the crawl's own hosts are unknown.
        self.is_seeded = False
        self.clock = clock
        self.ledger_now = ledger_now
        self.queues = HostQueues(half_lease=settings.lease.total_seconds() / 2)
        self.uplink = Uplink()
        #: Set if there is new work for the coordinator.
        self.poll_wanted = asyncio.Event()
        self.lends = True  #: whether slots are lent and borrowed; False while the crawl ends
        #: Set if owners and borrowers must know a change at once, see `lending`.
        self.loans_changed = asyncio.Event()
        self.borrowed_host: FrontierHost | None = None  #: the host that this process borrows
        self.hosts: dict[str, FrontierHost] = {}
        self.leased: dict[str, FrontierHost] = {}  #: hosts leased to this process
        self.opening: set[FrontierHost] = set()  #: hosts in phase OPENING
        self.pending = Pending()
        self._task_leases = task_leases
        self._limits = Limits(spider.limits)
        self.use_settings(settings)
        #: Usable seconds of a lease.
        self.usable_lease_s = settings.lease.total_seconds() * (1 - _LEASE_MARGIN)
        #: Hosts that need more tasks for their next turns.
        self._low_hosts: set[FrontierHost] = set()
        self._idle_hosts: set[FrontierHost] = set()  #: hosts without work in this process

    # --- holding hosts

    def add_leased(self, lease: HostLease, *, sent_at: float) -> FrontierHost:
        """Start to work on a leased host; the request for the lease was sent at *sent_at*."""
        state, name, now = lease.host.copy(), lease.host.name, self.clock()
        if state.given_up is Reason.HOST_FULL and not self.page_limit.is_reached(state):
            state.given_up = None  # the limit has been raised
        host = self.hosts.get(name)
        if host is not None:
            # The host was borrowed until now, or lost and leased again before its last request
            # ended.
            self.return_loan(host)
            host.lease, host.state = lease, state
            host.slice_responses, host.slice_start = 0, now
            host.poll()
            host.pace()
            if host.phase is Phase.LEAVING:
                host.enter(Phase.SERVING if host.is_open else Phase.OPENING)
            host.extend_lease(sent_at=sent_at)
        else:
            host = self._add(state, lease, sent_at=sent_at)
        self.leased[name] = host
        if state.lost_origins:
            # The previous owner may have died before the waiting tasks were ignored.
            self.pending.ignore(host)
        for origin in state.origins.values():
            if origin.probe_page is not None and not origin.failures:
                self.uplink.learned(name, origin.probe_page)
        if state.not_before is not None:
            rest_s = (state.not_before - self.ledger_now()).total_seconds()
            self.queues.rest(name, rest_end=now + rest_s)
        if not lease.clean:
            # The time of the previous owner's last request is unknown.
            self.note_request(name, sent_at=now)
        if host.queue.next_start - now > CLAIM_AHEAD_S or state.given_up is not None:
            host.enter(Phase.LEAVING)
        if state.given_up is Reason.HOST_FULL:
            self.page_limit.full_hosts.add(name)
        elif self.page_limit.is_reached(state):
            self.mark_full(host)
        return host

    def mark_full(self, host: FrontierHost) -> None:
        """Request no more pages of a host, because it has reached `max_pages_per_host`.

        While `start` runs, the host may still become one of the crawl's own hosts, which have no
        limit. So it only rests.
        """
        if self.is_seeded:
            self.page_limit.full_hosts.add(host.name)
            host.state.given_up = Reason.HOST_FULL
        else:
            host.rest(seconds=_UNSEEDED_REST_S)
        host.enter(Phase.LEAVING)

    def borrow(self, state: Host, loan: Loan) -> FrontierHost:
        """Ask a host of another process, with a *loan*."""
        host = self.hosts.get(state.name)
        if host is None:
            host = self._add(state, None, sent_at=self.clock())
        self.borrowed_host = host
        host.state, host.faults, host.pages = state, [], 0
        host.extend_loan(loan)
        host.pace()
        host.poll()
        return host

    def return_loan(self, host: FrontierHost) -> None:
        """Stop using the loan of a host, because none of its slots is in use any more."""
        host.borrowed_loan = None
        if self.borrowed_host is host:
            self.borrowed_host = None
        host.poll(is_stale=False)
        self.poll_wanted.set()

    def _add(self, state: Host, lease: HostLease | None, *, sent_at: float) -> FrontierHost:
        now, limit = self.clock(), limit_of(state.name, self._limits, self._settings)
        queue = self.queues.add_host(
            state.name,
            limit=limit.concurrency,
            next_start=now,
            deadline=sent_at + self.usable_lease_s,
        )
        host = self.hosts[state.name] = FrontierHost(
            frontier=self,
            name=state.name,
            queue=queue,
            state=state,
            lease=lease,
            limit=limit,
            slice_start=now,
        )
        host.enter(Phase.OPENING)
        host.pace()
        return host

    def lose(self, name: str) -> None:
        """Note that this process has lost the lease of a host."""
        if host := self.hosts.get(name):
            host.lease = None
            host.loans.clear()  # the loans expire before the next lease
            self.leased.pop(name, None)
            self.pending.forget(host)
            host.enter(Phase.LEAVING)
            self.queues.extend(name, deadline=float("-inf"), now=self.clock())

    def forget(self, host: FrontierHost) -> Host:
        """Forget a host; return its state for the ledger."""
        rest_s = host.queue.next_start - self.clock()
        self.queues.remove_host(host.name)
        del self.hosts[host.name]
        self.leased.pop(host.name, None)
        self.pending.forget(host)
        for host_set in (self.opening, self._low_hosts, self._idle_hosts):
            host_set.discard(host)
        moment = self.ledger_now()
        not_before = moment + timedelta(seconds=rest_s) if rest_s > 0 else None
        if host.loans:
            # Rest until the loans end: the next owner does not search for loans, because this owner
            # released the host.
            loans_end = max(loan.expires for loan in host.loans.values())
            not_before = max(not_before or moment, loans_end)
        # If more tasks remain, say so: the ledger need not search for them.
        has_tasks = host.is_stale and host.state.given_up is None
        ready_at = (not_before or moment) if has_tasks else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)

    # --- limits and pace

    def may_lend(self, host: FrontierHost) -> bool:
        """Return whether slots of a host may be lent, or stay lent."""
        pages = self.page_limit
        # Only the owner counts the pages of a host.
        counts_pages = pages.max_pages is not None and host.name not in pages.unlimited_hosts
        fits = not host.limit.concurrency or host.lent_slots < host.limit.concurrency
        is_lendable = self.lends and host.lease is not None and host.is_healthy
        return is_lendable and fits and not counts_pages

    def use_settings(self, settings: Settings) -> None:
        """Use other settings from now on, also for the present hosts."""
        self._settings = settings
        for host in [*self.hosts.values()]:
            host.limit = limit_of(host.name, self._limits, settings)
            host.pace(limit=host.limit.concurrency)

    def host_limit(self, name: str) -> HostLimit:
        """Return the limit that the user has set for a host."""
        return limit_of(name, self._limits, self._settings)

    def note_request(self, name: str, *, sent_at: float) -> None:
        """Note when a request to a host was sent: the delay of the next request begins then."""
        host = self.hosts.get(name)
        # Skip hosts without a delay, because this runs twice for each page.
        if host is not None and (delay := host.queue.delay):
            self.queues.rest(name, rest_end=sent_at + delay, sent_at=sent_at)

    def may_ask(self, task: Task, *, now: float) -> bool:
        """Return whether a task's origin may be asked *now*."""
        host = self.hosts.get(task.host)
        # After a stall of the event loop the host may have a new owner: do not ask it.
        if self.uplink.is_blocked or host is None or now >= host.queue.deadline:
            return False
        return host.obstacle(task) is None

    def given_up_reason(self, task: Task) -> Reason | None:
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

    def _classify(self) -> None:
        """Sort each host that has changed since the last call; a forgotten host is in no set."""
        changed = self.queues.changed
        while changed:
            host = self.hosts.get(changed.pop())
            if host is None:
                continue
            queue = host.queue
            is_polled = host.is_stale and host.phase is not Phase.LEAVING
            # At least half of the useful leases are used up. A shared host has a quota as well.
            is_low = is_polled and not host.is_busy and len(queue.waiting) <= queue.max_leases // 2
            is_low = is_low and host.quota != 0
            (self._low_hosts.add if is_low else self._low_hosts.discard)(host)
            # A task with a lost lease may still be in progress, so the queue is active.
            # Hops that wait at a host that we do not own any more continue without it.
            hops = queue.hops if host.lease is not None else ()
            has_work = is_polled or host.is_busy or queue.active or queue.waiting or hops
            # A borrower returns the loan itself.
            is_idle = not (has_work or host.loans or host.borrowed_loan)
            (self._idle_hosts.add if is_idle else self._idle_hosts.discard)(host)

    def low_hosts(self) -> tuple[list[FrontierHost], float]:
        """Return the hosts that need tasks for their next turns, and when the next host will."""
        self._classify()
        now, next_at = self.clock(), float("inf")
        low_hosts = []
        for host in self._low_hosts:
            needed_at = host.queue.next_start - CLAIM_AHEAD_S
            # Nothing can start before the lease is renewed.
            if now < host.queue.deadline:
                next_at = min(next_at, needed_at)
                if needed_at <= now:
                    low_hosts.append(host)
        return low_hosts, next_at

    def idle_hosts(self) -> list[FrontierHost]:
        """Return the hosts with nothing in progress and no tasks to read."""
        self._classify()
        return [
            host
            for host in self._idle_hosts
            if host not in self.pending.to_ignore and not self._task_leases.count_by_host[host.name]
        ]
