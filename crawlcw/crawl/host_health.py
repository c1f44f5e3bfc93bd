"""Updates of the held hosts' breakers as their requests end, and the effects on the process.

Only what happens at an origin before any redirect says anything of that origin; delays and rests
belong to the host. Synchronous and without I/O, as the frontier it is a part of.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from datetime import datetime, timedelta

from crawlcw.crawl.held_host import HeldHost, PageLimit, Phase, Phases, pace
from crawlcw.crawl.host_queues import AHEAD, HostQueues
from crawlcw.engine.stats import Stats
from crawlcw.errors import Defer, Reason
from crawlcw.model import health, urls
from crawlcw.model.health import FIRST_PAGES, Cause, Marks, Origin
from crawlcw.model.hosts import HostPolicy
from crawlcw.model.standstill import Rests, failure_text
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import put_off

#: A page that was refused is due again so many turns, and at least so many seconds,
#: after the others: a high priority must not bring it back before one of them.
_TURNS_BEHIND = 2
_SECONDS_BEHIND = 1.0


def deferral(cause: Cause, until: datetime | None = None) -> Defer:
    """Return the deferral of a page that is not the *cause*; None: to its next turn."""
    return Defer(f"the cause is not the page but the {cause}", until=until)


class HostHealth:
    """Tells the breakers of the held hosts how requests end."""

    def __init__(
        self,
        held_hosts: MutableMapping[str, HeldHost],
        queues: HostQueues,
        phases: Phases,
        *,
        policy: HostPolicy,
        page_limit: PageLimit,
        stats: Stats,
        rests: Rests,
        ledger_now: Callable[[], datetime],
    ) -> None:
        """Share the first three with the frontier, which adds and forgets hosts.

        In *stats* failures of hosts are counted, and origins that are given up. *rests* is told
        which hosts rest and why.
        """
        #: Hosts that are shared and failed us: until when we leave them alone.
        self.avoided: dict[str, float] = {}
        self._hosts = held_hosts
        self._queues = queues
        self._phases = phases
        self._policy = policy
        self.calls = policy.calls  #: those tasks of a lost origin are settled one by one
        self._page_limit = page_limit
        self._failures = stats.host_failures
        self._stats = stats
        self._rests = rests
        self._ledger_now = ledger_now
        self._marks: Marks = OrderedDict()
        self._put_off: list[Lease] = []
        self.to_lose: set[str] = set()  #: hosts with `HeldHost.lost`

    def answered(
        self, name: str, *, latency: float, now: float, sent: datetime, scheme: str = "http"
    ) -> None:
        """Note that an origin answered well after *latency* seconds; *sent* is the ledger's time.

        A page that is slow while the host answers others in good time says nothing of the host.
        """
        host = self._hosts.get(name)
        if host is None:
            return
        host.answered += 1
        host.slow_start.answered(latency=latency)
        overtaken = host.quick_at is not None and host.quick_at > sent
        if latency <= health.SLOW_ANSWER and not overtaken:
            host.quick_at = sent
        closed = host.state.origin_answered(
            scheme,
            latency=0.0 if overtaken and latency > health.SLOW_ANSWER else latency,
            sent=sent,
            marks=self._marks,
            policy=self._policy,
        )
        if closed:
            # What else is learned goes back with the host; this ends a row of failures.
            host.unsaved = True
            self._stats.hosts_given_up.pop(f"{scheme}://{name}", None)
        self._leave_if_full(host)
        pace(self._queues, host, now=now)

    def finished(
        self,
        name: str,
        *,
        now: float,
        scheme: str = "http",
        good_url: str | None = None,
        size: int = 0,
    ) -> None:
        """Note that a page of *size* bytes which an origin answered is finished.

        *good_url* is its URL, where asking for it again shows whether the origin answers.
        """
        host = self._hosts.get(name)
        if host is None:
            return
        host.state.finished += 1
        host.state.origin(scheme).learned(good_url, size=size)
        self._leave_if_full(host)
        pace(self._queues, host, now=now)

    def _leave_if_full(self, host: HeldHost) -> None:
        """Ask no more of a host that has had its pages."""
        if self._page_limit.seeded and self._page_limit.is_reached(host.state):
            self._page_limit.full.add(host.name)
            host.state.given_up = Reason.HOST_FULL
            self._phases.leave(host)

    def resolved(self, name: str, *, scheme: str) -> None:
        """Note that a host's name has an address."""
        if host := self._hosts.get(name):
            host.state.origin(scheme).resolved = True

    def page_failed(self, name: str, *, now: float) -> None:
        """Note that a page failed by itself."""
        if host := self._hosts.get(name):
            host.answered += 1
            host.state.page_failed(self._policy)
            pace(self._queues, host, now=now)

    def page_refused(
        self, task: Task, *, sent: datetime, status: int, retry_after: float | None, now: float
    ) -> Defer | None:
        """Note that a page was answered by 429, or 503 with Retry-After; None: it is the cause.

        See `Origin.refused`. Until a known good page was asked the page is deferred, and nothing
        counts.
        """
        host, scheme = self._hosts.get(task.host), urls.scheme_of(task.url)
        moment = self._ledger_now()
        if host is not None:
            origin = host.state.origin(scheme)
            cause = origin.refused(
                self._marks,
                task.id,
                url=task.url,
                sent=sent.timestamp(),
                now=moment.timestamp(),
                retry_after=retry_after,
                # It may still be RESTING for a probe that has just been answered.
                may_probe=host.lease is not None and host.phase in (Phase.SERVING, Phase.RESTING),
                is_new=host.state.finished < FIRST_PAGES,
            )
            if cause is Cause.PAGE:
                host.answered += 1
                host.state.page_refused(self._policy)
                pace(self._queues, host, now=now)
                return None
            if cause is None:
                rest = self._policy.rest(1, retry_after=retry_after)
                if (probe := origin.probe) is not None and probe.rested:
                    self._queues.rest(host.name, until=now + rest)
                self._phases.rest(host)
                due = self._behind(host, moment + timedelta(seconds=rest))
                return deferral(Cause.ORIGIN, due)
        return self.host_failed(
            task.host,
            Reason.HTTP_STATUS,
            scheme=scheme,
            sent=sent,
            status=status,
            retry_after=retry_after,
            now=now,
            moment=moment,
        )

    def is_half_open(self, name: str) -> bool:
        """Return whether a known good page is to tell the cause of a refusal."""
        host = self._hosts.get(name)
        return host is not None and any(each.probe for each in host.state.origins.values())

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
        moment: datetime | None = None,
    ) -> Defer:
        """Note a fault of an origin, and of no page of it, on a request of the time *sent*.

        *in_haste* says that nothing else of the crawl waits, see `Policy.in_haste`, and *moment*
        is now by the ledger's clock. Return the deferral of the page that found it out.
        """
        self._failures[reason] += 1
        host = self._hosts.get(name)
        if host is None:
            return deferral(Cause.ORIGIN)
        host.slow_start.failed()
        moment, rested_until = moment or self._ledger_now(), host.state.not_before
        host.state.origin_failed(
            scheme,
            reason,
            now=moment,
            sent=sent,
            policy=self._policy.in_haste() if in_haste else self._policy,
            chance=random.random(),
            status=status,
            retry_after=retry_after,
        )
        host.unsaved = True
        pace(self._queues, host, now=now)
        why = failure_text(reason, status=status, retry_after=retry_after)
        if host.state.origin(scheme).given_up is not None:
            self._lose_origin(host, scheme, rested_until=rested_until)
            return deferral(Cause.ORIGIN)
        alone_until = host.state.resting_until(scheme, now=moment)
        if alone_until is not None:
            # The other origin goes on, and this one's tasks are not in its way.
            self._put_off_origin(host, scheme, until=alone_until)
            self._rests.note(f"{scheme}://{name}", until=alone_until, why=why)
            return deferral(Cause.ORIGIN, self._behind(host, alone_until))
        until = host.state.not_before or moment
        self._rests.note(name, until=until, why=why)
        self._rest(host, (until - moment).total_seconds(), now=now)
        return deferral(Cause.ORIGIN, self._behind(host, until))

    def _rest(self, host: HeldHost, rest: float, *, now: float) -> None:
        """Ask nothing of a host for *rest* seconds, and give it back if that is long."""
        self._queues.rest(host.name, until=now + rest)
        if host.lease is None:
            self.avoided[host.name] = now + rest
        if host.lease is None or host.state.given_up is not None or rest > AHEAD:
            self._phases.leave(host)
        elif host.phase is Phase.SERVING and self.probe_url(host) is not None:
            # After the rest that page is asked before any other.
            self._phases.rest(host)

    def _behind(self, host: HeldHost, rest: datetime) -> datetime:
        """Return when a page is due that shall come behind the others of its host."""
        turns = max(_SECONDS_BEHIND, _TURNS_BEHIND * host.delay)
        return rest + timedelta(seconds=turns)

    def _lose_origin(self, host: HeldHost, scheme: str, *, rested_until: datetime | None) -> None:
        """Ask no more of an origin: what waits for it is to be ignored."""
        # What is left to do asks nothing, whichever process has the host next.
        host.state.not_before = rested_until
        reason = host.state.origin(scheme).given_up
        assert reason is not None
        self._stats.host_given_up(f"{scheme}://{host.name}", str(reason))
        self._mark_lost(host, scheme)
        self._put_off_origin(host, scheme, until=self._ledger_now())
        if host.lease is None:
            # Its owner is to find that out by itself.
            self.avoided[host.name] = float("inf")
            self._phases.leave(host)

    def _mark_lost(self, host: HeldHost, scheme: str) -> None:
        host.lost.add(scheme)
        self.to_lose.add(host.name)

    def _put_off_origin(self, host: HeldHost, scheme: str, *, until: datetime) -> None:
        """Let the waiting tasks of one origin go back to the ledger until a time."""
        prefix = f"{scheme}://"
        waiting = self._queues.withdraw(
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

    def may_ask(self, task: Task) -> bool:
        """Return whether the origin of a task neither rests by itself nor was given up."""
        origin = self.origin_of(task)
        if origin.given_up is None and origin.until is None:  # what is most often so
            return True
        return not (self.lost_origin(task) or self.resting_until(task))

    def resting_until(self, task: Task) -> datetime | None:
        """Return until when the origin of a task rests by itself, None where it does not."""
        origin = self.origin_of(task)
        if origin.until is None:  # what is most often so
            return None
        return self._hosts[task.host].state.resting_until(
            urls.scheme_of(task.url), now=self._ledger_now()
        )

    def probe_url(self, host: HeldHost) -> str | None:
        """Return the page to be asked before any other of a host, if one is to be."""
        return host.state.probe_url(now=self._ledger_now())

    def half_open(self, *, now: float) -> list[HeldHost]:
        """Return the hosts of which a known good page is to be asked before any other.

        Those that have answered meanwhile, or whose origin was given up, are served from here on.
        """
        found = [self._hosts[name] for name in self._phases.resting]
        half_open = []
        for host in found:
            if host.busy:
                continue
            if self.probe_url(host) is not None:
                half_open.append(host)
            else:
                self._phases.serve(host, now=now)
        return half_open

    def losing(self) -> list[HeldHost]:
        """Return the hosts whose waiting tasks are to be ignored and are not being ignored yet."""
        losing = [self._hosts[name] for name in self.to_lose if name in self._hosts]
        self.to_lose = {host.name for host in losing if host.busy and host.lost}
        return [host for host in losing if host.lost and not host.busy and host.lease is not None]
