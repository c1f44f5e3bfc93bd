"""Rendering pages: the layer that gives a fetched page to a browser.

The browser asks for the page and all its parts, and each is fetched by the
layers below: with the guard of addresses, the bounds and the deadlines of
any other request. Two pages never see each other's storage. A page that ends the
browser is rendered again alone, so that no other pays for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from crawlcw.api.attempt import Attempt, Deadline, Next, Purpose, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.browser import Browser, BrowserDiedError
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

logger = logging.getLogger(__name__)

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
#: How the types of other texts end that a browser shows.
_TEXTS = ("xml", "json", "javascript")


class Render:
    """The layer that renders those pages that are to be."""

    purposes = frozenset({Purpose.PAGE})

    def __init__(
        self,
        browser: Browser,
        settings: Settings,
        *,
        admit: "AdmitPart",
    ) -> None:
        """*admit* is asked before each part of a page is fetched."""
        self._browser = browser
        self._settings = settings
        self._admit = admit

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response, its body what the browser has made of it."""
        if not wants_browser(request, self._settings):
            return call_next(attempt, request)
        return self._answered(attempt, request, call_next)

    async def _answered(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        response = await call_next(attempt, request)
        if response.file is not None or not _is_page(response):
            return response
        began = monotonic()
        try:
            rendered = await self._rendered(attempt, response, call_next, alone=False)
        except BrowserDiedError:
            rendered = await self._alone(attempt, response, call_next)
        rendered.elapsed = response.elapsed + timedelta(seconds=monotonic() - began)
        return rendered

    async def _alone(self, attempt: Attempt, response: Response, call_next: Next) -> Response:
        try:
            return await self._rendered(attempt, response, call_next, alone=True)
        except BrowserDiedError:
            raise FetchError(Reason.BROWSER_CRASHED, "the page ends the browser") from None

    async def _rendered(
        self, attempt: Attempt, response: Response, call_next: Next, *, alone: bool
    ) -> Response:
        from playwright.async_api import Error

        async with AsyncExitStack() as stack:
            page = await stack.enter_async_context(self._browser.page(alone=alone))
            crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            page.once("crash", lambda _: _set(crashed))
            page.on("dialog", lambda dialog: dialog.dismiss())
            # Parts have the session and the proxy of their page. The page may ask for more of
            # them when the attempt has ended, and waits for memory while it holds some.
            asked_as = replace(attempt, deadline=Deadline(), memory=None, accepts_file=None)
            ask = partial(call_next, asked_as)
            parts = _Parts(page, response, ask, self._settings, self._admit)
            body = b""
            try:
                await page.route("**/*", parts.answer)
                await page.route_web_socket("**/*", lambda socket: socket.close())
                async with _until(crashed):
                    body = await self._content(page, parts, response.url)
            except Error as error:
                if page.is_closed():  # nobody else closes it
                    raise BrowserDiedError from error
                if parts.refused() is None:
                    message = printable(str(error).splitlines()[0])
                    raise FetchError(Reason.BROWSER_FAILED, message) from error
            if (refused := parts.refused()) is not None:
                refused.request = response.request
                return refused
            shown = parts.shown(page.url)
            most = response.request.options.max_body
            most = self._settings.max_body if most is None else most
            rendered = Response(
                page.url.partition("#")[0],
                request=response.request,
                status=shown.status,
                headers={
                    **{k: v for k, v in shown.headers.items() if k not in _NOT_OF_THE_BODY},
                    "content-type": "text/html; charset=utf-8",
                },
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
        admit: "AdmitPart",
    ) -> None:
        self._page = page
        #: Fetched already, for the next document that the browser asks for.
        self._next: Response | None = response
        self._url = response.url
        self._ask = ask
        self._settings = settings
        self._admit = admit
        self.documents = 0  #: that the browser has asked for, frames apart
        self._led = 0  #: documents that the page's scripts have led to
        self._under_way = 0  #: documents that are fetched just now
        self._arrived = asyncio.Event()
        self._shown = response
        self._failure: FetchError | None = None

    async def arrived(self) -> None:
        """Wait until no document is fetched."""
        while self._under_way:
            self._arrived.clear()
            await self._arrived.wait()

    def refused(self) -> Response | None:
        """Return the answer to the document that was asked for last, if that is an error's.

        Raises its `FetchError` where there is no answer.
        """
        if self._failure is not None:
            raise self._failure
        return None if 200 <= self._shown.status < 300 else self._shown

    def shown(self, url: str) -> Response:
        """Return the answer whose document is shown at *url*; raises `FetchError` for none."""
        if not url.startswith(("http://", "https://")):
            raise FetchError(
                Reason.BROWSER_FAILED, f"the page's scripts lead to {printable(url[:100])}"
            )
        return self._shown

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
                self._shown = found
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
        """Return a part, and its address behind all redirects."""
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
            await self._admit(url, is_document=is_document)
            part = await self._ask(request)
            if part.status not in _REDIRECTS or "location" not in part.headers:
                if is_document and _is_download(part):
                    raise FetchError(Reason.CONTENT_TYPE, "its scripts lead to a download")
                return part, url
            # The browser would follow it by itself, and cannot.
            url = urls.resolve(url, part.headers["location"])
            request = Request(url)
        raise FetchError(Reason.REDIRECT_LIMIT, f"more than {most} hops")


class AdmitPart(Protocol):
    """Admission of a part of a page, or of a document that the page's scripts lead to."""

    async def __call__(self, url: str, *, is_document: bool) -> None:
        """Raise `FetchError` for an address that may not be asked for."""


async def _fulfilled(route: "Route", part: Response) -> None:
    await route.fulfill(
        status=part.status,
        headers={k: v for k, v in part.headers.items() if k not in _NOT_OF_THE_BODY},
        body=part.body,
    )


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


def _is_page(response: Response) -> bool:
    kind = response.headers.get("content-type", _HTML[0]).lower().lstrip()
    return 200 <= response.status < 300 and kind.startswith(_HTML)


def _set(crashed: asyncio.Future[None]) -> None:
    if not crashed.done():  # it may crash in the callback as well, when nothing waits for that
        crashed.set_result(None)


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
