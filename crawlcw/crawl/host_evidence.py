"""What the answers and failures of held hosts show, and what becomes of the hosts for it.

Evidence about an origin is what happens at it before any redirect; delays and rests
belong to the host. Synchronous and without I/O, as the frontier it is a part of.
"""

import random
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawlcw.crawl.held_host import HeldHost, Phase, Phases, pace
from crawlcw.crawl.lanes import AHEAD, Lanes
from crawlcw.crawl.page_limit import PageLimit
from crawlcw.crawl.throttlings import Throttlings
from crawlcw.errors import Reason
from crawlcw.model import hosts, urls
from crawlcw.model.hosts import HostPolicy, Origin
from crawlcw.model.standstill import Rests, failure_text
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import put_off

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


class HostEvidence:
    """Judges the held hosts by how their requests end."""

    def __init__(
        self,
        held_hosts: MutableMapping[str, HeldHost],
        lanes: Lanes,
        phases: Phases,
        *,
        policy: HostPolicy,
        page_limit: PageLimit,
        avoided: MutableMapping[str, float],
        failures: Counter[str],
        given_up: dict[str, str],
        rests: Rests,
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Share the first three with the frontier, which adds and forgets hosts.

        *avoided* gets until when hosts of others are left alone. Failures of hosts are
        counted in *failures*, by reason, and *given_up* gets the origins that are given
        up, each with its reason. *rests* is told which hosts rest and why.
        """
        self._hosts = held_hosts
        self._lanes = lanes
        self._phases = phases
        self._policy = policy
        self._page_limit = page_limit
        self._avoided = avoided
        self._failures = failures
        self._given_up = given_up
        self._rests = rests
        self._ledger_now = ledger_now
        self._throttlings = Throttlings()
        self._put_off: list[Lease] = []
        self._losing: set[str] = set()

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
        if self._page_limit.seeded and self._page_limit.is_reached(host.state):
            self._page_limit.full.add(name)
            host.state = replace(host.state, given_up=Reason.HOST_FULL)
            self._phases.leave(host)
        pace(self._lanes, host, now=now)

    def resolved(self, name: str, *, scheme: str) -> None:
        """Note that a host's name has an address."""
        if host := self._hosts.get(name):
            host.state = hosts.resolved(host.state, scheme=scheme)

    def page_failed(self, name: str, *, now: float) -> None:
        """Note that a page failed by itself."""
        if host := self._hosts.get(name):
            host.answered += 1
            host.state = hosts.page_failed(host.state, policy=self._policy)
            pace(self._lanes, host, now=now)

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
                pace(self._lanes, host, now=now)
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
        pace(self._lanes, host, now=now)
        why = failure_text(reason, status=status, retry_after=retry_after)
        if origin.given_up is not None:
            self._lose_origin(host, scheme)
            return NOBODYS
        if origin.not_before is not None and origin.not_before > moment:
            # The other origin goes on, and this one's tasks are not in its way.
            self._put_off_origin(host, scheme, until=origin.not_before)
            self._rests.note(f"{scheme}://{name}", until=origin.not_before, why=why)
            return Fault(due=self._behind(host, origin.not_before))
        until = host.state.not_before or moment
        rest = (until - moment).total_seconds()
        self._rests.note(name, until=until, why=why)
        self._lanes.rest(name, until=now + rest)
        if host.lease is None:
            self._avoided[name] = now + rest
        if host.lease is None or host.state.given_up is not None or rest > AHEAD:
            self._phases.leave(host)
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
            self._phases.leave(host)

    def _mark_lost(self, host: HeldHost, scheme: str) -> None:
        host.lost.add(scheme)
        self._losing.add(host.name)

    def _put_off_origin(self, host: HeldHost, scheme: str, *, until: datetime) -> None:
        """Let the waiting tasks of one origin go back to the ledger until a time."""
        prefix = f"{scheme}://"
        waiting = self._lanes.withdraw(
            host=host.name, unwanted=lambda lease: lease.task.url.startswith(prefix)
        )
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
