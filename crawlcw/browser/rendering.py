"""The layer that gives fetched pages to a browser: Chromium by Playwright, started when needed.

The browser has no way to the network: its proxy is the port of "discard", and no name resolves.
The page and all its parts are fetched by the layers below, with the address guard, the bounds
and the deadlines of any other request. Two pages never see each other's storage.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import escape
from time import monotonic

import anyio
from playwright.async_api import Browser, BrowserContext, Error, Page, Route, async_playwright
from playwright.async_api import Request as BrowserRequest
from playwright.async_api import TimeoutError as StillBusyError

from crawlcw.api.attempt import Attempt, Deadline, Next, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason, UsageError
from crawlcw.fetch.redirects import REDIRECTS, Admission
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: The names of the system's browser, the first that is installed counts.
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
#: Headers about the browser and its connection: the crawl has its own.
_ITS_OWN = frozenset({"accept-encoding", "connection", "content-length", "cookie", "host"})
#: Headers that are untrue of a decoded body, or ask for another connection.
_NOT_OF_THE_BODY = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "connection", "alt-svc", "refresh"}
)
_HTML = ("text/html", "application/xhtml+xml")
#: Ends of the types of other texts that a browser shows.
_TEXTS = ("xml", "json", "javascript")


class _BrowserDiedError(Exception):
    """The browser ended while it rendered a page, perhaps for another page's sake."""


class Render:
    """The layer that renders pages, so many at once, in one browser; to be closed."""

    def __init__(self, settings: Settings, admission: Admission) -> None:
        self._settings = settings
        self._admission = admission
        self._room = asyncio.Semaphore(settings.browser_pages)
        self._starting = asyncio.Lock()
        self._alone = asyncio.Lock()
        self._started = AsyncExitStack()
        self._browser: Browser | None = None

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response, its body the document that its scripts have made."""
        response = await call_next(attempt, request)
        kind = response.headers.get("content-type", _HTML[0]).lower().lstrip()
        if response.file is not None or not _is_good(response) or not kind.startswith(_HTML):
            return response
        began = monotonic()
        for alone in (False, True):
            # The second time alone, so that no other page pays for one that ends the browser.
            with suppress(_BrowserDiedError):
                rendered = await self._rendered(attempt, response, call_next, alone=alone)
                rendered.elapsed = response.elapsed + timedelta(seconds=monotonic() - began)
                return rendered
        raise FetchError(Reason.BROWSER_CRASHED, "the page ends the browser")

    async def _rendered(
        self, attempt: Attempt, response: Response, call_next: Next, *, alone: bool
    ) -> Response:
        async with AsyncExitStack() as stack:
            page = await self._open(stack, alone=alone)
            # Where the page crashes, Playwright would wait for it until the deadline.
            crash = anyio.CancelScope()
            page.once("crash", lambda _: crash.cancel())
            # Parts have the session and the proxy of their page. The page may ask for more of
            # them when the attempt has ended, and waits for memory while it holds some.
            asked_as = replace(attempt, deadline=Deadline(), memory=None, accepts_file=None)
            ask = partial(call_next, asked_as)
            parts = _Parts(page, response, ask, self._settings, self._admission)
            body = b""
            try:
                await page.route("**/*", parts.answer)
                with crash:
                    body = await parts.document()
            except Error as error:
                if page.is_closed():  # the crawl has not closed it
                    raise _BrowserDiedError from error
                if _is_good(parts.shown()):
                    message = printable(str(error).splitlines()[0])
                    raise FetchError(Reason.BROWSER_FAILED, message) from error
            if crash.cancelled_caught:
                raise FetchError(Reason.BROWSER_CRASHED, "the page has crashed")
            shown = parts.shown()
            if not _is_good(shown):
                return shown
            if not page.url.startswith(("http://", "https://")):
                message = f"the page's scripts lead to {printable(page.url[:100])}"
                raise FetchError(Reason.BROWSER_FAILED, message)
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

    async def _open(self, stack: AsyncExitStack, *, alone: bool) -> Page:
        """Return a page in a context of its own until *stack* ends; *alone*: no other is open.

        Raises `UsageError` where there is no browser, and `_BrowserDiedError` where it has ended.
        """
        if alone:
            # Two that took all the room one by one would wait for each other.
            await stack.enter_async_context(self._alone)
        for _ in range(self._settings.browser_pages if alone else 1):
            await stack.enter_async_context(self._room)
        async with self._starting:
            browser = self._browser
            if browser is None or not browser.is_connected():
                await self._started.aclose()
                browser = self._browser = await self._start()
        try:
            context = await browser.new_context(
                user_agent=self._settings.user_agent,
                service_workers="block",
                accept_downloads=False,
            )
            stack.push_async_callback(_close, context)
            return await context.new_page()
        except Exception as error:
            raise _BrowserDiedError from error

    async def _start(self) -> Browser:
        playwright = await self._started.enter_async_context(async_playwright())
        asked = self._settings.browser_path
        place = next(filter(None, map(shutil.which, _NAMES)), None) if asked == "auto" else asked
        try:
            browser = await playwright.chromium.launch(
                executable_path=place, args=list(_ARGUMENTS), handle_sigint=False
            )
        except Error as error:
            raise UsageError(
                f"the browser {place or 'of Playwright'} does not start: install a Chromium "
                "(`apt-get install chromium`, or `playwright install chromium`), or name one by "
                f"browser_path ({str(error).splitlines()[0]})"
            ) from error
        self._started.push_async_callback(_close, browser)
        return browser

    async def aclose(self) -> None:
        """End the browser, if it was started."""
        with anyio.CancelScope(shield=True):
            await self._started.aclose()


class _Parts:
    """Answers to all requests of one page, and the document that it shows at last."""

    def __init__(
        self,
        page: Page,
        response: Response,
        ask: Callable[[Request], Awaitable[Response]],
        settings: Settings,
        admission: Admission,
    ) -> None:
        self._page = page
        self._url = response.url
        #: Fetched already, for the next document that the browser asks for.
        self._next: Response | None = response
        self._ask = ask
        self._settings = settings
        self._admission = admission
        self._documents = 0  #: that the browser has asked for, frames apart
        self._arriving = asyncio.Lock()  #: held while a document is fetched
        #: What came of the document that was asked for last.
        self._last: Response | FetchError = response

    def shown(self) -> Response:
        """Return the answer that is shown, an error's too; raises the document's failure."""
        if isinstance(self._last, FetchError):
            raise self._last
        return self._last

    async def document(self) -> bytes:
        """Return the document that the page's scripts have come to rest at.

        Nothing where its answer was an error: a browser may show a page of its own for it. Raises
        `FetchError` where the scripts have led to no document.
        """
        # The attempt has a deadline of its own.
        await self._page.goto(self._url, wait_until="load", timeout=0)
        seen, content = -1, ""
        # A document that takes this one's place has begun meanwhile: there are `max_redirects`.
        while seen != self._documents:
            seen = self._documents
            # A page may ask for news for ever.
            with suppress(StillBusyError):
                await self._page.wait_for_load_state("networkidle", timeout=_SETTLING * 1000)
            async with self._arriving:
                pass
            if not _is_good(self.shown()):
                break
            await self._page.wait_for_load_state("load", timeout=0)
            try:
                content = await self._page.content()
            except Error:
                # Playwright refuses while the next document takes this one's place.
                if seen == self._documents:
                    raise
        return content.encode(errors="replace")

    async def answer(self, route: Route) -> None:
        """Give the browser a part that it asks for, or refuse it."""
        asked = route.request
        # The page may be closed while its parts are fetched.
        with suppress(Error):
            if asked.resource_type in self._settings.browser_blocked:
                await route.abort("blockedbyclient")
            elif asked.is_navigation_request() and asked.frame == self._page.main_frame:
                self._documents += 1
                async with self._arriving:
                    await self._answer(route, is_document=True)
            else:
                await self._answer(route, is_document=False)

    async def _answer(self, route: Route, *, is_document: bool) -> None:
        try:
            part, url = await self._part(route.request, is_document=is_document)
        except FetchError as refusal:
            logger.debug(
                "a part of %s: %s",
                printable(self._url),
                refusal.reason,
                extra={"event": "part_refused", "url": self._url, "reason": refusal.reason},
            )
            if is_document:
                self._last = refusal
            await route.abort("failed")
            return
        if is_document:
            self._last = part
            if url != route.request.url:
                # The document must have the address that its links are relative to.
                self._next = part
                leads = f'<meta http-equiv="refresh" content="0; url={escape(url)}">'
                await route.fulfill(status=200, content_type="text/html; charset=utf-8", body=leads)
                return
        await route.fulfill(status=part.status, headers=_headers(part), body=part.body)

    async def _part(self, asked: BrowserRequest, *, is_document: bool) -> tuple[Response, str]:
        """Return a part, and its address behind all redirects; raises `FetchError`."""
        url, most = asked.url, self._settings.max_redirects
        if is_document and self._next is not None:
            # It is here already, and is not asked for twice.
            part, self._next = self._next, None
            return part, url
        # The first is the page itself.
        if is_document and self._documents > most + 1:
            raise FetchError(Reason.REDIRECT_LIMIT, f"its scripts lead on more than {most} times")
        headers = [(k, v) for k, v in asked.headers.items() if k.lower() not in _ITS_OWN]
        request = Request(url, method=asked.method, headers=headers, body=asked.post_data_buffer)
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


def _is_good(response: Response) -> bool:
    return 200 <= response.status < 300


def _headers(part: Response) -> dict[str, str]:
    return {k: v for k, v in part.headers.items() if k not in _NOT_OF_THE_BODY}


def _is_download(response: Response) -> bool:
    """Return whether a browser would save the answer instead of showing it."""
    kind = response.headers.get("content-type", _HTML[0]).partition(";")[0].strip().lower()
    is_text = kind.startswith("text/") or kind.endswith(_TEXTS)
    disposition = response.headers.get("content-disposition", "").lstrip().lower()
    return not is_text or disposition.startswith("attachment")


async def _close(part: Browser | BrowserContext) -> None:
    """Close a part that may be dead already."""
    with suppress(Error):
        await part.close()
