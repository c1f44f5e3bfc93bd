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

from crawlcw.api.host_limits import HostLimit
from crawlcw.crawl.held_host import HeldHost, Phase, Phases
from crawlcw.crawl.lanes import AHEAD, Lanes
from crawlcw.crawl.throttlings import Throttlings
from crawlcw.engine.leases import HeldLeases
from crawlcw.errors import Reason
from crawlcw.model import hosts, urls
from crawlcw.model.hosts import Host, HostLease, HostPolicy, Origin, RobotsRecord
from crawlcw.model.network import Network
from crawlcw.model.standstill import Rests, failure_text
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import put_off

#: A host is handed on after so many answers or seconds, where others wait.
SLICE_PAGES = 20
SLICE_SECONDS = 30.0
#: This part of a lease is not used: clocks and the network are not exact.
_MARGIN = 0.15
#: A page that was throttled is due again so many turns, and at least so many seconds,
#: after the others: a high priority must not bring it back before one of them.
_TURNS_BEHIND = 2
_SECONDS_BEHIND = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Whose fault the failure of a page was, as far as the frontier can tell."""

    own: bool = False  #: the page's: it costs an attempt
    due: datetime | None = None
    """Else it was not tried: when it is to be, behind the others; None: with its next turn."""


OWN = Fault(own=True)
NOBODYS = Fault()


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
        given_up: dict[str, str],
        network: Network,
        rests: Rests,
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Hold no host yet.

        A host that has had *max_pages* pages is full, and added to *full*, unless
        it is among *unlimited*. *held* are the tasks' leases. *may_share* says whether
        *limit_of* leaves any host without limits. Failures of hosts are counted in
        *failures*, by reason, and *given_up* gets the origins that are given up, each
        with its reason. *network* is told which pages hosts have answered before,
        *rests* which hosts rest and why.
        """
        self.may_share = may_share
        self.seeded = False  #: whether all start URLs are known
        self.lanes = Lanes(half_lease=lease.total_seconds() / 2)
        self.rests = rests
        self._held = held
        self._limit_of = limit_of
        self._policy = policy
        self._usable = lease.total_seconds() * (1 - _MARGIN)
        self._max_pages = max_pages
        self._unlimited = unlimited
        self._full = full
        self._failures = failures
        self._given_up = given_up
        self._network = network
        self._throttlings = Throttlings()
        self._put_off: list[Lease] = []
        self._losing: set[str] = set()
        self._phases = Phases(self.lanes)
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
            self._pace(host, now)
            if host.leaving:
                self._phases.resume(host, now=now)
            self.lanes.extend(name, deadline=asked + self._usable, now=now)
        else:
            host = self._add(self._current(lease.host), lease, now=now, asked=asked)
        state = host.state
        for origin in state.origins.values():
            if origin.witness is not None and not origin.failures:
                self._network.remember(name, origin.witness)
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
        """Return whether the user's limits let several processes ask a host."""
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
        if host.phase is Phase.OPENING:
            self._phases.serve(host, now=now)

    def leave(self, host: HeldHost) -> None:
        """Begin with nothing more of a host: it is to be released when nothing is under way."""
        self._phases.leave(host)

    def look(self, name: str) -> None:
        """Note that a host may have more tasks that are due."""
        if host := self._hosts.get(name):
            host.look = True

    def may_ask(self, name: str, *, now: float) -> bool:
        """Return whether a request to a host may be sent now, as far as its lease goes."""
        return self.lanes.may_ask(name, now=now)

    def delay(self, name: str) -> float:
        """Return the seconds between the starts of two requests to a host."""
        host = self._hosts.get(name)
        return host.delay if host is not None else 0.0

    def sent(self, name: str, *, at: float) -> None:
        """Note when a request to a host was sent: the next one keeps its distance from that."""
        if host := self._hosts.get(name):
            self.lanes.rest(name, until=at + host.delay)

    def answered(
        self,
        name: str,
        *,
        latency: float,
        page: bool,
        now: float,
        scheme: str = "http",
        sent: datetime | None = None,
        witness: str | None = None,
    ) -> None:
        """Note that an origin answered well after *latency* seconds; *page* says with a page.

        *sent* and *witness* are those of `hosts.succeeded`.
        """
        host = self._hosts.get(name)
        if host is None:
            return
        host.answered += 1
        doubted = host.state.origin(scheme).failures
        host.state = hosts.succeeded(
            host.state,
            latency=latency,
            policy=self._policy,
            page=page,
            scheme=scheme,
            sent=sent,
            witness=witness,
        )
        if doubted:
            # What else is learned goes back with the host; this ends a row of failures.
            host.unsaved = True
            self._given_up.pop(f"{scheme}://{name}", None)
        # Before that nobody knows which hosts are the crawl's own.
        if self.seeded and self._is_full(host.state):
            self._full.add(name)
            host.state = replace(host.state, given_up=Reason.HOST_FULL)
            self.leave(host)
        self._pace(host, now)

    def resolved(self, name: str, *, scheme: str) -> None:
        """Note that a host's name has an address."""
        if host := self._hosts.get(name):
            host.state = hosts.resolved(host.state, scheme=scheme)

    def page_failed(self, name: str, *, now: float) -> None:
        """Note that a page failed by itself."""
        if host := self._hosts.get(name):
            host.answered += 1
            host.state = hosts.page_failed(host.state, policy=self._policy)
            self._pace(host, now)

    def page_throttled(
        self,
        task: Task,
        *,
        sent: datetime,
        status: int,
        retry_after: float | None,
        now: float,
    ) -> Fault:
        """Note that a page was answered by 429, or 503 with Retry-After; return whose fault it is.

        The host's, which rests, the first time; after that see `Throttlings.is_own`.
        """
        host = self._hosts.get(task.host)
        scheme = urls.scheme_of(task.url)
        last = self._throttlings.of(task)
        own = host is not None and self._throttlings.is_own(task, host.state, scheme=scheme)
        self._throttlings.note(task, at=self._ledger_now(), own=own)
        if own and host is not None and last is not None:
            host.answered += 1
            if self._throttlings.of_others(host.name, since=last.at):
                # A limit that is often reached has pages come to it twice.
                host.state = hosts.slowed_by_pages(host.state, policy=self._policy)
                self._pace(host, now)
            return OWN
        return self.host_failed(
            task.host,
            Reason.HTTP_STATUS,
            scheme=scheme,
            sent=sent,
            status=status,
            retry_after=retry_after,
            now=now,
        )

    def host_failed(
        self,
        name: str,
        reason: Reason,
        *,
        sent: datetime,
        scheme: str = "http",
        status: int | None = None,
        retry_after: float | None = None,
        now: float,
    ) -> Fault:
        """Note that an origin failed, and no page of it, on a request of the time *sent*.

        Return when the page that found it out is to be tried.
        """
        self._failures[reason] += 1
        host = self._hosts.get(name)
        if host is None:
            return NOBODYS
        moment = self._ledger_now()
        host.state = hosts.host_failed(
            host.state,
            reason,
            now=moment,
            policy=self._policy,
            chance=random.random(),
            scheme=scheme,
            status=status,
            retry_after=retry_after,
            sent=sent,
        )
        origin = host.state.origin(scheme)
        host.unsaved = True
        self._pace(host, now)
        why = failure_text(reason, status=status, retry_after=retry_after)
        if origin.given_up is not None:
            self._lose_origin(host, scheme)
            return NOBODYS
        if origin.not_before is not None and origin.not_before > moment:
            # The other origin goes on, and this one's tasks are not in its way.
            self._put_off_origin(host, scheme, until=origin.not_before)
            self.rests.note(f"{scheme}://{name}", until=origin.not_before, why=why)
            return Fault(due=self._behind(host, origin.not_before))
        until = host.state.not_before or moment
        rest = (until - moment).total_seconds()
        self.rests.note(name, until=until, why=why)
        self.lanes.rest(name, until=now + rest)
        if host.lease is None:
            self._avoided[name] = now + rest
        if host.lease is None or host.state.given_up is not None or rest > AHEAD:
            self.leave(host)
        elif host.phase is Phase.SERVING and self.doubted(host) is not None:
            # What is asked first after the rest is to tell whose fault it is.
            self._phases.rest(host)
        return Fault(due=self._behind(host, until))

    def _behind(self, host: HeldHost, rest: datetime) -> datetime:
        """Return when a page is due that shall come behind the others of its host."""
        turns = max(_SECONDS_BEHIND, _TURNS_BEHIND * host.delay)
        return rest + timedelta(seconds=turns)

    def _lose_origin(self, host: HeldHost, scheme: str) -> None:
        """Ask no more of an origin: what waits for it is to be ignored."""
        reason = host.state.origin(scheme).given_up
        assert reason is not None
        self._given_up[f"{scheme}://{host.name}"] = str(reason)
        self._mark_lost(host, scheme)
        self._put_off_origin(host, scheme, until=self._ledger_now())
        if host.lease is None:
            # Its owner is to find that out by itself.
            self._avoided[host.name] = float("inf")
            self.leave(host)

    def _mark_lost(self, host: HeldHost, scheme: str) -> None:
        host.lost.add(scheme)
        self._losing.add(host.name)

    def _put_off_origin(self, host: HeldHost, scheme: str, *, until: datetime) -> None:
        """Let the waiting tasks of one origin go back to the ledger until a time."""
        prefix = f"{scheme}://"
        waiting = self.lanes.withdraw(host.name, lambda lease: lease.task.url.startswith(prefix))
        self._put_off += [put_off(lease, until=until) for lease in waiting]

    def put_off(self) -> list[Lease]:
        """Return the leases to be released until later, and forget them."""
        leases, self._put_off = self._put_off, []
        return leases

    def origin_of(self, task: Task) -> Origin:
        """Return what is known of the origin of a task whose host is held."""
        return self._hosts[task.host].state.origin(urls.scheme_of(task.url))

    def lost_origin(self, task: Task) -> bool:
        """Return whether the origin of a task was given up; its host is told to ignore the rest."""
        host = self._hosts[task.host]
        scheme = urls.scheme_of(task.url)
        if host.state.origin(scheme).given_up is None:
            return False
        self._mark_lost(host, scheme)
        return True

    def resting_until(self, task: Task) -> datetime | None:
        """Return until when the origin of a task rests by itself, None where it does not."""
        until = self.origin_of(task).not_before
        return until if until is not None and until > self._ledger_now() else None

    def doubted(self, host: HeldHost) -> str | None:
        """Return the page to be asked before any other of a host, if one is to be."""
        return hosts.doubted(host.state, now=self._ledger_now())

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

    def unproven(self, *, now: float) -> list[HeldHost]:
        """Return the hosts that are served again only when a page of theirs has been asked.

        Those that are in doubt no more are served from here on: they have answered,
        or the origin that was in doubt was given up.
        """
        found = [self._hosts[name] for name in self._phases.resting]
        doubted = []
        for host in found:
            if host.busy:
                continue
            if self.doubted(host) is not None:
                doubted.append(host)
            else:
                self._phases.serve(host, now=now)
        return doubted

    def losing(self) -> list[HeldHost]:
        """Return the hosts whose waiting tasks are to be ignored, and nobody does so yet."""
        losing = [self._hosts[name] for name in self._losing if name in self._hosts]
        self._losing = {host.name for host in losing if host.busy and host.lost}
        return [host for host in losing if host.lost and not host.busy and host.lease is not None]

    def leaving(self) -> list[Lease]:
        """Return the tasks of hosts that are being left which no fetcher has begun with."""
        return [
            lease
            for host in self._hosts.values()
            if host.leaving
            for lease in self.lanes.clear(host.name)
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
        self._phases.forget(host)
        moment = self._ledger_now()
        given_up = host.state.given_up is not None
        not_before = moment + timedelta(seconds=rest) if rest > 0 and not given_up else None
        # Where there is more to do the ledger need not look for it.
        more = (host.look or host.crowded) and not given_up
        ready_at = (not_before or moment) if more else None
        return replace(host.state, not_before=not_before, ready_at=ready_at)
