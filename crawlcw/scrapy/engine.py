"""Scrapy's engine as the components of a project see it; the crawl behind it is crawlcw's."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import scrapy
from scrapy import signals
from scrapy.core.downloader import Downloader
from scrapy.core.engine import ExecutionEngine
from scrapy.core.scraper import Scraper, Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import Response
from twisted.python.failure import Failure

from crawlcw.scrapy.identity import Identities
from crawlcw.scrapy.offsite import Offsite

#: Scrapy's reason for the end of a crawl that a user or a component stops.
_SHUTDOWN = "shutdown"
#: Maximum size of `Engine._start_ids`; older ids are in the ledger.
_MAX_START_IDS = 10_000


@dataclass(slots=True, eq=False)
class PageOutput:
    """The output of one callback or errback: its requests, and its items after the pipelines."""

    requests: list[scrapy.Request] = field(default_factory=list)
    #: One entry for each yielded item, in this order: the recorded item, or None if dropped.
    items: list[list[Any]] = field(default_factory=list)
    ids: set[bytes] = field(default_factory=set)  #: ids of the tasks of `requests`
    error: BaseException | None = None  #: the error that a callback raised, or None
    is_over: bool = False


#: The output of the running callback; None outside of callbacks.
_OUTPUT: ContextVar[PageOutput | None] = ContextVar("output", default=None)


@contextmanager
def collected() -> Iterator[PageOutput]:
    """Yield the output that collects the requests of the `with` block."""
    output = PageOutput()
    token = _OUTPUT.set(output)
    try:
        yield output
    finally:
        _OUTPUT.reset(token)
        output.is_over = True


def running_output() -> PageOutput | None:
    """Return the output of the callback that runs in this context; None outside of callbacks."""
    output = _OUTPUT.get()
    return None if output is None or output.is_over else output


class LedgerScheduler:
    """Stands for Scrapy's scheduler, for components that look at `engine.slot.scheduler`."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def __len__(self) -> int:
        return len(self._engine.requests)

    def has_pending_requests(self) -> bool:
        """Return whether this process has requests that the ledger does not have yet."""
        return bool(self._engine.requests)

    def enqueue_request(self, request: scrapy.Request) -> bool:
        """Add a request to the ledger; return True."""
        self._engine.crawl(request)
        return True


class EngineSlot:
    """Stands for the slot of Scrapy's engine."""

    closing = None

    def __init__(self, engine: "Engine") -> None:
        self.inprogress: set[scrapy.Request] = set()  #: requests whose middlewares run
        self.scheduler = LedgerScheduler(engine)


class Engine(ExecutionEngine):
    """The engine of a project: `crawl`, `download` and `close_spider` act on crawlcw's crawl."""

    def __init__(self, crawler: Crawler) -> None:
        """Do not call the base class's constructor, which makes a scheduler."""
        self.crawler = crawler
        self.settings = crawler.settings
        self.signals = crawler.signals
        self.logformatter = crawler.logformatter
        self.spider = crawler.spider
        self.running = self._starting = True
        self.paused = self._stopping = False
        self.start_time = time.time()
        self.downloader = Downloader(crawler)  # for its middlewares and handlers
        self.scraper = Scraper(crawler)
        self.scraper.slot = Slot()
        self._slot = self.slot = EngineSlot(self)  # type: ignore[assignment]
        #: Requests that no page has yielded, such as those of `start` and of extensions.
        self.requests: deque[scrapy.Request] = deque()
        self._start_ids: set[bytes] = set()  #: ids of the last requests in `requests`
        self.has_requests = asyncio.Event()  #: set if there are `requests` or the spider closes
        self.close_reason: str | None = None  #: why a component closes the spider, or None
        self.identities: Identities
        self.offsite: Offsite
        #: Sends a request through the middlewares; set by `ScrapySpider.opened`.
        self.downloads: Callable[[scrapy.Request], Awaitable[Response | scrapy.Request]]

    def crawl(self, request: scrapy.Request, spider: object = None) -> None:  # noqa: ARG002  # old projects pass the spider
        """Add *request* to the output of the running callback, or to `requests`."""
        if not self.offsite.admits(request):
            return
        output = running_output()
        ids = self._start_ids if output is None else output.ids
        if self.identities.is_known(request, ids):
            self.signals.send_catch_log(
                signals.request_dropped, request=request, spider=self.spider
            )
            return
        self.crawler.stats.inc_value("scheduler/enqueued")
        if not request.dont_filter and (task_id := self.identities.of(request).task_id) is not None:
            if output is None and len(ids) >= _MAX_START_IDS:
                ids.clear()
            ids.add(task_id)
        if output is None:
            self.requests.append(request)
            self.has_requests.set()
        else:
            output.requests.append(request)

    async def download_async(self, request: scrapy.Request) -> Response:
        """Return the response to *request* after the downloader middlewares; makes no task."""
        while True:
            result = await self.downloads(request)
            if isinstance(result, Response):
                return result
            request = result

    async def close_spider_async(self, *, reason: str = "cancelled") -> None:
        """End the crawl for *reason*; running pages finish."""
        if self.close_reason is None:
            self.close_reason = reason
            self.has_requests.set()

    async def stop_async(self) -> None:
        """End the crawl."""
        await self.close_spider_async(reason=_SHUTDOWN)

    def spider_is_idle(self) -> bool:
        """Return whether this process has no request in progress."""
        return not self.requests and not self.slot.inprogress

    def needs_backout(self) -> bool:
        """Return False: crawlcw limits the pages in progress."""
        return False

    def ask_to_stay(self) -> bool:
        """Send the signal `spider_idle`; return whether a component keeps the spider open."""
        results = self.signals.send_catch_log(
            signals.spider_idle, spider=self.spider, dont_log=(DontCloseSpider, CloseSpider)
        )
        errors = [result.value for _, result in results if isinstance(result, Failure)]
        for error in errors:
            if isinstance(error, CloseSpider):
                self.close_reason = self.close_reason or error.reason
        return any(isinstance(error, DontCloseSpider) for error in errors)
