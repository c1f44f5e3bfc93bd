"""What the answers and failures of held hosts show, and what becomes of the hosts for it.

Evidence about an origin is what happens at it before any redirect; delays and rests
belong to the host. Synchronous and without I/O, as the frontier it is a part of.
"""

import random
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawlcw.crawl.held_host import HeldHost, PageLimit, Phase, Phases, pace
from crawlcw.crawl.host_queues import AHEAD, HostQueues
from crawlcw.crawl.slow_start import FIRST_PAGES
from crawlcw.crawl.throttlings import Doubt, Throttling, Throttlings
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
#: Seconds. A new host that asks for no longer rest has it before its witness is asked: if it
#: limits its requests, it has just refused several, and would refuse that one as well.
_SHORT_REST = 5.0


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
        lanes: HostQueues,
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
        self.calls = policy.calls  #: those tasks of a lost origin are settled one by one
        self._page_limit = page_limit
        self._avoided = avoided
        self._failures = failures
        self._given_up = given_up
        self._rests = rests
        self._ledger_now = ledger_now
        self._throttlings = Throttlings()
        self._put_off: list[Lease] = []
        self.to_lose: set[str] = set()  #: hosts with `HeldHost.lost`

    def answered(
        self,
        name: str,
        *,
        latency: float,
        now: float,
        scheme: str = "http",
        sent: datetime | None = None,
    ) -> None:
        """Note that an origin answered well after *latency* seconds.

        *sent* is that of `hosts.succeeded`. A page that is slow while the host answers
        others in good time says nothing of the host.
        """
        host = self._hosts.get(name)
        if host is None:
            return
        host.answered += 1
        host.slow_start.answered(latency=latency)
        self._clear(host, scheme, sent=sent)
        if latency > hosts.SLOW_ANSWER and _is_overtaken(host, sent):
            latency = 0.0
        elif latency <= hosts.SLOW_ANSWER and sent is not None and not _is_overtaken(host, sent):
            host.quick_at = sent
        doubted = host.state.origin(scheme).failures
        host.state = hosts.succeeded(
            host.state, latency=latency, policy=self._policy, scheme=scheme, sent=sent
        )
        if doubted:
            # What else is learned goes back with the host; this ends a row of failures.
            host.unsaved = True
            self._given_up.pop(f"{scheme}://{name}", None)
        self._leave_if_full(host)
        pace(self._lanes, host, now=now)

    def finished(
        self,
        name: str,
        *,
        now: float,
        scheme: str = "http",
        witness: str | None = None,
        size: int = 0,
    ) -> None:
        """Note that a page of *size* bytes which an origin answered is finished.

        *witness* is that of `hosts.page_finished`.
        """
        host = self._hosts.get(name)
        if host is None:
            return
        host.state = hosts.page_finished(host.state, scheme=scheme, witness=witness, size=size)
        self._leave_if_full(host)
        pace(self._lanes, host, now=now)

    def _leave_if_full(self, host: HeldHost) -> None:
        """Ask no more of a host that has had its pages."""
        if self._page_limit.seeded and self._page_limit.is_reached(host.state):
            self._page_limit.full.add(host.name)
            host.state = replace(host.state, given_up=Reason.HOST_FULL)
            self._phases.leave(host)

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

        The first time it is the host's, which rests; after that see `Throttlings.is_own`.
        But where that is open, it is nobody's: a page that the host has answered before is
        asked first.
        """
        host = self._hosts.get(task.host)
        scheme = urls.scheme_of(task.url)
        last = self._throttlings.of(task)
        own = host is not None and self._throttlings.is_own(task, host.state, scheme=scheme)
        asks = host is not None and self._is_open(host, task, scheme, last=last if own else None)
        self._throttlings.note(task, at=self._ledger_now(), own=own and not asks)
        if host is not None and asks:
            return self._begin_doubt(
                host, task, scheme, first=last is None, sent=sent, retry_after=retry_after, now=now
            )
        if own and host is not None and last is not None:
            host.answered += 1
            if host.doubt is None and self._throttlings.of_others(host.name, since=last.at):
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

    def _is_open(self, host: HeldHost, task: Task, scheme: str, *, last: Throttling | None) -> bool:
        """Return whether it is open who is to blame for a page's throttling, and can be asked.

        *last* is its last one, where the page seems to be to blame.
        """
        if last is not None and not self._may_be_a_limit(host, last):
            return False
        if host.doubt is not None:
            return host.doubt.scheme == scheme  # they were under way together
        origin = host.state.origin(scheme)
        well = not (host.state.failures or origin.failures)
        # It may still be RESTING for a doubt that has just ended.
        ours = host.lease is not None and host.phase in (Phase.SERVING, Phase.RESTING)
        return (well or last is not None) and ours and origin.witness not in (None, task.url)

    @staticmethod
    def _may_be_a_limit(host: HeldHost, last: Throttling) -> bool:
        """Return whether a page that seems to be to blame may have come too early to its host.

        Where a host's delay is too short for its limit, one page after the other comes
        too early: all would pay, and the host would never be asked more slowly. Another
        page that is asked behind that delay tells.
        """
        return host.state.delay > 0 and not last.proven

    def _begin_doubt(
        self,
        host: HeldHost,
        task: Task,
        scheme: str,
        *,
        first: bool,
        sent: datetime,
        retry_after: float | None,
        now: float,
    ) -> Fault:
        """Ask no more of a host before its witness; return when the throttled page is due."""
        moment = self._ledger_now()
        rest = hosts.rest_after(1, retry_after=retry_after, policy=self._policy)
        doubt = host.doubt
        if doubt is None:
            new = host.state.finished < FIRST_PAGES and not host.cleared
            # Later, whether a delay is too short is seen behind that delay alone.
            rests = first and (new or host.state.delay > 0)
            rested = rests and bool(retry_after) and rest.total_seconds() <= _SHORT_REST
            good_at = host.state.origin(scheme).good_at
            doubt = Doubt(
                scheme=scheme,
                sent=sent,
                since=moment,
                pages=(),
                retry_after=None,
                rested=rested,
                first=first,
                delayed=host.state.delay > 0,
                mixed=good_at is not None and good_at > sent,
            )
            if rested:
                self._lanes.rest(host.name, until=now + rest.total_seconds())
        host.doubt = doubt.joined(task, retry_after=retry_after)
        self._phases.rest(host)
        return Fault(due=self._behind(host, moment + rest))

    def is_in_doubt(self, name: str) -> bool:
        """Return whether a page of a host is to tell first whose fault a throttling was."""
        host = self._hosts.get(name)
        return host is not None and host.doubt is not None

    def _clear(self, host: HeldHost, scheme: str, *, sent: datetime | None) -> None:
        """Doubt a host no longer where it has answered what was *sent* after that began."""
        doubt = host.doubt
        if doubt is None or doubt.scheme != scheme or sent is None:
            return
        if sent < doubt.since:
            host.doubt = replace(doubt, mixed=doubt.mixed or sent > doubt.sent)
        else:
            host.doubt = None
            host.cleared = True
            if doubt.stays_open:
                host.state = hosts.slowed_by_pages(host.state, policy=self._policy)
            else:
                self._throttlings.excuse_host(doubt.pages, proven=doubt.delayed)

    def host_failed(
        self,
        name: str,
        reason: Reason,
        *,
        sent: datetime,
        scheme: str = "http",
        status: int | None = None,
        retry_after: float | None = None,
        in_haste: bool = False,
        now: float,
    ) -> Fault:
        """Note that an origin failed, and no page of it, on a request of the time *sent*.

        *in_haste* says that nothing else of the crawl waits, see `HostPolicy.in_haste`.
        Return when the page that found it out is to be tried.
        """
        self._failures[reason] += 1
        host = self._hosts.get(name)
        if host is None:
            return NOBODYS
        host.slow_start.failed()
        if (doubt := host.doubt) is not None and doubt.scheme == scheme:
            host.doubt = None
            # The pages that were throttled before have asked for it as well.
            retry_after = max(retry_after or 0.0, doubt.retry_after or 0.0) or None
            if doubt.rested and reason is Reason.HTTP_STATUS:
                # It was not enough: they were the first failure, and this is the second one.
                host.state = hosts.host_failed(
                    host.state,
                    reason,
                    now=doubt.since,
                    policy=self._policy,
                    chance=0.0,
                    scheme=scheme,
                    status=status,
                    retry_after=doubt.retry_after,
                )
        moment, rested_until = self._ledger_now(), host.state.not_before
        host.state = hosts.host_failed(
            host.state,
            reason,
            now=moment,
            policy=self._policy.in_haste() if in_haste else self._policy,
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
            self._lose_origin(host, scheme, rested_until=rested_until)
            return NOBODYS
        if origin.not_before is not None and origin.not_before > moment:
            # The other origin goes on, and this one's tasks are not in its way.
            self._put_off_origin(host, scheme, until=origin.not_before)
            self._rests.note(f"{scheme}://{name}", until=origin.not_before, why=why)
            return Fault(due=self._behind(host, origin.not_before))
        until = host.state.not_before or moment
        self._rests.note(name, until=until, why=why)
        self._rest(host, (until - moment).total_seconds(), now=now)
        return Fault(due=self._behind(host, until))

    def is_last(self, name: str, reason: Reason, *, scheme: str, sent: datetime) -> bool:
        """Return whether `host_failed` would give the origin up."""
        host = self._hosts.get(name)
        return host is not None and hosts.is_last_failure(
            host.state,
            reason,
            now=self._ledger_now(),
            policy=self._policy,
            scheme=scheme,
            sent=sent,
        )

    def _rest(self, host: HeldHost, rest: float, *, now: float) -> None:
        """Ask nothing of a host for *rest* seconds, and give it back if that is long."""
        self._lanes.rest(host.name, until=now + rest)
        if host.lease is None:
            self._avoided[host.name] = now + rest
        if host.lease is None or host.state.given_up is not None or rest > AHEAD:
            self._phases.leave(host)
        elif host.phase is Phase.SERVING and self.doubted(host) is not None:
            # What is asked first after the rest is to tell whose fault it is.
            self._phases.rest(host)

    def _behind(self, host: HeldHost, rest: datetime) -> datetime:
        """Return when a page is due that shall come behind the others of its host."""
        turns = max(_SECONDS_BEHIND, _TURNS_BEHIND * host.delay)
        return rest + timedelta(seconds=turns)

    def _lose_origin(self, host: HeldHost, scheme: str, *, rested_until: datetime | None) -> None:
        """Ask no more of an origin: what waits for it is to be ignored."""
        # What is left to do asks nothing, whichever process has the host next.
        host.state = replace(host.state, not_before=rested_until)
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
        self.to_lose.add(host.name)

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

    def lost_origin(self, task: Task) -> Reason | None:
        """Return why the origin of a task was given up, None where it was not.

        Where the task is ignored with all others of its origin, its host is told to do so.
        """
        reason = self.origin_of(task).given_up
        if reason is not None and not self.calls.include(task.errback):
            self._mark_lost(self._hosts[task.host], urls.scheme_of(task.url))
        return reason

    def resting_until(self, task: Task) -> datetime | None:
        """Return until when the origin of a task rests by itself, None where it does not."""
        until = self.origin_of(task).not_before
        return until if until is not None and until > self._ledger_now() else None

    def doubted(self, host: HeldHost) -> str | None:
        """Return the page to be asked before any other of a host, if one is to be."""
        if host.doubt is not None:
            return host.state.origin(host.doubt.scheme).witness
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
        losing = [self._hosts[name] for name in self.to_lose if name in self._hosts]
        self.to_lose = {host.name for host in losing if host.busy and host.lost}
        return [host for host in losing if host.lost and not host.busy and host.lease is not None]


def _is_overtaken(host: HeldHost, sent: datetime | None) -> bool:
    """Return whether a request that was sent later than *sent* was answered in good time."""
    return sent is not None and host.quick_at is not None and host.quick_at > sent
