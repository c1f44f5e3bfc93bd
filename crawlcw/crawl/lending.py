"""Slots of a host that its owner lends to idle workers, and the work of a borrower.

    owner      lends ──> renews while the borrower beats ──> ends it ──> counts it until returned
    borrower          idle ──> asks and reports ──> stops at once ──> returns it with its last slot

An owner lends slots of a host only while its own event loop is late or all its fetchers are busy,
because otherwise a second process gains nothing. Only a healthy host without a delay is lent. The
first failure at any process ends all loans of the host: the borrower reports the failure and stops,
and only the owner's circuit breaker decides about a rest. So limits and rests hold over all
processes.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

import anyio

from crawlcw.crawl.causes import Causes
from crawlcw.crawl.hosts import HeldHost, Phase
from crawlcw.crawl.robots import Robots
from crawlcw.engine.session import WorkerSession
from crawlcw.model.hosts import FIRST_PAGES, Host
from crawlcw.model.loans import Loan, LoanReport
from crawlcw.model.rates import Worker
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Length of a loan. It is renewed after a third of it. A dead borrower's slots are free at its end.
_LOAN = timedelta(seconds=9)
#: Seconds between two polls of a process that lends or borrows, of an idle one, and of others.
_POLL, _IDLE_POLL, _PAUSE = 0.1, 0.25, 1.0
#: Seconds between two heartbeats of a borrower. It counts as gone after this number of missed ones.
_BEAT, _MISSED_BEATS = 1.0, 3
#: A host with only this number of tasks is not lent, because its owner finishes them sooner.
_FEW = 8
#: Seconds without a task after which a loan is returned.
_UNUSED = 1.0
#: An event loop is overloaded if its mean lag is this number of seconds, or if it computes for this
#: share of the time.
_LATE, _BUSY = 0.02, 0.6


class Lending:
    """The loans of one process: those that it gives as an owner, and its own loan as a borrower."""

    def __init__(
        self,
        session: WorkerSession,
        causes: Causes,
        robots: Robots,
        *,
        has_free_fetchers: Callable[[], bool],
    ) -> None:
        """Lend and borrow for the process of *session*."""
        self._session = session
        self._workers, self._hosts = session.ledger.workers, session.ledger.hosts
        self._now = session.ledger.now
        self._frontier = causes.frontier
        self._clock = causes.frontier.clock
        self._causes = causes
        self._robots = robots
        self._has_free_fetchers = has_free_fetchers
        self._numbers = count(1)
        self._applied: dict[str, LoanReport] = {}  #: the last report on each loan that is lent
        self._sent = LoanReport("")  #: our own report, as last written
        self._sent_at = self._used_at = 0.0
        #: A past sample: the time, the loop's total lag, its CPU seconds and its pages.
        self._sampled = (self._clock(), 0.0, time.thread_time(), 0)
        self._pages_a_second = 0.0
        self._is_busy = False

    async def run(self) -> None:
        """Lend and borrow until cancelled."""
        while True:
            self._frontier.loans_changed.clear()
            pause = await self.poll()
            with anyio.move_on_after(pause):
                await self._frontier.loans_changed.wait()

    async def poll(self) -> float:
        """Act as borrower and as owner; return the seconds until the next poll."""
        frontier, is_idle = self._frontier, self._session.is_idle
        self._sample()
        if frontier.borrowed is not None or is_idle:
            await self._borrow()
        lent = [host for host in frontier.leased.values() if host.loans]
        if hosts := lent or self._candidates():
            await self._lend(hosts)
        has_shared = False
        for host in frontier.hosts.values():
            if host.loans or host.borrowed is not None or host.quota is not None:
                self._limit(host)
                has_shared |= host.quota is not None
        if has_shared:
            return _POLL
        return _IDLE_POLL if is_idle else _PAUSE

    def _sample(self) -> None:
        """Measure whether the event loop is overloaded."""
        stats = self._session.stats
        now = (self._clock(), stats.loop_lag.seconds, time.thread_time(), stats.pages)
        seconds, lag, computed, pages = (
            new - old for new, old in zip(now, self._sampled, strict=True)
        )
        if seconds >= _PAUSE:
            # The lag is measured ten times a second.
            self._is_busy = lag >= 10 * _LATE * seconds or computed >= _BUSY * seconds
            self._pages_a_second = pages / seconds
            self._sampled = now

    def _limit(self, host: HeldHost) -> None:
        """Claim only as many tasks of a shared host as this process finishes in a second.

        With more tasks, answered pages would wait here for their callbacks at the end of the crawl,
        while another process has nothing to do.
        """
        host.quota = None
        if host.loans or host.borrowed is not None:
            max_leases = max(4 * host.queue.allowed or _FEW, int(self._pages_a_second))
            host.quota = max(0, max_leases - self._session.leases.count_by_host[host.name])
        # The other process may have added tasks.
        host.poll()
        self._frontier.poll_wanted.set()

    # --- the owner

    def _candidates(self) -> list[HeldHost]:
        """Return the host that another process could also ask, if there is one."""
        leased = self._frontier.leased
        # With several hosts, `HostLeaser` releases some instead.
        hosts = leased.values() if len(leased) == 1 else ()
        return [host for host in hosts if self._may_lend_more(host)]

    def _may_lend_more(self, host: HeldHost) -> bool:
        allowed = host.queue.allowed
        # Each process has a slot for a host without a limit.
        gains = not allowed or self._is_busy or not self._has_free_fetchers()
        has_slots = not allowed or (allowed > 1 and host.state.finished >= FIRST_PAGES)
        has_tasks = self._session.leases.count_by_host[host.name] > min(allowed, _FEW)
        return gains and has_slots and has_tasks and self._frontier.may_lend(host)

    async def _lend(self, hosts: list[HeldHost]) -> None:
        workers = {worker.name: worker for worker in await self._workers.all()}
        for host in hosts:
            for name in [*host.loans]:
                await self._keep(host, name, workers.get(name))
            await self._offer(host, workers)

    async def _keep(self, host: HeldHost, name: str, worker: Worker | None) -> None:
        """Apply the report of a borrower; renew, end or forget its loan."""
        loan, now = host.loans.get(name), self._now()
        if loan is None:
            return  # the host was lost during the query
        is_there = worker is not None and worker.loan is not None and worker.loan.id == loan.id
        report = None if worker is None else worker.report
        if report is not None and report.loan != loan.id:
            report = None
        if report is not None:
            self._apply(host, report)
        if (report is not None and report.returned) or loan.expires <= now:
            del host.loans[name]
            self._applied.pop(loan.id, None)
            host.pace()
            host.poll()
            return
        if worker is None:
            return  # it is gone, but the server may still work on its requests
        if not is_there and host.queue.allowed and host.queue.active > host.queue.allowed:
            return  # its slots are still in use here
        is_ended = loan.is_closing or not self._frontier.may_lend(host)
        if is_ended and not is_there:
            del host.loans[name]
            host.pace()
            return
        beats = now - worker.heartbeat < timedelta(seconds=_MISSED_BEATS * _BEAT)
        expires = loan.expires
        # A loan without a report is unused: its worker may have seen the end first, or have a host.
        if report is not None and beats and expires - now < _LOAN * 2 / 3:
            expires = self._expiry(host)
        changed = replace(loan, is_closing=is_ended, expires=max(expires, loan.expires))
        if changed == loan and is_there:
            return
        # Before the write, because its reply may be lost.
        host.loans[name] = changed
        is_lent = await self._workers.lend(worker, changed)
        if not (is_lent or is_there) and host.loans.get(name) is changed:
            # Another owner was faster.
            del host.loans[name]
            host.pace()

    def _expiry(self, host: HeldHost) -> datetime:
        """Return when a loan expires that starts or is renewed now: before the owner's lease."""
        remaining = timedelta(seconds=host.queue.deadline - self._frontier.clock())
        remaining -= timedelta(microseconds=remaining.microseconds % 1000)
        return self._now() + min(_LOAN, remaining)

    def _apply(self, host: HeldHost, report: LoanReport) -> None:
        """Apply the news of a report."""
        old_report = self._applied.get(report.loan)
        if old_report is None:
            # A dead owner has counted these pages, but may not have seen the failures.
            is_ours = report.loan.startswith(f"{self._session.worker}:")
            old_report = LoanReport(report.loan, finished=0 if is_ours else report.finished)
        if report == old_report:
            return
        self._applied[report.loan] = report
        state = host.state
        state.finished += report.finished - old_report.finished
        state.delay = max(state.delay, report.delay) if report.delay else state.delay
        host.crawl_delay = max(host.crawl_delay, report.crawl_delay)
        host.pace()
        for fault in report.faults[len(old_report.faults) :]:
            self._causes.reported(host.name, fault)
        if report.delay or report.crawl_delay:
            self._frontier.pending.save(host)

    async def _offer(self, host: HeldHost, workers: dict[str, Worker]) -> None:
        """Lend slots of a host to idle workers."""
        now = self._now()
        idle = [
            worker
            for worker in workers.values()
            if worker.idle
            and worker.name != self._session.worker
            and worker.name not in host.loans
            and not worker.borrows(now)
        ]
        for worker in idle:
            if not self._may_lend_more(host):
                return
            slots = 0
            if allowed := host.queue.allowed:
                slots = min(allowed - 1, max(1, (allowed + host.lent) // len(workers)))
            number = next(self._numbers)
            loan = Loan(
                f"{self._session.worker}:{number}",
                host=host.name,
                slots=slots,
                expires=self._expiry(host),
            )
            # This process does not use these slots from now on.
            host.loans[worker.name] = loan
            host.pace()
            logger.debug(
                "lent %d slots of %s to %s",
                *(slots, printable(host.name), printable(worker.name)),
                extra={"event": "slots_lent", "host": host.name, "worker": worker.name},
            )
            await self._keep(host, worker.name, worker)

    # --- the borrower

    async def _borrow(self) -> None:
        """Start, continue or return a loan."""
        frontier, name = self._frontier, self._session.worker
        host = frontier.borrowed
        loan = await self._workers.loan(name)
        if frontier.borrowed is not host:
            return  # this process owns the host by now
        if host is None:
            if not frontier.lends or loan is None or loan.is_closing or loan.expires <= self._now():
                return
            if loan.id == self._sent.loan or loan.host in frontier.leased:
                return
            hosts_by_name = await self._hosts.get([loan.host])
            if loan.host in hosts_by_name and loan.host not in frontier.leased:
                await self._report(self._begin(hosts_by_name[loan.host], loan))
            return
        borrowed = host.borrowed
        assert borrowed is not None
        if loan is not None and loan.id == borrowed.id and host.phase is Phase.SERVING:
            host.extend(loan)
        now = self._clock()
        if self._session.leases.count_by_host[host.name] or host.queue.waiting or host.is_busy:
            self._used_at = now
        is_over = (
            loan is None or loan.id != borrowed.id or loan.is_closing or loan.expires <= self._now()
        )
        is_unused = now - self._used_at >= _UNUSED
        ends = is_over or is_unused or not frontier.lends or not host.is_healthy
        if ends and host.phase is not Phase.LEAVING:
            host.enter(Phase.LEAVING)
        await self._report(host)

    def _begin(self, state: Host, loan: Loan) -> HeldHost:
        frontier, record = self._frontier, state.robots
        host = frontier.borrow(state, loan)
        if record is not None:
            self._robots.known(record.origin, record)
        host.open(crawl_delay=self._robots.crawl_delay(host.name))
        if host.phase is not Phase.SERVING:
            host.enter(Phase.SERVING)
        self._session.set_idle(False)
        self._used_at = self._clock()
        frontier.poll_wanted.set()
        return host

    async def _report(self, host: HeldHost) -> None:
        """Write the news for the owner, if there is any, and a heartbeat."""
        frontier, loan = self._frontier, host.borrowed
        if loan is None:
            return
        report = LoanReport(
            loan.id,
            returned=host.phase is Phase.LEAVING and not host.queue.active,
            finished=host.pages,
            delay=host.state.delay,
            crawl_delay=host.crawl_delay,
            faults=tuple(host.faults),
        )
        now, current = self._clock(), replace(report, finished=self._sent.finished)
        if current == self._sent and now - self._sent_at < _BEAT:
            return
        if report.returned:
            frontier.give_back(host)
        previous = self._sent if self._sent.loan else None
        self._sent, self._sent_at = report, now
        await self._workers.report(self._session.worker, report, previous=previous)
