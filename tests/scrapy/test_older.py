"""Shims for projects of older Scrapy versions, through Scrapy's managers of middlewares."""

from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest

pytest.importorskip("scrapy")

import scrapy
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse, Response
from scrapy.pipelines import ItemPipelineManager
from scrapy.spiders import SitemapSpider
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.reactor import install_reactor, is_reactor_installed

from crawlcw.scrapy import older

pytestmark = [
    pytest.mark.quick,
    # The code of older projects is what newer versions warn about.
    pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning"),
]

SITE = "http://shop.test"


class OlderSpider(scrapy.Spider):
    name = "older"

    def start_requests(self):
        yield scrapy.Request(f"{SITE}/a")
        yield scrapy.Request(f"{SITE}/b")


class Shortening:
    """A middleware of Scrapy 2.12: its methods are plain generators."""

    def process_start_requests(self, start_requests, spider):
        for number, request in enumerate(start_requests):
            request.meta["number"] = number, spider.name
            yield request

    def process_spider_output(self, response, result, spider):
        for output in result:
            yield {**output, "by": spider.name}


class Doubling(Shortening):
    def process_start_requests(self, start_requests, spider):
        for request in start_requests:
            yield request
            yield request.replace(url=f"{request.url}?again")

    def process_spider_output(self, response, result):
        return [output for output in result for _ in range(2)]


@pytest.fixture(autouse=True)
async def _installed() -> None:
    if not is_reactor_installed():
        install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    older.install()
    older.install()


def crawler_of(spider_class: type[scrapy.Spider], **settings: Any) -> Crawler:
    crawler = Crawler(spider_class, {"SPIDER_MIDDLEWARES_BASE": {}, **settings})
    crawler.spider = spider_class.from_crawler(crawler)
    return crawler


async def started(spider_class: type[scrapy.Spider], *middlewares: type) -> list[scrapy.Request]:
    order = {middleware: number for number, middleware in enumerate(middlewares)}
    manager = SpiderMiddlewareManager.from_crawler(
        crawler_of(spider_class, SPIDER_MIDDLEWARES=order)
    )
    return [request async for request in await manager.process_start()]


async def scraped(callback: Any, *middlewares: type) -> list[Any]:
    """Return the outputs of a callback after the middlewares, and its error."""
    order = {middleware: number for number, middleware in enumerate(middlewares)}
    crawler = crawler_of(OlderSpider, SPIDER_MIDDLEWARES=order)
    manager = SpiderMiddlewareManager.from_crawler(crawler)
    request = scrapy.Request(SITE)

    async def scrape(response: Response, request: scrapy.Request) -> Any:
        return callback(response)

    outputs: list[Any] = []
    chain = await manager.scrape_response_async(scrape, Response(SITE, request=request), request)
    try:
        async for output in as_async_generator(chain):
            outputs.append(output)
    except LookupError as error:
        outputs.append(error)
    return outputs


async def test_start_requests_is_called():
    assert [request.url for request in await started(OlderSpider)] == [f"{SITE}/a", f"{SITE}/b"]


async def test_start_requests_of_a_sitemap_spider_is_called():
    class Pages(SitemapSpider):
        name = "pages"
        sitemap_urls = [f"{SITE}/sitemap.xml"]

        def start_requests(self):
            yield from super().start_requests()
            yield scrapy.Request(f"{SITE}/a")

    requests = await started(Pages)

    assert [request.url for request in requests] == [f"{SITE}/sitemap.xml", f"{SITE}/a"]
    assert requests[0].callback.__name__ == "_parse_sitemap"


async def test_a_spider_with_start_does_not_call_start_requests():
    class Both(OlderSpider):
        async def start(self):
            yield scrapy.Request(f"{SITE}/new")

    assert [request.url for request in await started(Both)] == [f"{SITE}/new"]


async def test_start_urls_are_requested():
    class Plain(scrapy.Spider):
        name = "plain"
        start_urls = [f"{SITE}/a", f"{SITE}/a"]

    requests = await started(Plain)

    assert [(request.url, request.dont_filter) for request in requests] == [(f"{SITE}/a", True)] * 2


async def test_process_start_requests_is_called_in_the_order_of_middlewares():
    requests = await started(OlderSpider, Shortening, Doubling)

    assert [(request.url, request.meta["number"]) for request in requests] == [
        (f"{SITE}/a", (0, "older")),
        (f"{SITE}/a?again", (1, "older")),
        (f"{SITE}/b", (2, "older")),
        (f"{SITE}/b?again", (3, "older")),
    ]


async def test_a_plain_process_spider_output_gets_what_a_callback_yields():
    def callback(response):
        yield {"n": 1}
        yield {"n": 2}

    outputs = await scraped(callback, Shortening, Doubling)

    assert outputs == [{"n": n, "by": "older"} for n in (1, 1, 2, 2)]


async def test_a_plain_process_spider_output_gets_the_error_after_what_was_yielded():
    def callback(response):
        yield {"n": 1}
        raise LookupError("half-way")

    first, error = await scraped(callback, Shortening)

    assert first == {"n": 1, "by": "older"}
    assert isinstance(error, LookupError)


async def test_process_item_gets_the_spider_by_any_name():
    calls = []

    class Pipeline:
        def process_item(self, item, _spider):
            calls.append(_spider.name)
            return item

        def open_spider(self, opened):
            calls.append(opened.name)

    crawler = crawler_of(OlderSpider, ITEM_PIPELINES={Pipeline: 1})
    manager = ItemPipelineManager.from_crawler(crawler)
    await manager.open_spider_async()

    assert await manager.process_item_async({"n": 1}) == {"n": 1}
    assert calls == ["older", "older"]


async def test_from_settings_builds_a_pipeline():
    class Pipeline:
        def __init__(self, table):
            self.table = table

        @classmethod
        def from_settings(cls, settings):
            return cls(settings["TABLE"])

        def process_item(self, item):
            return {**item, "table": self.table}

    crawler = crawler_of(OlderSpider, ITEM_PIPELINES={Pipeline: 1}, TABLE="quotes")
    manager = ItemPipelineManager.from_crawler(crawler)

    assert await manager.process_item_async({"n": 1}) == {"n": 1, "table": "quotes"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("scrapy.http", "JSONRequest"),
        ("scrapy.item", "BaseItem"),
        ("scrapy.item", "DictItem"),
        ("scrapy.loader.common", "wrap_loader_context"),
        ("scrapy.loader.processors", "TakeFirst"),
        ("scrapy.spidermiddlewares.offsite", "OffsiteMiddleware"),
        ("scrapy.utils.python", "to_native_str"),
        ("scrapy.utils.request", "request_fingerprint"),
        ("scrapy.utils.url", "canonicalize_url"),
        ("scrapy.utils.iterators", "xmliter"),
        ("scrapy.utils.url", "parse_url"),
        ("scrapy.xlib.pydispatch", "dispatcher.connect"),
    ],
)
def test_a_name_has_its_old_address(module: str, name: str):
    assert callable(attrgetter(name)(import_module(module)))


def test_settings_can_turn_off_a_middleware_that_has_moved():
    offsite = {"scrapy.spidermiddlewares.offsite.OffsiteMiddleware": None}
    crawler = crawler_of(OlderSpider, SPIDER_MIDDLEWARES=offsite)

    assert SpiderMiddlewareManager.from_crawler(crawler).middlewares == ()


def test_request_fingerprint_returns_hexadecimal_digits():
    from scrapy.utils.request import fingerprint, request_fingerprint

    request = scrapy.Request(SITE)

    assert request_fingerprint(request) == fingerprint(request).hex()


def test_body_as_unicode_returns_the_text():
    assert HtmlResponse(SITE, body="é".encode()).body_as_unicode() == "é"


def test_slot_key_has_its_old_name():
    from scrapy.core.downloader import Downloader

    downloader = Downloader.__new__(Downloader)
    downloader.ip_concurrency = 0

    assert downloader._get_slot_key(scrapy.Request(SITE), None) == "shop.test"
