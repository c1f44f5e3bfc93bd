"""Assemble a crawl from its parts, except the downloader, which `pipeline.web` makes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

from crawlcw.api.attempt import Downloader, Purpose
from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.api.spider import RUNNING_CRAWL, Spider, check, entry_urls, has_own_start
from crawlcw.api.spider import scope as spider_scope
from crawlcw.archive.bodies import Bodies
from crawlcw.browser.layer import Render
from crawlcw.crawl.admission import Admission
from crawlcw.crawl.callbacks import Runner, Scope
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.committer import Committer, TaskAdder
from crawlcw.crawl.control import Steering
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.crawl import Crawl, Ending, Parts
from crawlcw.crawl.fetcher import Fetcher
from crawlcw.crawl.hosts import Frontier, PageLimit
from crawlcw.crawl.item_keys import Duplicates
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.lending import Lending
from crawlcw.crawl.link_checks import LinkChecks
from crawlcw.crawl.moved import MovedPages
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.outcomes import Outcomes
from crawlcw.crawl.page_adder import BATCH_SIZE, AddedPages, PageAdder
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.seeder import Seeder
from crawlcw.crawl.sessions import Sessions
from crawlcw.crawl.spider_requests import SpiderRequests
from crawlcw.dev_cache import DevCache
from crawlcw.engine.session import WorkerSession
from crawlcw.fetch import pipeline
from crawlcw.fetch.addresses import PublicNames
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import DefaultDownloader, downloader_of, web
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import DEFAULT_LEDGER, open_ledger
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.idle_reason import Rests
from crawlcw.telemetry.alarms import Alarms
from crawlcw.telemetry.meter import Meter, instruments


@asynccontextmanager
async def open_crawl(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
    meter: Meter | None = None,
) -> AsyncIterator[Crawl]:
    """Open the resources of a crawl of *spider*; the end of the `async with` block closes them.

    *settings* replace the settings of the spider's class. *downloader* replaces the real
    downloader, for tests. With a *meter*, `Crawl.measures` returns the meter's measures.
    """
    check(spider)
    settings = settings or spider.settings
    raw_ledger = await open_ledger(ledger, spider.name, settings=settings)
    try:
        proxies = ProxyPool(settings, os.environ)
        public_names = PublicNames(raw_ledger.notes, has_own_start=has_own_start(spider))
        default = downloader or web(
            spider,
            settings,
            public_names=public_names,
            proxies=proxies,
            cache=DevCache.of,
        )
        async with downloader_of(spider, default, settings) as open_downloader:
            yield assemble(
                spider, raw_ledger, open_downloader, settings, proxies=proxies, meter=meter
            )
    finally:
        await raw_ledger.close()


def assemble(
    spider: Spider,
    ledger: Ledger,
    downloader: Downloader,
    settings: Settings,
    *,
    proxies: ProxyPool | None = None,
    meter: Meter | None = None,
) -> Crawl:
    """Return a crawl that uses an open ledger and an open downloader.

    Call this function in the event loop of the crawl. The crawl does not close the ledger or the
    downloader. *proxies* are the proxies that the downloader uses.
    """
    parts = _Parts(spider, ledger, settings, proxies or ProxyPool(settings), meter)
    parts.make_layers(downloader)
    parts.make_hosts()
    parts.make_writers()
    parts.make_spider_requests()
    parts.make_fetcher()
    parts.make_background()
    return Crawl(parts)


@dataclass(eq=False)
class _Parts(Parts):
    """The parts of one crawl; each method needs parts that the methods above it have made."""

    spider: Spider
    raw_ledger: Ledger
    settings: Settings
    proxies: ProxyPool
    meter: Meter | None

    def __post_init__(self) -> None:
        """Register this process as a worker, and prepare the spider's state and stored bodies."""
        spider, settings = self.spider, self.settings
        self.now = self.raw_ledger.now
        self.session = WorkerSession(
            self.raw_ledger,
            lease_length=lambda: settings.lease,
            give_up=settings.ledger_give_up,
            limit=settings.callback_timeout,
            deadlines=settings.deadlines,
        )
        self.session.instruments = instruments(self.meter, trace=settings.trace)
        self.ledger = self.session.ledger
        self.ending = Ending(self.session.retry, grace=settings.grace)
        self.rests = Rests()
        self.rests.proxies_away = self.proxies.away
        self.proxies.on_lost = partial(self.ending.end, FinishReason.PROXIES_FAILED)
        self.scope = Scope.of(spider_scope(spider) or (), settings)
        self.state = KeptState(spider, self.ledger)
        self.bodies = Bodies(spider.name, settings) if settings.keep_bodies else None

    def make_layers(self, downloader: Downloader) -> None:
        """Make a chain of layers for each purpose of requests, and the parts that send requests."""
        spider, settings = self.spider, self.settings
        self.credentials = Credentials(
            entry_urls(spider), headers=settings.headers, auth=settings.auth
        )
        if not isinstance(downloader, DefaultDownloader):
            downloader = DefaultDownloader(downloader)
        self.admission = Admission(self.scope)
        self.render = Render(settings, self.admission)
        layers = pipeline.layers(
            spider,
            settings,
            downloader,
            credentials=self.credentials,
            admission=self.admission,
            render=self.render,
            watch=self.session.watchdog,
            keeps_bodies=self.bodies is not None,
        )
        self.next_by_purpose = pipeline.chains(layers)
        clock = asyncio.get_running_loop().time
        self.robots = Robots(
            self.next_by_purpose[Purpose.ROBOTS], settings, clock=clock, now=self.now
        )
        self.admission.robots = self.robots

    def make_hosts(self) -> None:
        """Make the frontier (the leased hosts), and the coordinator, which claims due tasks."""
        settings, session = self.settings, self.session
        self.frontier = Frontier(
            self.spider,
            settings,
            task_leases=session.leases,
            page_limit=PageLimit(max_pages=settings.max_pages_per_host, full_hosts=self.scope.full),
            clock=time.monotonic,
            ledger_now=self.now,
        )
        self.causes = Causes(
            self.frontier,
            self.proxies,
            self.next_by_purpose[Purpose.PROBE],
            ledger=self.ledger,
            stats=session.stats,
            rests=self.rests,
            stop=self.ending.stop_by_spider,
        )
        self.admission.opening = opening = Opening(
            self.frontier,
            self.robots,
            self.causes,
            max_parallel=2 * settings.concurrency,
            watchdog=session.watchdog,
        )
        self.coordinator = Coordinator(
            session,
            settings,
            opening=opening,
            state=self.state,
            end=self.ending.end,
        )
        self.admission.wake = self.coordinator.wake
        self.admission.dispatch = self.coordinator.dispatch
        session.hosts = self.coordinator.host_leaser
        self.ending.on_stop = self.coordinator.stop

    def make_writers(self) -> None:
        """Make the parts that write sessions, tasks and outcomes, and that obey `crawlcw stop`."""
        settings, session = self.settings, self.session
        preparations: list[Callable[[], Awaitable[None]]] = [self.state.keep]
        self.sessions: Sessions = Sessions(
            self.spider,
            settings,
            session,
            self.next_by_purpose,
            admission=self.admission,
            proxies=self.proxies,
            end=self.ending.end,
            writes_before=preparations,
        )
        self.adder = TaskAdder(
            ledger=self.ledger,
            stats=session.stats,
            announce=self.coordinator.announce,
            max_depth=settings.max_depth,
            writes_before=preparations,
        )
        self.seeder = Seeder(
            self.spider,
            self.adder,
            coordinator=self.coordinator,
            scope=self.scope,
            credentials=self.credentials,
            lease=settings.lease,
            stop=self.ending.stop_by_spider,
        )
        self.committer = Committer(
            session,
            coordinator=self.coordinator,
            adder=self.adder,
            state=self.state,
            bodies=self.bodies,
            end=self.ending.end,
            duplicates=Duplicates.of(self.spider, self.ledger, settings.keep_versions),
        )

        self.steering = Steering(
            session,
            settings,
            coordinator=self.coordinator,
            adder=self.adder,
            end=self.ending.end,
        )

    def make_spider_requests(self) -> None:
        """Give the spider its requests without a task, until the end of the crawl."""
        self.spider_requests = vars(self.spider)[RUNNING_CRAWL] = SpiderRequests(
            ledger=self.ledger,
            known_ids=self.adder.known_ids,
            next_by_purpose=self.next_by_purpose,
            admission=self.admission,
            scope=self.scope,
            stats=self.session.stats,
            throttle_statuses=self.settings.throttle_statuses,
            unwritten_seeds=self.seeder.unwritten_count,
        )

    def make_fetcher(self) -> None:
        """Make the parts that turn a leased page into its outcome."""
        session = self.session
        runner = Runner(
            spider=self.spider,
            scope=self.scope,
            known_ids=self.adder.known_ids,
            now=self.now,
            watchdog=session.watchdog,
            parsing=Parsing(self.settings, selectors=self.spider.selectors),
            state=self.state,
            write=self.committer.write_links,
            fetch=self.spider_requests.fetch,
        )
        outcomes = Outcomes(
            session,
            self.settings,
            runner=runner,
            causes=self.causes,
            sessions=self.sessions,
            bodies=self.bodies,
            end=self.ending.end,
        )
        self.fetcher = Fetcher(
            session,
            next_by_purpose=self.next_by_purpose,
            robots=self.robots,
            coordinator=self.coordinator,
            outcomes=outcomes,
            moved=MovedPages(
                session, outcomes, adder=self.adder, robots=self.robots, scope=self.scope
            ),
        )

    def make_background(self) -> None:
        """Make the list of background tasks."""
        alarms = Alarms(
            self.spider,
            self.settings,
            self.session.stats,
            idle_reason=self.coordinator.idle_reason,
            stop=self.ending.stop_by_spider,
        )
        # Watch the uplink (this machine's connection) in a separate asyncio task, because the
        # coordinator ends before the last pages end.
        watch_uplink = self.causes.watch_uplink
        lending = Lending(
            self.session,
            self.causes,
            self.robots,
            has_free_fetchers=self.coordinator.pool.has_idle_workers,
        )
        self.background = [self.sessions.run, alarms.run, self.steering.run, watch_uplink]
        self.background.append(lending.run)
        if self.bodies is not None:
            self.background.append(self.bodies.mend)


async def add_pages(
    spider: Spider | str,
    pages: str | Iterable[str | Request],
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
) -> AddedPages:
    """Add URLs and requests to the ledger of a spider, also while other programs crawl the spider.

    Does the same as `crawlcw add`. A running crawl requests new pages within a second, and a later
    crawl requests them if none is running. The pages have the depth 0, and obey `url_rules`. Links
    that a crawl would not follow are counted in `refused`; known pages do not change. *spider* may
    be the name of a spider with a ledger. Then nothing is refused except invalid URLs, and
    `url_rules` do not apply, because only the spider knows its hosts, callbacks and settings.

    Raises `UsageError` for an invalid request, or a callback that the spider does not have; the
    pages before it may be added. Also raises `UsageError` for a name without a ledger, and
    `LedgerUnavailableError` if the ledger does not answer.
    """
    name = spider if isinstance(spider, str) else spider.name
    if isinstance(spider, str):
        settings = settings or Settings()
        await (await open_ledger(ledger, name, settings=settings, create=False)).close()
    else:
        check(spider)
        settings = settings or spider.settings
    open_pages = iter([pages] if isinstance(pages, str) else pages)

    async def batches() -> AsyncIterator[list[Request]]:
        while batch := [*islice(open_pages, BATCH_SIZE)]:
            yield [Request(page) if isinstance(page, str) else page for page in batch]

    raw_ledger = await open_ledger(ledger, name, settings=settings)
    try:
        checks = None
        if isinstance(spider, Spider):
            checks = LinkChecks(spider, settings, await raw_ledger.notes.state())
        adder = PageAdder(raw_ledger, None if isinstance(spider, str) else spider, checks)
        await adder.add_all(batches())
    finally:
        await raw_ledger.close()
    return adder.counts


async def run_spider(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
) -> Report:
    """Crawl *spider* to its end and return the report; see `open_crawl` for the arguments."""
    async with open_crawl(spider, ledger=ledger, settings=settings, downloader=downloader) as crawl:
        return await crawl.run()
