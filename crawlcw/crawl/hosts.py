"""Hosts at which this process may start requests: their leases, delays, slots and phases.

This module is synchronous and does no I/O. `causes` changes a host when its requests end.
`host_leases` leases, saves and releases the hosts that this module selects. No other module changes
the sets of hosts. A host's owner may lend slots to a borrower (another process), see `lending`.

A leased host is in phase OPENING until its robots.txt is known. After failures, the host stays in
OPENING until its probe page answers. Then the host is in phase SERVING. If the host's breaker
opens, the host returns to OPENING. An OPENING or SERVING host enters the phase LEAVING before its
release.

Only a SERVING host has an open queue. A LEAVING host is released when its requests in progress have
ended. A LEAVING host returns to OPENING or SERVING in two cases: this process leases the host
again, or a request in progress takes long.
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

#: Fraction of a lease that is not used, as a margin for inexact clocks and a slow network.
_LEASE_MARGIN = 0.15
#: Seconds that a host rests if it reaches `max_pages_per_host` while `start` runs.
_UNSEEDED_REST_S = 10.0
#: Seconds without a response after which a host gets one more concurrent request.
_SLOW_PAGE_S = 60.0


class Phase(Enum):
    """The phase of a process's work on a host."""

    OPENING = auto()  #: only the host's robots.txt is requested and, after a failure, a probe page
    SERVING = auto()  #: requests for the host's tasks start
    LEAVING = auto()  #: no request to the host starts, because it is released next


@dataclass(slots=True, eq=False, kw_only=True)
class FrontierHost:
    """A host at which this process may start requests."""

    frontier: "Frontier"
    name: str  #: the politeness key
    queue: HostQueue  #: the host's queue, with the current delay
    state: Host  #: the host's record in the ledger, as this process knows the record
    lease: HostLease | None  #: the host's lease; None if another process owns the host
    limit: HostLimit
    borrowed_loan: Loan | None = None  #: loan by which this process borrows the host
    loans: dict[str, Loan] = field(default_factory=dict)  #: loans to borrowers, by worker name
    #: failures that a borrower reports to the owner
    faults: list[Fault] = field(default_factory=list)
    pages: int = 0  #: number of pages that this process finished as the host's borrower
    #: Number of tasks to claim until `Lending` polls again; None if the host has no loan.
    quota: int | None = None
    slice_start: float
    left_at: float = float("-inf")  #: when this process last began to release the host
    slice_responses: int = 0  #: number of responses in the current time slice of the host
    last_claimed_at: float = 0.0  #: when tasks of the host were last claimed
    priority: int = 0  #: highest priority of the host's due tasks at the last read
    crawl_delay: float = 0.0  #: the delay of the host's robots.txt, in seconds
    is_open: bool = False  #: whether the host's robots.txt is known
    is_busy: bool = False  #: whether background work runs on the host, see `work`
    is_stale: bool = True  #: whether the host's due tasks must be read again, see `poll`
    phase: Phase = Phase.OPENING  #: phase of the host; only `enter` changes the phase
    slow_start: SlowStart = field(default_factory=SlowStart)

    # --- serve the host

    def poll(self, *, is_stale: bool = True) -> None:
        """Set whether the host's due tasks must be read; a read first sets *is_stale* to false."""
        self.is_stale = is_stale
        self.frontier.queues.changed.add(self.name)

    def work(self, background: anyio.abc.TaskGroup, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* on the host in the background; meanwhile the host gets no new tasks."""

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
        """Record that robots.txt is known; *was_fetched* is true if it was requested just now."""
        self.is_open = True
        self.poll()
        self.crawl_delay = crawl_delay
        self.pace()
        if robots is not None:
            self.state.robots = robots
            if not self.queue.delay:
                self.frontier.pending.save(self)  # borrowers read the rules
        if was_fetched:
            self.frontier.note_request(self.name, sent_at=self.frontier.clock())
        elif self.lease is not None and not self.lease.clean:
            # Count the delay from the lease's start, because the last request's time is unknown.
            self.frontier.note_request(self.name, sent_at=self.slice_start)
        if self.phase is Phase.OPENING:
            self.enter(Phase.SERVING)

    def enter(self, phase: Phase) -> None:
        """Change the host's phase, and open or close the host's queue."""
        self.phase = phase
        frontier, queues = self.frontier, self.frontier.queues
        (frontier.opening.add if phase is Phase.OPENING else frontier.opening.discard)(self)
        if phase is Phase.SERVING:
            queues.open(self.name, now=frontier.clock())
        else:
            self.queue.is_open = False
            if self.borrowed_loan:
                # Let no request start, also no hop, and no task that a fetcher already has.
                self.queue.deadline = float("-inf")
            if self.loans or self.borrowed_loan:
                frontier.loans_changed.set()
        if phase is Phase.LEAVING:
            frontier.pending.release(queues.withdraw(host=self.name))
        queues.changed.add(self.name)
        frontier.poll_wanted.set()

    def pace(self, *, limit: int | None = None) -> None:
        """Set the delay and slots of the host's queue; *limit* is the user's new limit or None.

        The longest of the host's delays counts. A failing host gets one request at a time until it
        answers.
        """
        concurrency = self.limit.concurrency
        if self.borrowed_loan is not None:
            slots = self.borrowed_loan.slots
        else:
            slots = min(concurrency, self.slow_start.window(finished=self.state.finished))
            if self.loans and concurrency:
                # Leave at least one slot, because 0 slots would mean no limit.
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
        """The number of slots that are lent to borrowers."""
        return sum(loan.slots for loan in self.loans.values())

    @property
    def is_healthy(self) -> bool:
        """Whether the host is SERVING without a delay, and none of its origins fails."""
        return (
            self.phase is Phase.SERVING
            and not (self.queue.delay or self.state.failures or self.state.given_up)
            and all(origin.is_closed for origin in self.state.origins.values())
        )

    def rest(self, *, seconds: float) -> None:
        """Send the host no request for *seconds*."""
        self.frontier.queues.rest(self.name, rest_end=self.frontier.clock() + seconds)

    def extend_loan(self, loan: Loan) -> None:
        """Let a new or renewed loan continue the requests to a borrowed host."""
        frontier, now = self.frontier, self.frontier.clock()
        self.borrowed_loan = loan
        remaining_s = (loan.expires - frontier.ledger_now()).total_seconds()
        frontier.queues.extend(self.name, deadline=now + (1 - _LEASE_MARGIN) * remaining_s, now=now)

    def add_slot(self) -> None:
        """Allow one more concurrent page of the host if the pages in progress take long.

        If a page is a film, for example, the other pages must not wait until the film ends.
        """
        queue = self.queue
        may_grow = queue.is_full and not self.state.failures
        if may_grow and self.frontier.clock() - queue.last_sent_at >= _SLOW_PAGE_S:
            self.slow_start.steps += 1
            self.pace()

    def extend_lease(self, *, sent_at: float) -> None:
        """Use the host's renewed lease; the request for the renewal was sent at *sent_at*."""
        deadline = sent_at + self.frontier.usable_lease_s
        self.frontier.queues.extend(self.name, deadline=deadline, now=self.frontier.clock())

    # --- the origins of the host's tasks

    def origin(self, task: Task) -> Origin:
        """Return the breaker of a task's origin."""
        return self.state.origins[urls.scheme_of(task.url)]

    def obstacle(self, task: Task) -> Reason | datetime | None:
        """Return why a task must not be requested now; None if the task may be requested.

        The result is either the end of the origin's rest, or the reason why the origin is given up.
        Tasks of a given-up origin are ignored later, unless their errbacks must run.
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
        """Return the URL of the probe page that must be requested before other pages, or None."""
        return self.state.probe_url(now=self.frontier.ledger_now())


@dataclass(slots=True, kw_only=True)
class PageLimit:
    """The limit on the number of pages of a host (`max_pages_per_host`)."""

    max_pages: int | None
    full_hosts: set[str]  #: hosts that have reached the maximum
    unlimited_hosts: set[str] = field(default_factory=set)  #: hosts without a maximum

    def is_reached(self, state: Host) -> bool:
        """Return whether a host has reached its limit of pages."""
        is_at_limit = self.max_pages is not None and state.finished >= self.max_pages
        return is_at_limit and state.name not in self.unlimited_hosts


class Pending:
    """Collects work on hosts and tasks, so that the coordinator can do the work later."""

    def __init__(self) -> None:
        self.unsaved: set[FrontierHost] = set()  #: hosts whose state must be saved at once
        #: hosts with given-up origins, whose tasks must be ignored
        self.to_ignore: set[FrontierHost] = set()
        self.to_release: list[Lease] = []  #: tasks to release

    def save(self, host: FrontierHost) -> None:
        """Let the coordinator save the state of a host soon, if this process owns the host."""
        if host.lease is not None:
            self.unsaved.add(host)
            host.frontier.poll_wanted.set()

    def ignore(self, host: FrontierHost) -> None:
        """Let the coordinator ignore the tasks of a host's given-up origins, if we own the host."""
        if host.lease is not None:
            self.to_ignore.add(host)

    def release(self, leases: Iterable[Lease]) -> None:
        """Let the coordinator release tasks."""
        self.to_release += leases

    def forget(self, host: FrontierHost) -> None:
        """Drop the pending work on *host*, because this process does not own the host any more."""
        self.unsaved.discard(host)
        self.to_ignore.discard(host)

    def take_unsaved(self) -> set[FrontierHost]:
        """Return the hosts to save, and forget them."""
        unsaved, self.unsaved = self.unsaved, set()
        return unsaved

    def take_to_ignore(self) -> list[FrontierHost]:
        """Return and forget the hosts that have tasks to ignore and are not busy."""
        hosts = [host for host in self.to_ignore if not host.is_busy]
        self.to_ignore.difference_update(hosts)
        return hosts

    def take_to_release(self) -> list[Lease]:
        """Return the tasks to release, and forget them."""
        leases, self.to_release = self.to_release, []
        return leases


class Frontier:
    """The hosts at which one process may start requests."""

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
        """Start without hosts. *clock* returns monotonic seconds."""
        # A spider without `on_error` gets the failure of a page only by the page's errback.
        has_on_error = getattr(spider.on_error, "__func__", None) is not Spider.on_error
        self.policy = settings.host_policy
        #: Tasks of a given-up origin that need a call of the spider; they are ignored one by one.
        self.calls = FailureCalls.ALL if has_on_error else FailureCalls.ERRBACK
        self.page_limit = page_limit
        #: Whether all start URLs are known. Their hosts are the crawl's own hosts.
        self.is_seeded = False
        self.clock = clock
        self.ledger_now = ledger_now
        self.queues = HostQueues(half_lease=settings.lease.total_seconds() / 2)
        self.uplink = Uplink()
        #: Event that tells the coordinator of new work.
        self.poll_wanted = asyncio.Event()
        self.lends = True  #: whether slots are lent and borrowed; False while the crawl ends
        #: Event that wakes `Lending` after a change, so that owners and borrowers react at once.
        self.loans_changed = asyncio.Event()
        self.borrowed_host: FrontierHost | None = None  #: the host that this process borrows
        self.hosts: dict[str, FrontierHost] = {}
        self.leased: dict[str, FrontierHost] = {}  #: hosts leased to this process
        self.opening: set[FrontierHost] = set()  #: hosts in phase OPENING
        self.pending = Pending()
        self._task_leases = task_leases
        self._limits = Limits(spider.limits)
        self.use_settings(settings)
        #: Seconds of a host lease in which requests may start; the remainder is a safety margin.
        self.usable_lease_s = settings.lease.total_seconds() * (1 - _LEASE_MARGIN)
        #: Hosts for which more tasks must be claimed.
        self._low_hosts: set[FrontierHost] = set()
        self._idle_hosts: set[FrontierHost] = set()  #: hosts without work in this process

    # --- holding hosts

    def add_leased(self, lease: HostLease, *, sent_at: float) -> FrontierHost:
        """Start to work on a leased host; the request for the lease was sent at *sent_at*."""
        state, name, now = lease.host.copy(), lease.host.name, self.clock()
        if state.given_up is Reason.HOST_FULL and not self.page_limit.is_reached(state):
            state.given_up = None  # the user has raised the limit
        host = self.hosts.get(name)
        if host is not None:
            # This process knows the host, because it borrowed the host, or lost the host's lease
            # while a request was in progress.
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
            # Ignore the tasks of given-up origins, because the previous owner may have died before.
            self.pending.ignore(host)
        for origin in state.origins.values():
            if origin.probe_page is not None and not origin.failures:
                self.uplink.learned(name, origin.probe_page)
        if state.not_before is not None:
            rest_s = (state.not_before - self.ledger_now()).total_seconds()
            self.queues.rest(name, rest_end=now + rest_s)
        if not lease.clean:
            # The previous owner's last request may be recent, so the delay counts from now.
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

        While `start` runs, the host only rests and is not marked as full, because `start` may still
        yield a seed on the host. Hosts of seeds have no limit.
        """
        if self.is_seeded:
            self.page_limit.full_hosts.add(host.name)
            host.state.given_up = Reason.HOST_FULL
        else:
            host.rest(seconds=_UNSEEDED_REST_S)
        host.enter(Phase.LEAVING)

    def borrow(self, state: Host, loan: Loan) -> FrontierHost:
        """Start to send requests to a host of another process, by a *loan*."""
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
        """Stop using the loan of a host, because none of the lent slots is in use any more."""
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
        """Record that this process has lost the lease of a host."""
        if host := self.hosts.get(name):
            host.lease = None
            host.loans.clear()  # they expire before another process can lease the host
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
            # Let the host rest until its loans end, because the next owner looks for loans only
            # after a crash.
            loans_end = max(loan.expires for loan in host.loans.values())
            not_before = max(not_before or moment, loans_end)
        # Set `ready_at` if the host may have due tasks, so no query must search for such tasks.
        has_tasks = host.is_stale and host.state.given_up is None
        ready_at = (not_before or moment) if has_tasks else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)

    # --- limits and pace

    def may_lend(self, host: FrontierHost) -> bool:
        """Return whether this process may lend a host's slots, or renew the host's loans."""
        pages = self.page_limit
        # A host with a limit of pages is not lent, because only the host's owner counts its pages.
        counts_pages = pages.max_pages is not None and host.name not in pages.unlimited_hosts
        fits = not host.limit.concurrency or host.lent_slots < host.limit.concurrency
        is_lendable = self.lends and host.lease is not None and host.is_healthy
        return is_lendable and fits and not counts_pages

    def use_settings(self, settings: Settings) -> None:
        """Use new settings from now on, also for the hosts that are already leased."""
        self._settings = settings
        for host in [*self.hosts.values()]:
            host.limit = limit_of(host.name, self._limits, settings)
            host.pace(limit=host.limit.concurrency)

    def host_limit(self, name: str) -> HostLimit:
        """Return the limit that the user has set for a host."""
        return limit_of(name, self._limits, self._settings)

    def note_request(self, name: str, *, sent_at: float) -> None:
        """Record that a request to a host was sent at *sent_at*; the host's delay begins then."""
        host = self.hosts.get(name)
        # Skip hosts without a delay to save time, because `note_request` runs twice for each page.
        if host is not None and (delay := host.queue.delay):
            self.queues.rest(name, rest_end=sent_at + delay, sent_at=sent_at)

    def may_ask(self, task: Task, *, now: float) -> bool:
        """Return whether a request for a task may start *now*."""
        host = self.hosts.get(task.host)
        # After its deadline a host may have a new owner, so this process must not send requests.
        if self.uplink.is_blocked or host is None or now >= host.queue.deadline:
            return False
        return host.obstacle(task) is None

    def given_up_reason(self, task: Task) -> Reason | None:
        """Return why a task's origin is given up, or None if no method must be called for it."""
        host = self.hosts.get(task.host)
        reason = None if host is None else host.origin(task).given_up
        return reason if self.calls.include(task.errback) else None

    # --- hosts with work

    def poll(self, *names: str) -> None:
        """Mark hosts, so that the coordinator reads their due tasks again."""
        for name in names:
            if host := self.hosts.get(name):
                host.poll()

    def _classify(self) -> None:
        """Update the sets of idle hosts and of hosts that need tasks, for all changed hosts."""
        changed = self.queues.changed
        while changed:
            host = self.hosts.get(changed.pop())
            if host is None:
                continue
            queue = host.queue
            is_polled = host.is_stale and host.phase is not Phase.LEAVING
            # A host needs tasks if its queue is at most half full.
            is_low = is_polled and not host.is_busy and len(queue.waiting) <= queue.max_leases // 2
            is_low = is_low and host.quota != 0
            (self._low_hosts.add if is_low else self._low_hosts.discard)(host)
            # `queue.active` also counts tasks in progress whose leases are lost. Hops to a host
            # without our lease do not count as work, because such hops need no `FrontierHost`.
            hops = queue.hops if host.lease is not None else ()
            has_work = is_polled or host.is_busy or queue.active or queue.waiting or hops
            # A borrowed host is not idle, because `Lending` must first return its loan.
            is_idle = not (has_work or host.loans or host.borrowed_loan)
            (self._idle_hosts.add if is_idle else self._idle_hosts.discard)(host)

    def low_hosts(self) -> tuple[list[FrontierHost], float]:
        """Return the hosts that need tasks now, and the time when the next host will need tasks."""
        self._classify()
        now, next_at = self.clock(), float("inf")
        low_hosts = []
        for host in self._low_hosts:
            needed_at = host.queue.next_start - CLAIM_AHEAD_S
            # Skip a host whose lease must be renewed before a request can start.
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
