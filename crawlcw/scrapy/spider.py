"""The crawlcw spider that runs a Scrapy project: it connects Scrapy's components to the crawl."""

import logging
import os
import types
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import anyio
import scrapy
from itemadapter import ItemAdapter
from scrapy.crawler import Crawler
from scrapy.http import Response as ScrapyResponse
from scrapy.utils.asyncgen import as_async_generator
from twisted.python.failure import Failure

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import RUNNING_CRAWL, Spider, arguments_of
from crawlcw.errors import Defer, FetchError, Reason, SpiderError, StopCrawl
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.sanitize import printable
from crawlcw.model.task import NO_OPTIONS, Status
from crawlcw.model.urls import Location, Refusal
from crawlcw.model.values import ItemFields
from crawlcw.scrapy import caches, codec, components, feeds, reactor
from crawlcw.scrapy.cookies import Jars
from crawlcw.scrapy.engine import Engine, PageOutput
from crawlcw.scrapy.failures import failure_of
from crawlcw.scrapy.identity import Identities
from crawlcw.scrapy.layer import MiddlewareLayer, ScrapyPage
from crawlcw.scrapy.offsite import Offsite
from crawlcw.scrapy.project import name_of
from crawlcw.scrapy.scraping import Scraping
from crawlcw.scrapy.settings import crawlcw_settings, limits_of

if TYPE_CHECKING:
    # The supervisor of a crawl loads this module, but not the crawler.
    from crawlcw.crawl.spider_requests import SpiderRequests

logger = logging.getLogger(__name__)

#: The result of the middlewares for a request.
Result = ScrapyResponse | scrapy.Request | Failure

#: Seconds between two checks whether pages are left, while no request waits.
_POLL_S = 0.25
#: Maximum number of fingerprints of start requests in memory; later repetitions are dropped.
_MAX_START_COUNTS = 1_000_000


class StartRequest(Request):
    """A request of no page; a request that the dupe filter must not drop gets its own task.

    *number* distinguishes such requests with one fingerprint. It is equal in each run and each
    process, so a crawl that is resumed or run again adds no start request twice.
    """

    __slots__ = ("number",)
    number: bytes

    def locate(self, salt: bytes = b"") -> tuple[Location, bytes] | Refusal:  # noqa: ARG002  # the seeder's salt differs in each run
        """See `Request.locate`."""
        return super().locate(b"start " + self.number)


class ScrapySpider(Spider):
    """Runs one spider of a Scrapy project; `adapted` makes a subclass for each project."""

    crawler: ClassVar[Crawler]
    folder: ClassVar[Path]  #: the project's folder
    allowed_hosts = "*"
    start_again = True
    start_urls = ()

    def __init__(self, **arguments: Any) -> None:  # noqa: ARG002  # `Spider.__new__` stores them
        """Make no Scrapy spider yet, because its constructor may use the reactor."""
        self.layers = [self._fetch_by_middlewares]
        self._start_counts: dict[bytes, int] = {}
        #: Start requests that no ledger can store, by their fingerprints in hexadecimal.
        self._kept_requests: dict[str, scrapy.Request] = {}
        self._has_started = False  #: whether the project's `start` has ended

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the callback for a page whose Scrapy callback is *name*."""
        if not name.startswith("_") and hasattr(self.crawler.spidercls, name):
            return types.MethodType(ScrapySpider.parse, self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # The start and the end of a process.

    async def opened(self) -> None:
        """Make the project's spider and its components."""
        os.chdir(self.folder)
        reactor.start()
        crawler = self.crawler
        spider = crawler.spider = crawler._create_spider(**arguments_of(self))  # noqa: SLF001  # Scrapy has no public name
        self._spider = spider
        spider.state = self.state  # type: ignore[attr-defined]  # as the extension SpiderState
        crawler._apply_settings()  # noqa: SLF001  # Scrapy has no public name
        crawler.crawling = True
        self._engine = engine = crawler.engine = Engine(crawler)
        self._scraping = Scraping(engine)
        middlewares = engine.downloader.middleware.middlewares
        self._jars = Jars(_with(middlewares, "jars"), self.state)
        self._middlewares = MiddlewareLayer(engine, self._scraping, self._jars, self._request_of)
        self._crawl: SpiderRequests = vars(self)[RUNNING_CRAWL]
        engine.identities = self._identities = Identities(crawler, self._crawl.known_ids)
        engine.offsite = Offsite(crawler, None)
        engine.downloads = self._download
        close_reason = await components.open_spider(crawler)
        # Find the receivers of the signals only now, because the components connect them.
        engine.offsite = Offsite(crawler, _with(middlewares, "should_follow"))
        has_tasks = await self._crawl.ledger.queries.has(tuple(Status))
        self._was_finished = has_tasks and not await self.has_pages()
        if close_reason is not None:
            raise StopCrawl(close_reason)

    async def closed(self, report: Report) -> None:
        """Close the components, and write the project's feeds."""
        reason = self._engine.close_reason
        if reason is None:
            is_drained = report.finish_reason == FinishReason.DRAINED
            reason = "finished" if is_drained else "shutdown"
        await components.close_spider(self.crawler, reason)
        await feeds.write(self.crawler, self._crawl.ledger)
        reactor.end()
        if self._was_finished and not report.pages:
            logger.warning(
                "%s was finished before: the option --fresh deletes its data and crawls again",
                self.name,
                extra={"event": "finished_before"},
            )

    # Requests that no page has yielded.

    async def start(self) -> AsyncIterator[Request]:
        """Yield the project's start requests, and the requests of its components until the end."""
        engine = self._engine
        products: Any = await engine.scraper.spidermw.process_start()
        if not hasattr(products, "__aiter__"):
            products = as_async_generator(products)
        async for product in products:
            if isinstance(product, scrapy.Request):
                self._keep_unstorable(product)
                engine.crawl(product)
            elif product is not None:
                await self._scraping.pass_start_item(product)
            for request in self._waiting_requests():
                yield request
        self._has_started, is_idle = True, False
        while not is_idle:
            for request in self._waiting_requests(is_idle=True):
                yield request
            engine.has_requests.clear()
            with anyio.move_on_after(_POLL_S):
                await engine.has_requests.wait()
            has_work = engine.requests or engine.slot.inprogress or await self.has_pages()
            is_idle = not has_work and not engine.ask_to_stay() and not engine.requests

    def _waiting_requests(self, *, is_idle: bool = False) -> list[Request]:
        """Return the requests of components; raises `StopCrawl` if one closes the spider."""
        engine, requests = self._engine, []
        while engine.requests:
            request = engine.requests.popleft()
            try:
                requests.append(self._start_request(request, is_idle=is_idle))
            except codec.Unstorable as refusal:
                logger.warning(
                    "%s cannot be stored (%s), so it is not requested",
                    printable(request),
                    printable(refusal),
                    extra={"event": "unstorable"},
                )
        if engine.close_reason is not None:
            raise StopCrawl(engine.close_reason)
        return requests

    def _start_request(self, request: scrapy.Request, *, is_idle: bool) -> Request:
        start_request: StartRequest = self._task_request(request, StartRequest)
        fingerprint = start_request.fingerprint or b""
        if len(self._start_counts) >= _MAX_START_COUNTS:
            self._start_counts.clear()
        number = self._start_counts[fingerprint] = self._start_counts.get(fingerprint, 0) + 1
        # A request of an idle spider is from a queue of another program, so it is always new.
        start_request.number = uuid4().bytes if is_idle else b"%d" % number
        return start_request

    def _keep_unstorable(self, request: scrapy.Request) -> None:
        """Keep a start request in memory if no ledger can store it: each run yields it again."""
        try:
            codec.context_of(request, self._spider)
        except codec.Unstorable:
            self._kept_requests[self._identities.of(request).fingerprint.hex()] = request

    def _request_of(self, request: Request) -> scrapy.Request:
        """Return the Scrapy request that a task stores, or that this process keeps in memory."""
        key = (request.context or {}).get("start")
        if key is None:
            return codec.request_of(request, self._spider)
        if key in self._kept_requests:
            return self._kept_requests[key].copy()
        if self._has_started:
            raise SpiderError("start() no longer yields this request, which no ledger can store")
        raise Defer("start() has not yielded it yet", due=timedelta(seconds=1))

    # Pages.

    async def _fetch_by_middlewares(
        self, attempt: Any, request: Request, call_next: Any
    ) -> Response:
        return await self._middlewares(attempt, request, call_next)

    async def parse(self, response: Response) -> AsyncIterator[object]:
        """Run the Scrapy callback of a page; yield its requests and items."""
        assert isinstance(response, ScrapyPage)
        output = await self._scraped(response.result, response.sent)
        products = await self._products(output)
        if output.error is not None:
            response.kept_products.extend(products)
            raise output.error
        for product in products:
            yield product
        self._end_if_closed()

    async def on_error(self, request: Request, error: FetchError) -> AsyncIterator[object]:
        """Run the Scrapy errback of a request that crawlcw gives up; yield its requests and items.

        If the callback raised, yield instead the earlier requests and items of the callback.
        """
        page = error.response
        if isinstance(page, ScrapyPage) and page.is_page:
            for product in page.kept_products:
                yield product
            self._end_if_closed()
            return
        if error.reason is Reason.INTERNAL:
            return
        result: Result = failure_of(error)
        if isinstance(page, ScrapyPage):
            result, sent = page.result, page.sent
            if page.awaits_retry and isinstance(result, ScrapyResponse):
                result = await self._middlewares.after_retry(result, sent)
        else:
            sent = getattr(error, "scrapy_request", None) or self._request_of(request)
        output = await self._scraped(result, sent)
        for product in await self._products(output):
            yield product
        self._end_if_closed()

    async def _scraped(self, result: Result, sent: scrapy.Request) -> PageOutput:
        """Return the output of a page; a request in place of a response is the only output."""
        if isinstance(result, scrapy.Request):
            output = self._scraping.follow(result)
        elif isinstance(result, Failure):
            output = await self._scraping.run(result, sent)
        else:
            output = await self._scraping.run(result, result.request or sent)
        self._jars.keep(sent)
        self._identities.count_filtered()
        return output

    def _end_if_closed(self) -> None:
        if self._engine.close_reason is not None:
            raise StopCrawl(self._engine.close_reason)

    async def _products(self, output: PageOutput) -> list[object]:
        """Return the requests and items of a page for crawlcw.

        A request that cannot be stored is sent now, and its products belong to the page.
        """
        products: list[object] = []
        outputs = [output]
        for part in outputs:  # grows by the requests that cannot be stored
            for request in part.requests:
                try:
                    products.append(self._task_request(request, Request))
                except codec.Unstorable as refusal:
                    self._warn_unstorable(refusal)
                    outputs.append(await self._request_at_once(request))
            products += [_fields(item) for (item,) in part.items if _is_item(item)]
        return products

    def _warn_unstorable(self, refusal: Exception) -> None:
        logger.info(
            "a request cannot be stored (%s), so it is sent before its page ends",
            printable(refusal),
            extra={"event": "unstorable"},
        )

    async def _request_at_once(self, request: scrapy.Request) -> PageOutput:
        """Send a request of a page that has not ended; return the output of its callback."""
        result: Result
        try:
            result = await self._engine.download_async(request)
        except Exception:  # a middleware may raise any error
            result = Failure()
        return await self._scraped(result, request)

    async def _download(self, request: scrapy.Request) -> Any:
        return await self._middlewares.download(request, self.fetch)

    def _task_request(self, request: scrapy.Request, kind: type[Request]) -> Any:
        """Return crawlcw's request for a Scrapy request; raises `codec.Unstorable`."""
        if request.url.partition(":")[0] not in ("http", "https"):
            raise codec.Unstorable("its scheme is not http or https")
        identity = self._identities.of(request)
        if kind is StartRequest and (key := identity.fingerprint.hex()) in self._kept_requests:
            context = {"start": key}
        else:
            context = codec.context_of(request, self._spider)
        callback = context.get("cb")
        if not isinstance(callback, str) or callback[:1] == "_" or hasattr(Spider, callback):
            callback = "parse"
        task_request = kind(
            request.url,
            callback,
            method=request.method,
            body=request.body or None,
            priority=max(-100, min(100, request.priority)),
            dont_filter=request.dont_filter or self._identities.accepts_all,
            fingerprint=identity.fingerprint,
        )
        task_request.headers = codec.task_headers(request)
        task_request.context = context
        task_request.options = _options(request)
        return task_request


def _options(request: scrapy.Request) -> Any:
    """Return the options of a request that its `meta` sets: the number of attempts."""
    retries = request.meta.get("max_retry_times")
    attempts = (
        1 if request.meta.get("dont_retry") else None if retries is None else int(retries) + 1
    )
    return NO_OPTIONS if attempts is None else replace(NO_OPTIONS, max_retry=attempts)


def _is_item(item: object) -> bool:
    """Return whether to record *item*, which is None if a pipeline has dropped it."""
    if item is None or isinstance(item, dict) or ItemAdapter.is_item(item):
        return item is not None
    logger.error(
        "an object of the type %s is not recorded: a callback yields requests and items",
        printable(type(item).__name__),
        extra={"event": "no_item"},
    )
    return False


def _fields(item: object) -> dict[str, Any]:
    fields = codec.item_values(item)
    if isinstance(item, dict):
        return fields
    return ItemFields(fields, item_class=codec.class_name(type(item)))


def _with(middlewares: Any, attribute: str) -> Any:
    """Return the first middleware that has *attribute*, or None."""
    return next((middleware for middleware in middlewares if hasattr(middleware, attribute)), None)


def adapted(crawler: Crawler, folder: Path) -> type[Spider]:
    """Return the crawlcw spider for the Scrapy spider of *crawler*, in the project *folder*."""
    caches.install()
    settings = crawlcw_settings(crawler.settings)
    components.replace_components(crawler.settings)
    members = {
        "name": name_of(crawler.spidercls.name),
        "crawler": crawler,
        "folder": folder.resolve(),
        "settings": settings,
        "limits": limits_of(crawler.settings),
        "__module__": crawler.spidercls.__module__,
        "__doc__": crawler.spidercls.__doc__,
    }
    return type(crawler.spidercls.__name__, (ScrapySpider,), members)
