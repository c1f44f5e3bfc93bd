"""Supervise a crawl's workers: start, watch and stop them, restart them after crashes, and report.

The supervisor claims no tasks and fetches no pages. The workers coordinate through the
ledger only.
"""

import asyncio
import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.cli import exposing, signals
from crawlcw.cli.exit_codes import INTERNAL, INTERRUPTED, OK, UNAVAILABLE, worst
from crawlcw.cli.first_run import warn_of
from crawlcw.cli.ledger_option import closing
from crawlcw.cli.loop import background_tasks
from crawlcw.cli.notifying import notifying
from crawlcw.cli.processes.channel import WorkerState, code_of
from crawlcw.cli.processes.worker_process import POLL_EVERY, WorkerProcess
from crawlcw.cli.showing import Output, report_fields, show_progress, show_report
from crawlcw.cli.starting import Process
from crawlcw.crawl.control import Control
from crawlcw.engine.ledger_retry import LedgerRetry, retrying
from crawlcw.engine.workers import dead_workers, reap_dead_workers
from crawlcw.errors import (
    LedgerError,
    LedgerGoneError,
    LedgerUnavailableError,
    Reason,
    SettingsError,
)
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.counters import Counters, FinishReason, Report, failed_pages, merged_reason
from crawlcw.model.durations import format_duration
from crawlcw.model.idle_reason import IdleReason, merged
from crawlcw.model.retry import backoff
from crawlcw.model.sanitize import printable
from crawlcw.model.transitions import began_alone
from crawlcw.telemetry.metrics import Measures

logger = logging.getLogger(__name__)

_NO_WAIT = timedelta(0)
#: Backoff between a crash and the next start of a worker.
_FIRST_WAIT = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(seconds=30)
_MAX_CRASHES = 5
#: After `callback_timeout`, a blocked worker has this time to dump its stacks and exit.
_EXTRA_SILENCE = timedelta(seconds=15)
#: The supervisor kills a worker that still runs this number of seconds after the grace period.
_END_SILENCE = 8.0


async def crawl(
    spider: Spider,
    ledger_url: str,
    *,
    settings: Settings,
    output: Output,
    processes: int,
    first: Process | None,
    afterwards: Callable[[Ledger], Awaitable[None]],
) -> int:
    """Crawl *spider* in worker processes until the crawl ends; return the worst exit code.

    *first* is a worker that already waits for its arguments, or None. The exit code also depends on
    the faults in the crawl's report, which covers all workers. Calls the function *afterwards* at
    the end with the open ledger, unless a user stopped the crawl at once or no worker started.
    """
    async with notifying(spider.name, settings) as notice:
        # Open the ledger before the workers do, to report an error of the ledger only once.
        async with closing(open_ledger(ledger_url, spider.name, settings=settings)) as ledger:
            await warn_of(spider, ledger, processes=processes)
            supervisor = Supervisor(spider, ledger, settings, processes=processes, first=first)
            with (
                signals.stopping(supervisor, grace=settings.grace, kill=supervisor.kill),
                signals.suspending(supervisor.signal_groups),
            ):
                async with (
                    exposing.exposed(spider.name, ledger, supervisor.measured, output.metrics),
                    show_progress(supervisor, output),
                ):
                    exit_code = await supervisor.run()
                    report = await supervisor.report()
            if report is not None and report.finish_reason != FinishReason.STOPPED_AT_ONCE:
                await afterwards(ledger)
        if report is None:
            reason = supervisor.finish_reason(is_empty=False)
            notice |= {"finish_reason": reason, "exit_code": exit_code}
            return exit_code
        exit_code = worst((exit_code, show_report(report, output, settings=settings)))
        notice |= {**report_fields(report, settings), "exit_code": exit_code}
    return exit_code


#: Map from a setting that limits all workers together to the finish reason at this limit.
_SHARED_LIMITS = {"max_pages": FinishReason.MAX_PAGES, "max_items": FinishReason.MAX_ITEMS}


def shares(settings: Settings, processes: int) -> list[dict[str, int]]:
    """Divide `max_pages` and `max_items` between the workers; each part is at least 1."""
    limits = {
        name: limit for name in _SHARED_LIMITS if (limit := getattr(settings, name)) is not None
    }
    number = min([processes, *limits.values()])
    return [
        {name: (limit + index) // number for name, limit in limits.items()}
        for index in range(number)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotEnd:
    """The result of a worker and of its replacements after crashes."""

    code: int
    finish_reason: FinishReason | None = None  #: None if the last worker with this number crashed


def wait_after(crashes: int) -> timedelta | None:
    """Return how long to wait after *crashes* crashes in a row; None: start no other worker.

    If a worker finishes a page, the caller counts from 1 again: the next crash has a new cause.
    """
    if crashes >= _MAX_CRASHES:
        return None
    return backoff(crashes, base=_FIRST_WAIT, ceiling=_LONGEST_WAIT)


class Supervisor:
    """Keeps a crawl's workers running; a new worker gets the number of the worker that crashed.

    `run` may be called once. `stop`, `stop_now` and `kill` may be called from
    signal handlers of the loop, at any time.
    """

    def __init__(
        self,
        spider: Spider,
        ledger: Ledger,
        settings: Settings,
        *,
        processes: int,
        first: Process | None = None,
    ) -> None:
        """*first* is a process that already waits for its arguments; the caller closes *ledger*."""
        self.spider = spider
        self.ledger = ledger
        self.settings = settings
        self._shares = shares(settings, processes)
        self._first_process = first
        self._workers: list[WorkerProcess] = []
        self._running_workers: set[WorkerProcess] = set()
        self._crash_count = 0
        self._slot_ends: list[_SlotEnd] = []
        self._stop_order: FinishReason | None = None
        timeout = settings.callback_timeout
        self._max_silence = (timeout + min(_EXTRA_SILENCE, 2 * timeout)).total_seconds()  #: 0: any
        self._killable_from = math.inf  #: monotonic time after which silent workers are killed
        self._stopping = asyncio.Event()
        self._started_at = ledger.now()
        self._retry = LedgerRetry(settings.ledger_give_up)
        self._start_seconds = time.monotonic()

    def stop(self) -> None:
        """Tell each worker to stop gracefully, and start no new workers."""
        self._retry.shorten(self.settings.grace)
        self._send_order(FinishReason.STOPPED)

    def stop_now(self) -> None:
        """Tell each worker to release all tasks and end without waiting for requests."""
        self._retry.shorten(_NO_WAIT)
        self._send_order(FinishReason.STOPPED_AT_ONCE)

    def kill(self) -> None:
        """End each worker by SIGKILL."""
        for worker in self._running_workers:
            worker.terminate(signal.SIGKILL)

    def signal_groups(self, signal_number: signal.Signals) -> None:
        """Send a signal to each worker process and its child processes."""
        for worker in self._running_workers:
            worker.signal_group(signal_number)

    @property
    def stats(self) -> Counters:
        """The sum of the counters of all workers, including ended workers."""
        return sum((worker.state.counters for worker in self._workers), Counters())

    @property
    def idle_reason(self) -> IdleReason | None:
        """Why no worker progresses, or None if at least one worker progresses."""
        states = [worker.state for worker in self._running_workers]
        return merged(state.idle_reason for state in states if state.finish_reason is None)

    def measured(self) -> exposing.Workers:
        """Return the measures of the workers, including ended workers."""
        pairs = [(worker, worker.state.measures) for worker in self._workers]
        return exposing.Workers(
            all=[measures for _, measures in pairs if measures is not None],
            running={
                str(worker.number): measures or Measures()
                for worker, measures in pairs
                if worker in self._running_workers
            },
            crashes=self._crash_count,
            is_idle=self.idle_reason is not None,
        )

    async def run(self) -> int:
        """Keep the workers running until the crawl has ended; return the worst exit code."""
        async with background_tasks(self._terminate_silent_workers()), asyncio.TaskGroup() as group:
            slots = [
                group.create_task(self._keep_filled(number, share))
                for number, share in enumerate(self._shares, start=1)
            ]
        self._slot_ends = [slot.result() for slot in slots]
        return worst(end.code for end in self._slot_ends)

    async def report(self) -> Report | None:
        """Return the report of all workers together; None if no worker has counted anything.

        The report is also None if the ledger was unavailable when the workers ended, and still is.
        Raises `LedgerUnavailableError` if the ledger became unavailable after the workers' end.
        """
        if all(worker.state == WorkerState() for worker in self._workers):
            return None
        given_up = UNAVAILABLE in (end.code for end in self._slot_ends)
        if given_up:
            # Do not wait for the ledger, because a worker has waited for it and logged the outage.
            self._retry.shorten(_NO_WAIT)
        try:
            queries = retrying(self.ledger, self._retry).queries
            next_due = await queries.next_due()
            counts = await self._retry.read_for_report(queries.counts)
            reasons = await self._retry.read_for_report(queries.reasons)
        except (LedgerUnavailableError, LedgerGoneError):
            if given_up:
                return None
            raise
        reason = self.finish_reason(is_empty=next_due is None)
        states = [worker.state for worker in self._workers]
        early_ends = (state.ending for state in states if state.ending is not None)
        return Report.of(
            self.stats,
            spider=self.spider.name,
            finish_reason=reason,
            elapsed=time.monotonic() - self._start_seconds,
            released=sum(state.released for state in states),
            counts=counts,
            detail=next((end.detail for end in early_ends if end.reason == reason), ""),
            failed_before=failed_pages(reasons or {}),
        )

    def finish_reason(self, *, is_empty: bool) -> FinishReason:
        """Return the finish reason of the crawl; *is_empty* is true if no tasks are left."""
        return merged_reason((end.finish_reason for end in self._slot_ends), is_empty=is_empty)

    def _follow_early_end(self, state: WorkerState) -> None:
        """Stop all workers if one worker reports that the spider's code wants to end the crawl."""
        if state.ending is not None and self._stop_order is None:
            self.stop()

    async def _terminate_silent_workers(self) -> None:
        """Kill workers that send no state for too long, because their event loops are blocked."""
        while True:
            await asyncio.sleep(POLL_EVERY)
            for worker in list(self._running_workers):
                self._terminate_if_silent(worker, worker.silent())

    def _terminate_if_silent(self, worker: WorkerProcess, silence: float) -> None:
        max_silence = self._max_silence
        if worker.state.finish_reason is not None:
            # A worker whose crawl has finished sends no more states.
            max_silence = self.settings.grace.total_seconds() + _END_SILENCE
        is_killable = (overdue := time.monotonic() - self._killable_from) >= 0
        if not worker.has_reported:
            # A worker that still loads its spider is not killed, unless the crawl was stopped.
            silence, max_silence = overdue, 0.0
        if (max_silence and silence >= max_silence) or (is_killable and silence >= _END_SILENCE):
            logger.error(
                "process %d was silent for %s and is killed: its event loop is blocked",
                worker.pid,
                format_duration(timedelta(seconds=round(silence))),
                extra={"event": "worker_silent", "pid": worker.pid},
            )
            worker.terminate(signal.SIGKILL)

    def _send_order(self, order: FinishReason) -> None:
        self._stop_order = order
        self._killable_from = min(
            self._killable_from, time.monotonic() + self._grace.total_seconds()
        )
        self._stopping.set()
        for worker in self._running_workers:
            worker.send_order(order, grace=self._grace)

    @property
    def _grace(self) -> timedelta:
        is_immediate = self._stop_order is FinishReason.STOPPED_AT_ONCE
        return _NO_WAIT if is_immediate else self.settings.grace

    async def _keep_filled(self, number: int, share: dict[str, int]) -> _SlotEnd:
        """Run worker *number*; replace a crashed worker, unless there were too many crashes."""
        crashes = 0
        while not self._stopping.is_set():
            worker = WorkerProcess(number, on_state=self._follow_early_end)
            code = await self._run_one(worker, number, share)
            if (end_code := worker.end_code()) is not None:
                return _SlotEnd(code=end_code, finish_reason=worker.state.finish_reason)
            # Read the flag now, because an order that comes later did not end this worker.
            was_stopping = self._stopping.is_set()
            was_quarantined = await self._release_dead_workers()
            was_stopping = await self._check_stop_request() or was_stopping
            # At a stop, a signal from this process or the worker's deadline ends a blocked worker.
            # If the machine shuts down, its signal kills a worker that is starting.
            by_signal = worker.was_terminated or code in (INTERRUPTED, -signal.SIGTERM)
            was_started = worker in self._workers
            if self._stopping.is_set() and (by_signal or not was_started):
                return self._ordered_end()
            self._crash_count += 1
            if was_stopping:
                logger.warning(
                    "worker %d has crashed: %s", number, _cause(code), extra=_crash(number, code)
                )
                return _SlotEnd(code=INTERNAL)
            counters = worker.state.counters
            counts = {"max_pages": counters.pages + counters.taskless, "max_items": counters.items}
            share = {name: limit - counts[name] for name, limit in share.items()}
            for name, remaining in share.items():
                if remaining <= 0:
                    return _SlotEnd(code=OK, finish_reason=_SHARED_LIMITS[name])
            crashes = 1 if was_quarantined or has_progressed(worker.state) else crashes + 1
            if (wait := wait_after(crashes)) is None:
                logger.error(
                    "worker %d has crashed %d times without progress and stays down: %s",
                    number,
                    _MAX_CRASHES,
                    _cause(code),
                    extra={"event": "worker_down", "worker": number},
                )
                return _SlotEnd(code=INTERNAL)
            logger.warning(
                "worker %d has crashed: %s; it is started again in %s",
                number,
                _cause(code),
                format_duration(wait),
                extra=_crash(number, code),
            )
            with anyio.move_on_after(wait.total_seconds()):
                await self._stopping.wait()
        return self._ordered_end()

    async def _run_one(self, worker: WorkerProcess, number: int, share: dict[str, int]) -> int:
        """Run a worker from its start to its end; return its exit code."""
        try:
            process, self._first_process = self._first_process, None
            await worker.start(share=share, started_at=self._started_at, process=process)
        except OSError as error:
            logger.warning(
                "worker %d cannot be started: %s",
                number,
                printable(error),
                extra={"event": "worker_not_started", "worker": number},
            )
            return INTERNAL
        logger.log(
            # If there is only one worker, users need no process id to tell workers apart.
            logging.INFO if len(self._shares) > 1 else logging.DEBUG,
            "worker %d is process %d",
            number,
            worker.pid,
            extra={"event": "worker_started", "worker": number, "pid": worker.pid},
        )
        self._workers.append(worker)
        self._running_workers.add(worker)
        try:
            if self._stop_order is not None:
                worker.send_order(self._stop_order, grace=self._grace)
            return await worker.wait()
        finally:
            self._running_workers.discard(worker)
            worker.close()

    async def _release_dead_workers(self) -> bool:
        """Release the tasks of dead workers at once, without waiting until the leases expire.

        Return whether a dead worker ran a quarantined page. Such a crash counts for this page, and
        after several crashes the page is given up.
        """
        was_quarantined = False
        try:
            for worker in await dead_workers(self.ledger):
                leases = await self.ledger.leases.leases_of(worker.name)
                was_quarantined = was_quarantined or any(began_alone(lease) for lease in leases)
            await reap_dead_workers(self.ledger)
        except LedgerError as error:
            logger.debug(
                "dead workers not checked: %s", printable(error), extra={"event": "not_reaped"}
            )
        return was_quarantined

    async def _check_stop_request(self) -> bool:
        """Return whether a user has run `crawlcw stop`; if so, stop all workers.

        The supervisor reads the user's order itself, because a crashed worker may not have read it.
        """
        try:
            control = Control.of(await self.ledger.notes.control())
        except (LedgerError, SettingsError) as error:
            logger.debug(
                "control settings not read: %s",
                printable(error),
                extra={"event": "no_control"},
            )
            return False
        was_stopped = control.stops(self._started_at)
        if was_stopped and not self._stopping.is_set():
            self.stop()
        return was_stopped

    def _ordered_end(self) -> _SlotEnd:
        """Return the result of an order to stop for a worker number without a running worker."""
        return _SlotEnd(code=code_of(self._stop_order), finish_reason=self._stop_order)


def has_progressed(state: WorkerState) -> bool:
    """Return whether a worker has finished a page, or has ignored a page that crashes workers."""
    counters = state.counters
    return counters.pages > 0 or counters.failures.get(Reason.CRASHED_WORKER, 0) > 0


def _crash(number: int, code: int) -> dict[str, object]:
    return {"event": "worker_crashed", "worker": number, "code": code}


def _cause(code: int) -> str:
    return f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
