"""Rendering pages: a `Downloader` that gives what it fetched to a browser.

The browser asks for the page and all its parts, and each is fetched by the
downloader below: with the guard of addresses, the bounds and the deadlines of
any other request. Two pages never see each other's storage. A page that ends the
browser is rendered again alone, so that no other pays for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.downloader.browser import Browser, BrowserDiedError
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

logger = logging.getLogger(__name__)

#: Raises `FetchError` for a URL that may not be asked for.
Admit = Callable[[str], Awaitable[None]]

#: Seconds in which a page that is loaded may still ask for something.
_SETTLING = 2.0
#: What a browser says of itself and of the connection, which is not its own.
_ITS_OWN = frozenset({"accept-encoding", "connection", "content-length", "cookie", "host"})
#: What is not true any more of a body that was decoded, or asks for another connection.
_NOT_OF_THE_BODY = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "connection", "alt-svc", "refresh"}
)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HTML = ("text/html", "application/xhtml+xml")


class OpenPages:
    """A block in which the pages that are rendered stay open until its end, for callbacks."""

    # Every page's work is such a block, and hardly any of them is rendered.
    __slots__ = ("_stack", "_token")

    def __init__(self) -> None:
        self._stack: AsyncExitStack | None = None

    def close_later(self, stack: AsyncExitStack) -> None:
        """Have a page, all that belongs to it in *stack*, closed at the end of the block."""
        if self._stack is None:
            self._stack = AsyncExitStack()
        self._stack.push_async_callback(stack.aclose)

    async def __aenter__(self) -> None:
        self._token = _open_pages.set(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open_pages.reset(self._token)
        if self._stack is not None:
            await self._stack.__aexit__(kind, error, traceback)


_open_pages: ContextVar[OpenPages | None] = ContextVar("open_pages", default=None)


class RenderingDownloader:
    """Renders those pages that are to be; the rest is the downloader's below alone."""

    def __init__(
        self, downloader: Downloader, browser: Browser, settings: Settings, *, admit: Admit
    ) -> None:
        """*admit* is asked before each part of a page is fetched."""
        self._downloader = downloader
        self._browser = browser
        self._settings = settings
        self._admit = admit

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response, its body what the browser has made of it; see `Downloader`."""
        response = await self._downloader.fetch(request, url=url)
        is_page = response.file is None and _is_page(response)
        if not wants_browser(request, self._settings) or not is_page:
            return response
        began = monotonic()
        try:
            rendered = await self._rendered(response, alone=False)
        except BrowserDiedError:
            rendered = await self._alone(response)
        rendered.elapsed = response.elapsed + timedelta(seconds=monotonic() - began)
        return rendered

    async def close(self) -> None:
        """Close what it asks; the browser is somebody else's."""
        await self._downloader.close()

    async def _alone(self, response: Response) -> Response:
        try:
            return await self._rendered(response, alone=True)
        except BrowserDiedError:
            raise FetchError(Reason.BROWSER_CRASHED, "the page ends the browser") from None

    async def _rendered(self, response: Response, *, alone: bool) -> Response:
        from playwright.async_api import Error

        async with AsyncExitStack() as stack:
            page = await stack.enter_async_context(self._browser.page(alone=alone))
            crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            page.once("crash", lambda _: crashed.set_result(None))
            page.on("dialog", lambda dialog: dialog.dismiss())
            parts = _Parts(response, self._downloader, self._settings, self._admit)
            try:
                await page.route("**/*", parts.answer)
                await page.route_web_socket("**/*", lambda socket: socket.close())
                async with _until(crashed):
                    body = await self._content(page, response.url)
            except Error as error:
                if page.is_closed():  # nobody else closes it
                    raise BrowserDiedError from error
                message = printable(str(error).splitlines()[0])
                raise FetchError(Reason.BROWSER_FAILED, message) from error
            most = response.request.options.max_body
            most = self._settings.max_body if most is None else most
            rendered = Response(
                response.url,
                request=response.request,
                status=response.status,
                headers={
                    **{k: v for k, v in response.headers.items() if k not in _NOT_OF_THE_BODY},
                    "content-type": "text/html; charset=utf-8",
                },
                body=body[:most],
                truncated="bytes" if len(body) > most else response.truncated,
            )
            if (open_pages := _open_pages.get()) is not None:
                rendered.page = page
                open_pages.close_later(stack.pop_all())
            return rendered

    async def _content(self, page: "Page", url: str) -> bytes:
        from playwright.async_api import TimeoutError as StillBusyError

        # The attempt has a deadline of its own.
        await page.goto(url, wait_until="load", timeout=0)
        # A page may ask for news for ever.
        with suppress(StillBusyError):
            await page.wait_for_load_state("networkidle", timeout=_SETTLING * 1000)
        content: str = await page.content()
        return content.encode(errors="replace")


class _Parts:
    """Answers what one page asks for."""

    def __init__(
        self, response: Response, downloader: Downloader, settings: Settings, admit: Admit
    ) -> None:
        self._page: Response | None = response
        self._url = response.url
        self._downloader = downloader
        self._settings = settings
        self._admit = admit

    async def answer(self, route: "Route") -> None:
        """Give the browser what it asks for, or refuse it."""
        from playwright.async_api import Error

        # The page may be closed while its parts are fetched.
        with suppress(Error):
            if route.request.resource_type in self._settings.browser_blocked:
                await route.abort("blockedbyclient")
                return
            try:
                part = await self._part(route)
            except FetchError as refusal:
                logger.debug(
                    "a part of %s: %s",
                    printable(self._url),
                    refusal.reason,
                    extra={"event": "part_refused", "url": self._url, "reason": refusal.reason},
                )
                await route.abort("failed")
                return
            await route.fulfill(
                status=part.status,
                headers={k: v for k, v in part.headers.items() if k not in _NOT_OF_THE_BODY},
                body=part.body,
            )

    async def _part(self, route: "Route") -> Response:
        asked = route.request
        if (page := self._page) is not None and asked.is_navigation_request():
            # What the page is made of is here already, and is not asked for twice.
            self._page = None
            return page
        request = Request(
            asked.url,
            method=asked.method,
            headers=[(k, v) for k, v in asked.headers.items() if k.lower() not in _ITS_OWN],
            body=asked.post_data_buffer,
        )
        url = asked.url
        for _ in range(self._settings.max_redirects + 1):
            await self._admit(url)
            part = await self._downloader.fetch(request, url=url)
            if part.status not in _REDIRECTS or "location" not in part.headers:
                return part
            # The browser would follow it by itself, and cannot.
            url = urls.resolve(url, part.headers["location"])
            request = Request(url)
        raise FetchError(Reason.REDIRECT_LIMIT, f"more than {self._settings.max_redirects} hops")


def wants_browser(request: Request, settings: Settings) -> bool:
    """Return whether a request's page is to be rendered."""
    asked = request.options.browser
    return settings.browser if asked is None else asked


def _is_page(response: Response) -> bool:
    kind = response.headers.get("content-type", _HTML[0]).lower().lstrip()
    return 200 <= response.status < 300 and kind.startswith(_HTML)


@asynccontextmanager
async def _until(crashed: asyncio.Future[None]) -> AsyncIterator[None]:
    """End the block where the page crashes: Playwright would wait for it until the deadline."""
    task = asyncio.current_task()
    assert task is not None
    crashed.add_done_callback(lambda ended: None if ended.cancelled() else task.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if crashed.done() and not crashed.cancelled() and task.uncancel() == 0:
            raise FetchError(Reason.BROWSER_CRASHED, "the page has crashed") from None
        raise
    finally:
        if not crashed.done():
            crashed.cancel()
