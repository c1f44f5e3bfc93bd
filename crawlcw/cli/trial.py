"""Fetch and parse one page as a crawl would, without recording it.

For trying out a spider. robots.txt, redirects, address guard, time limits and scope are
those of a crawl; delays do not apply.
"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

from crawlcw.api.attempt import Attempt, LoggedOutError, Purpose, Session, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named, scope
from crawlcw.browser.layer import Render
from crawlcw.crawl.callbacks import Produced, Runner, Scope
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.opening import Admission
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.sessions import Sessions
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl
from crawlcw.fetch import pipeline
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import RENDERED, DefaultDownloader
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.fetch.redirects import is_page
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.sanitize import printable, text_of
from crawlcw.model.transitions import Failed


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Trial:
    """Fetches pages, and runs the callbacks of *spider* on them; in its event loop."""

    def __init__(
        self,
        spider: Spider,
        downloader: DefaultDownloader,
        credentials: Credentials,
        settings: Settings,
        *,
        proxies: ProxyPool,
        ledger: Ledger | None = None,
    ) -> None:
        """*ledger* has the sessions of a spider that logs in."""
        self._spider = spider
        self._settings = settings
        admission = Admission()
        self._watch = Watchdog(Stats(), limit=settings.callback_timeout)
        self._parsing = Parsing(settings)
        self._render = Render(settings, admission)
        found = pipeline.layers(
            spider,
            settings,
            downloader,
            credentials=credentials,
            admission=admission,
            render=self._render,
            watch=self._watch,
        )
        self._ways = pipeline.ways(found)
        clock = asyncio.get_running_loop().time
        self._robots = Robots(self._ways[Purpose.ROBOTS], settings, clock=clock, now=_utc_now)
        admission.robots = self._robots
        self._state = KeptState(spider, None)
        self._sessions: Sessions | None = None
        if ledger is not None:
            self._sessions = Sessions(
                spider,
                settings,
                WorkerSession(ledger, lease=lambda: settings.lease, give_up=settings.lease),
                self._ways,
                admission=admission,
                proxies=proxies,
                end=lambda *_: None,
                first=[],
            )

    async def fetch(self, request: Request) -> Response:
        """Return the final response after redirects, with any status; raises `FetchError`.

        A spider that logs in does so first, and once more if it was logged out meanwhile.
        """
        location, _ = request.identity()
        try:
            await self._robots.admit(location.url)
            return await self._attempted(request)
        except FetchError as error:
            if error.reason is Reason.REFUSED_ROBOTS:
                message = f"{error.message} (-s obey_robots=false fetches it all the same)"
                raise FetchError(error.reason, message) from None
            raise
        except StopCrawl as wish:
            message = f"the crawl would stop: {printable(text_of(wish))}"
            raise FetchError(Reason.UNWANTED, message) from None
        except Defer as wish:
            message = f"the page would be put back: {printable(wish.cause)}"
            raise FetchError(Reason.UNWANTED, message) from None

    async def _attempted(self, request: Request) -> Response:
        if self._sessions is None:
            return await self._answer(request, None)
        task = request.task(now=_utc_now())
        while True:
            session = await self._sessions.admit(task)
            try:
                return await self._answer(request, session)
            except LoggedOutError as refused:
                answer = refused.response
                why = f"HTTP {answer.status} for {answer.url}, with a logged-in session"
                # A session from an earlier login is logged in once more.
                if session is None or await self._sessions.logged_out(
                    session, task, why, told=False
                ):
                    raise FetchError(Reason.LOGGED_OUT, why, status=answer.status) from None

    async def _answer(self, request: Request, session: Session | None) -> Response:
        # Stays open for the user, for example with a rendered page.
        attempt = Attempt(request=request, session=session)
        is_rendered = request.options.browser
        is_rendered = self._settings.browser if is_rendered is None else is_rendered
        ask = self._ways[RENDERED if is_rendered else Purpose.PAGE]
        response = await ask(attempt, request)
        if session is not None:
            response = replaced(response, session=session.page_session())
        return response

    def is_page(self, response: Response) -> bool:
        """Return whether a crawl would pass a response to a callback."""
        return is_page(response, response.request, self._settings)

    async def parse(self, response: Response) -> Produced | Failed:
        """Return the products of the request's callback for its page, or its failure.

        The page's own host is in scope, as in a crawl. Raises `SpiderError` if the spider
        does not have this callback.
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
        """End the requests under way, and store the pages' changes to their sessions."""
        if self._sessions is not None:
            await self._sessions.keep()
        await self._render.aclose()
        await self._robots.close()
