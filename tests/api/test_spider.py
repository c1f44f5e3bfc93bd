"""Spiders: valid classes, and the methods that a task may name."""

import logging
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any

import pytest

from crawlcw.api.host_limits import Limit
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named, check, is_name, scope
from crawlcw.errors import SpiderError

pytestmark = pytest.mark.quick


class Books(Spider):
    name = "books"
    start_urls = ["http://a.example/"]

    def parse(self, response: Response) -> None: ...

    async def parse_book(self, response: Response) -> None: ...

    @classmethod
    def parse_any(cls, response: Response) -> None: ...

    @staticmethod
    def helper() -> None: ...

    @property
    def today(self) -> str:
        return "monday"


class Seeded(Spider):
    name = "seeded"

    async def start(self) -> AsyncIterator[Request]:
        yield Request("http://a.example/")


def spider_with(**attributes: Any) -> Spider:
    return type("Broken", (Books,), attributes)()  # type: ignore[no-any-return]  # a class made by hand


def test_good_spiders_pass():
    check(Books())
    check(Seeded())
    check(spider_with(start_urls=("http://a.example/", "https://b.example:8443/x?y")))
    check(spider_with(allowed_hosts=("*",), settings=Settings(concurrency=1)))
    check(spider_with(allowed_hosts="*"))
    check(spider_with(start_urls=[], allowed_hosts=["a.example"]))
    check(spider_with(limits={"a.example": Limit(delay="1s"), "*": Limit(concurrency=1)}))
    check(spider_with(limits=MappingProxyType({"*.a.example": Limit()})))


async def _coroutine(self: Spider) -> None: ...


def _generator(self: Spider) -> Any:
    yield Request("http://a.example/")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": ""}, "Broken.name = '': a spider's name is a letter followed by"),
        ({"name": None}, "Broken.name = None"),
        ({"name": "my books"}, "Broken.name = 'my books'"),
        ({"name": "books.items"}, "Broken.name"),
        ({"name": "$books"}, "Broken.name"),
        ({"name": "x" * 61}, "Broken.name"),
        ({"start_urls": "http://a.example/"}, "Broken.start_urls is one text: make it a list"),
        ({"start_urls": []}, "Broken.start_urls is empty, so nothing is in its scope: name its"),
        ({"start_urls": None}, "Broken.start_urls"),
        ({"start_urls": 7}, "Broken.start_urls"),
        ({"start_urls": (url for url in ["http://a.example/"])}, "Broken.start_urls"),
        ({"start_urls": ["a.example"]}, "Broken.start_urls: 'a.example' is no URL to fetch"),
        ({"start_urls": ["ftp://a.example/"]}, "is no URL to fetch"),
        ({"start_urls": ["http://a.example/", 7]}, "Broken.start_urls: 7 is no URL to fetch"),
        ({"start_urls": [None]}, "Broken.start_urls: None is no URL to fetch"),
        ({"allowed_hosts": "a.example"}, "Broken.allowed_hosts is one text: make it a list"),
        ({"allowed_hosts": 7}, "Broken.allowed_hosts is 7: make it a list"),
        ({"allowed_hosts": iter(["a.example"])}, "make it a list"),
        (
            {"allowed_hosts": ["http://a.example/"]},
            "Broken.allowed_hosts: 'http://a.example/' is no host: write example.com for it and",
        ),
        ({"allowed_hosts": ["a.example", "*.a.example"]}, "'*.a.example' is no host"),
        ({"allowed_hosts": [".a.example"]}, "'.a.example' is no host"),
        ({"allowed_hosts": ["a.example/x"]}, "'a.example/x' is no host"),
        ({"allowed_hosts": [""]}, "'' is no host"),
        ({"allowed_hosts": [None]}, "None is no host"),
        ({"allowed_hosts": ["a.example:443"]}, "'a.example:443': leave out the port"),
        ({"settings": {"concurrency": 5}}, "Broken.settings must be a crawlcw.Settings(...)"),
        ({"settings": Settings}, "Broken.settings must be a crawlcw.Settings(...)"),
        ({"limits": None}, "Broken.limits is None: make it a dict of hosts and Limit(...)"),
        ({"limits": [Limit()]}, "make it a dict of hosts and Limit(...)"),
        (
            {"limits": {"http://a.example/": Limit()}},
            "Broken.limits['http://a.example/'] is neither",
        ),
        ({"limits": {"foo*bar": Limit()}}, "Broken.limits['foo*bar'] is neither a host nor"),
        ({"limits": {7: Limit()}}, "write shop.example.com, shop.example.com:8080, *.example.com"),
        (
            {"limits": {"a.example": {"delay": 1}}},
            "Broken.limits['a.example'] is {'delay': 1}: make",
        ),
        (
            {"limits": {"a.example:80": Limit()}},
            "Broken.limits['a.example:80']: leave out the port",
        ),
        ({"limits": {"a.b": Limit(), "A.b": Limit()}}, "Broken.limits['A.b']: a.b is there twice"),
        ({"start": _generator}, "Broken.start() must be `async def` and yield requests"),
        ({"start": _coroutine}, "Broken.start() must be `async def` and yield requests"),
    ],
)
def test_a_spider_that_cannot_be_run_is_one_clear_error(attributes: dict[str, Any], message: str):
    with pytest.raises(SpiderError) as caught:
        check(spider_with(**attributes))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_start_of_its_own_needs_no_start_urls():
    check(spider_with(start_urls=(), start=Seeded.start))


def test_a_spider_that_says_nothing_of_where_it_begins_is_told_of_its_ways():
    class Nowhere(Spider):
        name = "nowhere"

    with pytest.raises(
        SpiderError, match=r"has neither .*, or start_urls = \[\] where `crawlcw add"
    ):
        check(Nowhere())


@pytest.mark.parametrize("name", ["books", "B", "books-2_x", "x" * 60])
def test_a_name_is_one_for_a_collection(name: str):
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "2books", "-b", "bücher", "books\n", "a b", None, 7])
def test_what_is_no_name(name: object):
    assert not is_name(name)


def test_arguments_become_attributes():
    spider = Books(category="travel", start_urls=["http://b.example/"])

    assert spider.category == "travel"  # type: ignore[attr-defined]  # that is the point
    assert spider.start_urls == ["http://b.example/"]
    assert Books.start_urls == ["http://a.example/"]


@pytest.mark.parametrize(
    "key", ["name", "parse", "start", "settings", "limits", "__class__", "a-b", "", "1"]
)
def test_arguments_cannot_replace_what_a_spider_is_made_of(key: str):
    with pytest.raises(SpiderError, match="cannot be set: the name is taken or not one of Python"):
        Books(**{key: "x"})


@pytest.mark.parametrize("name", ["parse", "parse_book", "parse_any", "on_error"])
def test_a_method_is_found_by_its_name(name: str):
    spider = Books()

    assert callback_named(spider, name) == getattr(spider, name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "missing",
        "__init__",
        "__class__",
        "__reduce__",
        "name",
        "settings",
        "helper",
        "today",
        "parse.x",
        "parse book",
        "\ud800",
    ],
)
def test_nothing_but_a_method_is_called(name: str):
    with pytest.raises(SpiderError, match="Books has no callback"):
        callback_named(Books(), name)


async def test_a_crawl_begins_with_the_start_urls():
    requests = [request async for request in Books().start()]

    assert [(request.url, request.callback) for request in requests] == [
        ("http://a.example/", "parse")
    ]


def test_the_scope_is_what_the_spider_allows_or_else_the_hosts_it_starts_from():
    assert scope(Books()) == {"a.example"}
    assert scope(spider_with(start_urls=["http://A.example:8080/x"])) == {"a.example:8080"}
    assert scope(spider_with(allowed_hosts=[" B.example "])) == {"b.example"}
    assert scope(spider_with(allowed_hosts=["B.example.:81", "[::1]", "ü.example."])) == {
        "b.example:81",
        "[::1]",
        "xn--tda.example",
    }
    assert scope(spider_with(allowed_hosts=())) == frozenset()
    assert scope(spider_with(allowed_hosts="*")) == {"*"}
    assert scope(Seeded()) is None


def test_a_spider_without_a_parse_says_so():
    with pytest.raises(NotImplementedError, match=r"Seeded has no parse\(\)"):
        Seeded().parse(Response("http://a.example/", request=Request("http://a.example/")))


async def test_by_default_the_rest_does_nothing():
    spider = Seeded()

    await spider.opened()

    assert spider.on_error(Request("http://a.example/"), None) is None  # type: ignore[arg-type,func-returns-value]  # not looked at


def test_a_spider_has_a_logger_of_its_name_unless_it_has_one_of_its_own():
    class Named(Spider):
        name = "named"

    class Own(Named):
        def __init__(self) -> None:
            self.logger = logging.getLogger("own")

    assert (Named().logger.name, Own().logger.name) == ("named", "own")
    assert "logger" not in vars(Named()), "it is not part of the spider's arguments"
