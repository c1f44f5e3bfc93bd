"""Run a project's callbacks and errbacks with its spider middlewares and item pipelines.

Scrapy's scraper makes about a hundred asyncio tasks for each page. This module makes one task for
each item. If the project has no spider middlewares of its own, this module also calls Scrapy's
middlewares for each request directly, without their chain of generators.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import scrapy
from scrapy import signals
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spidermiddlewares.httperror import HttpError, HttpErrorMiddleware
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.log import failure_to_exc_info, logformatter_adapter
from scrapy.utils.spider import iterate_spider_output
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from crawlcw.scrapy.components import call
from crawlcw.scrapy.engine import Engine, PageOutput, collected, running_output

logger = logging.getLogger(__name__)

#: Seconds that a callback may run before other coroutines of the crawl run.
_STEP_S = 0.03
#: The method of the base class, which completes nothing.
_INHERITED = BaseSpiderMiddleware.get_processed_request
_OF_SCRAPY = "scrapy.spidermiddlewares."

#: The entry in `PageOutput.items` for the item whose pipelines run in this context.
_ITEM: ContextVar[list[Any] | None] = ContextVar("item", default=None)


class Scraping:
    """Turns the response or the failure of a request into a `PageOutput`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scraper = scraper = engine.scraper
        self._crawler = engine.crawler
        self._http_error: HttpErrorMiddleware | None = None
        #: Whether all spider middlewares are Scrapy's, so that the short way gives the same result.
        self._is_plain = True
        #: Functions that begin the depth of a response, and functions that complete a request.
        self._begin: list[Callable[[Response], None]] = []
        self._complete: list[Callable[..., scrapy.Request | None]] = []
        for middleware in reversed(scraper.spidermw.middlewares):
            kind = type(middleware)
            self._is_plain &= kind.__module__.startswith(_OF_SCRAPY)
            if isinstance(middleware, HttpErrorMiddleware):
                self._http_error = middleware
            if hasattr(middleware, "_init_depth"):
                self._begin.append(middleware._init_depth)  # noqa: SLF001  # Scrapy has no public name
            complete = getattr(kind, "get_processed_request", _INHERITED)
            if complete is not _INHERITED:
                self._complete.append(middleware.get_processed_request)
        engine.signals.connect(_record_item, signals.item_scraped)

    def accepts(self, response: Response) -> bool:
        """Return whether the callback may get *response*, whose status may mean an error."""
        if self._http_error is None or 200 <= response.status < 300:
            return True
        try:
            call(self._http_error.process_spider_input, self._crawler, response=response)
        except HttpError:
            return False
        return True

    async def run(self, result: Response | Failure, request: scrapy.Request) -> PageOutput:
        """Return the output of the callback for a response, or of the errback for a failure.

        If the callback raises, `PageOutput.error` is set, and the output has the earlier requests
        and items of the callback, as in Scrapy.
        """
        with collected() as output:
            if isinstance(result, Failure):
                await self._run_errback(result, request, output)
            elif self._is_plain and self.accepts(result):
                await self._run_plainly(result, request, output)
            else:
                await self._run_chain(result, request, output)
        return output

    def follow(self, request: scrapy.Request) -> PageOutput:
        """Return the output of a page in whose place a middleware has put *request*."""
        with collected() as output:
            self._engine.crawl(request)
        return output

    def _note_error(self, request: scrapy.Request, result: Response | Failure) -> None:
        """Tell the components about the error that is being handled, and keep it."""
        failure = Failure()
        self._scraper.handle_spider_error(failure, request, result)
        output = running_output()
        if output is not None and self._engine.close_reason is None:
            output.error = failure.value

    async def _run_errback(
        self, failure: Failure, request: scrapy.Request, output: PageOutput
    ) -> None:
        scraper = self._scraper
        try:
            products = await scraper.call_spider_async(failure, request)
        except Exception as error:  # an errback may raise any error
            if not failure.check(IgnoreRequest):
                spider = self._crawler.spider
                assert spider is not None
                entry = scraper.logformatter.download_error(failure, request, spider)
                logger.log(
                    *logformatter_adapter(entry),
                    extra={"spider": spider},
                    exc_info=failure_to_exc_info(failure),
                )
            if error is not failure.value:
                self._note_error(request, failure)
            return
        await self._sort(products, request, failure, output)

    async def _run_chain(
        self, response: Response, request: scrapy.Request, output: PageOutput
    ) -> None:
        """Run the callback inside the project's chain of spider middlewares."""
        scraper = self._scraper
        try:
            products = await scraper.spidermw.scrape_response_async(
                scraper.call_spider_async, response, request
            )
        except Exception:  # a callback or a middleware may raise any error
            self._note_error(request, response)
            return
        await self._sort(products, request, response, output)

    async def _run_plainly(
        self, response: Response, request: scrapy.Request, output: PageOutput
    ) -> None:
        """Run the callback without the chain, and complete its requests as the chain would."""
        for begin in self._begin:
            begin(response)
        crawler = self._crawler
        assert crawler.spider is not None
        identities, ids = self._engine.identities, output.ids

        def completed(product: object) -> object:
            if not isinstance(product, scrapy.Request):
                return product
            # Drop known requests first, because most links of a page are known.
            if identities.is_known(product, ids):
                return None
            complete_request = product
            for complete in self._complete:
                result = complete(complete_request, response)
                if result is None:
                    return None
                complete_request = result
            return complete_request

        try:
            sent = response.request or request
            callback = sent.callback or crawler.spider._parse  # noqa: SLF001  # Scrapy's default
            result: Any = iterate_spider_output(callback(response, **sent.cb_kwargs))
            if inspect.isawaitable(result) or isinstance(result, Deferred):
                result = await ensure_awaitable(result)
        except Exception:  # a callback may raise any error
            self._note_error(request, response)
            return
        await self._sort(result, request, response, output, completed)

    async def _sort(
        self,
        products: Iterable[object] | AsyncIterator[object],
        request: scrapy.Request,
        result: Response | Failure,
        output: PageOutput,
        completed: Callable[[object], object] = lambda product: product,
    ) -> None:
        """Pass the requests of a callback to the engine, and its items to the pipelines."""
        pipelines: list[Awaitable[None]] = []
        step_end = time.monotonic() + _STEP_S

        def take(product: object) -> bool:
            """Take a product; return whether other coroutines must run."""
            complete_product = completed(product)
            if isinstance(complete_product, scrapy.Request):
                self._engine.crawl(complete_product)
            elif complete_product is not None:
                item = self._pass_item(complete_product, result, output)
                pipelines.append(asyncio.ensure_future(item))
                if len(pipelines) >= self._scraper.concurrent_items:
                    return True
            return time.monotonic() > step_end

        try:
            if isinstance(products, AsyncIterator):
                async for product in products:
                    if take(product):
                        step_end = await _pause(pipelines)
            else:
                for product in products:
                    if take(product):
                        step_end = await _pause(pipelines)
        except Exception:  # a callback may raise any error
            self._note_error(request, result)
        await asyncio.gather(*pipelines)

    async def _pass_item(
        self, item: object, result: Response | Failure, output: PageOutput
    ) -> None:
        """Pass an item through the pipelines; its entry keeps the order of the yielded items."""
        entry: list[Any] = [None]
        output.items.append(entry)
        _ITEM.set(entry)
        await self._scraper.start_itemproc_async(item, response=result)

    async def pass_start_item(self, item: object) -> None:
        """Pass an item of `start` through the pipelines; it has no page, so it is not recorded."""
        logger.warning(
            "an item of start() goes through the pipelines only: the ledger records items of pages",
            extra={"event": "start_item"},
        )
        await self._scraper.start_itemproc_async(item, response=None)


def _record_item(item: object) -> None:
    """Record an item that the pipelines have passed."""
    if (entry := _ITEM.get()) is not None:
        entry[0] = item


async def _pause(pipelines: list[Awaitable[None]]) -> float:
    """Let other coroutines run, and end the *pipelines*; return the end of the next step."""
    if pipelines:
        await asyncio.gather(*pipelines)
        pipelines.clear()
    else:
        await asyncio.sleep(0)
    return time.monotonic() + _STEP_S
