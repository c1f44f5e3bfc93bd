"""The part of the frontier that one process holds: its hosts and their lanes.

Synchronous and without I/O: the fetchers tell its `evidence` how hosts answered, the
coordinator leases, saves and releases as this says. A host that may be asked
without limits, also of its pages, is shared: its owner looks after it, and others
ask it as well.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from crawlcw.api.host_limits import HostLimit
from crawlcw.crawl.held_host import HeldHost, Phase, Phases, pace
from crawlcw.crawl.host_evidence import HostEvidence
from crawlcw.crawl.lanes import AHEAD, Lanes
from crawlcw.crawl.page_limit import PageLimit
from crawlcw.engine.leases import HeldLeases
from crawlcw.errors import Reason
from crawlcw.model.hosts import Host, HostLease, HostPolicy, RobotsRecord
from crawlcw.model.network import Network
from crawlcw.model.standstill import Rests
from crawlcw.model.task import Lease

#: A host is handed on after so many answers or seconds, where others wait.
SLICE_PAGES = 20
SLICE_SECONDS = 30.0
#: This part of a lease is not used: clocks and the network are not exact.
_MARGIN = 0.15


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
        page_limit: PageLimit,
        failures: Counter[str],
        given_up: dict[str, str],
        network: Network,
        rests: Rests,
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Hold no host yet.

        *held* are the tasks' leases. *may_share* says whether *limit_of* leaves any host
        without limits. *network* is told which pages hosts have answered before. For
        *failures*, *given_up* and *rests* see `HostEvidence`.
        """
        self.may_share = may_share
        self.page_limit = page_limit
        self.lanes = Lanes(half_lease=lease.total_seconds() / 2)
        self.phases = Phases(self.lanes)
        self.rests = rests
        self._held = held
        self._limit_of = limit_of
        self._usable = lease.total_seconds() * (1 - _MARGIN)
        self._network = network
        self._ledger_now = ledger_now
        self._hosts: dict[str, HeldHost] = {}
        #: Hosts that are shared and failed us: until when we leave them alone.
        self._avoided: dict[str, float] = {}
        #: Told how requests end.
        self.evidence = HostEvidence(
            self._hosts,
            self.lanes,
            self.phases,
            policy=policy,
            page_limit=page_limit,
            avoided=self._avoided,
            failures=failures,
            given_up=given_up,
            rests=rests,
            ledger_now=ledger_now,
        )

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
        """Return whether the host is leased to this process."""
        host = self._hosts.get(name)
        return host is not None and host.lease is not None

    def begin(self, lease: HostLease, *, now: float, asked: float) -> HeldHost:
        """Take charge of a host that was leased; the ledger was asked for it at *asked*."""
        name = lease.host.name
        host = self._hosts.get(name)
        if host is not None:
            # Shared so far, or lost and leased again before the last request had ended.
            host.lease, host.state = lease, self._current(lease.host)
            host.look, host.answered, host.since = True, 0, now
            pace(self.lanes, host, now=now)
            if host.leaving:
                self.phases.resume(host, now=now)
            self.lanes.extend(name, deadline=asked + self._usable, now=now)
        else:
            host = self._add(self._current(lease.host), lease, now=now, asked=asked)
        state = host.state
        # The owner before may have been killed before the waiting tasks were ignored.
        host.lost |= {scheme for scheme, each in state.origins.items() if each.given_up}
        if host.lost:
            self.evidence.to_lose.add(name)
        for origin in state.origins.values():
            if origin.witness is not None and not origin.failures:
                self._network.remember(name, origin.witness)
        if state.not_before is not None:
            self.lanes.rest(
                name, until=now + (state.not_before - self._ledger_now()).total_seconds()
            )
        if not lease.clean:
            # When the owner before has made its last request, nobody knows.
            self.lanes.rest(name, until=now + host.delay, sent=now)
        rests = self.lanes[name].next_start - now > AHEAD
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
        if state.given_up is Reason.HOST_FULL and not self.page_limit.is_reached(state):
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
        pace(self.lanes, host, now=now)
        if asked:
            self.lanes.rest(name, until=now + host.delay, sent=now)
        elif host.lease is not None and not host.lease.clean:
            # As in `begin`, where it was not known what its robots.txt asks for.
            self.lanes.rest(name, until=host.since + host.delay, sent=host.since)
        if host.phase is Phase.OPENING:
            self.phases.serve(host, now=now)

    def look(self, name: str) -> None:
        """Note that a host may have more tasks that are due."""
        if host := self._hosts.get(name):
            host.look = True

    def delay(self, name: str) -> float:
        """Return the seconds between the starts of two requests to a host."""
        host = self._hosts.get(name)
        return host.delay if host is not None else self._limit_of(name).delay

    def sent(self, name: str, *, at: float) -> None:
        """Note when a request to a host was sent: the next one keeps its distance from that."""
        if host := self._hosts.get(name):
            self.lanes.rest(name, until=at + host.delay, sent=at)

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
            self.phases.leave(host)
            self.lanes.extend(name, deadline=float("-inf"), now=now)

    def leaving(self) -> list[Lease]:
        """Return the tasks of hosts that are being left which no fetcher has begun with."""
        return [
            lease
            for host in self._hosts.values()
            if host.leaving
            for lease in self.lanes.withdraw(host=host.name)
        ]

    def idle(self) -> list[HeldHost]:
        """Return the hosts with nothing under way and nothing left to look at."""
        return [
            host
            for host in self._hosts.values()
            # Who visits a host looks for its tasks among all others.
            if (host.leaving or host.lease is None or not host.look)
            and not host.busy
            and not (host.lost and host.lease is not None)
            and not self._held.of_host(host.name)
            # A task whose lease is lost is not held, and may be asked for all the same.
            and not self.lanes[host.name].active
        ]

    def part(self, host: HeldHost, *, now: float) -> Host:
        """Forget a host; return the state that the ledger is to have of it."""
        rest = self.lanes[host.name].next_start - now
        self.lanes.end(host.name)
        del self._hosts[host.name]
        self.phases.forget(host)
        moment = self._ledger_now()
        given_up = host.state.given_up is not None
        not_before = moment + timedelta(seconds=rest) if rest > 0 and not given_up else None
        # Where there is more to do the ledger need not look for it.
        more = host.look and not given_up
        ready_at = (not_before or moment) if more else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)
