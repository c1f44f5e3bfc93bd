"""Hosts that this process holds: their leases, limits and pace, and the turns at them.

Synchronous and without I/O: the fetchers tell its `health` how hosts answered, the
coordinator leases, saves and releases as this says. A host that may be asked without
limits, also of its pages, is shared: its owner looks after it, and others ask it as well.

What is to be done about a host follows from its fields and its queue. Each change of these
puts the host into one set, and the next question goes through that set alone: the others
are where they were.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

import anyio

from crawlcw.api.host_limits import HostLimit, Limits, limit_of
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.held_host import HeldHost, PageLimit, Phase, Phases, pace
from crawlcw.crawl.host_health import HostHealth
from crawlcw.crawl.host_queues import AHEAD, HostQueues
from crawlcw.crawl.robots import Robots
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.stats import Stats
from crawlcw.errors import Reason
from crawlcw.model import urls
from crawlcw.model.health import Uplink
from crawlcw.model.hosts import Host, HostLease, HostPolicy, RobotsRecord
from crawlcw.model.standstill import Rests
from crawlcw.model.task import Lease

#: A host is handed on after so many answers or seconds, where others wait.
SLICE_PAGES = 20
SLICE_SECONDS = 30.0
#: Hosts that are not held are forgotten above so many, once their delay has passed.
_REMEMBERED = 1000
#: This part of a lease is not used: clocks and the network are not exact.
_MARGIN = 0.15


class ToDo:
    """What is to be done about the held hosts; each question looks at those that have changed."""

    def __init__(
        self, held_hosts: Mapping[str, HeldHost], queues: HostQueues, held: HeldLeases
    ) -> None:
        self._hosts = held_hosts
        self._queues = queues
        self._held = held
        self._left: set[HeldHost] = set()
        self._unsaved: set[HeldHost] = set()
        self._unproven: set[HeldHost] = set()
        self._ended: set[HeldHost] = set()
        self._hungry: set[HeldHost] = set()  #: since their time has come
        self._later: list[tuple[float, int, HeldHost]] = []  #: a heap, by `HeldHost.feed_at`
        self._fed_at = float("-inf")  #: when `hungry` was asked last
        self._order = count()

    def _sort(self) -> None:
        """Look at each host that has changed since the last call: all others are where they were.

        A host that is gone is in no set.
        """
        changed = self._queues.changed
        while changed:
            host = self._hosts.get(changed.pop())
            if host is None:
                continue
            queue = self._queues[host.state.name]
            is_ours, look, busy, phase = host.lease is not None, host.look, host.busy, host.phase
            leaving = phase is Phase.LEAVING
            if leaving:
                self._left.add(host)
            _keep(self._unsaved, host, is_ours and host.unsaved)
            _keep(self._unproven, host, phase is Phase.RESTING and not busy)
            # Who visits a host looks for its tasks among all others.
            nothing = leaving or not (is_ours and look)
            _keep(self._ended, host, nothing and not (busy or queue.active or queue.waiting))
            is_fed = is_ours and look and not (leaving or busy)
            self._feed(host, queue.next_start - AHEAD if is_fed and queue.is_low() else None)

    def _feed(self, host: HeldHost, at: float | None) -> None:
        """Note from when on tasks of a host are wanted, None: none are."""
        if at is not None and at < self._fed_at:
            at = float("-inf")  # or it would be noted anew with each of its turns
        if at == host.feed_at:
            return
        host.feed_at = at
        self._hungry.discard(host)
        if at is not None:
            heapq.heappush(self._later, (at, next(self._order), host))

    def has_changes(self) -> bool:
        """Return whether there are tasks to give back, states to write, or hosts to be proved."""
        self._sort()
        return bool(self._left or self._unsaved or self._unproven)

    def unsaved(self) -> list[HeldHost]:
        """Return the hosts whose state the ledger is to know at once."""
        self._sort()
        return list(self._unsaved)

    def hungry(self, *, now: float) -> list[HeldHost]:
        """Return the hosts of which more tasks are wanted: their turns come soon."""
        self._sort()
        self._fed_at = now
        while self._later and self._later[0][0] < now:
            at, _, host = heapq.heappop(self._later)
            if host.feed_at == at:
                self._hungry.add(host)
        # Nothing can be begun with before a lease is renewed.
        return [host for host in self._hungry if now < self._queues[host.state.name].deadline]

    def next_feed(self, *, now: float) -> float:
        """Return when tasks of a host are wanted next; it may have changed its mind by then."""
        if self.hungry(now=now):
            return now
        return self._later[0][0] if self._later else float("inf")

    def leaving(self) -> list[Lease]:
        """Return the tasks of hosts that are being left which no fetcher has begun with."""
        self._sort()
        left, self._left = self._left, set()
        return [lease for host in left for lease in self._queues.withdraw(host=host.name)]

    def idle(self) -> list[HeldHost]:
        """Return the hosts with nothing under way and nothing left to look at."""
        self._sort()
        return [
            host
            for host in self._ended
            if not (host.lost and host.lease is not None)
            and not self._held.of_host(host.name)
            # A task whose lease is lost is not held, and may be asked for all the same.
            and not self._queues[host.name].active
        ]

    def forget(self, host: HeldHost) -> None:
        """Note that a host is held no more."""
        host.feed_at = None
        for those in (self._left, self._unsaved, self._unproven, self._ended, self._hungry):
            those.discard(host)


def _keep(hosts: set[HeldHost], host: HeldHost, wanted: bool) -> None:
    if wanted:
        hosts.add(host)
    else:
        hosts.discard(host)


class Frontier:
    """The hosts that one process may ask."""

    def __init__(
        self,
        *,
        held: HeldLeases,
        limits: "FollowedLimits",
        policy: HostPolicy,
        lease: timedelta,
        stats: Stats,
        uplink: Uplink,
        rests: Rests,
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Hold no host yet.

        *held* are the tasks' leases. *uplink* is told which pages hosts have answered
        before. In *stats* failures of hosts are counted, and hosts that are given up. For
        *rests* see `HostHealth`.
        """
        #: Set where the coordinator is to look: something was left to do.
        self.look_wanted = asyncio.Event()
        self.page_limit = limits.pages
        self.queues = HostQueues(half_lease=lease.total_seconds() / 2)
        self.phases = Phases(self.queues)
        self.rests = rests
        self._held = held
        self._limits = limits
        self._usable = lease.total_seconds() * (1 - _MARGIN)
        self._uplink = uplink
        self._ledger_now = ledger_now
        self._hosts: dict[str, HeldHost] = {}
        self.leased: dict[str, HeldHost] = {}  #: those that are leased to this process
        self.to_do = ToDo(self._hosts, self.queues, held)
        #: Told how requests end.
        self.health = HostHealth(
            self._hosts,
            self.queues,
            self.phases,
            policy=policy,
            page_limit=self.page_limit,
            stats=stats,
            rests=rests,
            ledger_now=ledger_now,
        )

    @property
    def may_share(self) -> bool:
        """Whether any host is left without limits, so that several processes may ask it."""
        return self._limits.may_share

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def __getitem__(self, name: str) -> HeldHost:
        return self._hosts[name]

    def __iter__(self) -> Iterator[HeldHost]:
        return iter(list(self._hosts.values()))

    def owned(self) -> list[HeldHost]:
        """Return the hosts that are leased to this process."""
        return list(self.leased.values())

    def owns(self, name: str) -> bool:
        """Return whether the host is leased to this process."""
        return name in self.leased

    def begin(self, lease: HostLease, *, now: float, asked: float) -> HeldHost:
        """Take charge of a host that was leased; the ledger was asked for it at *asked*."""
        name = lease.host.name
        host = self._hosts.get(name)
        if host is not None:
            # Shared so far, or lost and leased again before the last request had ended.
            host.lease, host.state = lease, self._current(lease.host.copy())
            self.leased[name] = host
            host.look, host.answered, host.since = True, 0, now
            pace(self.queues, host, now=now)
            if host.leaving:
                self.phases.resume(host, now=now)
            self.queues.extend(name, deadline=asked + self._usable, now=now)
        else:
            host = self._add(self._current(lease.host.copy()), lease, now=now, asked=asked)
        state = host.state
        # The owner before may have been killed before the waiting tasks were ignored.
        host.lost |= {scheme for scheme, each in state.origins.items() if each.given_up}
        if host.lost:
            self.health.to_lose.add(name)
        for origin in state.origins.values():
            if origin.good_url is not None and not origin.failures:
                self._uplink.learned(name, origin.good_url)
        if state.not_before is not None:
            self.queues.rest(
                name, until=now + (state.not_before - self._ledger_now()).total_seconds()
            )
        if not lease.clean:
            # When the owner before has made its last request, nobody knows.
            self.queues.rest(name, until=now + host.delay, sent=now)
        rests = self.queues[name].next_start - now > AHEAD
        if rests or state.given_up is not None:
            self.phases.leave(host)
        if state.given_up is Reason.HOST_FULL:
            self.page_limit.full.add(name)
        return host

    def visit(self, state: Host, *, now: float) -> HeldHost:
        """Take part in a host that another process has and shares."""
        return self._add(state, None, now=now, asked=float("inf"))

    def shares(self, name: str, *, now: float) -> bool:
        """Return whether the user's limits let several processes ask a host.

        Where its pages are limited its owner alone asks it: nobody else's are counted.
        """
        if self.page_limit.limits(name):
            return False
        limit = self._limits.of(name)
        return not (limit.concurrency or limit.delay) and self.health.avoided.get(name, now) <= now

    def _add(self, state: Host, lease: HostLease | None, *, now: float, asked: float) -> HeldHost:
        host = HeldHost(
            changed=self.queues.changed,
            wanted=self.look_wanted,
            state=state,
            lease=lease,
            limit=self._limits.of(state.name),
            since=now,
        )
        self._hosts[state.name] = host
        if lease is not None:
            self.leased[state.name] = host
        self.queues.begin(
            state.name,
            limit=host.limit.concurrency,
            allowed=host.allowed,
            delay=host.delay,
            # What failed a visitor is known to that process alone.
            next_start=max(now, self.health.avoided.pop(state.name, now)),
            deadline=asked + self._usable,
        )
        return host

    def _current(self, state: Host) -> Host:
        """Return *state* without what is over by the settings of this process."""
        if state.given_up is Reason.HOST_FULL and not self.page_limit.is_reached(state):
            state.given_up = None
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
            host.state.robots = robots
            # Others can only take part in it when they can read this.
            host.unsaved |= not host.delay and not host.limit.concurrency
        pace(self.queues, host, now=now)
        if asked:
            self.queues.rest(name, until=now + host.delay, sent=now)
        elif host.lease is not None and not host.lease.clean:
            # As in `begin`, where it was not known what its robots.txt asks for.
            self.queues.rest(name, until=host.since + host.delay, sent=host.since)
        if host.phase is Phase.OPENING:
            self.phases.serve(host, now=now)

    def look(self, name: str) -> None:
        """Note that a host may have more tasks that are due."""
        if host := self._hosts.get(name):
            host.look = True

    def delay(self, name: str) -> float:
        """Return the seconds between the starts of two requests to a host."""
        host = self._hosts.get(name)
        return host.delay if host is not None else self._limits.of(name).delay

    def sent(self, name: str, *, at: float) -> None:
        """Note when a request to a host was sent: the next one keeps its distance from that."""
        # Without a delay no distance is kept, and there are two of these a page.
        if name in self._hosts and (delay := self._hosts[name].delay):
            self.queues.rest(name, until=at + delay, sent=at)

    def renewed(self, name: str, *, asked: float, now: float) -> None:
        """Note that a host's lease was renewed; the ledger was asked at *asked*."""
        if self.owns(name):
            self.queues.extend(name, deadline=asked + self._usable, now=now)

    def saved(self, name: str, state: Host) -> None:
        """Note that the ledger has *state*."""
        host = self._hosts[name]
        assert host.lease is not None
        host.lease = replace(host.lease, host=state)

    def lose(self, name: str, *, now: float) -> None:
        """Note that this process has lost the lease of a host."""
        if host := self._hosts.get(name):
            host.lease = None
            self.leased.pop(name, None)
            self.phases.leave(host)
            self.queues.extend(name, deadline=float("-inf"), now=now)

    def part(self, host: HeldHost, *, now: float) -> Host:
        """Forget a host; return the state that the ledger is to have of it."""
        rest = self.queues[host.name].next_start - now
        self.queues.end(host.name)
        del self._hosts[host.name]
        self.leased.pop(host.name, None)
        self.to_do.forget(host)
        self.phases.forget(host)
        moment = self._ledger_now()
        given_up = host.state.given_up is not None
        not_before = moment + timedelta(seconds=rest) if rest > 0 and not given_up else None
        # Where there is more to do the ledger need not look for it.
        more = host.look and not given_up
        ready_at = (not_before or moment) if more else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)


class FollowedLimits:
    """What holds for each host by the settings that are followed just now."""

    def __init__(self, spider: Spider, settings: Settings, *, pages: PageLimit) -> None:
        self.pages = pages
        self._limits = Limits(spider.limits)
        self._some_shared = any(limit.concurrency == 0 for limit in spider.limits.values())
        self._settings = settings

    def of(self, host: str) -> HostLimit:
        """Return how many requests a host may have at once, and how far apart."""
        return limit_of(host, self._limits, self._settings)

    @property
    def may_share(self) -> bool:
        """Whether any host is left without limits, so that several processes may ask it."""
        return self._some_shared or self._settings.per_host_concurrency == 0

    def follow(self, settings: Settings, frontier: Frontier) -> None:
        """Ask all hosts by other settings from now on, those that are held as well."""
        self._settings = settings
        now = time.monotonic()
        for host in frontier:
            host.limit = self.of(host.name)
            frontier.queues.pace(
                host.name,
                delay=host.delay,
                allowed=host.allowed,
                limit=host.limit.concurrency,
                now=now,
            )
            if host.lease is None and not frontier.shares(host.name, now=now):
                # It is its owner's alone from now on.
                frontier.phases.leave(host)


class HostTurns:
    """The next turns at the hosts that one process asks."""

    def __init__(self, robots: Robots, frontier: Frontier) -> None:
        self._robots = robots
        self._frontier = frontier
        #: Until when hosts are left alone that this process does not hold.
        self._free_at: dict[str, float] = {}

    def last(self, host: str) -> float:
        """Return when *host* was asked last, or will be, as far as is known; `-inf`: never."""
        held = host in self._frontier
        return self._frontier.queues[host].began if held else float("-inf")

    def asked(self, url: str) -> None:
        """Note that *url* was asked for just now."""
        self._frontier.sent(urls.locate(url).host, at=time.monotonic())

    async def wait(self, url: str) -> None:
        """Take the next turn at the host of *url*, and wait for it."""
        host, now = urls.locate(url).host, time.monotonic()
        delay = self._delay(host, url)
        if not delay:
            self._frontier.sent(host, at=now)
            return
        turn = max(now, self.last(host) + delay, self._free_at.get(host, now))
        # Before it sleeps: whoever comes next is to keep its distance from this turn.
        self._take(host, turn, delay)
        if turn > now:
            await anyio.sleep(turn - now)
            # The loop may have been busy.
            self._take(host, time.monotonic(), delay)

    def _delay(self, host: str, url: str) -> float:
        delay = self._frontier.delay(host)
        if host in self._frontier:
            return delay
        rules = self._robots.known(url)
        return delay if rules is None else max(delay, rules.crawl_delay)

    def _take(self, host: str, turn: float, delay: float) -> None:
        self._frontier.sent(host, at=turn)
        if host in self._frontier:
            return
        if len(self._free_at) >= _REMEMBERED:
            now = time.monotonic()
            self._free_at = {name: at for name, at in self._free_at.items() if at > now}
        self._free_at[host] = max(turn + delay, self._free_at.get(host, turn))
