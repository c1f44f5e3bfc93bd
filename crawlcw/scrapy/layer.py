"""The layer that runs a project's downloader middlewares around each attempt at a page."""

import asyncio
import base64
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import scrapy
from pydispatch.dispatcher import getAllReceivers
from scrapy import signals
from scrapy.http import Response as ScrapyResponse
from scrapy.responsetypes import responsetypes
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.log import logformatter_adapter
from scrapy.utils.misc import load_object

from crawlcw.api.attempt import Attempt, Next
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError
from crawlcw.fetch.redirects import REDIRECTS
from crawlcw.scrapy import codec
from crawlcw.scrapy.components import Retry, RetryLater, call, path_of
from crawlcw.scrapy.cookies import Jars
from crawlcw.scrapy.engine import Engine
from crawlcw.scrapy.failures import ComponentError, exception_of
from crawlcw.scrapy.scraping import Scraping

logger = logging.getLogger(__name__)

_WEB_SCHEMES = frozenset({"http", "https"})
_PLAYWRIGHT = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
#: The status of a page in whose place a middleware has put another request.
_FOUND = 302
#: Seconds before the first retry of `engine.download`; each later wait is twice as long.
_FIRST_WAIT_S = 1.0

#: A function that sends a request to its server.
Send = Callable[[Request], Awaitable[Response]]


class ScrapyPage(Response):
    """The result of a page's middlewares: a Scrapy response or, for a redirect, a new request."""

    needs_tree = False
    refresh = None  # Scrapy's middleware follows refreshes

    def __init__(
        self,
        request: Request,
        result: ScrapyResponse | scrapy.Request,
        *,
        sent: scrapy.Request,
        started_at: float,
        is_page: bool,
        awaits_retry: bool = False,
    ) -> None:
        """*sent* is the request that the middlewares got, *started_at* its monotonic time.

        *is_page* is false for a status that crawlcw treats as a failure of the request. If
        *awaits_retry* is true, the middlewares after `Retry` have not seen the response yet.
        """
        elapsed = timedelta(seconds=time.monotonic() - started_at)
        super().__init__(request.url, request=request, status=_FOUND, elapsed=elapsed)
        if isinstance(result, ScrapyResponse):
            self.status, self.body = result.status, result.body
            self.headers = {
                name: value.decode("latin-1")
                for name in ("content-type", "retry-after")
                if (value := result.headers.get(name)) is not None
            }
        self.is_page = is_page
        self.awaits_retry = awaits_retry
        self.result = result
        self.sent = sent
        #: Products of a callback that raised; crawlcw records them although the page has failed.
        self.kept_products: list[object] = []


class MiddlewareLayer:
    """Runs a project's downloader middlewares, and sends the requests that they do not answer."""

    def __init__(
        self,
        engine: Engine,
        scraping: Scraping,
        jars: Jars,
        request_of: Callable[[Request], scrapy.Request],
    ) -> None:
        """*request_of* returns the Scrapy request that a task stores."""
        settings = engine.settings
        self._request_of = request_of
        self._engine = engine
        self._middlewares = engine.downloader.middleware
        self._scraping = scraping
        self._jars = jars
        self._crawler = engine.crawler
        assert engine.spider is not None
        self._spider = engine.spider
        uses_retry = any(
            isinstance(middleware, Retry) for middleware in self._middlewares.middlewares
        )
        #: Number of retries; 0 if the project retries by its own middleware or not at all.
        self._retries = settings.getint("RETRY_TIMES") if uses_retry else 0
        self._own_handlers = {
            scheme: load_object(handler) if isinstance(handler, str) else handler
            for scheme, handler in settings.getdict("DOWNLOAD_HANDLERS").items()
            if handler is not None
        }

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the `ScrapyPage` of an attempt; raises `FetchError` for a failed request."""
        scrapy_request = self._request_of(request)
        if attempt.number > 1 and self._retries:
            scrapy_request.meta["retry_times"] = attempt.number - 1
        page_of = partial(ScrapyPage, request, sent=scrapy_request, started_at=time.monotonic())

        async def send(outgoing: Request) -> Response:
            return await call_next(attempt, outgoing)

        try:
            result = await self.through(scrapy_request, request, send)
        except RetryLater as retry:
            return page_of(retry.response, is_page=False, awaits_retry=True)
        except Exception as error:  # a middleware may raise any error
            failed: Any = getattr(error, "fetch_error", None) or ComponentError(error)
            failed.scrapy_request = scrapy_request
            raise failed from None
        is_page = isinstance(result, scrapy.Request) or self._scraping.accepts(result)
        return page_of(result, is_page=is_page)

    async def through(
        self, request: scrapy.Request, task_request: Request | None, send: Send
    ) -> ScrapyResponse | scrapy.Request:
        """Return the response to *request*, or a request that a middleware puts in its place.

        *task_request* is the request of the task, or None for `engine.download`.
        """
        stats, in_progress = self._crawler.stats, self._engine.slot.inprogress
        in_progress.add(request)
        stats.inc_value("scheduler/dequeued")
        self._jars.read()

        async def exchange(outgoing: scrapy.Request) -> ScrapyResponse:
            return await self._exchange(outgoing, task_request, send)

        try:
            result = await self._middlewares.download_async(exchange, request)
        finally:
            in_progress.discard(request)
        if isinstance(result, ScrapyResponse):
            self._received(result, request)
        return result

    def _received(self, response: ScrapyResponse, request: scrapy.Request) -> None:
        if response.request is None:
            response.request = request
        if logger.isEnabledFor(logging.DEBUG):
            entry = self._engine.logformatter.crawled(request, response, self._spider)
            if entry is not None:
                logger.log(*logformatter_adapter(entry), extra={"spider": self._spider})
        self._send_signal(signals.response_received, response=response, request=response.request)

    def _send_signal(self, signal: object, **arguments: object) -> None:
        # Look for receivers first, because most signals of a request have none.
        if any(getAllReceivers(self._crawler, signal)):
            self._crawler.signals.send_catch_log(signal=signal, spider=self._spider, **arguments)

    async def _exchange(
        self, request: scrapy.Request, task_request: Request | None, send: Send
    ) -> ScrapyResponse:
        """Return the server's response, by crawlcw or by a download handler of the project."""
        # Some projects copy all of `meta` into their items.
        request.meta["download_slot"] = self._engine.downloader.get_slot_key(request)
        self._send_signal(signals.request_reached_downloader, request=request)
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            if self._needs_handler(request):
                response = await self._by_handler(request)
            else:
                answer = await send(_outgoing(request, task_request))
                headers = codec.response_headers(answer)
                headers.pop("Content-Encoding", None)
                kind = responsetypes.from_args(headers=headers, url=request.url, body=answer.body)
                response = kind(
                    request.url,
                    status=answer.status,
                    headers=headers,
                    body=answer.body,
                    protocol="HTTP/1.1",
                )
            request.meta["download_latency"] = loop.time() - started_at
            self._send_signal(signals.response_downloaded, response=response, request=request)
            return response
        except FetchError as error:
            raise exception_of(error) from error
        finally:
            self._send_signal(signals.request_left_downloader, request=request)

    def _needs_handler(self, request: scrapy.Request) -> bool:
        # crawlcw sends only HTTP.
        scheme = request.url.partition(":")[0]
        if scheme not in _WEB_SCHEMES:
            return True
        handler = self._own_handlers.get(scheme)
        if handler is None or path_of(handler) != _PLAYWRIGHT:
            return handler is not None
        # Playwright's handler passes requests without this key to Scrapy's own handler.
        return bool(request.meta.get("playwright"))

    async def _by_handler(self, request: scrapy.Request) -> ScrapyResponse:
        handlers = self._engine.downloader.handlers
        if hasattr(handlers, "download_request_async"):
            return await handlers.download_request_async(request)
        return await maybe_deferred_to_future(handlers.download_request(request, self._spider))

    async def download(
        self, request: scrapy.Request, send: Send
    ) -> ScrapyResponse | scrapy.Request:
        """Return the result of `engine.download`, with Scrapy's number of retries."""
        retries, wait_s = request.meta.get("max_retry_times", self._retries), _FIRST_WAIT_S
        while True:
            try:
                return await self.through(request, None, send)
            except RetryLater as retry:
                if retries <= 0:
                    return await self.after_retry(retry.response, request)
            except Exception as error:  # a middleware may raise any error
                if retries <= 0 or not hasattr(error, "fetch_error"):
                    raise
            retries -= 1
            request.meta["retry_times"] = request.meta.get("retry_times", 0) + 1
            await asyncio.sleep(wait_s)
            wait_s *= 2

    async def after_retry(
        self, response: ScrapyResponse, request: scrapy.Request
    ) -> ScrapyResponse | scrapy.Request:
        """Pass a response whose retries have failed through the middlewares after `Retry`."""
        methods = list(self._middlewares.methods["process_response"])
        owners = [type(getattr(method, "__self__", None)) for method in methods]
        for method in methods[owners.index(Retry) + 1 :]:
            assert method is not None
            result: Any = call(method, self._crawler, request=request, response=response)
            result = await result if inspect.isawaitable(result) else result
            if isinstance(result, scrapy.Request):
                return result
            response = result
        self._received(response, request)
        return response


def _outgoing(request: scrapy.Request, task_request: Request | None) -> Request:
    """Return crawlcw's form of a request, with its proxy and its timeout."""
    headers = [
        (name.decode("latin-1"), value.decode("utf-8", "replace"))
        for name, values in request.headers.items()
        for value in values
    ]
    options: dict[str, Any] = {}
    if proxy := request.meta.get("proxy"):
        if login := request.headers.get("Proxy-Authorization"):
            user = base64.b64decode(login.split(b" ")[-1]).decode()
            proxy = proxy.replace("://", f"://{user}@")
            headers = [pair for pair in headers if pair[0] != "Proxy-Authorization"]
        options["proxy"] = proxy
    # The exchange gets its own timeout, because a timeout of the attempt would cancel the layer,
    # and no middleware would see the exception.
    if timeout := request.meta.get("download_timeout"):
        options["timeout"] = float(timeout)
    outgoing = Request(
        request.url, method=request.method, headers=headers, body=request.body or None
    )
    if task_request is None:
        options["accept_statuses"] = tuple(REDIRECTS)  # a middleware follows redirects
    else:
        outgoing.options = task_request.options
    if options:
        outgoing.options = replace(outgoing.options, **options)
    return outgoing
