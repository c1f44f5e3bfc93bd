"""Scrapy's requests and values in the context of a task, and back."""

import functools

import pytest
import scrapy

from crawlcw import Request
from crawlcw.model import values
from crawlcw.scrapy import codec

pytestmark = pytest.mark.quick

URL = "https://shop.example/product"


class ShopSpider(scrapy.Spider):
    name = "shop"

    def parse_product(self, response, **arguments):
        return response, arguments


def stored(request: scrapy.Request, spider: scrapy.Spider) -> Request:
    """Return the crawlcw request that carries *request*, after a store has kept its context."""
    context = codec.context_of(request, spider)
    assert values.clean(context) == context
    return Request(request.url, method=request.method, body=request.body or None, context=context)


def round_trip(request: scrapy.Request, spider: scrapy.Spider) -> scrapy.Request:
    return codec.request_of(stored(request, spider), spider)


def test_a_request_keeps_its_callback_and_values():
    spider = ShopSpider()
    request = scrapy.Request(URL, spider.parse_product, meta={"page": 1}, cb_kwargs={"sku": "b"})

    again = round_trip(request, spider)

    assert again.to_dict(spider=spider) == request.to_dict(spider=spider)
    assert again.callback("page", **again.cb_kwargs) == ("page", {"sku": "b"})


def test_a_partial_of_a_method_is_a_callback():
    spider = ShopSpider()
    request = scrapy.Request(URL, functools.partial(spider.parse_product, sku="b"))

    assert round_trip(request, spider).callback("page") == ("page", {"sku": "b"})
