"""One page outside of any crawl: fetched and parsed as a crawl would do it, and recorded nowhere.

It is what a spider's author tries things with: robots.txt, the redirects, the
guard of addresses, the time limits and the scope are those of a crawl. Delays
are not, as a person does not ask often.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named, scope
from crawlcw.crawl import callbacks
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.hooks import hooked
from crawlcw.crawl.item_sink import ItemPolicy
from crawlcw.crawl.redirects import attempt, is_page
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.watch import Unwatched
from crawlcw.downloader.browser import Browser
from crawlcw.downloader.protocol import Downloader
from crawlcw.downloader.rendering import RenderingDownloader
from crawlcw.errors import FetchError, Reason, StopCrawl
from crawlcw.model import urls
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import text_of
from crawlcw.model.transitions import Failed


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Trial:
    """Fetches pages and gives them to the callbacks of *spider*; in its event loop."""

    def __init__(
        self,
        spider: Spider,
        downloader: Downloader,
        settings: Settings,
        *,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._spider = spider
        self._settings = settings
        self._now = now
        self._robots = Robots(
            downloader, settings, clock=asyncio.get_running_loop().time, now=self._now
        )
        self._browser = Browser(settings)
        rendering = RenderingDownloader(
            downloader, self._browser, settings, admit=self._robots.admit
        )
        within = settings.callback_timeout.total_seconds()
        self._downloader = hooked(rendering, spider, Unwatched(within))

    async def fetch(self, request: Request) -> Response:
        """Return the answer, redirects followed, whatever its status; raises `FetchError`."""
        location, _ = request.identity()
        try:
            await self._robots.admit(location.url)
        except FetchError as error:
            if error.reason is Reason.REFUSED_ROBOTS:
                message = f"{error.message} (-s obey_robots=false fetches it all the same)"
                raise FetchError(error.reason, message) from None
            raise
        try:
            return await attempt(
                request,
                downloader=self._downloader,
                settings=self._settings,
                admit=self._robots.admit,
            )
        except StopCrawl as wish:
            message = f"the crawl would stop: {printable(text_of(wish))}"
            raise FetchError(Reason.UNWANTED, message) from None

    def is_page(self, response: Response) -> bool:
        """Return whether a crawl would give an answer to a callback."""
        return is_page(response, response.request, self._settings)

    async def parse(self, response: Response) -> Produced | Failed:
        """Return what the callback of the request makes of its page, or why it failed.

        Requests lead where a crawl's would: the page's own host is in the scope.
        Raises `SpiderError` where the spider has no such callback.
        """
        method = callback_named(self._spider, response.request.callback)
        task = response.request.task(now=self._now())
        allowed = scope(self._spider) or ()
        hosts = {*allowed, urls.locate(response.url).host, task.host}
        return await callbacks.run(
            method,
            response,
            task=task,
            scope=Scope.of(hosts, replace(self._settings, max_depth=None)),
            now=self._now(),
            seen={task.id},
            name=response.request.callback,
            within=self._settings.callback_timeout.total_seconds(),
            items=ItemPolicy.of(self._spider),
            rules=self._spider.rules,
        )

    async def close(self) -> None:
        """End what is under way."""
        await self._browser.close()
        await self._robots.close()
