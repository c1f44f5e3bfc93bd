"""Putting the parts together: the only place that chooses a crawl's implementations."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from crawlcw.api import attempt as attempts
from crawlcw.api.attempt import Attempt, Downloader, Next, Purpose
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
from crawlcw.model.hosts import Calls, HostLease
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
    base = _base(spider, ledger, settings, proxies or ProxyPool(settings))
    if not isinstance(downloader, DefaultDownloader):
        downloader = DefaultDownloader(downloader)
    asking = _asking(base, downloader)
    hosts = _hosts(base, asking)
    identities = _identities(base, asking, hosts)
    writing = _writing(base, hosts.coordinator, identities, _instruments(settings, meter))
    seeder = Seeder(
        spider,
        writing.adder,
        scope=base.scope,
        start_hosts=hosts.starts,
        credentials=asking.credentials,
        stats=base.session.stats,
        stop=base.ending.wished,
    )
    steering = Steering(
        base.session.ledger,
        settings,
        began=base.session.began,
        coordinator=hosts.coordinator,
        frontier=hosts.frontier,
        limits=hosts.limits,
        end=base.ending.end,
    )
    parsing = Parsing(settings)
    return Crawl(
        spider,
        settings,
        base.session,
        way=TasksWay(
            seeder=seeder,
            coordinator=hosts.coordinator,
            fetcher=_fetcher(base, asking, hosts, writing, parsing),
            done=writing.done,
            committer=writing.committer,
        ),
        beside=Beside(
            asking.robots, identities, base.state, steering, parsing, asking.browser, base.bodies
        ),
        ending=base.ending,
        measured=None if meter is None else Measured(meter, base.rests),
    )


@dataclass(kw_only=True)
class _Base:
    """The parts that most others need."""

    spider: Spider
    settings: Settings
    session: Session[Ledger]
    ending: Ending
    proxies: ProxyPool
    rests: Rests
    scope: Scope
    state: KeptState
    bodies: Bodies | None
    #: Filled by `_hosts`: the session renews their leases, and the rules for URLs wait for turns.
    hosts: "_Hosts | None" = None


def _base(spider: Spider, ledger: Ledger, settings: Settings, proxies: ProxyPool) -> _Base:
    def leases() -> list[HostLease]:
        frontier = () if base.hosts is None else base.hosts.frontier
        return [host.lease for host in frontier if host.lease is not None]

    session = Session(
        ledger,
        lease=lambda: settings.lease,
        give_up=settings.ledger_give_up,
        limit=settings.callback_timeout,
        hosts=leases,
        deadlines=settings.deadlines,
    )
    base = _Base(
        spider=spider,
        settings=settings,
        session=session,
        ending=Ending(session.retry, grace=settings.grace),
        proxies=proxies,
        rests=Rests(),
        scope=Scope.of(spider_scope(spider) or (), settings),
        state=KeptState(spider, session.ledger),
        bodies=Bodies(spider.name, settings) if settings.keep_bodies else None,
    )
    proxies.on_lost = partial(base.ending.end, FinishReason.PROXIES_FAILED)
    base.rests.proxies_away = proxies.away
    return base


@dataclass(kw_only=True)
class _Asking:
    """The layers of the crawl, and the parts that ask by them for reasons of their own."""

    credentials: Credentials
    browser: Browser
    ways: Mapping[Purpose, Next]
    robots: Robots
    watch: UplinkWatch


def _asking(base: _Base, downloader: DefaultDownloader) -> _Asking:
    spider, settings, now = base.spider, base.settings, base.session.opened.now
    credentials = Credentials(entry_urls(spider), headers=settings.headers, auth=settings.auth)
    browser = Browser(settings)

    async def admit(attempt: Attempt, url: str) -> None:
        """Wait until the target of a redirect may be asked for; raises `FetchError`."""
        if attempt.purpose is Purpose.PAGE:
            base.scope.admit_url(url)
        await robots.admit(url)
        # The wait is the crawl's own, and not the server's.
        with attempt.deadline:
            await turn(url)

    async def turn(url: str) -> None:
        assert base.hosts is not None
        await base.hosts.turns.wait(url)

    async def admit_part(url: str, *, is_document: bool) -> None:
        if is_document:
            base.scope.admit_url(url)
        await robots.admit(url)

    parts = pipeline.Parts(
        settings=settings,
        downloader=downloader,
        credentials=credentials,
        admit=admit,
        browser=browser,
        admit_part=admit_part,
        turn=turn,
        watch=base.session.watchdog,
        keeps_bodies=base.bodies is not None,
    )
    ways = pipeline.ways(pipeline.layers(spider, parts))
    clock = asyncio.get_running_loop().time
    robots = Robots(ways[Purpose.ROBOTS], settings, clock=clock, now=now)
    watch = UplinkWatch(ways[Purpose.PROBE], base.rests, ledger_now=now)
    return _Asking(credentials=credentials, browser=browser, ways=ways, robots=robots, watch=watch)


@dataclass(kw_only=True)
class _Hosts:
    """The hosts of this process, and its tasks that are due."""

    starts: set[str]  #: those of the start URLs
    limits: FollowedLimits
    frontier: Frontier
    causes: Causes
    turns: HostTurns
    internal_errors: InternalErrors
    coordinator: Coordinator


def _hosts(base: _Base, asking: _Asking) -> _Hosts:
    spider, settings, session = base.spider, base.settings, base.session
    most, starts = settings.max_pages_per_host, set[str]()
    pages = PageLimit(most=most, unlimited=starts, full=base.scope.full)
    limits = FollowedLimits(spider, settings, pages=pages)
    frontier = Frontier(
        held=session.held,
        limits=limits,
        policy=replace(settings.host_policy, calls=_calls(spider)),
        lease=settings.lease,
        stats=session.stats,
        uplink=asking.watch.uplink,
        rests=base.rests,
        ledger_now=session.opened.now,
    )
    causes = Causes(session.ledger, frontier, asking.watch, base.proxies)
    opening = Opening(
        frontier,
        asking.robots,
        causes,
        at_once=2 * settings.concurrency,
        ledger=session.ledger,
        on_change=frontier.look_wanted.set,
        watchdog=session.watchdog,
    )
    internal_errors = InternalErrors(session.ledger, session.stats, end=base.ending.end)
    coordinator = Coordinator(
        session,
        settings=settings,
        frontier=frontier,
        host_leaser=HostLeaser(session, frontier, settings),
        opening=opening,
        watch=asking.watch,
        internal_errors=internal_errors,
        state=base.state,
    )
    base.ending.on_stop = coordinator.stop
    base.hosts = _Hosts(
        starts=starts,
        limits=limits,
        frontier=frontier,
        causes=causes,
        turns=HostTurns(asking.robots, frontier),
        internal_errors=internal_errors,
        coordinator=coordinator,
    )
    return base.hosts


def _identities(base: _Base, asking: _Asking, hosts: _Hosts) -> Identities:
    spider, settings, session = base.spider, base.settings, base.session
    has_login = logs_in(spider)
    logins = Logins(
        spider=spider,
        ledger=session.ledger,
        ask=asking.ways[Purpose.LOGIN],
        settings=settings,
        politeness=HeldHosts(asking.robots, hosts.frontier, hosts.turns, hosts.causes),
        stalled=session.watchdog.stalled,
        stop=base.ending.wished,
    )
    return Identities(
        session.ledger,
        logins,
        settings,
        worker=session.worker,
        default=spider.default_session if has_login or settings.cookies else None,
        is_logged_out=condition(spider, "login_when") if has_login else None,
        probe=partial(_probe, asking.ways[Purpose.PAGE], hosts.frontier),
        give_up=partial(base.ending.end, FinishReason.LOGIN_FAILED),
        proxies=base.proxies,
        logs_in=has_login,
    )


async def _probe(
    ask: Next, frontier: Frontier, request: Request, session: attempts.Session
) -> Response:
    """Ask for a page again with *session*; raises `FetchError`."""
    async with Attempt(request=request, session=session) as attempt:
        response = await ask(attempt, request)
    frontier.sent(urls.locate(request.url).host, at=time.monotonic())
    return response


@dataclass(kw_only=True)
class _Writing:
    """The parts that write tasks and outcomes."""

    identities: Identities
    instruments: Instruments
    adder: TaskAdder
    done: asyncio.Queue[Done]
    committer: Committer


def _writing(
    base: _Base, coordinator: Coordinator, identities: Identities, instruments: Instruments
) -> _Writing:
    settings, session = base.settings, base.session
    adder = TaskAdder(
        ledger=session.ledger,
        beside=[identities, base.state],
        max_depth=settings.max_depth,
        run=RunStart(session.ledger, lease=settings.lease),
    )
    # A slow ledger must not let results pile up: fetchers wait for room.
    done: asyncio.Queue[Done] = asyncio.Queue(2 * settings.concurrency)
    committer = Committer(
        held=session.held,
        stats=session.stats,
        listener=coordinator,
        adder=adder,
        state=base.state,
        bodies=base.bodies,
        end=base.ending.end,
        instruments=instruments,
    )
    return _Writing(
        identities=identities,
        instruments=instruments,
        adder=adder,
        done=done,
        committer=committer,
    )


def _fetcher(
    base: _Base, asking: _Asking, hosts: _Hosts, writing: _Writing, parsing: Parsing
) -> Fetcher:
    spider, settings, session = base.spider, base.settings, base.session
    bans = Bans(settings, base.proxies, banned_when=condition(spider, "banned_when"))
    pages = _pages(base, hosts, writing, parsing)
    outcomes = pages.outcomes
    return Fetcher(
        asking=Asking(
            settings=settings,
            ask=asking.ways[Purpose.PAGE],
            robots=asking.robots,
            frontier=hosts.frontier,
            stats=session.stats,
            bans=bans,
            errors=outcomes.errors,
            instruments=writing.instruments,
        ),
        held=session.held,
        state=base.state,
        run_alone=RunAlone(session.ledger, session.held),
        turns=hosts.turns,
        pages=pages,
        failures=Failures(
            outcomes=outcomes,
            causes=pages.causes,
            identities=writing.identities,
            bans=bans,
            watchdog=session.watchdog,
            stats=session.stats,
            internal=hosts.internal_errors,
        ),
        moved=MovedPages(
            pages=pages,
            claims=Claims(
                ledger=session.ledger,
                held=session.held,
                adder=writing.adder,
                settings=settings,
                worker=session.worker,
            ),
            robots=asking.robots,
            scope=base.scope,
            proxies=base.proxies,
        ),
    )


def _pages(base: _Base, hosts: _Hosts, writing: _Writing, parsing: Parsing) -> Pages:
    settings, session = base.settings, base.session
    runner = Runner(
        spider=base.spider,
        scope=base.scope,
        seen=writing.adder.seen,
        now=session.opened.now,
        watch=session.watchdog,
        parsing=parsing,
        state=base.state,
        write=writing.committer.write_links,
    )
    return Pages(
        outcomes=Outcomes(
            settings,
            runner,
            now=session.ledger.now,
            revisits=Revisits(settings.revisit_policy),
            errors=CallbackErrors(),
            end=base.ending.end,
        ),
        causes=hosts.causes,
        identities=writing.identities,
        recorder=Recorder(bodies=base.bodies),
        instruments=writing.instruments,
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
