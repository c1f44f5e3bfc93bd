"""Lend slots of a host to idle workers, and borrow slots from the owner of a host.

The owner lends slots to an idle borrower, and renews the loan while the borrower sends heartbeats.
The borrower uses the slots, reports to the owner, and returns the slots at the end.

An owner lends slots of a host only while the owner's event loop is late or all its fetchers are
busy. At other times a second process cannot speed up the crawl of the host. The host must be
healthy and have no delay. The first failure at any process ends all loans of the host: a borrower
reports its failure to the owner and stops. Only the owner's circuit breaker decides about a rest,
so all processes share a host's limits and rests.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

import anyio

from crawlcw.crawl.causes import Causes
from crawlcw.crawl.hosts import FrontierHost, Phase
from crawlcw.crawl.robots import Robots
from crawlcw.engine.session import WorkerSession
from crawlcw.model.hosts import FIRST_PAGES, Host
from crawlcw.model.loans import Loan, LoanReport
from crawlcw.model.rates import Worker
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Length of a loan. A loan is renewed after a third of its length. If a borrower dies, its slots
#: become free when the loan ends.
_LOAN_LENGTH = timedelta(seconds=9)
#: Seconds between two polls for loans. `_POLL` is for a process that lends or borrows, `_IDLE_POLL`
#: for an idle process, and `_PAUSE` for any other process.
_POLL, _IDLE_POLL, _PAUSE = 0.1, 0.25, 1.0
#: Seconds between two heartbeats of a borrower. After `_MISSED_BEATS` missed heartbeats a borrower
#: counts as gone.
_HEARTBEAT_S, _MISSED_BEATS = 1.0, 3
#: A host with at most this number of tasks is not lent, because its owner finishes the tasks soon.
_MIN_TASKS = 8
#: Seconds without a task after which a loan is returned.
_MAX_UNUSED_S = 1.0
#: An event loop is overloaded if its mean lag reaches `_LATE_S` seconds, or if it uses the CPU for
#: `_BUSY_SHARE` of the time.
_LATE_S, _BUSY_SHARE = 0.02, 0.6


class Lending:
    """Lends slots of hosts that a process owns, and uses the loan that the process borrows."""

    def __init__(
        self,
        session: WorkerSession,
        causes: Causes,
        robots: Robots,
        *,
        has_free_fetchers: Callable[[], bool],
    ) -> None:
        """Lend and borrow slots for the process of *session*."""
        self._session = session
        self._workers, self._hosts = session.ledger.workers, session.ledger.hosts
        self._now = session.ledger.now
        self._frontier = causes.frontier
        self._clock = causes.frontier.clock
        self._causes = causes
        self._robots = robots
        self._has_free_fetchers = has_free_fetchers
        self._loan_numbers = count(1)
        #: The borrower's last report on each loan of this owner, by the id of the loan.
        self._applied_reports: dict[str, LoanReport] = {}
        self._sent_report = LoanReport("")  #: last report of this borrower
        self._report_sent_at = self._used_at = 0.0
        #: Last sample: the time, the loop's total lag, the CPU seconds and the number of pages.
        self._last_sample = (self._clock(), 0.0, time.thread_time(), 0)
        self._pages_per_second = 0.0
        self._is_overloaded = False

    async def run(self) -> None:
        """Lend and borrow slots until cancelled."""
        while True:
            self._frontier.loans_changed.clear()
            pause = await self.poll()
            with anyio.move_on_after(pause):
                await self._frontier.loans_changed.wait()

    async def poll(self) -> float:
        """Use, offer and renew loans; return the seconds until the next poll."""
        frontier, is_idle = self._frontier, self._session.is_idle
        self._measure_overload()
        if frontier.borrowed_host is not None or is_idle:
            await self._borrow()
        lent_hosts = [host for host in frontier.leased.values() if host.loans]
        if hosts := lent_hosts or self._candidates():
            await self._lend(hosts)
        has_shared = False
        for host in frontier.hosts.values():
            if host.loans or host.borrowed_loan is not None or host.quota is not None:
                self._limit(host)
                has_shared |= host.quota is not None
        if has_shared:
            return _POLL
        return _IDLE_POLL if is_idle else _PAUSE

    def _measure_overload(self) -> None:
        """Measure whether the event loop is overloaded."""
        stats = self._session.stats
        now = (self._clock(), stats.loop_lag.seconds, time.thread_time(), stats.pages)
        seconds, lag, cpu_seconds, pages = (
            new - old for new, old in zip(now, self._last_sample, strict=True)
        )
        if seconds >= _PAUSE:
            # `lag` is the sum of the event loop's lags, which are measured ten times a second.
            self._is_overloaded = (
                lag >= 10 * _LATE_S * seconds or cpu_seconds >= _BUSY_SHARE * seconds
            )
            self._pages_per_second = pages / seconds
            self._last_sample = now

    def _limit(self, host: FrontierHost) -> None:
        """Limit the claimed tasks of a shared host to those that this process can do in a second.

        If this process claimed more tasks, pages would wait here for their callbacks near the
        crawl's end, while another process is idle.
        """
        host.quota = None
        if host.loans or host.borrowed_loan is not None:
            max_leases = max(4 * host.queue.slots or _MIN_TASKS, int(self._pages_per_second))
            host.quota = max(0, max_leases - self._session.leases.count_by_host[host.name])
        # Read the host's tasks again, because the borrower or the owner may have added tasks.
        host.poll()
        self._frontier.poll_wanted.set()

    # --- the owner

    def _candidates(self) -> list[FrontierHost]:
        """Return a list with the one host whose slots can be lent, or an empty list."""
        leased = self._frontier.leased
        # A process with several hosts lends no slots; `HostLeaser` releases some hosts instead.
        hosts = leased.values() if len(leased) == 1 else ()
        return [host for host in hosts if self._may_lend_more(host)]

    def _may_lend_more(self, host: FrontierHost) -> bool:
        allowed_slots = host.queue.slots
        # A host without a limit of slots can always be lent.
        gains = not allowed_slots or self._is_overloaded or not self._has_free_fetchers()
        has_slots = not allowed_slots or (allowed_slots > 1 and host.state.finished >= FIRST_PAGES)
        has_tasks = self._session.leases.count_by_host[host.name] > min(allowed_slots, _MIN_TASKS)
        return gains and has_slots and has_tasks and self._frontier.may_lend(host)

    async def _lend(self, hosts: list[FrontierHost]) -> None:
        workers = {worker.name: worker for worker in await self._workers.all()}
        for host in hosts:
            for name in [*host.loans]:
                await self._update_loan(host, name, workers.get(name))
            await self._offer(host, workers)

    async def _update_loan(self, host: FrontierHost, name: str, worker: Worker | None) -> None:
        """Apply a borrower's report on its loan; renew, end or forget the loan."""
        loan, now = host.loans.get(name), self._now()
        if loan is None:
            return  # this process lost the host during the query
        is_recorded = worker is not None and worker.loan is not None and worker.loan.id == loan.id
        report = None if worker is None else worker.report
        if report is not None and report.loan != loan.id:
            report = None
        if report is not None:
            self._apply_report(host, report)
        if (report is not None and report.returned) or loan.expires <= now:
            del host.loans[name]
            self._applied_reports.pop(loan.id, None)
            host.pace()
            host.poll()
            return
        if worker is None:
            return  # keep a dead borrower's loan, because its requests may still be in progress
        if not is_recorded and host.queue.slots and host.queue.active > host.queue.slots:
            return  # this process still uses the slots that it wants to lend
        is_ended = loan.is_closing or not self._frontier.may_lend(host)
        if is_ended and not is_recorded:
            del host.loans[name]
            host.pace()
            return
        is_alive = now - worker.heartbeat < timedelta(seconds=_MISSED_BEATS * _HEARTBEAT_S)
        expires = loan.expires
        # Do not renew a loan without a report, because its borrower does not use the loan.
        if report is not None and is_alive and expires - now < _LOAN_LENGTH * 2 / 3:
            expires = self._expiry(host)
        new_loan = replace(loan, is_closing=is_ended, expires=max(expires, loan.expires))
        if new_loan == loan and is_recorded:
            return
        # Store the loan in memory before the write, because the ledger's reply may be lost.
        host.loans[name] = new_loan
        is_lent = await self._workers.lend(worker, new_loan)
        if not (is_lent or is_recorded) and host.loans.get(name) is new_loan:
            # Another owner has already lent slots to this worker.
            del host.loans[name]
            host.pace()

    def _expiry(self, host: FrontierHost) -> datetime:
        """Return when a new or renewed loan expires: not later than the owner's host lease."""
        remaining = timedelta(seconds=host.queue.deadline - self._frontier.clock())
        remaining -= timedelta(microseconds=remaining.microseconds % 1000)
        return self._now() + min(_LOAN_LENGTH, remaining)

    def _apply_report(self, host: FrontierHost, report: LoanReport) -> None:
        """Apply to the host the pages, delays and failures that are new in a borrower's report."""
        old_report = self._applied_reports.get(report.loan)
        if old_report is None:
            # If an earlier owner lent the slots, that owner has counted the pages finished so far.
            # But count all failures, because the earlier owner may have died before it read them.
            is_ours = report.loan.startswith(f"{self._session.worker}:")
            old_report = LoanReport(report.loan, finished=0 if is_ours else report.finished)
        if report == old_report:
            return
        self._applied_reports[report.loan] = report
        state = host.state
        state.finished += report.finished - old_report.finished
        state.delay = max(state.delay, report.delay) if report.delay else state.delay
        host.crawl_delay = max(host.crawl_delay, report.crawl_delay)
        host.pace()
        for fault in report.faults[len(old_report.faults) :]:
            self._causes.reported(host.name, fault)
        if report.delay or report.crawl_delay:
            self._frontier.pending.save(host)

    async def _offer(self, host: FrontierHost, workers: dict[str, Worker]) -> None:
        """Lend slots of a host to idle workers."""
        now = self._now()
        idle_workers = [
            worker
            for worker in workers.values()
            if worker.idle
            and worker.name != self._session.worker
            and worker.name not in host.loans
            and not worker.borrows(now)
        ]
        for worker in idle_workers:
            if not self._may_lend_more(host):
                return
            slots = 0
            if allowed_slots := host.queue.slots:
                slots = min(
                    allowed_slots - 1, max(1, (allowed_slots + host.lent_slots) // len(workers))
                )
            number = next(self._loan_numbers)
            loan = Loan(
                f"{self._session.worker}:{number}",
                host=host.name,
                slots=slots,
                expires=self._expiry(host),
            )
            # Leave fewer slots to this process now, because the borrower uses the lent slots.
            host.loans[worker.name] = loan
            host.pace()
            logger.debug(
                "lent %d slots of %s to %s",
                *(slots, printable(host.name), printable(worker.name)),
                extra={"event": "slots_lent", "host": host.name, "worker": worker.name},
            )
            await self._update_loan(host, worker.name, worker)

    # --- the borrower

    async def _borrow(self) -> None:
        """Start, continue or return the loan of this borrower."""
        frontier, name = self._frontier, self._session.worker
        host = frontier.borrowed_host
        loan = await self._workers.loan(name)
        if frontier.borrowed_host is not host:
            return  # this process has leased the borrowed host
        if host is None:
            if not frontier.lends or loan is None or loan.is_closing or loan.expires <= self._now():
                return
            if loan.id == self._sent_report.loan or loan.host in frontier.leased:
                return
            hosts_by_name = await self._hosts.get([loan.host])
            if loan.host in hosts_by_name and loan.host not in frontier.leased:
                await self._report(self._start_borrowing(hosts_by_name[loan.host], loan))
            return
        our_loan = host.borrowed_loan
        assert our_loan is not None
        if loan is not None and loan.id == our_loan.id and host.phase is Phase.SERVING:
            host.extend_loan(loan)
        now = self._clock()
        if self._session.leases.count_by_host[host.name] or host.queue.waiting or host.is_busy:
            self._used_at = now
        is_over = (
            loan is None or loan.id != our_loan.id or loan.is_closing or loan.expires <= self._now()
        )
        is_unused = now - self._used_at >= _MAX_UNUSED_S
        ends = is_over or is_unused or not frontier.lends or not host.is_healthy
        if ends and host.phase is not Phase.LEAVING:
            host.enter(Phase.LEAVING)
        await self._report(host)

    def _start_borrowing(self, state: Host, loan: Loan) -> FrontierHost:
        frontier, record = self._frontier, state.robots
        host = frontier.borrow(state, loan)
        if record is not None:
            self._robots.known_rules(record.origin, record)
        host.open(crawl_delay=self._robots.crawl_delay(host.name))
        if host.phase is not Phase.SERVING:
            host.enter(Phase.SERVING)
        self._session.set_idle(False)
        self._used_at = self._clock()
        frontier.poll_wanted.set()
        return host

    async def _report(self, host: FrontierHost) -> None:
        """Write a report for a borrowed host's owner, if there is news or a heartbeat is due."""
        frontier, loan = self._frontier, host.borrowed_loan
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
        now, current = self._clock(), replace(report, finished=self._sent_report.finished)
        if current == self._sent_report and now - self._report_sent_at < _HEARTBEAT_S:
            return
        if report.returned:
            frontier.return_loan(host)
        previous = self._sent_report if self._sent_report.loan else None
        self._sent_report, self._report_sent_at = report, now
        await self._workers.report(self._session.worker, report, previous=previous)
