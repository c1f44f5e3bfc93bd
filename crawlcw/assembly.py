"""Putting the parts together: the only place that chooses a crawl's implementations."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from crawlcw.api.attempt import Downloader, Purpose
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, check, entry_urls, has_own_start
from crawlcw.api.spider import scope as spider_scope
from crawlcw.archive.bodies import Bodies
from crawlcw.crawl.callbacks import Runner, Scope
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.committer import Committer, TaskAdder
from crawlcw.crawl.control import Steering
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.crawl import Crawl, Ending, Parts
from crawlcw.crawl.fetcher import Fetcher
from crawlcw.crawl.hosts import Frontier, HostTurns, PageLimit
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.moved import MovedPages
from crawlcw.crawl.opening import Admission
from crawlcw.crawl.outcomes import Outcomes
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.seeder import Seeder, StartNames
from crawlcw.crawl.sessions import Sessions
from crawlcw.engine.session import Session
from crawlcw.engine.stats import Instruments
from crawlcw.errors import UsageError
from crawlcw.fetch import pipeline
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import DefaultDownloader, Render, downloader_of, proxy_pool, web
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.fetch.recording import Recorder
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import DEFAULT_LEDGER, open_ledger
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.standstill import Rests
from crawlcw.telemetry.meter import Meter


@asynccontextmanager
async def open_crawl(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
    meter: Meter | None = None,
) -> AsyncIterator[Crawl]:
    """Open what a crawl of *spider* needs, and close it afterwards.

    *settings* replace those of the spider's class; *downloader* replaces the
    real one, for tests. With a *meter* `Crawl.measures` returns what it has measured.
    """
    check(spider)
    settings = settings or spider.settings
    opened = await open_ledger(ledger, spider.name, settings=settings)
    try:
        proxies = proxy_pool(settings)
        names = StartNames(opened.notes, has_own_start=has_own_start(spider))
        default = downloader or web(spider, settings, public_names=names, proxies=proxies)
        async with downloader_of(spider, default) as way:
            yield assemble(spider, opened, way, settings, proxies=proxies, meter=meter)
    finally:
        await opened.close()


def assemble(
    spider: Spider,
    ledger: Ledger,
    downloader: Downloader,
    settings: Settings,
    *,
    proxies: ProxyPool | None = None,
    meter: Meter | None = None,
) -> Crawl:
    """Return a crawl on a ledger and a downloader that are open, and stay so; in its event loop.

    *proxies* are those that the downloader's requests go through.
    Raises `SpiderError` for a spider that cannot be run as it is written.
    """
    check(spider)
    # This process as a worker on the ledger, and what is kept beside the tasks.
    session = Session(
        ledger,
        lease=lambda: settings.lease,
        give_up=settings.ledger_give_up,
        limit=settings.callback_timeout,
        deadlines=settings.deadlines,
    )
    session.instruments = _instruments(settings, meter)
    ledger = session.ledger
    ending = Ending(session.retry, grace=settings.grace)
    end = ending.end
    proxies = proxies or ProxyPool(settings)
    proxies.on_lost = partial(end, FinishReason.PROXIES_FAILED)
    rests = Rests()
    rests.proxies_away = proxies.away
    scope = Scope.of(spider_scope(spider) or (), settings)
    state = KeptState(spider, ledger)
    bodies = Bodies(spider.name, settings) if settings.keep_bodies else None

    # The way through the layers for each purpose, and those that ask by it themselves.
    credentials = Credentials(entry_urls(spider), headers=settings.headers, auth=settings.auth)
    admission = Admission(scope)
    render = Render(settings, admission)
    layers = pipeline.layers(
        spider,
        settings,
        downloader if isinstance(downloader, DefaultDownloader) else DefaultDownloader(downloader),
        credentials=credentials,
        admission=admission,
        render=render,
        watch=session.watchdog,
        keeps_bodies=bodies is not None,
    )
    ways = pipeline.ways(layers)
    clock = asyncio.get_running_loop().time
    robots = Robots(ways[Purpose.ROBOTS], settings, clock=clock, now=ledger.now)

    # The hosts of this process, and the coordinator of its tasks that are due.
    page_limit = PageLimit(most=settings.max_pages_per_host, full=scope.full)
    frontier = Frontier(
        spider,
        settings,
        held=session.held,
        page_limit=page_limit,
        clock=time.monotonic,
        ledger_now=ledger.now,
    )
    turns = HostTurns(robots, frontier)
    probe, stats = ways[Purpose.PROBE], session.stats
    causes = Causes(frontier, proxies, probe, ledger=ledger, stats=stats, rests=rests)
    admission.robots, admission.turns, admission.causes = robots, turns, causes
    coordinator = Coordinator(
        session, settings, frontier=frontier, robots=robots, causes=causes, state=state, end=end
    )
    ending.on_stop = coordinator.stop

    # Those that write sessions, tasks and outcomes.
    sessions = Sessions(
        spider, settings, session, ways, admission=admission, proxies=proxies, end=end
    )
    adder = TaskAdder(
        ledger=ledger,
        stats=stats,
        announce=coordinator.announce,
        max_depth=settings.max_depth,
        beside=[sessions.keep, state.keep],
    )
    seeder = Seeder(
        spider,
        adder,
        coordinator=coordinator,
        scope=scope,
        start_hosts=page_limit.unlimited,
        credentials=credentials,
        lease=settings.lease,
        stop=ending.wished,
    )
    committer = Committer(
        session, coordinator=coordinator, adder=adder, state=state, bodies=bodies, end=end
    )

    # The fetchers, from a lease to what comes of its page.
    runner = Runner(
        spider=spider,
        scope=scope,
        seen=adder.seen,
        now=ledger.now,
        watch=session.watchdog,
        parsing=Parsing(settings),
        state=state,
        write=committer.write_links,
    )
    outcomes = Outcomes(
        session,
        settings,
        runner=runner,
        causes=causes,
        sessions=sessions,
        recorder=Recorder(bodies=bodies),
        end=end,
    )
    fetcher = Fetcher(
        session,
        ways=ways,
        robots=robots,
        turns=turns,
        coordinator=coordinator,
        outcomes=outcomes,
        moved=MovedPages(session, outcomes, adder=adder, robots=robots, scope=scope),
    )
    return Crawl(
        Parts(
            spider=spider,
            settings=settings,
            session=session,
            ending=ending,
            seeder=seeder,
            coordinator=coordinator,
            fetcher=fetcher,
            committer=committer,
            robots=robots,
            sessions=sessions,
            state=state,
            steering=Steering(session, settings, coordinator=coordinator, end=end),
            render=render,
            bodies=bodies,
            meter=meter,
            rests=rests,
        )
    )


def _instruments(settings: Settings, meter: Meter | None) -> Instruments | None:
    if not settings.trace:
        return meter
    try:
        from crawlcw.telemetry.spans import Tracing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise UsageError(
            "trace needs OpenTelemetry: install it with `pip install 'crawlcw[otel]'`"
        ) from None
    return Tracing(beside=meter)


async def run_spider(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
) -> Report:
    """Crawl *spider* to its end and return the report; the arguments are `open_crawl`'s."""
    async with open_crawl(spider, ledger=ledger, settings=settings, downloader=downloader) as crawl:
        return await crawl.run()
