"""A crawl in one process: run the concurrent parts of a crawl, and end them.

The seeder adds tasks to the ledger. The coordinator claims tasks and queues them for the fetchers.
The committer writes the fetchers' results to the ledger. The renewer renews the leases of tasks.

`Crawl.run` ends everything that it starts.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import RUNNING_CRAWL, Spider, settled
from crawlcw.api.user_code import spider_code
from crawlcw.archive.bodies import Bodies
from crawlcw.browser.layer import Render
from crawlcw.crawl.committer import Committer
from crawlcw.crawl.control import Steering
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.fetcher import Fetcher
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import Done
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.seeder import Seeder
from crawlcw.crawl.sessions import Sessions
from crawlcw.engine.ledger_retry import LedgerRetry
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import LedgerUnavailableError, single_errors
from crawlcw.ledger.protocol import Counts, Ledger
from crawlcw.model.counters import EarlyEnd, FinishReason, Report, failed_pages
from crawlcw.model.durations import format_duration
from crawlcw.model.idle_reason import IdleReason, Rests
from crawlcw.model.sanitize import printable
from crawlcw.telemetry.meter import Meter
from crawlcw.telemetry.metrics import Measures

logger = logging.getLogger(__name__)

#: Maximum time to release leases when the crawl must end at once.
LAST_WORDS = timedelta(seconds=2)


class Ending:
    """Ends a crawl early; signal handlers of the event loop may call its methods."""

    def __init__(self, retry: LedgerRetry, *, grace: timedelta) -> None:
        #: Function that stops the coordinator, so that no new task starts.
        self.on_stop: Callable[[], None] = lambda: None
        #: Called when the crawl begins to end, with the grace period (0 to end at once).
        self.on_end: Callable[[timedelta], None] = lambda _: None
        self._retry = retry
        self._grace = grace
        self._crawl_scope = anyio.CancelScope()
        #: The cancel scope in which the spider's `opened` runs, because `opened` may take long.
        self.opening = anyio.CancelScope()
        self._closing_scope = anyio.CancelScope()
        #: Time by which the spider's code must have ended, by the event loop's clock.
        self._ends_at = math.inf
        self.ends_at_once = False
        #: Why the crawl ends early; None if it ends normally or by order of the user.
        self.early_end: EarlyEnd | None = None

    def stop(self) -> None:
        """End the crawl by order of the user; pages in progress have the grace period to finish."""
        grace, log_fields = format_duration(self._grace), {"event": "stopping"}
        logger.debug("stopping: current requests have up to %s to finish", grace, extra=log_fields)
        self._begin()

    def stop_now(self) -> None:
        """End the crawl without the grace period."""
        self.ends_at_once = True
        self._retry.shorten(LAST_WORDS)
        for scope in (self._crawl_scope, self.opening, self._closing_scope):
            scope.cancel()
        self._begin()

    def end(self, reason: FinishReason, detail: str) -> None:
        """End the crawl for a *reason* other than the user; only the first *reason* counts."""
        if self.early_end is None:
            self.early_end = EarlyEnd(reason=reason, detail=detail)
            logger.warning("%s: %s", reason, printable(detail), extra={"event": reason})
            self._begin()

    def _begin(self) -> None:
        self._retry.shorten(self._grace)
        self.opening.deadline = self._ends_within_grace()
        self.on_stop()

    def _ends_within_grace(self) -> float:
        """Return the time by which the spider's code must have ended."""
        grace = timedelta(0) if self.ends_at_once else self._grace
        # `anyio.current_time` fails in a callback of the event loop if sniffio is installed.
        now = asyncio.get_running_loop().time()
        self._ends_at = min(self._ends_at, now + grace.total_seconds())
        self.on_end(grace)
        return self._ends_at

    def stop_by_spider(self, why: str) -> None:
        """End the crawl because the spider raised `StopCrawl`."""
        self.end(FinishReason.STOPPED_BY_SPIDER, why)

    def why(self, reason: FinishReason) -> EarlyEnd:
        """Return why the crawl has ended; *reason* is the coordinator's finish reason."""
        if self.ends_at_once:
            return EarlyEnd(reason=FinishReason.STOPPED_AT_ONCE, detail="")
        return self.early_end or EarlyEnd(reason=reason, detail="")

    def grace_scope(self) -> anyio.CancelScope:
        """Return a cancel scope with the grace period as the time limit for pages in progress."""
        self._crawl_scope.deadline = self._ends_within_grace()
        return self._crawl_scope

    @contextmanager
    def limit_closed(self) -> Iterator[None]:
        """Limit the time of the spider's `closed`, which runs in the `with` block.

        The end of the grace period cancels `closed`, and so does an order to stop at once.

        `closed` gets `LAST_WORDS` even if the pages in progress have used up the grace period.
        """
        earliest_end = anyio.current_time() + LAST_WORDS.total_seconds()
        ends_at = max(self._ends_within_grace(), earliest_end)
        self._closing_scope = anyio.CancelScope(deadline=ends_at)
        with self._closing_scope:
            yield
        if self._closing_scope.cancelled_caught:
            logger.warning(
                "cancelled closed(), because it did not end within the grace period (%s)",
                format_duration(self._grace),
                extra={"event": "closed_cancelled"},
            )


class Parts:
    """The parts of one crawl; the module `assembly` creates the parts."""

    spider: Spider
    settings: Settings
    session: WorkerSession
    ending: Ending
    # Parts through which a task passes, from the seed to the outcome:
    seeder: Seeder
    coordinator: Coordinator
    fetcher: Fetcher
    committer: Committer
    # Parts that serve a crawl beside its tasks:
    robots: Robots
    sessions: Sessions
    state: KeptState
    steering: Steering
    render: Render
    bodies: Bodies | None  #: stores pages; None if the crawl stores no pages
    meter: Meter | None  #: measures times; None if the crawl is not measured
    rests: Rests
    #: Functions that run during the crawl; each ends with the crawl or earlier.
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]]


class Crawl:
    """A crawl of one spider's ledger by this process; other processes may share the crawl.

    `run` may be called once; signal handlers of the loop may call `stop` and `stop_now` at any
    time.
    """

    def __init__(self, parts: Parts) -> None:
        """Crawl with *parts*, and leave the ledger and the downloader open at the end."""
        self.spider = parts.spider
        self.ledger = parts.session.raw_ledger
        self.settings = parts.settings
        self.stats = parts.session.stats
        self._session = parts.session
        self._parts = parts
        self._ending = parts.ending
        self._reason = FinishReason.STOPPED  #: why the coordinator has ended
        self._released = 0  #: number of released leases

    @property
    def leased_count(self) -> int:
        """The number of tasks that are leased to this process now."""
        return len(self._session.leases)

    @property
    def idle_reason(self) -> IdleReason | None:
        """Why the crawl makes no requests; None if a request was in progress just now."""
        return self._parts.coordinator.idle_reason()

    @property
    def ending(self) -> EarlyEnd | None:
        """Why the crawl ends early; None if it ends normally or by order of the user."""
        return self._ending.early_end

    def measures(self) -> Measures | None:
        """Return the measures so far; None if the crawl was opened without a meter."""
        meter, rests = self._parts.meter, self._parts.rests
        if meter is None:
            return None
        resting = rests.number(self.ledger.now())
        return meter.measures(self.stats, leased_tasks=self.leased_count, resting_hosts=resting)

    def share_run(self, earliest_end: datetime) -> None:
        """Make this crawl a part of the last run, unless that run ended before *earliest_end*.

        All workers of one supervisor share a run, also a worker that starts late and finds the
        ledger drained.
        """
        self._parts.seeder.run_start.earliest_end = earliest_end

    def stop(self) -> None:
        """End the crawl: claim no task, finish pages within the grace period, release tasks."""
        self._ending.stop()

    def stop_now(self) -> None:
        """End the crawl at once: release all tasks and hosts, even pages in progress."""
        self._ending.stop_now()

    def on_end(self, call: Callable[[timedelta], None]) -> None:
        """When the crawl begins to end, call *call* with the grace period (0: end at once)."""
        self._ending.on_end = call

    async def abandon(self, ledger: Ledger, *, at_once: bool) -> Report:
        """Release all tasks in another thread, because `run` is blocked and cannot release them.

        *ledger* belongs to that thread. *at_once* is true if the user ordered an immediate end.
        """
        self._ending.ends_at_once |= at_once
        self._released += await self._session.abandon(ledger)
        return self._report(await ledger.queries.counts(), await ledger.queries.reasons())

    def stuck_in(self) -> str:
        """Return the spider's code that blocks the event loop now, if any."""
        return self._session.watchdog.blocking_code()

    async def run(self) -> Report:
        """Crawl until no work remains, or until `stop`.

        Raises `LedgerUnavailableError` if the ledger is unavailable longer than `ledger_give_up`.
        Raises `SpiderError` if `start`, `opened` or `closed` raises an error. All leases are
        released before `run` raises.
        """
        bodies = self._parts.bodies or nullcontext()
        render = aclosing(self._parts.render)
        async with self._session.watchdog, render, bodies:
            return await self._run()

    async def _run(self) -> Report:
        await self._session.join()
        opening = self._ending.opening
        try:
            await self._parts.state.open()
            with single_errors():
                await self._open()
                if self.ending is None and not opening.cancelled_caught:
                    self._reason = await self._crawl()
        finally:
            vars(self.spider).pop(RUNNING_CRAWL, None)
            await self._leave()
        queries, in_time = self._session.ledger.queries, self._session.retry.read_for_report
        report = self._report(await in_time(queries.counts), await in_time(queries.reasons))
        # If `opened` was cancelled, do not call `closed`, which may need values of `opened`.
        if not opening.cancelled_caught:
            with (
                self._ending.limit_closed(),
                spider_code("closed()", stop=self._ending.stop_by_spider),
            ):
                await settled(self.spider.closed(report))
        await in_time(self._parts.state.keep)
        return report

    def _report(self, counts: Counts | None, reasons: Mapping[str, int] | None) -> Report:
        finish = self._ending.why(self._reason)
        return Report.of(
            self.stats.snapshot(),
            spider=self.spider.name,
            finish_reason=finish.reason,
            elapsed=self.stats.elapsed,
            released=self._released,
            counts=counts,
            detail=finish.detail,
            failed_before=failed_pages(reasons or {}),
        )

    async def _open(self) -> None:
        """Call the spider's `opened`, and follow the orders in the ledger at the same time."""
        async with anyio.create_task_group() as background:
            background.start_soon(self._parts.steering.run)
            with (
                self._ending.opening,
                spider_code("opened()", stop=self._ending.stop_by_spider),
            ):
                await settled(self.spider.opened())
            background.cancel_scope.cancel()

    async def _crawl(self) -> FinishReason:
        """Run all parts concurrently; return why the crawl ended."""
        parts, ledger = self._parts, self._session.ledger
        state = await ledger.notes.state()
        seeded = await parts.seeder.is_seeded(state)
        # Start the due revisits only here: a revisit that comes due later waits for the next run.
        await ledger.admin.revisit_due()
        # Read the orders first, because a paused crawl must start nothing.
        await parts.steering.poll()
        coordinator, pool = parts.coordinator, parts.coordinator.pool
        # Fetchers put results into this queue for the committer, and wait if the queue is full.
        results: asyncio.Queue[Done] = asyncio.Queue(2 * self.settings.concurrency)
        # The committer and the renewer end after the fetchers. The committer still writes the
        # fetchers' last results, and the leases of these results must not expire.
        async with anyio.create_task_group() as background:
            renew_leases = partial(
                self._session.keep_alive,
                on_lost=coordinator.forget_lost,
                announce=coordinator.announce,
            )
            background.start_soon(renew_leases)
            background.start_soon(parts.committer.run, results, pool.has_idle_workers)
            for work in parts.background:
                background.start_soon(work)
            background.start_soon(partial(parts.seeder.run, state, seeded=seeded))
            reason = await pool.run(
                partial(parts.fetcher.run, results),
                coordinator.run,
                release_queued=self._release_queued,
                grace_scope=self._ending.grace_scope,
            )
            # Wait until the committer has written the fetchers' results.
            await results.join()
            await parts.sessions.keep()
            await parts.state.close()
            background.cancel_scope.cancel()
        if reason is FinishReason.DRAINED:
            await parts.seeder.run_start.end()
        return reason

    async def _release_queued(self) -> None:
        """Release the leases of tasks that no fetcher has started."""
        self._released += await self._parts.coordinator.release_undispatched()

    async def _leave(self) -> None:
        """Release the last leases and remove this worker from the ledger, even if cancelled."""
        # The protection against cancellation has a time limit, because the leases expire anyway.
        coordinator = self._parts.coordinator
        self._session.retry.shorten(LAST_WORDS)
        with anyio.move_on_after(2 * LAST_WORDS.total_seconds(), shield=True):
            try:
                leases = self._session.leases.all()
                self._released += await self._session.release_all()
                # Wake the hosts of the released tasks, so that other processes find the tasks now.
                await coordinator.announce(lease.task for lease in leases)
                await self._session.leave()
            except LedgerUnavailableError as error:
                logger.warning(
                    "could not release the leases, which will expire: %s",
                    printable(error),
                    extra={"event": "not_released"},
                )
            finally:
                # Close the robots cache last, because `close` waits for the user's layers.
                await self._parts.robots.close()
