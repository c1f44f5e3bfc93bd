"""Putting the parts together: the only place that chooses implementations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from crawlcw.api.host_limits import Limits, limit_of
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, check, scope
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.committer import Committer
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.crawl import Crawl, Parts
from crawlcw.crawl.ending import Ending
from crawlcw.crawl.fetcher import Done, Fetcher
from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.network_watch import NetworkWatch
from crawlcw.crawl.page_limit import PageLimit
from crawlcw.crawl.probes import Probes
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.runner import InProcess
from crawlcw.crawl.seeder import Seeder
from crawlcw.crawl.seen import SeenFilter
from crawlcw.crawl.suspects import Children, Suspects
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.excuses import LoopExcuses
from crawlcw.engine.poison import PoisonGuard
from crawlcw.engine.session import Session
from crawlcw.engine.stats import Report
from crawlcw.errors import LedgerConfigurationError, UsageError
from crawlcw.ledger.examination import ExaminedLedger
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.tracked import TrackedLedger
from crawlcw.model import urls
from crawlcw.model.standstill import Rests

DEFAULT_LEDGER = "sqlite:///.crawlcw/ledger.db"


async def open_ledger(
    url: str,
    name: str,
    *,
    settings: Settings | None = None,
    create: bool = True,
    kind: LedgerKind | None = LedgerKind.SPIDER,
) -> Ledger:
    """Return the ledger of the spider named *name* at *url*.

    *url* is `sqlite:///relative/path`, `sqlite:////absolute/path`,
    `mongodb://host/database` or `mongodb+srv://...`. *kind* says whether it is that
    of a spider or of a use case of this name, None whichever of the two is there.
    Without *create* an embedded ledger that does not exist is a `UsageError`.
    Raises `LedgerConfigurationError` or `LedgerUnavailableError`.
    """
    settings = settings or Settings()
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger  # the drivers take 0.2 s to load

        return await MongoLedger.open(
            url, name, driver=settings.mongo_driver, claims=settings.claim, kind=kind
        )
    from crawlcw.ledger.sqlite import SqliteLedger

    if not create:
        await _check_there(path)
    return await SqliteLedger.open(path, name, kind=kind)


async def open_tracked(
    url: str, use_case: str, *, driver: str = "motor", create: bool = True
) -> TrackedLedger:
    """Return the ledger of the use case named *use_case* at *url*.

    *driver* is MongoDB's; the other arguments and errors are those of `open_ledger`.
    """
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        return await MongoLedger.open(
            url, use_case, driver=driver, claims="batch", kind=LedgerKind.USE_CASE
        )
    from crawlcw.ledger.sqlite import SqliteLedger

    if not create:
        await _check_there(path)
    return await SqliteLedger.open(path, use_case, kind=LedgerKind.USE_CASE)


async def open_for_inspection(
    url: str, name: str, *, settings: Settings | None = None
) -> ExaminedLedger:
    """Return the ledger of the spider or use case named *name* at *url*: nothing is made.

    The arguments and errors are those of `open_ledger` without *create*.
    """
    settings = settings or Settings()
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        return await MongoLedger.look(url, name, driver=settings.mongo_driver)
    from crawlcw.ledger.sqlite import SqliteLedger

    await _check_there(path)
    return await SqliteLedger.look(path, name)


def _path(url: str) -> Path | None:
    """Return the file of an embedded ledger, or None for one on MongoDB."""
    scheme, _, rest = url.partition("://")
    if scheme in ("mongodb", "mongodb+srv"):
        return None
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Path(rest[1:])
    raise LedgerConfigurationError(
        f"{_without_password(url)!r} is no ledger: write sqlite:///path or mongodb://host/database"
    )


async def _check_there(path: Path) -> None:
    if not await anyio.Path(path).exists():
        raise UsageError(
            f"there is no ledger at {path}: run a spider first, or name one with --ledger"
        )


@asynccontextmanager
async def open_crawl(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
    children: Children | None = None,
) -> AsyncIterator[Crawl]:
    """Open what a crawl of *spider* needs, and close it afterwards.

    *settings* replace those of the spider's class; *downloader* replaces the
    real one, for tests. *children* work on what crashed workers held: they are
    for whoever can make the spider anew in another process.
    """
    check(spider)
    settings = settings or spider.settings
    opened = await open_ledger(ledger, spider.name, settings=settings)
    try:
        way = downloader or web(spider, settings)
        try:
            yield assemble(spider, opened, way, settings, children=children)
        finally:
            await way.close()
    finally:
        await opened.close()


def assemble(
    spider: Spider,
    ledger: Ledger,
    downloader: Downloader,
    settings: Settings,
    *,
    children: Children | None = None,
) -> Crawl:
    """Return a crawl on a ledger and a downloader that are open, and stay so; in its event loop.

    *children* work on suspects, where they can be had; else these run alone here.
    Raises `SpiderError` for a spider that cannot be run as it is written.
    """
    check(spider)
    seen = SeenFilter()
    session = Session(
        ledger,
        lease=lambda: settings.lease,
        give_up=settings.ledger_give_up,
        limit=settings.callback_timeout,
        hosts=lambda: [host.lease for host in frontier if host.lease is not None],
    )
    waiting, held, stats = session.ledger, session.held, session.stats
    allowed = Scope.of(scope(spider) or (), settings)
    robots = Robots(downloader, settings, clock=asyncio.get_running_loop().time, now=ledger.now)
    probes = Probes(downloader, settings, now=ledger.now)
    rests = Rests()
    watch = NetworkWatch(probes, rests, ledger_now=ledger.now)
    limits = Limits(spider.limits)
    start_hosts: set[str] = set()
    frontier = Frontier(
        held=held,
        limit_of=lambda host: limit_of(host, limits, settings),
        may_share=settings.per_host_concurrency == 0
        or any(limit.concurrency == 0 for limit in spider.limits.values()),
        policy=settings.host_policy,
        lease=settings.lease,
        page_limit=PageLimit(
            most=settings.max_pages_per_host, unlimited=start_hosts, full=allowed.full
        ),
        failures=stats.host_failures,
        given_up=stats.hosts_given_up,
        network=watch.network,
        rests=rests,
        ledger_now=ledger.now,
    )
    excuses = LoopExcuses(session.watchdog, stats, deadlines=settings.deadlines)
    suspects = Suspects(children, held, max_lost=settings.max_lost)
    coordinator = Coordinator(
        waiting,
        settings=settings,
        frontier=frontier,
        robots=robots,
        held=held,
        stats=stats,
        patience=session.patience,
        heartbeat=session.heartbeat,
        probes=probes,
        watch=watch,
        suspects=suspects,
        worker=session.worker,
        excuses=excuses,
    )
    ending = Ending(coordinator, session.patience, grace=settings.grace)
    seeder = Seeder(
        spider,
        waiting,
        settings,
        scope=allowed,
        start_hosts=start_hosts,
        seen=seen,
        stats=stats,
        feed=coordinator,
        worker=session.worker,
        stop=ending.wished,
    )
    fetcher = Fetcher(
        settings=settings,
        ledger=waiting,
        downloader=downloader,
        runner=InProcess(
            spider=spider, scope=allowed, seen=seen, now=ledger.now, watch=session.watchdog
        ),
        robots=robots,
        frontier=frontier,
        blame=Blame(frontier, watch),
        scope=allowed,
        held=held,
        seen=seen,
        stats=stats,
        poison_guard=PoisonGuard(waiting, held),
        suspects=suspects,
        worker=session.worker,
        end=ending.end,
        excuses=excuses,
    )
    # A slow ledger must not let results pile up: fetchers wait for room.
    done: asyncio.Queue[Done] = asyncio.Queue(2 * settings.concurrency)
    committer = Committer(
        waiting,
        done,
        held=held,
        seen=seen,
        stats=stats,
        listener=coordinator,
        max_depth=settings.max_depth,
    )
    return Crawl(
        Parts(
            spider=spider,
            settings=settings,
            session=session,
            robots=robots,
            seeder=seeder,
            coordinator=coordinator,
            fetcher=fetcher,
            done=done,
            committer=committer,
            ending=ending,
        )
    )


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


def web(spider: Spider, settings: Settings) -> Downloader:
    """Return the downloader that a crawl of *spider* uses."""
    from crawlcw.downloader.aiohttp import AiohttpDownloader

    origins = {urls.locate(url).host for url in spider.start_urls}
    return AiohttpDownloader(settings, start_origins=origins)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at and credentials else url
