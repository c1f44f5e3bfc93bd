"""Removed parts of Scrapy that projects for older versions still use.

`install()` changes Scrapy's own classes and modules. It runs before the project is imported.
"""

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import scrapy
import scrapy.middleware
import scrapy.utils.request
from scrapy.core.downloader import Downloader
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.http import TextResponse
from scrapy.spiders import SitemapSpider
from scrapy.utils.asyncgen import as_async_generator

_NAMES_OF_W3LIB = (
    "add_or_replace_parameter add_or_replace_parameters any_to_uri canonicalize_url"
    " file_uri_to_path is_url parse_data_uri parse_url path_to_file_uri safe_download_url"
    " safe_url_string url_query_cleaner url_query_parameter"
)
#: The version that removed an address, the address, and the one of today.
MOVED = (
    ((1, 8), "scrapy.xlib.pydispatch", "pydispatch"),
    ((2, 6), "scrapy.item.BaseItem", "scrapy.item.Item"),
    ((2, 6), "scrapy.item.DictItem", "scrapy.item.Item"),
    ((2, 8), "scrapy.utils.python.to_native_str", "scrapy.utils.python.to_unicode"),
    ((2, 12), "scrapy.http.JSONRequest", "scrapy.http.JsonRequest"),
    ((2, 12), "scrapy.loader.common", "itemloaders.common"),
    ((2, 12), "scrapy.loader.processors", "itemloaders.processors"),
    # Settings name it to turn it off.
    ((2, 14), "scrapy.spidermiddlewares.offsite", "scrapy.downloadermiddlewares.offsite"),
    *(((2, 16), f"scrapy.utils.url.{it}", f"w3lib.url.{it}") for it in _NAMES_OF_W3LIB.split()),
    ((2, 18), "scrapy.utils.iterators.xmliter", "scrapy.utils.iterators.xmliter_lxml"),
)


def install() -> None:
    """Restore the removed parts of the installed Scrapy. A second call changes nothing."""
    moved_names()
    _add(TextResponse, "body_as_unicode", body_as_unicode)
    _add(scrapy.utils.request, "request_fingerprint", request_fingerprint)
    _add(Downloader, "_get_slot_key", slot_key)
    _wrap(scrapy.middleware, "build_from_crawler", from_settings)
    _wrap(scrapy.middleware.MiddlewareManager, "_check_mw_method_spider_arg", spider_argument)
    if scrapy.version_info >= (2, 16):
        _add(scrapy.Spider, "start_requests", start_requests)
        _add(SitemapSpider, "start_requests", sitemap_requests)
        scrapy.Spider.start = SitemapSpider.start = start  # type: ignore[assignment, method-assign]
        _wrap(SpiderMiddlewareManager, "process_start", process_start_requests)
        _wrap(SpiderMiddlewareManager, "_get_process_spider_output", spider_output)


def moved_names() -> None:
    """Keep the old addresses of moved names; `MOVED` has the versions."""
    for version, old, new in MOVED:
        if scrapy.version_info >= version:
            owner, _, name = old.rpartition(".")
            value = resolve_name(new)
            if isinstance(value, ModuleType):
                sys.modules[old] = value  # an import of the module needs no more
            else:
                setattr(resolve_name(owner), name, value)


def body_as_unicode(response: TextResponse) -> str:
    """`TextResponse.body_as_unicode()`, which Scrapy 2.6 removed."""
    return response.text


def request_fingerprint(request: scrapy.Request, **options: Any) -> str:
    """`scrapy.utils.request.request_fingerprint()`, which Scrapy 2.12 removed."""
    return scrapy.utils.request.fingerprint(request, **options).hex()


def slot_key(downloader: Downloader, request: scrapy.Request, _spider: object = None) -> str:
    """`Downloader._get_slot_key()`, which Scrapy 2.14 removed."""
    return downloader.get_slot_key(request)


def from_settings(build: Callable[..., Any], component: Any, crawler: Any) -> Any:
    """Build a component by its `from_settings()`, which Scrapy 2.14 no longer calls."""
    if hasattr(component, "from_settings") and not hasattr(component, "from_crawler"):
        return component.from_settings(crawler.settings)
    return build(component, crawler)


def spider_argument(check: Callable[..., None], manager: Any, method: Any) -> None:
    """Pass the spider to `process_item(item, _)`: since Scrapy 2.14 only `spider` gets it."""
    check(manager, method)
    parameters = inspect.signature(method).parameters.values()
    required = [it for it in parameters if it.default is it.empty and it.kind < it.VAR_POSITIONAL]
    counts = {"process_item": 2, "open_spider": 1, "close_spider": 1}
    if len(required) == counts.get(method.__name__):
        manager._mw_methods_requiring_spider.add(method)  # noqa: SLF001


def start_requests(spider: scrapy.Spider) -> Iterator[scrapy.Request]:
    """`Spider.start_requests()`, which Scrapy 2.16 removed."""
    for url in spider.start_urls:
        yield scrapy.Request(url, dont_filter=True)


def sitemap_requests(spider: SitemapSpider) -> Iterator[scrapy.Request]:
    """`SitemapSpider.start_requests()`, which Scrapy 2.16 removed."""
    for url in spider.sitemap_urls:
        yield scrapy.Request(url, spider._parse_sitemap)  # noqa: SLF001


async def start(spider: Any) -> AsyncIterator[Any]:
    """Call the spider's `start_requests()`, as `Spider.start()` did until Scrapy 2.15."""
    async for output in as_async_generator(spider.start_requests()):
        yield output


async def process_start_requests(process_start: Callable[..., Any], manager: Any) -> Any:
    """Call `process_start_requests()` of middlewares, which Scrapy 2.16 no longer calls."""
    spider = manager.crawler.spider
    requests = None
    for middleware in reversed(manager.middlewares if type(spider).start is start else ()):
        method = getattr(middleware, "process_start_requests", None)
        if method and not hasattr(middleware, "process_start"):
            requests = method(requests or iter(spider.start_requests()), spider)
    if requests is None:
        return await process_start(manager)
    return await manager._process_chain("process_start", as_async_generator(requests))  # noqa: SLF001


def spider_output(method_of: Callable[..., Any], middleware: Any) -> Any:
    """Accept a plain `process_spider_output()`, which Scrapy 2.16 no longer accepts."""
    plain = getattr(middleware, "process_spider_output", None)
    has_async = hasattr(middleware, "process_spider_output_async")
    if plain is None or has_async or inspect.isasyncgenfunction(plain):
        return method_of(middleware)

    @wraps(plain)  # the manager looks for the parameter `spider` in the signature
    async def process(response: Any, result: AsyncIterator[Any], **spider: Any) -> Any:
        outputs = await _replay(result)
        async for output in as_async_generator(plain(response=response, result=outputs, **spider)):
            yield output

    return process


async def _replay(result: AsyncIterator[Any]) -> Iterator[Any]:
    """Return the outputs of a callback, and its error after them, as a plain iterator."""
    outputs, error = [], None
    try:
        async for output in result:
            outputs.append(output)  # noqa: PERF401 (an error must leave the earlier ones)
    except Exception as callback_error:
        error = callback_error

    def replay() -> Iterator[Any]:
        yield from outputs
        if error is not None:
            raise error

    return replay()


def _add(owner: object, name: str, value: object) -> None:
    if name not in vars(owner):
        setattr(owner, name, value)


def _wrap(owner: object, name: str, replacement: Callable[..., Any]) -> None:
    """Call *replacement* in place of a function, which becomes its first argument."""
    original = getattr(owner, name)
    if original.__module__ == __name__:
        return

    def call(*arguments: Any) -> Any:
        return replacement(original, *arguments)

    is_static = isinstance(vars(owner)[name], staticmethod)
    setattr(owner, name, staticmethod(call) if is_static else call)
