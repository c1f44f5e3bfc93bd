"""One crawl in one process: who runs beside whom, and how it comes to an end.

    seeder ──> ledger <── committer <── done ── fetchers <── queue ── coordinator <── ledger
                 ^──────── renewer

What is started here ends here: nothing outlives `Crawl.run`.
"""

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, begin, end
from crawlcw.api.user_code import spider_code
from crawlcw.archive.bodies import Bodies
from crawlcw.crawl.alarms import Alarms
from crawlcw.crawl.committer import Committer
from crawlcw.crawl.control import Steering
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.fetcher import Fetcher
from crawlcw.crawl.identities import Identities
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import Done
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.seeder import Seeder
from crawlcw.downloader.browser import Browser
from crawlcw.engine.ledger_retry import LedgerRetry
from crawlcw.engine.session import Session
from crawlcw.errors import LedgerUnavailableError, single_errors
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.counters import EarlyEnd, FinishReason, Report, failed_pages
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable
from crawlcw.model.standstill import Rests, Standstill
from crawlcw.telemetry.measures import Measures
from crawlcw.telemetry.meter import Meter

logger = logging.getLogger(__name__)

#: What giving back leases may take when the crawl was told to end at once.
LAST_WORDS = timedelta(seconds=2)


class Ending:
    """The end of one crawl; all of it may be called from signal handlers of the loop."""

    def __init__(self, coordinator: Coordinator, retry: LedgerRetry, *, grace: timedelta) -> None:
        self._coordinator = coordinator
        self._retry = retry
        self._grace = grace
        self._scope = anyio.CancelScope()
        self.at_once = False
        #: Why the crawl ends itself; None while it does not.
        self.early: EarlyEnd | None = None

    def stop(self) -> None:
        """See `Crawl.stop`."""
        logger.debug(
            "stopping: up to %s for what is under way",
            format_duration(self._grace),
            extra={"event": "stopping"},
        )
        self._retry.shorten(self._grace)
        self._coordinator.stop()

    def end(self, reason: FinishReason, detail: str) -> None:
        """End soon, as by `stop`, for a finish reason of the crawl's own; the first one counts."""
        if self.early is None:
            self.early = EarlyEnd(reason=reason, detail=detail)
            logger.warning("%s: %s", reason, printable(detail), extra={"event": reason})
            self.stop()

    def wished(self, why: str) -> None:
        """End as the spider itself has asked."""
        self.end(FinishReason.STOPPED_BY_SPIDER, why)

    def stop_now(self) -> None:
        """See `Crawl.stop_now`."""
        self.at_once = True
        self._retry.shorten(LAST_WORDS)
        self._coordinator.stop()
        self._scope.cancel()

    def why(self, reason: FinishReason) -> EarlyEnd:
        """Return why the crawl has ended, for whose coordinator it was *reason*.

        An order to end at once comes before all else, and a reason of the crawl's own before
        that of the coordinator, which was told to stop for it.
        """
        if self.at_once:
            return EarlyEnd(reason=FinishReason.STOPPED_AT_ONCE, detail="")
        return self.early or EarlyEnd(reason=reason, detail="")

    def grace(self) -> anyio.CancelScope:
        """Return the scope of the wait for what is under way: the grace, from now on."""
        self._scope.deadline = anyio.current_time() + self._grace.total_seconds()
        return self._scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What runs in a crawl, all of it of this process."""

    spider: Spider
    settings: Settings
    session: Session[Ledger]
    robots: Robots
    seeder: Seeder
    coordinator: Coordinator
    fetcher: Fetcher
    parsing: Parsing
    browser: Browser
    done: asyncio.Queue[Done]  #: from the fetchers to the committer
    committer: Committer
    ending: Ending
    steering: Steering
    identities: Identities
    state: KeptState
    bodies: Bodies | None  #: where pages are kept, if they are
    rests: Rests
    meter: Meter | None  #: where somebody measures


class Crawl:
    """A crawl of one spider's ledger by this process, as one of any number.

    `run` may be called once. `stop` and `stop_now` may be called from signal
    handlers of the loop, at any time.
    """

    def __init__(self, parts: Parts) -> None:
        """Take what runs in it, put together by `assembly`; ledger and downloader stay open."""
        self.spider = parts.spider
        self.ledger = parts.session.opened
        self.settings = parts.settings
        self.stats = parts.session.stats
        self._parts = parts
        self._session = parts.session
        self._released = 0  #: leases that were given back
        self._alarms = Alarms(
            parts.spider,
            parts.settings,
            self.stats,
            standstill=parts.coordinator.standstill,
            stop=parts.ending.wished,
        )

    @property
    def held(self) -> int:
        """The number of tasks that this process holds just now."""
        return len(self._session.held)

    @property
    def standstill(self) -> Standstill | None:
        """Why nothing has been under way for a moment; None while something is."""
        return self._parts.coordinator.standstill()

    @property
    def ending(self) -> EarlyEnd | None:
        """Why the crawl ends itself; None while it does not."""
        return self._parts.ending.early

    def measures(self) -> Measures | None:
        """Return what was measured so far; None where the crawl was opened without a meter."""
        if self._parts.meter is None:
            return None
        resting = self._parts.rests.number(self.ledger.now())
        return self._parts.meter.measures(self.stats, held=self.held, resting=resting)

    def stop(self) -> None:
        """End soon: claim nothing more, let fetchers finish within the grace, release the rest."""
        self._parts.ending.stop()

    def stop_now(self) -> None:
        """End at once: release everything, however far it has come."""
        self._parts.ending.stop_now()

    def abandon(self) -> None:
        """Give everything back from any other thread: the event loop stands still.

        The process is to end right afterwards.
        """
        self._session.standby.give_back()

    def stuck_in(self) -> str:
        """Return what keeps the event loop just now, as far as it is the spider's; else nothing."""
        return self._session.watchdog.stuck_in()

    async def run(self) -> Report:
        """Crawl until nothing is left to do, or until told to stop.

        Raises `LedgerUnavailableError` where the ledger stays away longer than
        `ledger_give_up`, and `SpiderError` where the spider's own `start`,
        `opened` or `closed` raises. Whatever is held is given back first.
        """
        bodies = self._parts.bodies or nullcontext()
        async with self._session.watchdog, self._parts.parsing, self._parts.browser, bodies:
            return await self._run()

    async def _run(self) -> Report:
        await self._session.join()
        reason = FinishReason.STOPPED
        try:
            await self._parts.state.open()
            with spider_code("opened()", stop=self._parts.ending.wished):
                await begin(self.spider)
            if self.ending is None:
                with single_errors():
                    reason = await self._crawl()
        finally:
            await self._leave()
        why = self._parts.ending.why(reason)
        queries, in_time = self._session.ledger.queries, self._session.retry.in_time
        counts = await in_time(queries.counts)
        report = Report.of(
            self.stats.counted(),
            spider=self.spider.name,
            finish_reason=why.reason,
            elapsed=self.stats.elapsed,
            released=self._released,
            counts=counts,
            detail=why.detail,
            failed_before=failed_pages(await in_time(queries.reasons) or {}),
            any_finished=self.stats.pages > 0 or (None if counts is None else counts.pages > 0),
        )
        with spider_code("closed()", stop=self._parts.ending.wished):
            await end(self.spider, report)
        await in_time(self._parts.state.keep)
        return report

    async def _crawl(self) -> FinishReason:
        """Run everything side by side; return why it ended."""
        state = await self._session.ledger.notes.state()
        seeded = await self._parts.seeder.is_seeded(state)
        # Once: a page that is to be visited again sooner than that waits for the next run.
        await self._session.ledger.admin.revisit_due()
        # A crawl that is paused begins with nothing.
        await self._parts.steering.look()
        coordinator, pool = self._parts.coordinator, self._parts.coordinator.pool
        # Two groups: when the fetchers have ended, what they have handed on still needs the
        # committer, and until it is written its leases need the renewer.
        async with anyio.create_task_group() as background:
            background.start_soon(self._keep_up)
            background.start_soon(self._parts.committer.run, pool.has_idle_workers)
            background.start_soon(self._parts.identities.run)
            background.start_soon(self._alarms.run)
            background.start_soon(self._parts.steering.run)
            if self._parts.bodies is not None:
                background.start_soon(self._parts.bodies.mend)
            background.start_soon(partial(self._parts.seeder.run, state, seeded=seeded))
            reason = await pool.run(
                partial(self._parts.fetcher.run, pool, self._parts.done, coordinator),
                coordinator.run,
                give_back=self._give_back,
                grace=self._parts.ending.grace,
            )
            # What the fetchers have handed on is written before the end.
            await self._parts.done.join()
            await self._parts.identities.keep()
            await self._parts.state.close()
            background.cancel_scope.cancel()
        if reason is FinishReason.DRAINED:
            await self._parts.seeder.end_run()
        return reason

    async def _keep_up(self) -> None:
        coordinator = self._parts.coordinator
        await self._session.keep_up(
            on_lost=coordinator.lost,
            renew_hosts=coordinator.host_leaser.renew,
            announce=coordinator.announce,
        )

    async def _give_back(self) -> None:
        """Give back what nobody has begun with."""
        self._released += await self._parts.coordinator.give_back_undispatched()

    async def _leave(self) -> None:
        """Give back what is still held, even while being cancelled, and sign off."""
        # The last thing this process does for the others: shielded, but not for
        # ever, since the leases run out anyway.
        coordinator = self._parts.coordinator
        self._session.retry.shorten(LAST_WORDS)
        await self._parts.robots.close()
        with anyio.move_on_after(2 * LAST_WORDS.total_seconds(), shield=True):
            try:
                held = self._session.held.all()
                self._released += await self._session.release_all()
                # Other processes' hosts: they come back when the leases would have run out.
                await coordinator.announce(lease.task for lease in held)
                await self._session.leave(leave_hosts=coordinator.host_leaser.leave)
            except LedgerUnavailableError as error:
                logger.warning(
                    "leases not given back, they will run out: %s",
                    printable(error),
                    extra={"event": "not_given_back"},
                )
