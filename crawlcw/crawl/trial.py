"""One page outside of any crawl: fetched and parsed as a crawl would do it, and recorded nowhere.

It is what a spider's author tries things with: robots.txt, the redirects, the
guard of addresses, the time limits and the scope are those of a crawl. Delays
are not, as a person does not ask often.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from crawlcw.api.attempt import Attempt, LoggedOutError, Next, Purpose, Session, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named, entry_urls, scope
from crawlcw.crawl.callbacks import Produced, Runner, Scope
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.logins import Logins
from crawlcw.crawl.opening import Admission
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.robots import Robots
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl
from crawlcw.fetch import pipeline
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import (
    RENDERED,
    DefaultDownloader,
    Render,
    downloader_of,
    proxy_pool,
    web,
)
from crawlcw.fetch.redirects import is_page
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import identities, urls
from crawlcw.model.identities import Identity
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import text_of
from crawlcw.model.transitions import Failed


def _utc_now() -> datetime:
    return datetime.now(UTC)


#: Nobody else could take the login over.
_LEASE = timedelta(hours=1)


class Trial:
    """Fetches pages and gives them to the callbacks of *spider*; in its event loop."""

    def __init__(
        self,
        spider: Spider,
        downloader: DefaultDownloader,
        credentials: Credentials,
        settings: Settings,
        *,
        sessions: "TrialSessions | None" = None,
    ) -> None:
        """*sessions* are those of a spider that logs in."""
        self._spider = spider
        self._settings = settings
        self._sessions = sessions
        self._admission = Admission()
        self._watch = Watchdog(Stats(), limit=settings.callback_timeout)
        self._parsing = Parsing(settings)
        self._render = Render(settings, self._admission)
        found = pipeline.layers(
            spider,
            settings,
            downloader,
            credentials=credentials,
            admission=self._admission,
            render=self._render,
            watch=self._watch,
        )
        self._ways = pipeline.ways(found)
        clock = asyncio.get_running_loop().time
        self._robots = Robots(self._ways[Purpose.ROBOTS], settings, clock=clock, now=_utc_now)
        self._admission.robots = self._robots
        self._state = KeptState(spider, None)

    async def fetch(self, request: Request) -> Response:
        """Return the answer, redirects followed, whatever its status; raises `FetchError`.

        A spider that logs in does so before; where it was logged out meanwhile, once more.
        """
        location, _ = request.identity()
        try:
            await self._robots.admit(location.url)
        except FetchError as error:
            if error.reason is Reason.REFUSED_ROBOTS:
                message = f"{error.message} (-s obey_robots=false fetches it all the same)"
                raise FetchError(error.reason, message) from None
            raise
        try:
            return await self._attempted(request)
        except StopCrawl as wish:
            message = f"the crawl would stop: {printable(text_of(wish))}"
            raise FetchError(Reason.UNWANTED, message) from None
        except Defer as wish:
            message = f"the page would be put back: {printable(wish.cause)}"
            raise FetchError(Reason.UNWANTED, message) from None

    async def _attempted(self, request: Request) -> Response:
        if self._sessions is None:
            return await self._answer(request, None)
        while True:
            was_known = self._sessions.knows(request)
            session = await self._sessions.of(request, self._ways[Purpose.LOGIN], self._admission)
            try:
                return await self._answer(request, session)
            except LoggedOutError as refused:
                if not was_known:
                    answer = refused.response
                    why = f"HTTP {answer.status} for {answer.url}, with a session that is logged in"
                    raise FetchError(Reason.LOGGED_OUT, why, status=answer.status) from None
            self._sessions.forget(request)

    async def _answer(self, request: Request, session: Session | None) -> Response:
        # What is not ended stays open for who looks at it: its memory is no crawl's.
        attempt = Attempt(request=request, session=session)
        is_rendered = request.options.browser
        is_rendered = self._settings.browser if is_rendered is None else is_rendered
        ask = self._ways[RENDERED if is_rendered else Purpose.PAGE]
        response = await ask(attempt, request)
        if session is not None:
            response = replaced(response, session=session.page_session())
        return response

    def is_page(self, response: Response) -> bool:
        """Return whether a crawl would give an answer to a callback."""
        return is_page(response, response.request, self._settings)

    async def parse(self, response: Response) -> Produced | Failed:
        """Return what the callback of the request makes of its page, or why it failed.

        Requests lead where a crawl's would: the page's own host is in the scope.
        Raises `SpiderError` where the spider has no such callback.
        """
        request = response.request
        callback_named(self._spider, request.callback)
        task = request.task(now=_utc_now())
        hosts = {*(scope(self._spider) or ()), urls.locate(response.url).host, task.host}
        runner = Runner(
            spider=self._spider,
            scope=Scope.of(hosts, replace(self._settings, max_depth=None)),
            seen={task.id},
            now=_utc_now,
            watch=self._watch,
            parsing=self._parsing,
            state=self._state,
            write=None,
        )
        return await runner.run(request.callback, response, task=task)

    async def close(self) -> None:
        """End what is under way."""
        await self._render.aclose()
        await self._robots.close()


@asynccontextmanager
async def open_trial(
    spider: Spider, url: str, settings: Settings, *, sessions: "TrialSessions | None" = None
) -> AsyncIterator[Trial]:
    """Open what a look at *url* with *spider* needs, and close it afterwards.

    The user has named the URL, so its host may be at a private address, as that
    of a start URL may. *sessions* are whom a spider that logs in asks as.
    Raises `FetchError` for a URL that cannot be fetched, and `SpiderError` for a `login_when`
    that cannot be asked.
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


class TrialSessions:
    """The sessions that are logged in, by name; for the trials of one spider, one by one.

    They are not the crawl's own, which stay as they are in its ledger.
    """

    def __init__(self, spider: Spider, ledger: Ledger, settings: Settings) -> None:
        """Have them in *ledger*, one of their own that is gone afterwards."""
        self._spider = spider
        self._ledger = ledger
        self._settings = settings
        self._ready: dict[str, Session] = {}

    def knows(self, request: Request) -> bool:
        """Return whether the session of a request was logged in before."""
        return self._name(request) in self._ready

    def forget(self, request: Request) -> None:
        """Have the session of a request logged in anew when it is next asked for."""
        self._ready.pop(self._name(request), None)

    async def of(self, request: Request, ask: Next, admission: Admission) -> Session:
        """Return whom a request is made as, logged in; raises `FetchError` where that fails.

        A login asks by *ask*, and *admission* before.
        """
        name = self._name(request)
        if name not in self._ready:
            identity = await self._logged_in(name, ask, admission)
            jar = SiteCookies()
            jar.restore(identity.cookies)
            self._ready[name] = Session(identity=identity, jar=jar)
        return self._ready[name]

    def _name(self, request: Request) -> str:
        return request.options.session or self._spider.default_session

    async def _logged_in(self, name: str, ask: Next, admission: Admission) -> Identity:
        sessions, now = self._ledger.sessions, self._ledger.now()
        found = await sessions.get(name)
        known = found or Identity(name=name)
        begun = identities.login_begun(known, owner="trial", now=now, lease=_LEASE)
        await sessions.change(found, begun)
        logins = Logins(
            spider=self._spider,
            ledger=self._ledger,
            ask=ask,
            settings=self._settings,
            admission=admission,
            stalled=lambda _: 0.0,
            end=lambda *_: None,
        )
        ended = await logins.run(begun)
        if ended is None or not ended.is_ready:
            why = "it came to nothing" if ended is None else ended.reason
            raise FetchError(Reason.LOGGED_OUT, f"session {name} could not be logged in: {why}")
        return ended
