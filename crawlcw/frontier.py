"""The part of the frontier that one process holds: its hosts, what it learns of them, their lanes.

Synchronous and without I/O: the fetchers tell how hosts answered, the
coordinator leases, saves and releases as this says. A host that may be asked
without limits is shared: its owner looks after it, and others ask it as well.
"""

import random
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawlcw import hosts
from crawlcw.errors import Reason
from crawlcw.hosts import Host, HostLease, HostPolicy, RobotsRecord
from crawlcw.leases import HeldLeases
from crawlcw.limits import HostLimit
from crawlcw.politeness import AHEAD, Lanes
from crawlcw.standstill import Rests, failure_text
from crawlcw.task import Lease

#: A host is handed on after so many answers or seconds, where others wait.
SLICE_PAGES = 20
SLICE_SECONDS = 30.0
#: A new host is asked for one page at a time, and for one more after so many pages.
_PAGES_A_STEP = 10
#: This part of a lease is not used: clocks and the network are not exact.
_MARGIN = 0.15


@dataclass(slots=True, eq=False)
class HeldHost:
    """A host that this process may ask."""

    state: Host  #: as far as it is known
    lease: HostLease | None  #: None: another process has it and shares it
    limit: HostLimit
    since: float
    answered: int = 0  #: in this slice
    fed: float = 0.0  #: when its tasks were looked at last
    crawl_delay: float = 0.0  #: what its robots.txt asks for, in seconds
    opened: bool = False  #: whether its robots.txt is known
    busy: bool = False  #: something is done about it in the background
    look: bool = True  #: its due tasks are to be looked at
    crowded: bool = False  #: it had more of them than there was room for
    leaving: bool = False  #: nothing more is begun; it is to be released
    unsaved: bool = False  #: the ledger is to know of its state at once

    @property
    def name(self) -> str:
        """The politeness key."""
        return self.state.name

    @property
    def delay(self) -> float:
        """Seconds between the starts of two requests."""
        return max(self.limit.delay, self.crawl_delay, self.state.delay)

    @property
    def allowed(self) -> int:
        """Requests at once; 0: no limit."""
        if self.state.failures:
            return 1  # until it has shown that it is back
        step = 1 + self.state.finished // _PAGES_A_STEP
        return min(self.limit.concurrency, step)


class Frontier:
    """The hosts that one process may ask."""

    def __init__(
        self,
        *,
        held: HeldLeases,
        limit_of: Callable[[str], HostLimit],
        policy: HostPolicy,
        lease: timedelta,
        may_share: bool,
        max_pages: int | None,
        unlimited: Container[str],
        full: set[str],
        failures: Counter[str],
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Hold no host yet.

        A host that has had *max_pages* pages is full, and added to *full*, unless
        it is among *unlimited*. *held* are the tasks' leases. *may_share* says whether
        *limit_of* leaves any host without limits. Failures of hosts are counted in
        *failures*, by reason.
        """
        self.may_share = may_share
        self.seeded = False  #: whether all start URLs are known
        self.lanes = Lanes(half_lease=lease.total_seconds() / 2)
        self.rests = Rests()
        self._held = held
        self._limit_of = limit_of
        self._policy = policy
        self._usable = lease.total_seconds() * (1 - _MARGIN)
        self._max_pages = max_pages
        self._unlimited = unlimited
        self._full = full
        self._failures = failures
        self._ledger_now = ledger_now
        self._hosts: dict[str, HeldHost] = {}
        #: Hosts that are shared and failed us: until when we leave them alone.
        self._avoided: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def __getitem__(self, name: str) -> HeldHost:
        return self._hosts[name]

    def __iter__(self) -> Iterator[HeldHost]:
        return iter(list(self._hosts.values()))

    def owned(self) -> list[HeldHost]:
        """Return the hosts that are leased to this process."""
        return [host for host in self._hosts.values() if host.lease is not None]

    def owns(self, name: str) -> bool:
        """Say whether the host is leased to this process."""
        host = self._hosts.get(name)
        return host is not None and host.lease is not None

    def begin(self, lease: HostLease, *, now: float, asked: float) -> HeldHost:
        """Take charge of a host that was leased; the ledger was asked for it at *asked*."""
        name = lease.host.name
        host = self._hosts.get(name)
        if host is not None:
            # Shared so far, or lost and leased again before the last request had ended.
            host.lease, host.state = lease, self._current(lease.host)
            host.leaving, host.look, host.answered, host.since = False, True, 0, now
            self._pace(host, now)
            if host.opened:
                self.lanes.open(name, now=now)
            self.lanes.extend(name, deadline=asked + self._usable, now=now)
        else:
            host = self._add(self._current(lease.host), lease, now=now, asked=asked)
        state = host.state
        if state.not_before is not None:
            self.lanes.rest(
                name, until=now + (state.not_before - self._ledger_now()).total_seconds()
            )
        if not lease.clean:
            # When the owner before has made its last request, nobody knows.
            self.lanes.rest(name, until=now + host.delay)
        rests = self.lanes[name].next_start - now > AHEAD
        if rests or state.given_up is not None:
            self.leave(host)
        if state.given_up is Reason.HOST_FULL:
            self._full.add(name)
        return host

    def visit(self, state: Host, *, now: float) -> HeldHost:
        """Take part in a host that another process has and shares."""
        return self._add(state, None, now=now, asked=float("inf"))

    def shares(self, name: str, *, now: float) -> bool:
        """Say whether the user's limits let several processes ask a host."""
        limit = self._limit_of(name)
        return not (limit.concurrency or limit.delay) and self._avoided.get(name, now) <= now

    def _add(self, state: Host, lease: HostLease | None, *, now: float, asked: float) -> HeldHost:
        host = HeldHost(state=state, lease=lease, limit=self._limit_of(state.name), since=now)
        self._hosts[state.name] = host
        self.lanes.begin(
            state.name,
            limit=host.limit.concurrency,
            allowed=host.allowed,
            delay=host.delay,
            # What failed a visitor is known to that process alone.
            next_start=max(now, self._avoided.pop(state.name, now)),
            deadline=asked + self._usable,
        )
        return host

    def _current(self, state: Host) -> Host:
        """Return *state* without what is over by the settings of this process."""
        if state.given_up is Reason.HOST_FULL and not self._is_full(state):
            return replace(state, given_up=None)
        return state

    def open(
        self,
        name: str,
        *,
        crawl_delay: float,
        robots: RobotsRecord | None,
        asked: bool,
        now: float,
    ) -> None:
        """Let a host be served: its robots.txt is known, and was *asked* for just now."""
        host = self._hosts[name]
        host.opened = host.look = True
        host.crawl_delay = crawl_delay
        if robots is not None:
            host.state = replace(host.state, robots=robots)
            # Others can only take part in it when they can read this.
            host.unsaved |= not host.delay and not host.limit.concurrency
        self._pace(host, now)
        if asked:
            self.lanes.rest(name, until=now + host.delay)
        elif host.lease is not None and not host.lease.clean:
            # As in `begin`, where it was not known what its robots.txt asks for.
            self.lanes.rest(name, until=host.since + host.delay)
        if not host.leaving:
            self.lanes.open(name, now=now)

    def leave(self, host: HeldHost) -> None:
        """Begin with nothing more of a host: it is to be released when nothing is under way."""
        host.leaving = True
        self.lanes.close(host.name)

    def look(self, name: str) -> None:
        """Note that a host may have more tasks that are due."""
        if host := self._hosts.get(name):
            host.look = True

    def may_ask(self, name: str, *, now: float) -> bool:
        """Say whether a request to a host may be sent now, as far as its lease goes."""
        return self.lanes.may_ask(name, now=now)

    def delay(self, name: str) -> float:
        """Return the seconds between the starts of two requests to a host."""
        host = self._hosts.get(name)
        return host.delay if host is not None else 0.0

    def sent(self, name: str, *, at: float) -> None:
        """Note when a request to a host was sent: the next one keeps its distance from that."""
        if host := self._hosts.get(name):
            self.lanes.rest(name, until=at + host.delay)

    def answered(self, name: str, *, latency: float, page: bool, now: float) -> None:
        """Note that a host answered well after *latency* seconds; *page* says with a page."""
        host = self._hosts.get(name)
        if host is None:
            return
        host.answered += 1
        host.state = hosts.succeeded(host.state, latency=latency, policy=self._policy, page=page)
        # Before that nobody knows which hosts are the crawl's own.
        if self.seeded and self._is_full(host.state):
            self._full.add(name)
            host.state = replace(host.state, given_up=Reason.HOST_FULL)
            self.leave(host)
        self._pace(host, now)

    def page_failed(self, name: str, *, now: float) -> None:
        """Note that a page failed by itself."""
        if host := self._hosts.get(name):
            host.answered += 1
            host.state = hosts.page_failed(host.state, policy=self._policy)
            self._pace(host, now)

    def host_failed(
        self,
        name: str,
        reason: Reason,
        *,
        sent: datetime,
        status: int | None = None,
        retry_after: float | None = None,
        now: float,
    ) -> None:
        """Note that a host failed, and not a page of it, on a request of the time *sent*."""
        self._failures[reason] += 1
        host = self._hosts.get(name)
        if host is None:
            return
        moment = self._ledger_now()
        host.state = hosts.host_failed(
            host.state,
            reason,
            now=moment,
            policy=self._policy,
            chance=random.random(),
            status=status,
            retry_after=retry_after,
            sent=sent,
        )
        assert host.state.not_before is not None
        rest = (host.state.not_before - moment).total_seconds()
        why = failure_text(reason, status=status, retry_after=retry_after)
        self.rests.note(name, until=host.state.not_before, why=why)
        host.unsaved = True
        self._pace(host, now)
        self.lanes.rest(name, until=now + rest)
        if host.lease is None:
            self._avoided[name] = now + rest
        if host.lease is None or host.state.given_up is not None or rest > AHEAD:
            self.leave(host)

    def _is_full(self, state: Host) -> bool:
        full = self._max_pages is not None and state.finished >= self._max_pages
        return full and state.name not in self._unlimited

    def _pace(self, host: HeldHost, now: float) -> None:
        self.lanes.pace(host.name, delay=host.delay, allowed=host.allowed, now=now)

    def renewed(self, name: str, *, asked: float, now: float) -> None:
        """Note that a host's lease was renewed; the ledger was asked at *asked*."""
        if self.owns(name):
            self.lanes.extend(name, deadline=asked + self._usable, now=now)

    def saved(self, name: str, state: Host) -> None:
        """Note that the ledger has *state*."""
        host = self._hosts[name]
        assert host.lease is not None
        host.lease = replace(host.lease, host=state)

    def lose(self, name: str, *, now: float) -> None:
        """Note that a host is leased to somebody else by now, or to nobody."""
        if host := self._hosts.get(name):
            host.lease = None
            self.leave(host)
            self.lanes.extend(name, deadline=float("-inf"), now=now)

    def leaving(self) -> list[Lease]:
        """Return the tasks of hosts that are being left which no fetcher has begun with."""
        return [
            lease
            for host in self._hosts.values()
            if host.leaving
            for lease in self.lanes.clear(host.name)
        ]

    def idle(self) -> list[HeldHost]:
        """Return the hosts of which nothing is under way, and nothing is left to be looked at."""
        return [
            host
            for host in self._hosts.values()
            # Who visits a host looks for its tasks among all others.
            if (host.leaving or host.lease is None or not host.look)
            and not host.busy
            and not self._held.of_host(host.name)
            # A task whose lease is lost is not held, and may be asked for all the same.
            and not self.lanes[host.name].active
        ]

    def part(self, host: HeldHost, *, now: float) -> Host:
        """Forget a host; return the state that the ledger is to have of it."""
        rest = self.lanes[host.name].next_start - now
        self.lanes.end(host.name)
        del self._hosts[host.name]
        moment = self._ledger_now()
        given_up = host.state.given_up is not None
        not_before = moment + timedelta(seconds=rest) if rest > 0 and not given_up else None
        # Where there is more to do the ledger need not look for it.
        more = (host.look or host.crowded) and not given_up
        ready_at = (not_before or moment) if more else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)
