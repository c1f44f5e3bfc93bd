"""The components of a project: those that crawlcw replaces, and the start and end of the others."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import scrapy
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.utils.log import install_scrapy_root_handler
from scrapy.utils.python import global_object_name
from scrapy.utils.response import response_status_message

RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
#: Components of Scrapy that crawlcw replaces, by the setting that lists them.
_REPLACED = {
    "DOWNLOADER_MIDDLEWARES": (
        RETRY,
        "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware",
        "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware",
    ),
    "EXTENSIONS": (
        "scrapy.extensions.telnet.TelnetConsole",
        "scrapy.extensions.feedexport.FeedExporter",
        "scrapy.extensions.throttle.AutoThrottle",
        "scrapy.extensions.spiderstate.SpiderState",
        "scrapy.extensions.remote_control.RemoteControl",  # of Scrapy 2.18 and later
    ),
}


class RetryLater(Exception):
    """Raised by `Retry` for a response that crawlcw shall request again."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class Retry(RetryMiddleware):
    """Stands for Scrapy's `RetryMiddleware`, so that crawlcw's attempts replace its retries."""

    def process_response(
        self,
        request: scrapy.Request,
        response: Response,
        spider: object = None,  # noqa: ARG002  # the signature of Scrapy
    ) -> Response:
        """Raise `RetryLater` for a response that Scrapy would request again."""
        if response.status in self.retry_http_codes and not request.meta.get("dont_retry", False):
            self._count(request, response_status_message(response.status))
            raise RetryLater(response)
        return response

    def process_exception(
        self,
        request: scrapy.Request,
        exception: Exception,
        spider: object = None,  # noqa: ARG002  # the signature of Scrapy
    ) -> None:
        """Return None, so that crawlcw handles the exception."""
        is_retried = isinstance(exception, self.exceptions_to_retry)
        if is_retried and not request.meta.get("dont_retry", False):
            self._count(request, global_object_name(type(exception)))

    def _count(self, request: scrapy.Request, reason: str) -> None:
        """Add a failed attempt to Scrapy's stats."""
        stats, meta = self.crawler.stats, request.meta
        assert stats is not None
        if meta.get("retry_times", 0) >= meta.get("max_retry_times", self.max_retry_times):
            stats.inc_value("retry/max_reached")
        else:
            stats.inc_value("retry/count")
            stats.inc_value(f"retry/reason_count/{reason}")


def replace_components(settings: BaseSettings) -> None:
    """Leave the replaced components out of *settings*, and put `Retry` in the place of Scrapy's."""
    for setting, paths in _REPLACED.items():
        base, chosen = settings[f"{setting}_BASE"], dict(settings[setting] or {})
        priority_by_path = {**base, **{path_of(kind): number for kind, number in chosen.items()}}
        retry_priority = priority_by_path.get(RETRY)
        for path in paths:
            base[path] = None
        chosen = {kind: number for kind, number in chosen.items() if path_of(kind) not in paths}
        if retry_priority is not None:
            chosen[Retry] = retry_priority
        settings.set(setting, chosen, priority=100)


def path_of(kind: object) -> str:
    """Return the path of a component, which a setting names by its class or by its path."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"  # type: ignore[attr-defined]


async def open_spider(crawler: Crawler) -> str | None:
    """Open the pipelines and tell the components; return why one closes the spider, or None."""
    engine, spider = crawler.engine, crawler.spider
    assert engine is not None
    assert crawler.stats is not None
    if crawler.settings["LOG_FILE"]:
        install_scrapy_root_handler(crawler.settings)
    close_reason = None
    try:
        await engine.scraper.open_spider_async()
    except CloseSpider as error:
        close_reason = error.reason
    call(crawler.stats.open_spider, crawler)
    results = await crawler.signals.send_catch_log_async(
        signals.spider_opened, spider=spider, dont_log=CloseSpider
    )
    for _, result in results:
        if isinstance(result, CloseSpider):
            close_reason = close_reason or result.reason
    await crawler.signals.send_catch_log_async(signal=signals.engine_started)
    return close_reason


async def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the pipelines, and tell the components that the spider is closed for *reason*."""
    assert crawler.engine is not None
    assert crawler.stats is not None
    crawler.engine.downloader.close()
    await crawler.engine.scraper.close_spider_async()
    send = crawler.signals.send_catch_log_async
    await send(signal=signals.spider_closed, spider=crawler.spider, reason=reason)
    call(crawler.stats.close_spider, crawler, reason=reason)
    await send(signal=signals.engine_stopped)


def call(method: Callable[..., Any], crawler: Crawler, **arguments: Any) -> Any:
    """Return the result of a component's *method*, which gets the spider if it requires one."""
    if _takes_spider(getattr(method, "__func__", method)):
        arguments["spider"] = crawler.spider
    return method(**arguments)


@lru_cache(512)
def _takes_spider(function: Callable[..., Any]) -> bool:
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    return "spider" in parameters and parameters["spider"].default is inspect.Parameter.empty
