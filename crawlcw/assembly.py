"""Putting the parts together: the only place that chooses a crawl's implementations."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from crawlcw.api import attempt as attempts
from crawlcw.api.attempt import Attempt, Downloader, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sessions import condition
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, check, entry_urls, has_own_start, logs_in
from crawlcw.api.spider import scope as spider_scope
from crawlcw.archive.bodies import Bodies
from crawlcw.crawl.adding import RunStart, TaskAdder
from crawlcw.crawl.bans import Bans
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.committer import Committer
from crawlcw.crawl.control import Steering
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.crawl import Beside, Crawl, Ending, Measured, TasksWay
from crawlcw.crawl.fetcher import Asking, Fetcher
from crawlcw.crawl.held_host import PageLimit
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.hosts import FollowedLimits, Frontier, HostTurns
from crawlcw.crawl.identities import Identities
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.login_politeness import HeldHosts
from crawlcw.crawl.logins import Logins
from crawlcw.crawl.moved import Claims, MovedPages
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.outcomes import (
    CallbackErrors,
    Done,
    Failures,
    InternalErrors,
    Outcomes,
    Pages,
)
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.revisits import Revisits
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.seeder import Seeder
from crawlcw.crawl.start_names import StartNames
from crawlcw.crawl.uplink import UplinkWatch
from crawlcw.engine.instruments import UNWATCHED, Instruments, SeveralInstruments
from crawlcw.engine.run_alone import RunAlone
from crawlcw.engine.session import Session
from crawlcw.errors import UsageError
from crawlcw.fetch import pipeline
from crawlcw.fetch.browser import Browser
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import DefaultDownloader, downloader_of, proxy_pool, web
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.fetch.recording import Recorder
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import DEFAULT_LEDGER, open_ledger
from crawlcw.model import urls
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.hosts import Calls
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

    # This process as one worker on the ledger, and how its crawl ends.
    session = Session(
        ledger,
        lease=lambda: settings.lease,
        give_up=settings.ledger_give_up,
        limit=settings.callback_timeout,
        deadlines=settings.deadlines,
    )
    ending = Ending(session.retry, grace=settings.grace)
    proxies = proxies or ProxyPool(settings)
    proxies.on_lost = partial(ending.end, FinishReason.PROXIES_FAILED)
    rests = Rests()
    rests.proxies_away = proxies.away
    instruments = _instruments(settings, meter)

    # What is kept of the spider and its pages beside their tasks.
    scope = Scope.of(spider_scope(spider) or (), settings)
    state = KeptState(spider, session.ledger)
    bodies = Bodies(spider.name, settings) if settings.keep_bodies else None

    # The way of a request through the layers, for each purpose. Below a page, they wait for
    # robots.txt and turns, which ask by these layers themselves.
    async def admit(attempt: Attempt, url: str) -> None:
        """Wait until the target of a redirect may be asked for; raises `FetchError`."""
        await admit_part(url, is_document=attempt.purpose is Purpose.PAGE)
        # The wait is the crawl's own, and not the server's.
        with attempt.deadline:
            await turn(url)

    async def admit_part(url: str, *, is_document: bool) -> None:
        if is_document:
            scope.admit_url(url)
        await robots.admit(url)

    async def turn(url: str) -> None:
        await turns.wait(url)

    credentials = Credentials(entry_urls(spider), headers=settings.headers, auth=settings.auth)
    browser = Browser(settings)
    if not isinstance(downloader, DefaultDownloader):
        downloader = DefaultDownloader(downloader)
    parts = pipeline.Parts(
        settings=settings,
        downloader=downloader,
        credentials=credentials,
        admit=admit,
        browser=browser,
        admit_part=admit_part,
        turn=turn,
        watch=session.watchdog,
        keeps_bodies=bodies is not None,
    )
    ways = pipeline.ways(pipeline.layers(spider, parts))
    now = ledger.now
    clock = asyncio.get_running_loop().time
    robots = Robots(ways[Purpose.ROBOTS], settings, clock=clock, now=now)
    watch = UplinkWatch(ways[Purpose.PROBE], rests, ledger_now=now)

    # The hosts of this process, and its tasks that are due.
    start_hosts = set[str]()
    pages_a_host = PageLimit(
        most=settings.max_pages_per_host, unlimited=start_hosts, full=scope.full
    )
    limits = FollowedLimits(spider, settings, pages=pages_a_host)
    frontier = Frontier(
        held=session.held,
        limits=limits,
        policy=replace(settings.host_policy, calls=_calls(spider)),
        lease=settings.lease,
        stats=session.stats,
        uplink=watch.uplink,
        rests=rests,
        ledger_now=now,
    )
    turns = HostTurns(robots, frontier)
    causes = Causes(session.ledger, frontier, watch, proxies)
    opening = Opening(
        frontier,
        robots,
        causes,
        at_once=2 * settings.concurrency,
        ledger=session.ledger,
        on_change=frontier.look_wanted.set,
        watchdog=session.watchdog,
    )
    internal_errors = InternalErrors(session.ledger, session.stats, end=ending.end)
    session.hosts = host_leaser = HostLeaser(session, frontier, settings)
    coordinator = Coordinator(
        session,
        settings=settings,
        frontier=frontier,
        host_leaser=host_leaser,
        opening=opening,
        watch=watch,
        internal_errors=internal_errors,
        state=state,
    )
    ending.on_stop = coordinator.stop

    # The sessions that pages are asked for with.
    async def probe(request: Request, session: attempts.Session) -> Response:
        """Ask for a page again with *session*; raises `FetchError`."""
        async with Attempt(request=request, session=session) as attempt:
            response = await ways[Purpose.PAGE](attempt, request)
        frontier.sent(urls.locate(request.url).host, at=time.monotonic())
        return response

    has_login = logs_in(spider)
    logins = Logins(
        spider=spider,
        ledger=session.ledger,
        ask=ways[Purpose.LOGIN],
        settings=settings,
        politeness=HeldHosts(robots, frontier, turns, causes),
        stalled=session.watchdog.stalled,
        stop=ending.wished,
    )
    identities = Identities(
        session.ledger,
        logins,
        settings,
        worker=session.worker,
        default=spider.default_session if has_login or settings.cookies else None,
        is_logged_out=condition(spider, "login_when") if has_login else None,
        probe=probe,
        give_up=partial(ending.end, FinishReason.LOGIN_FAILED),
        proxies=proxies,
        logs_in=has_login,
    )

    # The writes of tasks and outcomes.
    adder = TaskAdder(
        ledger=session.ledger,
        beside=[identities, state],
        max_depth=settings.max_depth,
        run=RunStart(session.ledger, lease=settings.lease),
    )
    seeder = Seeder(
        spider,
        adder,
        scope=scope,
        start_hosts=start_hosts,
        credentials=credentials,
        stats=session.stats,
        stop=ending.wished,
    )
    # A slow ledger must not let results pile up: fetchers wait for room.
    done: asyncio.Queue[Done] = asyncio.Queue(2 * settings.concurrency)
    committer = Committer(
        held=session.held,
        stats=session.stats,
        listener=coordinator,
        adder=adder,
        state=state,
        bodies=bodies,
        end=ending.end,
        instruments=instruments,
    )

    # The fetchers, from a lease to what comes of its page.
    parsing = Parsing(settings)
    runner = Runner(
        spider=spider,
        scope=scope,
        seen=adder.seen,
        now=now,
        watch=session.watchdog,
        parsing=parsing,
        state=state,
        write=committer.write_links,
    )
    outcomes = Outcomes(
        settings,
        runner,
        now=now,
        revisits=Revisits(settings.revisit_policy),
        errors=CallbackErrors(),
        end=ending.end,
    )
    pages = Pages(
        outcomes=outcomes,
        causes=causes,
        identities=identities,
        recorder=Recorder(bodies=bodies),
        instruments=instruments,
    )
    bans = Bans(settings, proxies, banned_when=condition(spider, "banned_when"))
    fetcher = Fetcher(
        asking=Asking(
            settings=settings,
            ask=ways[Purpose.PAGE],
            robots=robots,
            frontier=frontier,
            stats=session.stats,
            bans=bans,
            errors=outcomes.errors,
            instruments=instruments,
        ),
        held=session.held,
        state=state,
        run_alone=RunAlone(session.ledger, session.held),
        turns=turns,
        pages=pages,
        failures=Failures(
            outcomes=outcomes,
            causes=causes,
            identities=identities,
            bans=bans,
            watchdog=session.watchdog,
            stats=session.stats,
            internal=internal_errors,
        ),
        moved=MovedPages(
            pages=pages,
            claims=Claims(
                ledger=session.ledger,
                held=session.held,
                adder=adder,
                settings=settings,
                worker=session.worker,
            ),
            robots=robots,
            scope=scope,
            proxies=proxies,
        ),
    )

    steering = Steering(
        session,
        settings,
        coordinator=coordinator,
        frontier=frontier,
        limits=limits,
        end=ending.end,
    )
    return Crawl(
        spider,
        settings,
        session,
        way=TasksWay(
            seeder=seeder, coordinator=coordinator, fetcher=fetcher, done=done, committer=committer
        ),
        beside=Beside(robots, identities, state, steering, parsing, browser, bodies),
        ending=ending,
        measured=None if meter is None else Measured(meter, rests),
    )


def _instruments(settings: Settings, meter: Meter | None) -> Instruments:
    instruments: list[Instruments] = [] if meter is None else [meter]
    if settings.trace:
        instruments.append(_tracing())
    if len(instruments) < 2:
        return instruments[0] if instruments else UNWATCHED
    return SeveralInstruments(*instruments)


def _calls(spider: Spider) -> Calls:
    """Return for which pages of an origin given up one of the spider's methods is called."""
    inherits = getattr(spider.on_error, "__func__", None) is Spider.on_error
    return Calls.ERRBACK if inherits else Calls.ALL


def _tracing() -> Instruments:
    try:
        from crawlcw.telemetry.spans import Tracing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise UsageError(
            "trace needs OpenTelemetry: install it with `pip install 'crawlcw[otel]'`"
        ) from None
    return Tracing()


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
