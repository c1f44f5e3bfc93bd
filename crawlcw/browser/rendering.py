"""Layer that renders fetched pages in Chromium; Playwright starts Chromium on demand.

The browser reaches no network, because its proxy is a closed port, and each host name resolves to
this port. The crawl's layers fetch the page and all its subresources for the browser, under the
same address guard, limits and deadlines as all requests. Pages do not share cookies or other
storage of the browser.
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

#: Commands that may start the system's browser; the first installed browser is used.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = (
    "--proxy-server=http://127.0.0.1:9",  # the discard port, which is closed on all machines
    "--proxy-bypass-list=<-loopback>",
    # With `~NOTFOUND` as the target, WebRTC would look up `.local` names by multicast DNS.
    "--host-resolver-rules=MAP * 127.0.0.1:9",
    # The next two options let WebRTC use UDP only through a proxy. Chromium reads the first option,
    # and its headless shell the second.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--dns-prefetch-disable",
    "--disable-background-networking",
)
#: Seconds to wait for an idle network after the load event.
_MAX_IDLE_WAIT_S = 2.0
#: Maximum number of waits for an idle network. The crawl waits again if a subresource of the page
#: has not yet got a slot of its host.
_MAX_WAITS = 5
#: Request headers of the browser that the crawl does not send, because it sets them itself.
_ITS_OWN = frozenset({"accept-encoding", "connection", "content-length", "cookie", "host"})
#: Response headers that are wrong for a decoded body, or describe the server's connection.
_NOT_OF_THE_BODY = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "connection", "alt-svc", "refresh"}
)
_HTML = ("text/html", "application/xhtml+xml")
#: Suffixes of content types, besides HTML, that a browser shows as text.
_TEXTS = ("xml", "json", "javascript")


class _BrowserDiedError(Exception):
    """The browser ended while it rendered a page; the page may not be the cause."""


class Render:
    """The layer that renders up to `browser_pages` pages concurrently in one browser."""

    def __init__(self, settings: Settings, admission: Admission) -> None:
        self._settings = settings
        self._admission = admission
        self._page_slots = asyncio.Semaphore(settings.browser_pages)
        self._starting = asyncio.Lock()
        self._alone_lock = asyncio.Lock()
        self._playwright_stack = AsyncExitStack()
        self._browser: Browser | None = None

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response, with the rendered document as its body."""
        response = await call_next(attempt, request)
        media_type = response.headers.get("content-type", _HTML[0]).lower().lstrip()
        if response.file is not None or not _is_good(response) or not media_type.startswith(_HTML):
            return response
        started_at = monotonic()
        for is_alone in (False, True):
            # Render the page alone in the second attempt, so that a page that kills the browser
            # affects no other page.
            with suppress(_BrowserDiedError):
                rendered = await self._rendered(attempt, response, call_next, is_alone=is_alone)
                elapsed = response.elapsed + timedelta(seconds=monotonic() - started_at)
                return replaced(rendered, elapsed=elapsed)
        raise FetchError(Reason.BROWSER_CRASHED, "the page crashes the browser")

    async def _rendered(
        self, attempt: Attempt, response: Response, call_next: Next, *, is_alone: bool
    ) -> Response:
        async with AsyncExitStack() as stack:
            page = await self._open(stack, is_alone=is_alone)
            # End the wait for a crashed page, because Playwright would wait until the deadline.
            crash = anyio.CancelScope()
            page.once("crash", lambda _: crash.cancel())
            # Subresources use the session and proxy of the page, but not the attempt's deadline,
            # because the page may stay open after the attempt's end. Subresources do not use the
            # attempt's memory budget, because they could wait for ever for memory that the page
            # holds.
            part_attempt = replace(attempt, deadline=Deadline(), memory=None, accepts_file=None)
            fetch_part = partial(call_next, part_attempt)
            parts = _Parts(page, attempt, response, fetch_part, self._settings, self._admission)
            body = b""
            try:
                await page.route("**/*", parts.answer)
                with crash:
                    body = await parts.document()
            except Error as error:
                if page.is_closed():  # the browser, not the crawl, closed the page
                    raise _BrowserDiedError from error
                if _is_good(parts.shown()):
                    message = printable(str(error).splitlines()[0])
                    raise FetchError(Reason.BROWSER_FAILED, message) from error
            if crash.cancelled_caught:
                raise FetchError(Reason.BROWSER_CRASHED, "the page has crashed")
            shown_response = parts.shown()
            if not _is_good(shown_response):
                return shown_response
            if not page.url.startswith(("http://", "https://")):
                message = f"the page's scripts navigate to {printable(page.url[:100])}"
                raise FetchError(Reason.BROWSER_FAILED, message)
            max_size = response.request.options.max_body
            max_size = self._settings.max_body if max_size is None else max_size
            rendered = Response(
                page.url.partition("#")[0],
                request=response.request,
                status=shown_response.status,
                headers=_headers(shown_response) | {"content-type": "text/html; charset=utf-8"},
                body=body[:max_size],
                truncated="bytes" if len(body) > max_size else shown_response.truncated,
            )
            rendered.set_cookies = shown_response.set_cookies
            if attempt.memory is not None:
                # The page stays open until the end of the attempt, for `response.page` in
                # callbacks.
                rendered = replaced(rendered, page=page)
                attempt.cleanup = attempt.cleanup or AsyncExitStack()
                attempt.cleanup.push_async_callback(stack.pop_all().aclose)
            return rendered

    async def _open(self, stack: AsyncExitStack, *, is_alone: bool) -> Page:
        """Open a page that *stack* closes; if *is_alone*, first wait until no other page is open.

        Raises `UsageError` if no browser is installed, and `_BrowserDiedError` if the browser has
        ended.
        """
        if is_alone:
            # Without this lock, two calls that both need all page slots would deadlock.
            await stack.enter_async_context(self._alone_lock)
        for _ in range(self._settings.browser_pages if is_alone else 1):
            await stack.enter_async_context(self._page_slots)
        async with self._starting:
            browser = self._browser
            if browser is None or not browser.is_connected():
                await self._playwright_stack.aclose()
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
        playwright = await self._playwright_stack.enter_async_context(async_playwright())
        setting = self._settings.browser_path
        path = next(filter(None, map(shutil.which, _NAMES)), None) if setting == "auto" else setting
        try:
            browser = await playwright.chromium.launch(
                executable_path=path, args=list(_ARGUMENTS), handle_sigint=False
            )
        except Error as error:
            raise UsageError(
                f"the browser {path or 'of Playwright'} does not start: install a Chromium "
                "(`apt-get install chromium`, or `playwright install chromium`), or set "
                f"browser_path ({str(error).splitlines()[0]})"
            ) from error
        self._playwright_stack.push_async_callback(_close, browser)
        return browser

    async def aclose(self) -> None:
        """Close the browser, if it was started."""
        with anyio.CancelScope(shield=True):
            await self._playwright_stack.aclose()


class _Parts:
    """Answers all requests of one page in the browser, and keeps the last document response."""

    def __init__(
        self,
        page: Page,
        attempt: Attempt,
        response: Response,
        ask: Callable[[Request], Awaitable[Response]],
        settings: Settings,
        admission: Admission,
    ) -> None:
        self._page = page
        self._attempt = attempt
        self._url = response.url
        #: A response that the crawl has fetched already, for the browser's next document request.
        self._next: Response | None = response
        self._ask = ask
        self._settings = settings
        self._admission = admission
        self._documents = 0  #: number of document requests by the page, not by its frames
        self._arriving = asyncio.Lock()  #: lock held while a document is fetched
        self._turn = asyncio.Lock()  #: lock held during a request to a host with no free slot
        self._waiting = 0  #: number of subresources not yet requested
        self._late_count = 0  #: number of subresources that waited for a slot
        #: Result of the last document request.
        self._last: Response | FetchError = response

    def shown(self) -> Response:
        """Return the last response to a document request, or raise the request's `FetchError`."""
        if isinstance(self._last, FetchError):
            raise self._last
        return self._last

    async def document(self) -> bytes:
        """Return the document after the page's scripts have sent their last requests.

        Returns `b""` for an error response, for which a browser may show its own page. Raises
        `FetchError` if the scripts navigate to something other than a document.
        """
        # Set no timeout for the navigation, because the attempt has a deadline.
        await self._page.goto(self._url, wait_until="load", timeout=0)
        document_count, content = -1, ""
        # Repeat while the page's scripts navigate to a new document, at most `max_redirects` times.
        while document_count != self._documents:
            document_count = self._documents
            # Limit the waits, because a page may send requests for ever.
            for _ in range(_MAX_WAITS):
                late_count = self._late_count
                with suppress(StillBusyError):
                    await self._page.wait_for_load_state(
                        "networkidle", timeout=_MAX_IDLE_WAIT_S * 1000
                    )
                    break
                # Wait again if a subresource was requested late, after a wait for a slot.
                if not self._waiting and self._late_count == late_count:
                    break
            async with self._arriving:
                pass
            if not _is_good(self.shown()):
                break
            await self._page.wait_for_load_state("load", timeout=0)
            try:
                content = await self._page.content()
            except Error:
                # Ignore Playwright's error if the page has navigated to another document.
                if document_count == self._documents:
                    raise
        return content.encode(errors="replace")

    async def answer(self, route: Route) -> None:
        """Answer a request of the browser, or refuse it."""
        request = route.request
        # Ignore the error of a page that was closed during the fetch.
        with suppress(Error):
            if request.resource_type in self._settings.browser_blocked:
                await route.abort("blockedbyclient")
            elif request.is_navigation_request() and request.frame == self._page.main_frame:
                self._documents += 1
                async with self._arriving:
                    await self._answer(route, is_document=True)
            else:
                await self._answer(route, is_document=False)

    async def _answer(self, route: Route, *, is_document: bool) -> None:
        try:
            response, url = await self._part(route.request, is_document=is_document)
        except FetchError as refusal:
            logger.debug(
                "blocked a resource of %s: %s",
                printable(self._url),
                refusal.reason,
                extra={"event": "resource_blocked", "url": self._url, "reason": refusal.reason},
            )
            if is_document:
                target = printable(route.request.url)
                message = f"its scripts navigate to {target}: {refusal.message}"
                self._last = FetchError(refusal.reason, message, status=refusal.status)
                self._last.__cause__ = refusal
            await route.abort("failed")
            return
        if is_document:
            self._last = response
            if url != route.request.url:
                # After redirects, navigate to the last URL, so that relative links resolve.
                self._next = response
                refresh = f'<meta http-equiv="refresh" content="0; url={escape(url)}">'
                await route.fulfill(
                    status=200, content_type="text/html; charset=utf-8", body=refresh
                )
                return
        await route.fulfill(status=response.status, headers=_headers(response), body=response.body)

    async def _part(
        self, browser_request: BrowserRequest, *, is_document: bool
    ) -> tuple[Response, str]:
        """Return a subresource, and its URL after all redirects; raises `FetchError`."""
        url, max_redirects = browser_request.url, self._settings.max_redirects
        if is_document and self._next is not None:
            # The crawl has already fetched this document.
            response, self._next = self._next, None
            return response, url
        # Do not count the first document, because it is the page itself.
        if is_document and self._documents > max_redirects + 1:
            raise FetchError(
                Reason.REDIRECT_LIMIT, f"its scripts navigate more than {max_redirects} times"
            )
        headers = [(k, v) for k, v in browser_request.headers.items() if k.lower() not in _ITS_OWN]
        request = Request(
            url,
            method=browser_request.method,
            headers=headers,
            body=browser_request.post_data_buffer,
        )
        for _ in range(max_redirects + 1):
            async with AsyncExitStack() as request_stack:
                self._waiting += 1
                is_late = self._turn.locked()
                try:
                    await request_stack.enter_async_context(
                        self._admission.part(
                            self._attempt, url, is_document=is_document, turn=self._turn
                        )
                    )
                finally:
                    self._waiting -= 1
                    self._late_count += is_late
                response = await self._ask(request)
            if response.status not in REDIRECTS or "location" not in response.headers:
                if is_document and _is_download(response):
                    raise FetchError(Reason.CONTENT_TYPE, "its scripts start a download")
                return response, url
            # Follow redirects in this loop, because the browser has no network.
            url = urls.resolve(url, response.headers["location"])
            request = Request(url)
        raise FetchError(Reason.REDIRECT_LIMIT, f"more than {max_redirects} hops")


def _is_good(response: Response) -> bool:
    return 200 <= response.status < 300


def _headers(response: Response) -> dict[str, str]:
    return {k: v for k, v in response.headers.items() if k not in _NOT_OF_THE_BODY}


def _is_download(response: Response) -> bool:
    """Return whether a browser would save the response instead of showing it."""
    media_type = response.headers.get("content-type", _HTML[0]).partition(";")[0].strip().lower()
    is_text = media_type.startswith("text/") or media_type.endswith(_TEXTS)
    disposition = response.headers.get("content-disposition", "").lstrip().lower()
    return not is_text or disposition.startswith("attachment")


async def _close(resource: Browser | BrowserContext) -> None:
    """Close a browser or context that may already have ended."""
    with suppress(Error):
        await resource.close()
