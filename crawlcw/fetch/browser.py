"""A browser that pages are rendered in: Chromium by Playwright, started when it is first needed.

It has no way to the network: its proxy is a port where nobody listens and no
name resolves. What a page asks for it gets from the code that opened it, see
`rendering`, so all that is refused to a crawl is refused to a page's scripts.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from crawlcw.api.settings import Settings
from crawlcw.errors import UsageError

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import BrowserContext, Page

#: What the system's browser is called, the first that is there.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = (
    "--proxy-server=http://127.0.0.1:9",  # the port of "discard"
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--dns-prefetch-disable",
    "--disable-background-networking",
)


class BrowserDiedError(Exception):
    """The browser ended while a page was rendered, whichever page that was for."""


class Browser:
    """One browser for one crawl, with so many pages open at once; closed with the block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._room = asyncio.Semaphore(settings.browser_pages)
        self._starting = asyncio.Lock()
        self._alone = asyncio.Lock()
        self._started = AsyncExitStack()
        self._chromium: Chromium | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the browser, if it was started."""
        self._chromium = None
        with anyio.CancelScope(shield=True):
            await self._started.aclose()

    @asynccontextmanager
    async def page(self, *, alone: bool = False) -> AsyncIterator["Page"]:
        """Open a page in a context of its own; *alone*: while no other is open.

        Raises `UsageError` where there is no browser, and `BrowserDiedError` where it
        cannot be started.
        """
        async with AsyncExitStack() as stack:
            if alone:
                # Two that took all the room one by one would wait for each other.
                await stack.enter_async_context(self._alone)
            for _ in range(self._settings.browser_pages if alone else 1):
                await stack.enter_async_context(self._room)
            chromium = await self._running()
            try:
                context = await chromium.new_context(
                    user_agent=self._settings.user_agent,
                    service_workers="block",
                    accept_downloads=False,
                )
                stack.push_async_callback(_closed, context)
                page = await context.new_page()
            except Exception as error:
                raise BrowserDiedError from error
            yield page

    async def _running(self) -> "Chromium":
        async with self._starting:
            if self._chromium is None or not self._chromium.is_connected():
                await self._started.aclose()
                self._chromium = await self._start()
            return self._chromium

    async def _start(self) -> "Chromium":
        try:
            from playwright.async_api import Error, async_playwright
        except ImportError:
            raise UsageError(
                "a page is to be rendered in a browser: install `pip install 'crawlcw[browser]'`, "
                "and a Chromium (`apt-get install chromium`, or `playwright install chromium`)"
            ) from None
        playwright = await self._started.enter_async_context(async_playwright())
        asked = self._settings.browser_path
        place = next(filter(None, map(shutil.which, _NAMES)), None) if asked == "auto" else asked
        try:
            chromium = await playwright.chromium.launch(
                executable_path=place, args=list(_ARGUMENTS), handle_sigint=False
            )
        except Error as error:
            raise UsageError(
                f"the browser {place or 'of Playwright'} does not start: install a Chromium "
                "(`apt-get install chromium`, or `playwright install chromium`), or name one by "
                f"browser_path ({str(error).splitlines()[0]})"
            ) from error
        self._started.push_async_callback(_closed, chromium)
        return chromium


async def _closed(part: "Chromium | BrowserContext") -> None:
    """Close a part that may be dead already."""
    from playwright.async_api import Error

    with suppress(Error):
        await part.close()
