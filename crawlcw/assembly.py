"""Putting the parts together: the only place that chooses a crawl's implementations."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from crawlcw.api import attempt as attempts
from crawlcw.api.attempt import Attempt, Downloader, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sessions import condition
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, check, entry_urls, has_own_start, logs_in, scope
from crawlcw.archive.bodies import Bodies, folder_of
from crawlcw.archive.reading import StoredPages
from crawlcw.crawl.adding import RunStart, TaskAdder
from crawlcw.crawl.bans import Bans
from crawlcw.crawl.blame import Blame
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.committer import Committer
from crawlcw.crawl.control import Steering
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.crawl import Crawl, Ending, Parts
from crawlcw.crawl.fetcher import Asking, Fetcher
from crawlcw.crawl.held_host import PageLimit
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.hosts import FollowedLimits, Frontier, HostTurns
from crawlcw.crawl.identities import Identities
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.login_politeness import HeldHosts
from crawlcw.crawl.logins import Logins
from crawlcw.crawl.moved import Claims, MovedPages
from crawlcw.crawl.outcomes import (
    CallbackErrors,
    Done,
    Failures,
    InternalErrors,
    Outcomes,
    Pages,
)
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.reparsing import Reparser, Saving
from crawlcw.crawl.revisits import Revisits
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.robots_gate import RobotsGate
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.seeder import Seeder
from crawlcw.crawl.seeds import Seeds
from crawlcw.crawl.seen import SeenFilter
from crawlcw.crawl.start_names import StartNames
from crawlcw.crawl.trial import Trial
from crawlcw.crawl.trial_sessions import TrialSessions
from crawlcw.crawl.uplink import UplinkWatch
from crawlcw.downloader import pipeline
from crawlcw.downloader.aiohttp import AiohttpDownloader
from crawlcw.downloader.browser import Browser
from crawlcw.downloader.credentials import Credentials
from crawlcw.downloader.dev_cache import DevCache
from crawlcw.downloader.pipeline import DefaultDownloader, downloader_of
from crawlcw.downloader.proxy_pool import ProxyPool
from crawlcw.downloader.proxying import Proxies
from crawlcw.downloader.recording import Recorder
from crawlcw.engine.instruments import UNWATCHED, Instruments, SeveralInstruments
from crawlcw.engine.run_alone import RunAlone
from crawlcw.engine.session import Session
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import DEFAULT_LEDGER, open_ledger
from crawlcw.model import urls
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.hosts import Calls
from crawlcw.model.proxies import ProxyEnvironment
from crawlcw.model.standstill import Rests
from crawlcw.model.task import Task
from crawlcw.telemetry.meter import Meter

if TYPE_CHECKING:
    from crawlcw.downloader.addresses import PublicNames


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
    credentials = Credentials(entry_urls(spider), headers=settings.headers, auth=settings.auth)
    if not isinstance(downloader, DefaultDownloader):
        downloader = DefaultDownloader(downloader)
    parts = _Assembly(
        spider=spider,
        ledger=ledger,
        downloader=downloader,
        credentials=credentials,
        settings=settings,
        browser=Browser(settings),
        proxies=proxies or ProxyPool(settings),
        meter=meter,
    )
    parts.proxies.on_lost = partial(parts.ending.end, FinishReason.PROXIES_FAILED)
    parts.rests.proxies_away = parts.proxies.away
    return Crawl(
        Parts(
            spider=spider,
            settings=settings,
            session=parts.session,
            robots=parts.robots,
            seeder=parts.seeder,
            coordinator=parts.coordinator,
            fetcher=parts.fetcher,
            parsing=parts.parsing,
            browser=parts.browser,
            done=parts.done,
            committer=parts.committer,
            ending=parts.ending,
            steering=parts.steering,
            identities=parts.fetcher.pages.identities,
            state=parts.fetcher.state,
            bodies=parts.fetcher.pages.recorder.bodies,
            rests=parts.rests,
            meter=meter,
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Assembly:
    """The parts of one crawl, each made once, when the first that needs it is made."""

    spider: Spider
    ledger: Ledger
    downloader: DefaultDownloader
    credentials: Credentials
    settings: Settings
    browser: Browser
    proxies: ProxyPool
    meter: Meter | None
    seen: SeenFilter = field(default_factory=SeenFilter)
    rests: Rests = field(default_factory=Rests)
    start_hosts: set[str] = field(default_factory=set)

    @cached_property
    def session(self) -> Session[Ledger]:
        return Session(
            self.ledger,
            lease=lambda: self.settings.lease,
            give_up=self.settings.ledger_give_up,
            limit=self.settings.callback_timeout,
            hosts=lambda: [host.lease for host in self.frontier if host.lease is not None],
            deadlines=self.settings.deadlines,
        )

    @cached_property
    def _instruments(self) -> Instruments:
        instruments: list[Instruments] = [] if self.meter is None else [self.meter]
        if self.settings.trace:
            instruments.append(_tracing())
        if len(instruments) < 2:
            return instruments[0] if instruments else UNWATCHED
        return SeveralInstruments(*instruments)

    @cached_property
    def scope(self) -> Scope:
        return Scope.of(scope(self.spider) or (), self.settings)

    @cached_property
    def _recorder(self) -> Recorder:
        keeps = self.settings.keep_bodies
        return Recorder(bodies=Bodies(self.spider.name, self.settings) if keeps else None)

    @cached_property
    def robots(self) -> Robots:
        clock = asyncio.get_running_loop().time
        return Robots(self._ways[Purpose.ROBOTS], self.settings, clock=clock, now=self.ledger.now)

    @cached_property
    def watch(self) -> UplinkWatch:
        ask = self._ways[Purpose.PROBE]
        return UplinkWatch(ask, self.rests, ledger_now=self.ledger.now)

    @cached_property
    def frontier(self) -> Frontier:
        session = self.session
        return Frontier(
            held=session.held,
            limits=self._limits,
            policy=replace(self.settings.host_policy, calls=_calls(self.spider)),
            lease=self.settings.lease,
            stats=session.stats,
            uplink=self.watch.uplink,
            rests=self.rests,
            ledger_now=self.ledger.now,
        )

    @cached_property
    def _limits(self) -> FollowedLimits:
        most, full = self.settings.max_pages_per_host, self.scope.full
        pages = PageLimit(most=most, unlimited=self.start_hosts, full=full)
        return FollowedLimits(self.spider, self.settings, pages=pages)

    @cached_property
    def steering(self) -> Steering:
        return Steering(
            self.session.ledger,
            self.settings,
            began=self.session.began,
            coordinator=self.coordinator,
            frontier=self.frontier,
            limits=self._limits,
            end=self.ending.end,
        )

    @cached_property
    def _internal_errors(self) -> InternalErrors:
        session = self.session
        # The ending is made of the coordinator, which is made of this.
        return InternalErrors(
            session.ledger, session.stats, end=lambda why, detail: self.ending.end(why, detail)
        )

    @cached_property
    def coordinator(self) -> Coordinator:
        return Coordinator(
            self.session,
            settings=self.settings,
            frontier=self.frontier,
            host_leaser=HostLeaser(self.session, self.frontier, self.settings),
            robots_gate=self._robots_gate,
            watch=self.watch,
            internal_errors=self._internal_errors,
            state=self._state,
        )

    @cached_property
    def _robots_gate(self) -> RobotsGate:
        return RobotsGate(
            self.frontier,
            self.robots,
            self.watch,
            self.proxies,
            at_once=2 * self.settings.concurrency,
            ledger=self.session.ledger,
            on_change=self.frontier.look_wanted.set,
            watchdog=self.session.watchdog,
        )

    @cached_property
    def ending(self) -> Ending:
        return Ending(self.coordinator, self.session.retry, grace=self.settings.grace)

    @cached_property
    def _adder(self) -> TaskAdder:
        ledger = self.session.ledger
        run = RunStart(ledger, lease=self.settings.lease)
        return TaskAdder(
            ledger=ledger,
            beside=[self._identities, self._state],
            max_depth=self.settings.max_depth,
            run=run,
        )

    @cached_property
    def _state(self) -> KeptState:
        return KeptState(self.spider, self.session.ledger)

    @cached_property
    def seeder(self) -> Seeder:
        return Seeder(
            self.spider,
            self.session.ledger,
            self.settings,
            scope=self.scope,
            start_hosts=self.start_hosts,
            credentials=self.credentials,
            seen=self.seen,
            stats=self.session.stats,
            feed=self.coordinator,
            adder=self._adder,
            stop=self.ending.wished,
        )

    @cached_property
    def parsing(self) -> Parsing:
        return Parsing(self.settings)

    @cached_property
    def fetcher(self) -> Fetcher:
        session = self.session
        return Fetcher(
            asking=Asking(
                settings=self.settings,
                ask=self._ways[Purpose.PAGE],
                robots=self.robots,
                frontier=self.frontier,
                stats=session.stats,
                bans=self._bans,
                errors=self._errors,
                instruments=self._instruments,
            ),
            held=session.held,
            state=self._state,
            run_alone=RunAlone(session.ledger, session.held),
            turns=self._turns,
            pages=self._pages,
            failures=Failures(
                outcomes=self._pages.outcomes,
                blame=self._blame,
                identities=self._identities,
                bans=self._bans,
                watchdog=session.watchdog,
                stats=session.stats,
                internal=self._internal_errors,
            ),
            moved=MovedPages(
                pages=self._pages,
                claims=Claims(
                    ledger=session.ledger,
                    held=session.held,
                    seen=self.seen,
                    adder=self._adder,
                    settings=self.settings,
                    worker=session.worker,
                ),
                robots=self.robots,
                scope=self.scope,
                proxies=self.proxies,
            ),
        )

    @cached_property
    def _pages(self) -> Pages:
        session = self.session
        runner = Runner(
            spider=self.spider,
            scope=self.scope,
            seen=self.seen,
            now=self.ledger.now,
            watch=session.watchdog,
            parsing=self.parsing,
            state=self._state,
            write=self.committer.write_links,
        )
        return Pages(
            outcomes=Outcomes(
                self.settings,
                runner,
                now=session.ledger.now,
                revisits=self._revisits,
                errors=self._errors,
                end=self.ending.end,
            ),
            blame=self._blame,
            identities=self._identities,
            recorder=self._recorder,
            instruments=self._instruments,
        )

    @cached_property
    def _blame(self) -> Blame:
        return Blame(self.session.ledger, self.frontier, self.watch, self.proxies)

    @cached_property
    def _bans(self) -> Bans:
        banned_when = condition(self.spider, "banned_when")
        return Bans(self.settings, self.proxies, banned_when=banned_when)

    @cached_property
    def _errors(self) -> CallbackErrors:
        return CallbackErrors()

    @cached_property
    def _revisits(self) -> Revisits:
        return Revisits(self.settings.revisit_policy)

    @cached_property
    def _ways(self) -> dict[Purpose, Next]:
        parts = pipeline.Parts(
            settings=self.settings,
            downloader=self.downloader,
            credentials=self.credentials,
            admit=self._admit,
            browser=self.browser,
            admit_part=self._admit_part,
            turn=self._turns_wait,
            watch=self.session.watchdog,
            keeps_bodies=self._recorder.bodies is not None,
        )
        return pipeline.ways(pipeline.layers(self.spider, parts))

    async def _admit(self, attempt: Attempt, url: str) -> None:
        if attempt.purpose is Purpose.PAGE:
            self.scope.admit_url(url)
        await self.robots.admit(url)
        # The wait is the crawl's own, and not the server's.
        with attempt.deadline:
            await self._turns.wait(url)

    async def _turns_wait(self, url: str) -> None:
        await self._turns.wait(url)

    async def _admit_part(self, url: str, *, is_document: bool) -> None:
        if is_document:
            self.scope.admit_url(url)
        await self.robots.admit(url)

    @cached_property
    def _turns(self) -> HostTurns:
        return HostTurns(self.robots, self.frontier)

    @cached_property
    def _identities(self) -> Identities:
        session, spider = self.session, self.spider
        has_login = logs_in(spider)
        logins = Logins(
            spider=spider,
            ledger=session.ledger,
            ask=self._ways[Purpose.LOGIN],
            settings=self.settings,
            politeness=HeldHosts(self.robots, self.frontier, self._turns, self.watch, self.proxies),
            stalled=session.watchdog.stalled,
            stop=self.ending.wished,
        )
        return Identities(
            session.ledger,
            logins,
            self.settings,
            worker=session.worker,
            default=spider.default_session if has_login or self.settings.cookies else None,
            is_logged_out=condition(spider, "login_when") if has_login else None,
            probe=self._probe,
            give_up=partial(self.ending.end, FinishReason.LOGIN_FAILED),
            proxies=self.proxies,
            logs_in=has_login,
        )

    async def _probe(self, request: Request, session: attempts.Session) -> Response:
        """Ask for a page again with *session*; raises `FetchError`."""
        async with Attempt(request=request, session=session) as attempt:
            response = await self._ways[Purpose.PAGE](attempt, request)
        self.frontier.sent(urls.locate(request.url).host, at=time.monotonic())
        return response

    @cached_property
    def done(self) -> asyncio.Queue[Done]:
        # A slow ledger must not let results pile up: fetchers wait for room.
        return asyncio.Queue(2 * self.settings.concurrency)

    @cached_property
    def committer(self) -> Committer:
        return Committer(
            self.done,
            held=self.session.held,
            seen=self.seen,
            stats=self.session.stats,
            listener=self.coordinator,
            adder=self._adder,
            state=self._state,
            bodies=self._recorder.bodies,
            end=self.ending.end,
            instruments=self._instruments,
        )


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


@asynccontextmanager
async def open_trial_sessions(
    spider: Spider, settings: Settings
) -> AsyncIterator[TrialSessions | None]:
    """Open the sessions for trials of *spider*, None where it does not log in; nothing is stored.

    Raises `SpiderError` for a `login_when` that cannot be asked.
    """
    if not logs_in(spider):
        yield None
        return
    ledger = await open_ledger("sqlite:///:memory:", spider.name)
    try:
        yield TrialSessions(spider, ledger, settings)
    finally:
        await ledger.close()


@asynccontextmanager
async def open_trial(
    spider: Spider, url: str, settings: Settings, *, sessions: TrialSessions | None = None
) -> AsyncIterator[Trial]:
    """Open what a look at *url* with *spider* needs, and close it afterwards.

    The user has named the URL, so its host may be at a private address, as that
    of a start URL may. *sessions* are whom a spider that logs in asks as.
    Raises `FetchError` for a URL that cannot be fetched.
    """
    urls.locate(url)
    # What is typed may be anywhere: only where the spider begins nowhere else it begins there.
    credentials = Credentials(
        entry_urls(spider) or [url], headers=settings.headers, auth=settings.auth
    )
    credentials.learn_password(url)
    default = web(spider, settings, also=[url], proxies=proxy_pool(settings))
    async with downloader_of(spider, default) as way:
        trial = Trial(spider, way, credentials, settings, sessions=sessions)
        try:
            yield trial
        finally:
            await trial.close()


@asynccontextmanager
async def open_reparser(
    spider: Spider, settings: Settings, ledger: Ledger, *, saving: Saving | None = None
) -> AsyncIterator[Reparser]:
    """Open what parsing the stored pages of *ledger* with *spider* needs, and close it afterwards.

    What `url_list` callbacks find goes to *saving* at once, where it is given.
    Raises `UsageError` without warcio.
    """
    seeds = Seeds.read((await ledger.notes.state()).get("seeds"))
    hosts = {*(scope(spider) or ()), *(seeds.hosts if seeds is not None else ())}
    within = Scope.of(hosts, settings)
    watch = Watchdog(Stats(), limit=settings.callback_timeout)
    # It is read, and what pages change in it stays here.
    state = KeptState(spider, ledger)
    await state.open()
    with StoredPages(folder_of(spider.name, settings)) as pages:
        async with Parsing(settings) as parsing:
            yield Reparser(
                spider=spider,
                settings=settings,
                pages=pages,
                scope=within,
                runner=Runner(
                    spider=spider,
                    scope=within,
                    seen=frozenset() if saving is None else saving.seen,
                    now=ledger.now,
                    watch=watch,
                    parsing=parsing,
                    state=state,
                    write=_dropping if saving is None else saving.add_links,
                ),
                watch=watch,
            )


def saving_to(ledger: Ledger, settings: Settings) -> Saving:
    """Return what records the items and the links of stored pages."""
    run = RunStart(ledger, lease=settings.lease)
    adder = TaskAdder(ledger=ledger, max_depth=settings.max_depth, run=run)
    return Saving(ledger=ledger, settings=settings, seen=SeenFilter(), adder=adder)


async def _dropping(tasks: list[Task], too_deep: list[Task]) -> None:
    """Add no links."""


def web(
    spider: Spider,
    settings: Settings,
    *,
    public_names: "PublicNames | None" = None,
    also: Iterable[str] = (),
    proxies: ProxyPool | None = None,
) -> DefaultDownloader:
    """Return the downloader that a crawl of *spider* uses; *also* are URLs beside its own.

    Its requests go through *proxies*, by default those of the settings and the environment.
    """
    origins = {urls.locate(url).host for url in [*entry_urls(spider), *also]}
    client = AiohttpDownloader(settings, start_origins=origins, public_names=public_names)
    cache = None if settings.cache == "off" else DevCache(settings)
    return DefaultDownloader(client, proxies=Proxies(proxies or proxy_pool(settings)), cache=cache)


def proxy_pool(settings: Settings) -> ProxyPool:
    """Return the proxies of the settings, else those of the environment; raises `SettingsError`."""
    if not settings.proxy_env:
        return ProxyPool(settings)
    read = ProxyEnvironment.exceptions if settings.proxies else ProxyEnvironment.of
    return ProxyPool(settings, read(os.environ))
