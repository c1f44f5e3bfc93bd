"""Rendering pages: the layer that gives a fetched page to a browser, and the browser.

The browser is Chromium by Playwright, started when it is first needed. It has no way to the
network: its proxy is a port where nobody listens, and no name resolves. It asks for the page
and all its parts, and each is fetched by the layers below: with the guard of addresses, the
bounds and the deadlines of any other request. Two pages never see each other's storage.
"""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import escape
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from crawlcw.api.attempt import Attempt, Deadline, Next, Purpose, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason, UsageError
from crawlcw.fetch.redirects import REDIRECTS, Admission
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import BrowserContext, Page, Route

logger = logging.getLogger(__name__)

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
#: Seconds in which a page that is loaded may still ask for something.
_SETTLING = 2.0
#: What a browser says of itself and of the connection, which is not its own.
_ITS_OWN = frozenset({"accept-encoding", "connection", "content-length", "cookie", "host"})
#: What is not true any more of a body that was decoded, or asks for another connection.
_NOT_OF_THE_BODY = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "connection", "alt-svc", "refresh"}
)
_HTML = ("text/html", "application/xhtml+xml")
#: How the types of other texts end that a browser shows.
_TEXTS = ("xml", "json", "javascript")


class Render:
    """The layer that renders those pages that are to be."""

    purposes = frozenset({Purpose.PAGE})

    def __init__(self, browser: "Browser", settings: Settings, admission: Admission) -> None:
        self._browser = browser
        self._settings = settings
        self._admission = admission

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response, its body what the browser has made of it."""
        if not wants_browser(request, self._settings):
            return call_next(attempt, request)
        return self._answered(attempt, request, call_next)

    async def _answered(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        response = await call_next(attempt, request)
        kind = response.headers.get("content-type", _HTML[0]).lower().lstrip()
        is_page = 200 <= response.status < 300 and kind.startswith(_HTML)
        if response.file is not None or not is_page:
            return response
        began = monotonic()
        try:
            try:
                rendered = await self._rendered(attempt, response, call_next, alone=False)
            except BrowserDiedError:
                # Once more alone, so that no other page pays for one that ends the browser.
                rendered = await self._rendered(attempt, response, call_next, alone=True)
        except BrowserDiedError:
            raise FetchError(Reason.BROWSER_CRASHED, "the page ends the browser") from None
        rendered.elapsed = response.elapsed + timedelta(seconds=monotonic() - began)
        return rendered

    async def _rendered(
        self, attempt: Attempt, response: Response, call_next: Next, *, alone: bool
    ) -> Response:
        from playwright.async_api import Error

        async with AsyncExitStack() as stack:
            page = await stack.enter_async_context(self._browser.page(alone=alone))
            # Where the page crashes, Playwright would wait for it until the deadline.
            crash = anyio.CancelScope()
            page.once("crash", lambda _: crash.cancel())
            page.on("dialog", lambda dialog: dialog.dismiss())
            # Parts have the session and the proxy of their page. The page may ask for more of
            # them when the attempt has ended, and waits for memory while it holds some.
            asked_as = replace(attempt, deadline=Deadline(), memory=None, accepts_file=None)
            ask = partial(call_next, asked_as)
            parts = _Parts(page, response, ask, self._settings, self._admission)
            body = b""
            try:
                await page.route("**/*", parts.answer)
                await page.route_web_socket("**/*", lambda socket: socket.close())
                with crash:
                    body = await self._content(page, parts, response.url)
            except Error as error:
                if page.is_closed():  # nobody else closes it
                    raise BrowserDiedError from error
                if parts.refused() is None:
                    message = printable(str(error).splitlines()[0])
                    raise FetchError(Reason.BROWSER_FAILED, message) from error
            if crash.cancelled_caught:
                raise FetchError(Reason.BROWSER_CRASHED, "the page has crashed")
            if (refused := parts.refused()) is not None:
                return refused
            if not page.url.startswith(("http://", "https://")):
                message = f"the page's scripts lead to {printable(page.url[:100])}"
                raise FetchError(Reason.BROWSER_FAILED, message)
            shown = parts.shown
            most = response.request.options.max_body
            most = self._settings.max_body if most is None else most
            rendered = Response(
                page.url.partition("#")[0],
                request=response.request,
                status=shown.status,
                headers=_headers(shown) | {"content-type": "text/html; charset=utf-8"},
                body=body[:most],
                truncated="bytes" if len(body) > most else shown.truncated,
            )
            if attempt.memory is not None:
                # It stays open until the end of the attempt, for callbacks.
                rendered = replaced(rendered, page=page)
                attempt.cleanup = attempt.cleanup or AsyncExitStack()
                attempt.cleanup.push_async_callback(stack.pop_all().aclose)
            return rendered

    async def _content(self, page: "Page", parts: "_Parts", url: str) -> bytes:
        """Return the document that the page's scripts have come to rest at.

        Nothing where its answer was an error: a browser may show a page of its own for it. Raises
        `FetchError` where the scripts have led to no document.
        """
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as StillBusyError

        # The attempt has a deadline of its own.
        await page.goto(url, wait_until="load", timeout=0)
        seen = -1
        content = ""
        # A document that takes this one's place has begun meanwhile: there are `max_redirects`.
        while seen != parts.documents:
            seen = parts.documents
            # A page may ask for news for ever.
            with suppress(StillBusyError):
                await page.wait_for_load_state("networkidle", timeout=_SETTLING * 1000)
            await parts.arrived()
            if parts.refused() is not None:
                break
            await page.wait_for_load_state("load", timeout=0)
            try:
                content = await page.content()
            except Error:
                # Playwright refuses while the next document takes this one's place.
                if seen == parts.documents:
                    raise
        return content.encode(errors="replace")


class _Parts:
    """Answers to all that one page asks for, and the document that it shows at last."""

    def __init__(
        self,
        page: "Page",
        response: Response,
        ask: Callable[[Request], Awaitable[Response]],
        settings: Settings,
        admission: Admission,
    ) -> None:
        self._page = page
        #: Fetched already, for the next document that the browser asks for.
        self._next: Response | None = response
        self._url = response.url
        self._ask = ask
        self._settings = settings
        self._admission = admission
        self.documents = 0  #: that the browser has asked for, frames apart
        self._led = 0  #: documents that the page's scripts have led to
        self._under_way = 0  #: documents that are fetched just now
        self._arrived = asyncio.Event()
        self.shown = response  #: the answer to the document that was asked for last
        self._failure: FetchError | None = None

    async def arrived(self) -> None:
        """Wait until no document is fetched."""
        while self._under_way:
            self._arrived.clear()
            await self._arrived.wait()

    def refused(self) -> Response | None:
        """Return the answer that is shown where it is an error's; raises the document's failure."""
        if self._failure is not None:
            raise self._failure
        return None if 200 <= self.shown.status < 300 else self.shown

    async def answer(self, route: "Route") -> None:
        """Give the browser a part that it asks for, or refuse it."""
        from playwright.async_api import Error

        # The page may be closed while its parts are fetched.
        with suppress(Error):
            asked = route.request
            if asked.resource_type in self._settings.browser_blocked:
                await route.abort("blockedbyclient")
            elif asked.is_navigation_request() and asked.frame == self._page.main_frame:
                await self._answer_document(route)
            else:
                await self._answer(route, is_document=False)

    async def _answer_document(self, route: "Route") -> None:
        self.documents += 1
        self._under_way += 1
        try:
            found, self._next = self._next, None
            if found is None:
                self._led += 1
                self._failure = None
                found = await self._answer(route, is_document=True)
            else:
                # It is here already, and is not asked for twice.
                await _fulfilled(route, found)
            if found is not None:
                self.shown = found
        finally:
            self._under_way -= 1
            self._arrived.set()

    async def _answer(self, route: "Route", *, is_document: bool) -> Response | None:
        try:
            part, url = await self._part(route, is_document=is_document)
        except FetchError as refusal:
            logger.debug(
                "a part of %s: %s",
                printable(self._url),
                refusal.reason,
                extra={"event": "part_refused", "url": self._url, "reason": refusal.reason},
            )
            if is_document:
                self._failure = refusal
            await route.abort("failed")
            return None
        if is_document and url != route.request.url:
            # The document must have the address that its links are relative to.
            self._next = part
            sends = f'<meta http-equiv="refresh" content="0; url={escape(url)}">'
            await route.fulfill(status=200, content_type="text/html; charset=utf-8", body=sends)
            return None
        await _fulfilled(route, part)
        return part

    async def _part(self, route: "Route", *, is_document: bool) -> tuple[Response, str]:
        """Return a part, and its address behind all redirects; raises `FetchError`."""
        asked = route.request
        request = Request(
            asked.url,
            method=asked.method,
            headers=[(k, v) for k, v in asked.headers.items() if k.lower() not in _ITS_OWN],
            body=asked.post_data_buffer,
        )
        url = asked.url
        most = self._settings.max_redirects
        if is_document and self._led > most:
            raise FetchError(Reason.REDIRECT_LIMIT, f"its scripts lead on more than {most} times")
        for _ in range(most + 1):
            await self._admission.part(url, is_document=is_document)
            part = await self._ask(request)
            if part.status not in REDIRECTS or "location" not in part.headers:
                if is_document and _is_download(part):
                    raise FetchError(Reason.CONTENT_TYPE, "its scripts lead to a download")
                return part, url
            # The browser would follow it by itself, and cannot.
            url = urls.resolve(url, part.headers["location"])
            request = Request(url)
        raise FetchError(Reason.REDIRECT_LIMIT, f"more than {most} hops")


async def _fulfilled(route: "Route", part: Response) -> None:
    await route.fulfill(status=part.status, headers=_headers(part), body=part.body)


def _headers(part: Response) -> dict[str, str]:
    return {k: v for k, v in part.headers.items() if k not in _NOT_OF_THE_BODY}


def wants_browser(request: Request, settings: Settings) -> bool:
    """Return whether a request's page is to be rendered."""
    asked = request.options.browser
    return settings.browser if asked is None else asked


def _is_download(response: Response) -> bool:
    """Return whether a browser would save the answer instead of showing it."""
    kind = response.headers.get("content-type", _HTML[0]).partition(";")[0].strip().lower()
    is_text = kind.startswith("text/") or kind.endswith(_TEXTS)
    disposition = response.headers.get("content-disposition", "").lstrip().lower()
    return not is_text or disposition.startswith("attachment")


class BrowserDiedError(Exception):
    """The browser ended while a page was rendered, whichever page that was for."""


class Browser:
    """One browser for one crawl, with so many pages open at once; to be closed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._room = asyncio.Semaphore(settings.browser_pages)
        self._starting = asyncio.Lock()
        self._alone = asyncio.Lock()
        self._started = AsyncExitStack()
        self._chromium: Chromium | None = None

    async def aclose(self) -> None:
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
