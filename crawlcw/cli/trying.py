"""Fetch and parse one page as a crawl would, without recording the page.

The commands `fetch`, `parse` and `shell` use this module. A page is fetched as in a crawl, with its
rules for robots.txt, redirects, private addresses, time limits and scope, but without delays.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from crawlcw.api.attempt import Attempt, LoggedOutError, Purpose, Session, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named, entry_urls, logs_in, scope, settled
from crawlcw.browser.layer import Render
from crawlcw.cli import loading, scrapy_references
from crawlcw.cli.ledger_option import closing
from crawlcw.crawl.admission import Admission
from crawlcw.crawl.callbacks import Produced, Runner, Scope
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.sessions import Sessions
from crawlcw.crawl.spider_requests import TasklessRequests
from crawlcw.dev_cache import DevCache
from crawlcw.engine.session import WorkerSession
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl, UsageError
from crawlcw.fetch import pipeline
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import RENDERED, DefaultDownloader
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.fetch.redirects import is_page
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model import urls
from crawlcw.model.sanitize import printable, text_of
from crawlcw.model.transitions import Failed


class AnyPage(Spider):
    """A spider that yields nothing. The commands use it if the user names no spider."""

    name = "any-page"
    allowed_hosts = "*"

    def parse(self, response: Response) -> None:
        """Yield nothing."""


def spider_or_any(spider: str | None, arguments: Sequence[str]) -> Spider:
    """Return the spider that the user names, or one that accepts any page; raises `UsageError`."""
    if not spider:
        return AnyPage(start_urls=[])
    if (scrapy_target := scrapy_references.target_of(spider)) is not None:
        folder, name = scrapy_target
        raise UsageError(
            f"{name} is a spider of a Scrapy project, which needs a crawl: run "
            f"`scrapy parse URL --spider {name}` in {folder} to try a page"
        )
    return loading.make(loading.find(spider), arguments)


@asynccontextmanager
async def open_sessions(spider: Spider) -> AsyncIterator[Ledger | None]:
    """Open a ledger in memory for the sessions of *spider*; yield None if it has no login."""
    if not logs_in(spider):
        yield None
        return
    async with closing(open_ledger("sqlite:///:memory:", spider.name)) as ledger:
        yield ledger


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Trial:
    """Fetches pages outside of a crawl, and runs the callbacks of *spider* on the pages."""

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
        """*ledger* keeps the login sessions of a spider that logs in."""
        self._spider = spider
        self._settings = settings
        admission = Admission()
        self._watch = Watchdog(Stats(), limit=settings.callback_timeout)
        self._parsing = Parsing(settings, selectors=spider.selectors)
        self._render = Render(settings, admission)
        layers = pipeline.layers(
            spider,
            settings,
            downloader,
            credentials=credentials,
            admission=admission,
            render=self._render,
            watch=self._watch,
        )
        self._senders = pipeline.chains(layers)
        self._requests = TasklessRequests(
            next_by_purpose=self._senders,
            admission=admission,
            stats=Stats(),
            throttle_statuses=settings.throttle_statuses,
            scope=Scope.of((), settings),
        )
        #: The attempt at the last page, whose session the requests of its callback use.
        self._attempt: Attempt | None = None
        clock = asyncio.get_running_loop().time
        self._robots = Robots(self._senders[Purpose.ROBOTS], settings, clock=clock, now=_utc_now)
        admission.robots = self._robots
        self._state = KeptState(spider, None)
        self._sessions: Sessions | None = None
        if ledger is not None:
            self._sessions = Sessions(
                spider,
                settings,
                WorkerSession(ledger, lease_length=lambda: settings.lease, give_up=settings.lease),
                self._senders,
                admission=admission,
                proxies=proxies,
                end=lambda *_: None,
                writes_before=[],
            )

    async def fetch(self, request: Request) -> Response:
        """Return the final response after redirects, with any status; raises `FetchError`.

        A spider with a login logs in before the fetch, and again if the site has ended the session.
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
        except StopCrawl as exception:
            message = f"the crawl would stop: {printable(text_of(exception))}"
            raise FetchError(Reason.UNWANTED, message) from None
        except Defer as exception:
            message = f"the page would be deferred: {printable(exception.cause)}"
            raise FetchError(Reason.UNWANTED, message) from None

    async def _attempted(self, request: Request) -> Response:
        if self._sessions is None:
            return await self._answer(request, None)
        task = request.task(now=_utc_now())
        while True:
            session = await self._sessions.admit(task)
            try:
                return await self._answer(request, session)
            except LoggedOutError as error:
                response = error.response
                message = f"HTTP {response.status} for {response.url}, with a logged-in session"
                # Fetch the page again with another session, unless the page itself has failed.
                if session is None or await self._sessions.logged_out(
                    session, task, message, by_callback=False
                ):
                    raise FetchError(Reason.LOGGED_OUT, message, status=response.status) from None

    async def _answer(self, request: Request, session: Session | None) -> Response:
        # Keep the attempt open, because the user may use its rendered page.
        attempt = self._attempt = Attempt(request=request, session=session)
        is_rendered = request.options.browser
        is_rendered = self._settings.browser if is_rendered is None else is_rendered
        send = self._senders[RENDERED if is_rendered else Purpose.PAGE]
        response = await send(attempt, request)
        if session is not None:
            response = replaced(response, session=session.page_session())
        return response

    def is_page(self, response: Response) -> bool:
        """Return whether a crawl would pass *response* to a callback."""
        return is_page(response, response.request, self._settings)

    async def parse(self, response: Response) -> Produced | Failed:
        """Return the items and requests of the callback for *response*, or the callback's failure.

        The page's own host is in scope, as in a crawl. Raises `SpiderError` if the spider does not
        have the callback of the request.
        """
        request = response.request
        callback_named(self._spider, request.callback)
        task = request.task(now=_utc_now())
        hosts = {*(scope(self._spider) or ()), urls.locate(response.url).host, task.host}
        runner = Runner(
            spider=self._spider,
            scope=Scope.of(hosts, replace(self._settings, max_depth=None)),
            known_ids={task.id},
            now=_utc_now,
            watchdog=self._watch,
            parsing=self._parsing,
            state=self._state,
            write=None,
            fetch=self._requests.fetch,
        )
        return await runner.run(request.callback, response, task=task, attempt=self._attempt)

    async def close(self) -> None:
        """End the running requests, and store the changes that the pages made to login sessions."""
        if self._sessions is not None:
            await self._sessions.keep()
        await self._render.aclose()
        await self._robots.close()


@asynccontextmanager
async def open_trial(
    spider: Spider, url: str, settings: Settings, *, sessions: Ledger | None = None
) -> AsyncIterator[Trial]:
    """Open a `Trial` for *url*, and start the spider; raises `UsageError` for an invalid URL.

    *url* may have a private address, because the user has typed *url*. *sessions* is the ledger
    that stores the spider's login sessions, or None to forget the sessions at the end. Raises
    `SpiderError` for an invalid `login_when`.
    """
    try:
        urls.locate(url)
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL to fetch: {error.message}") from None
    # If the spider has start URLs, send credentials only to their sites, not to that of *url*.
    credentials = Credentials(
        entry_urls(spider) or [url], headers=settings.headers, auth=settings.auth
    )
    credentials.learn_password(url)
    async with AsyncExitStack() as stack:
        if sessions is None:
            sessions = await stack.enter_async_context(open_sessions(spider))
        proxies = ProxyPool(settings, os.environ)
        default = pipeline.web(
            spider, settings, extra_urls=[url], proxies=proxies, cache=DevCache.of
        )
        downloader = await stack.enter_async_context(
            pipeline.downloader_of(spider, default, settings)
        )
        trial = Trial(spider, downloader, credentials, settings, proxies=proxies, ledger=sessions)
        stack.push_async_callback(trial.close)
        await settled(spider.opened())
        yield trial


def head_of(response: Response) -> str:
    """Return one line with a response's status, URL, size, type, encoding and time."""
    content_type = response.headers.get("content-type", "no content type")
    cut_note = f", cut: {response.truncated}" if response.truncated else ""
    return printable(
        f"{response.status} {response.url}  {response.size:,} bytes{cut_note}, {content_type}, "
        f"{response.encoding}, {response.elapsed.total_seconds():.3f} s",
        limit=400,
    )
