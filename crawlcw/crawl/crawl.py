"""One crawl in one process: who runs beside whom, and how it comes to an end.

    seeder ──> ledger <── committer <── done ── fetchers <── queue ── coordinator <── ledger
                 ^──────── renewer

What is started here ends here: nothing outlives `Crawl.run`.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import anyio

from crawlcw.api.host_limits import Limits, limit_of
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, check, scope
from crawlcw.api.user_code import Cancellation
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.committer import Committer
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.fetcher import Done, Fetcher
from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.network_watch import NetworkWatch
from crawlcw.crawl.probes import Probes
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.runner import InProcess
from crawlcw.crawl.seeds import MOST_HOSTS, Seeds, fingerprint, is_deeper
from crawlcw.crawl.seen import SeenFilter
from crawlcw.crawl.suspects import Children, Suspects
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.excuses import LoopExcuses
from crawlcw.engine.heartbeat import Heartbeat
from crawlcw.engine.leases import HeldLeases, Renewer, reap_dead_workers
from crawlcw.engine.patience import Patience
from crawlcw.engine.poison import PoisonGuard
from crawlcw.engine.retrying_ledger import retrying
from crawlcw.engine.spare import SpareConnection
from crawlcw.engine.stats import EarlyEnd, FinishReason, Report, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.engine.workers import this_worker
from crawlcw.errors import (
    FetchError,
    LedgerGoneError,
    LedgerUnavailableError,
    SpiderError,
    StopCrawl,
    single_errors,
)
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.dropped import merged
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable
from crawlcw.model.standstill import Rests, Standstill
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.tracebacks import describe_error, text_of

logger = logging.getLogger(__name__)

_SEED_BATCH = 500
#: What giving back leases may take when the crawl was told to end at once.
_LAST_WORDS = timedelta(seconds=2)


class Crawl:
    """A crawl of one spider's ledger by this process, as one of any number.

    `run` may be called once. `stop` and `stop_now` may be called from signal
    handlers of the loop, at any time.
    """

    def __init__(
        self,
        spider: Spider,
        ledger: Ledger,
        downloader: Downloader,
        settings: Settings,
        *,
        children: Children | None = None,
    ) -> None:
        """Take a ledger and a downloader that are open, and stay so.

        *children* work on suspects, where they can be had; else these run alone here.
        Raises `SpiderError` for a spider that cannot be run as it is written.
        """
        check(spider)
        self.spider = spider
        self.ledger = ledger
        self.settings = settings
        self.stats = Stats()
        self._worker = this_worker(now=ledger.now())
        self._scope = Scope.of(scope(spider) or (), settings)
        self._held = HeldLeases()
        self._known = SeenFilter()
        self._patience = Patience(settings.ledger_give_up)
        self._ledger = retrying(ledger, self._patience)
        self._robots = Robots(
            downloader, settings, clock=asyncio.get_running_loop().time, now=ledger.now
        )
        limits = Limits(spider.limits)
        probes = Probes(downloader, settings, now=ledger.now)
        rests = Rests()
        self._watch = NetworkWatch(probes, rests, ledger_now=ledger.now)
        self._start_hosts: set[str] = set()
        #: Of what the spider starts with; None: it is to start with it each time.
        self._fingerprint: str | None = None
        self._frontier = Frontier(
            held=self._held,
            limit_of=lambda host: limit_of(host, limits, settings),
            may_share=settings.per_host_concurrency == 0
            or any(limit.concurrency == 0 for limit in spider.limits.values()),
            policy=settings.host_policy,
            lease=settings.lease,
            max_pages=settings.max_pages_per_host,
            unlimited=self._start_hosts,
            full=self._scope.full,
            failures=self.stats.host_failures,
            given_up=self.stats.hosts_given_up,
            network=self._watch.network,
            rests=rests,
            ledger_now=ledger.now,
        )
        # A slow ledger must not let results pile up: fetchers wait for room.
        self._done: asyncio.Queue[Done] = asyncio.Queue(2 * settings.concurrency)
        suspects = Suspects(children, self._held, max_lost=settings.max_lost)
        self._heartbeat = Heartbeat(
            self._ledger, self._worker.name, self.stats, lease=settings.lease
        )
        self._spare = SpareConnection(
            ledger,
            self._held,
            worker=self._worker.name,
            lease=lambda: settings.lease,
            tally=self._heartbeat.tally,
            hosts=lambda: [host.lease for host in self._frontier if host.lease is not None],
        )
        self._watchdog = Watchdog(
            self.stats,
            limit=settings.callback_timeout,
            renew_every=settings.lease / 3,
            upkeep=self._spare,
        )
        excuses = LoopExcuses(self._watchdog, self.stats, deadlines=settings.deadlines)
        self._coordinator = Coordinator(
            self._ledger,
            settings=settings,
            frontier=self._frontier,
            robots=self._robots,
            held=self._held,
            stats=self.stats,
            patience=self._patience,
            heartbeat=self._heartbeat,
            probes=probes,
            watch=self._watch,
            suspects=suspects,
            worker=self._worker.name,
            excuses=excuses,
        )
        self._fetcher = Fetcher(
            settings=settings,
            ledger=self._ledger,
            downloader=downloader,
            runner=InProcess(
                spider=spider,
                scope=self._scope,
                known=self._known,
                now=ledger.now,
                watch=self._watchdog,
            ),
            robots=self._robots,
            frontier=self._frontier,
            blame=Blame(self._frontier, self._watch),
            scope=self._scope,
            held=self._held,
            known=self._known,
            stats=self.stats,
            poison_guard=PoisonGuard(self._ledger, self._held),
            suspects=suspects,
            worker=self._worker.name,
            end=self.end,
            excuses=excuses,
        )
        self._grace = anyio.CancelScope()
        self._at_once = False
        #: Why the crawl ends itself; None while it does not.
        self.ending: EarlyEnd | None = None

    @property
    def held(self) -> int:
        """The number of tasks that this process holds just now."""
        return len(self._held)

    @property
    def standstill(self) -> Standstill | None:
        """Why nothing has been under way for a moment; None while something is."""
        return self._coordinator.standstill()

    def stop(self) -> None:
        """End soon: claim nothing more, let fetchers finish within the grace, release the rest."""
        self._patience.shorten(self.settings.grace)
        self._coordinator.stop()

    def end(self, reason: FinishReason, detail: str) -> None:
        """End soon, as by `stop`, for a finish reason of the crawl's own; the first one counts."""
        if self.ending is None:
            self.ending = EarlyEnd(reason=reason, detail=detail)
            logger.warning("%s: %s", reason, printable(detail), extra={"event": reason})
            self.stop()

    def stop_now(self) -> None:
        """End at once: release everything, however far it has come."""
        self._at_once = True
        self._patience.shorten(_LAST_WORDS)
        self._coordinator.stop()
        self._grace.cancel()

    def abandon(self) -> None:
        """Give everything back from any other thread: the event loop stands still.

        The process is to end right afterwards.
        """
        self._spare.give_back()

    def stuck_in(self) -> str:
        """Return what keeps the event loop just now, as far as it is the spider's; else nothing."""
        called = self._watchdog.standing()
        return "" if called is None else f"{called.name} of {called.subject}"

    async def run(self) -> Report:
        """Crawl until nothing is left to do, or until told to stop.

        Raises `LedgerUnavailableError` where the ledger stays away longer than
        `ledger_give_up`, and `SpiderError` where the spider's own `start`,
        `opened` or `closed` raises. Whatever is held is given back first.
        """
        async with self._watchdog:
            return await self._run()

    async def _run(self) -> Report:
        await reap_dead_workers(self._ledger)
        await self._ledger.join(self._worker)
        released, reason = 0, FinishReason.STOPPED
        try:
            with self._spider_code("opened()"):
                await self.spider.opened()
            if self.ending is None:
                with single_errors():
                    reason, released = await self._crawl()
        finally:
            released += await self._leave()
        detail = ""
        if self.ending is not None and reason is not FinishReason.STOPPED_AT_ONCE:
            reason, detail = self.ending.reason, self.ending.detail
        report = Report(
            spider=self.spider.name,
            finish_reason=reason,
            elapsed=self.stats.elapsed,
            pages=self.stats.pages,
            items=self.stats.items,
            released=released,
            counts=await self._patience.in_time(self._ledger.counts),
            failures=dict(self.stats.failures.most_common()),
            host_failures=dict(self.stats.host_failures.most_common()),
            links_dropped=dict(self.stats.links_dropped.most_common()),
            leases_lost=self.stats.leases_lost,
            link_examples=merged([self.stats.link_examples]),
            stalls=self.stats.stalls,
            longest_stall=self.stats.longest_stall,
            forgiven=self.stats.forgiven,
            detail=detail,
            given_up=self.stats.given_up,
            hosts_given_up=dict(self.stats.hosts_given_up),
            more_hosts_given_up=self.stats.more_hosts_given_up,
            any_finished=self.stats.pages > 0
            or await self._patience.in_time(lambda: self._ledger.has([Status.FINISHED])),
        )
        with self._spider_code("closed()"):
            await self.spider.closed(report)
        return report

    async def _crawl(self) -> tuple[FinishReason, int]:
        """Run everything side by side; return why it ended, and how many leases went back."""
        state = await self._ledger.state()
        seeded = await self._is_seeded(state)
        committer = Committer(
            self._ledger,
            self._done,
            held=self._held,
            known=self._known,
            stats=self.stats,
            following=self._coordinator,
            max_depth=self.settings.max_depth,
        )
        renewer = Renewer(
            self.ledger,
            self._held,
            lease=self.settings.lease,
            patience=self._patience,
            renew_hosts=self._coordinator.host_leaser.renew,
            on_lost=self._coordinator.lost,
            renewing=self._watchdog.renewed,
        )
        released = 0
        # Two groups: when the fetchers have ended, what they have handed on still needs the
        # committer, and until it is written its leases need the renewer.
        async with anyio.create_task_group() as background:
            background.start_soon(renewer.run)
            background.start_soon(committer.run)
            background.start_soon(self._begin, state, seeded)
            background.start_soon(self._heartbeat.run)
            async with anyio.create_task_group() as fetchers:
                for _ in range(self.settings.concurrency):
                    fetchers.start_soon(
                        self._fetcher.run,
                        self._coordinator.queue,
                        self._done,
                        self._coordinator,
                    )
                reason = await self._coordinator.run()
                if reason is not FinishReason.DRAINED:
                    # First what nobody has begun with: others may take it during the grace.
                    released = await self._release(self._coordinator.undispatched())
                    await self._wait_for_fetchers(reason)
                fetchers.cancel_scope.cancel()
            # What the fetchers have handed on is written before the end.
            await self._done.join()
            background.cancel_scope.cancel()
        if self._at_once:
            reason = FinishReason.STOPPED_AT_ONCE
        return reason, released

    async def _wait_for_fetchers(self, reason: FinishReason) -> None:
        if reason is FinishReason.STOPPED and not self._at_once:
            logger.debug(
                "stopping: up to %s for what is under way",
                format_duration(self.settings.grace),
                extra={"event": "stopping"},
            )
        self._grace.deadline = anyio.current_time() + self.settings.grace.total_seconds()
        with self._grace:
            await self._coordinator.idle()

    async def _is_seeded(self, state: Mapping[str, Any]) -> bool:
        """Return whether all seeds are in the ledger; their hosts are noted then."""
        seeds = Seeds.read(state.get("seeds"))
        if not self.spider.start_again:
            with self._spider_code("start_urls"):
                self._fingerprint = fingerprint(self.spider)
        if seeds is None or seeds.fingerprint != self._fingerprint:
            return False
        if not await self._ledger.find(TaskFilter(), limit=1):
            # Somebody has deleted the tasks by other means than crawlcw's.
            await self._ledger.set_state({"seeds": None})
            return False
        for host in seeds.hosts:
            self._note_start(host)
        return True

    def _note_start(self, host: str) -> None:
        self._start_hosts.add(host)
        if self.spider.allowed_hosts is None:
            self._scope.hosts.add(host)

    async def _begin(self, state: Mapping[str, Any], seeded: bool) -> None:
        """Let in what lay too deep before, and add the seeds where they are not there."""
        await self._go_deeper(state.get("depth"))
        if not seeded:
            await self._seed()
        self._coordinator.seeded()

    async def _go_deeper(self, last: Mapping[str, Any] | None) -> None:
        """Follow the links that only the *last* crawl was not to, and write this one's limit down.

        Ledgers of older versions say nothing of it, and kept no such links.
        """
        limit = self.settings.max_depth
        if last is not None and last["limit"] == limit:
            return
        if last is not None and is_deeper(limit, than=last["limit"]):
            number = await self._ledger.admit_to_depth(limit)
            logger.info("%d links that lay too deep before are followed now", number)
            self._coordinator.wake()
        # Afterwards: where this process is killed in between, the next one does it again.
        depth = {"limit": limit}
        await self._ledger.set_state({"depth": depth})

    async def _seed(self) -> None:
        """Add the spider's start requests, a batch at a time."""
        batch: list[Task] = []
        number = 0
        is_whole = unfiltered = False
        with self._spider_code("start()"):
            async for request in self.spider.start():
                number += 1
                salt = f"{self._worker.name} seed {number}".encode()
                try:
                    task = request.task(now=self._ledger.now(), salt=salt)
                except FetchError as error:
                    logger.warning("no URL to start from: %s", printable(error))
                    continue
                self._note_start(task.host)
                # One that is not to be filtered asks for another task each time.
                unfiltered = unfiltered or request.dont_filter
                batch.append(task)
                if len(batch) >= _SEED_BATCH:
                    await self._add_seeds(batch)
                    batch = []
            is_whole = True  # a spider that stops the crawl in `start` does not come here
        if batch:
            await self._add_seeds(batch)
        if not is_whole or unfiltered or len(self._start_hosts) > MOST_HOSTS:
            return
        if self._fingerprint is not None:
            seeds = Seeds(fingerprint=self._fingerprint, hosts=frozenset(self._start_hosts))
            await self._ledger.set_state({"seeds": seeds.document()})

    async def _add_seeds(self, batch: list[Task]) -> None:
        added = await self._ledger.add(batch)
        for task, why in added.rejected:
            logger.warning("cannot store %s: %s", printable(task.url), printable(why))
        rejected = {task.id for task, _ in added.rejected}
        self._known.add(task.id for task in batch if task.id not in rejected)
        self.stats.links_added += added.new
        if self.settings.max_depth is not None and added.known:
            nearer = await self._ledger.admit_nearer(batch)
            self.stats.links_added += nearer
        await self._coordinator.announce(batch)
        self._coordinator.wake()

    async def _release(self, leases: list[Lease]) -> int:
        count = await self._ledger.release(leases)
        # Only now: killed in between, the leases run out, and nothing is lost.
        self._held.end(leases)
        return count

    async def _leave(self) -> int:
        """Give back what is still held, even while being cancelled, and sign off."""
        # The last thing this process does for the others: shielded, but not for
        # ever, since the leases run out anyway.
        count = 0
        self._patience.shorten(_LAST_WORDS)
        await self._robots.close()
        with anyio.move_on_after(2 * _LAST_WORDS.total_seconds(), shield=True):
            try:
                # Tasks, hosts, tally, worker: while it is on the list its leases are its own,
                # and what it has counted last is kept when it leaves.
                count = await self._ledger.release(self._held.all())
                await self._coordinator.host_leaser.leave()
                await self._patience.insist(self._heartbeat.beat)
                await self._ledger.leave(self._worker.name)
            except LedgerUnavailableError as error:
                logger.warning("leases not given back, they will run out: %s", printable(error))
        return count

    @contextmanager
    def _spider_code(self, what: str) -> Iterator[None]:
        """Turn whatever the spider's own code raises into one clear error, its cause attached."""
        cancellation = Cancellation()
        try:
            yield
        except StopCrawl as told:
            self.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(told)))
        except (SpiderError, LedgerGoneError, LedgerUnavailableError):
            raise
        except BaseException as error:
            if cancellation.passes(error):
                raise
            logger.debug(
                "the spider's %s raised", what, exc_info=True, extra={"event": "spider_error"}
            )
            raise SpiderError(
                f"the spider's {what} raised {printable(describe_error(error))}"
            ) from error
