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
from crawlcw.api.spider import Spider, callback_named, check, scope
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


def _generator(self: Spider) -> Any:
    yield Request("http://a.example/")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": ""}, "Broken.name = '': a spider's name is a letter followed by"),
        ({"name": "my books"}, "Broken.name = 'my books'"),
        ({"name": "x" * 61}, "Broken.name"),
        ({"start_urls": "http://a.example/"}, "Broken.start_urls is a single text: write a list"),
        (
            {"start_urls": []},
            "Broken.start_urls is empty, so the crawl would follow no link: write",
        ),
        ({"start_urls": 7}, "Broken.start_urls"),
        ({"start_urls": (url for url in ["http://a.example/"])}, "Broken.start_urls"),
        (
            {"start_urls": ["a.example"]},
            "Broken.start_urls: 'a.example' is not a URL that crawlcw can fetch",
        ),
        (
            {"start_urls": ["http://a.example/", 7]},
            "Broken.start_urls: 7 is not a URL that crawlcw can fetch",
        ),
        ({"allowed_hosts": "a.example"}, "Broken.allowed_hosts is a single text: write a list"),
        ({"allowed_hosts": 7}, "Broken.allowed_hosts is 7: write a list"),
        (
            {"allowed_hosts": ["http://a.example/"]},
            "Broken.allowed_hosts: 'http://a.example/' is not a host: write example.com for the",
        ),
        ({"allowed_hosts": ["a.example", "*.a.example"]}, "'*.a.example' is not a host"),
        ({"allowed_hosts": [""]}, "'' is not a host"),
        ({"allowed_hosts": ["a.example:443"]}, "'a.example:443': leave out the port"),
        ({"settings": {"concurrency": 5}}, "Broken.settings must be a crawlcw.Settings(...)"),
        ({"limits": None}, "Broken.limits is None: write a dict of hosts and Limit(...)"),
        (
            {"limits": {"http://a.example/": Limit()}},
            "Broken.limits['http://a.example/'] is neither",
        ),
        (
            {"limits": {"a.example": {"delay": 1}}},
            "Broken.limits['a.example'] is {'delay': 1}: write",
        ),
        (
            {"limits": {"a.example:80": Limit()}},
            "Broken.limits['a.example:80']: leave out the port",
        ),
        ({"start": _generator}, "Broken.start() must be `async def` and yield requests"),
    ],
)
def test_a_spider_that_cannot_be_run_is_one_clear_error(attributes: dict[str, Any], message: str):
    with pytest.raises(SpiderError) as caught:
        check(spider_with(**attributes))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_spider_that_says_nothing_of_where_it_begins_is_told_of_its_ways():
    class Nowhere(Spider):
        name = "nowhere"

    with pytest.raises(
        SpiderError, match=r"has neither .*, or write start_urls = \[\] if `crawlcw add"
    ):
        check(Nowhere())


def test_arguments_become_attributes():
    spider = Books(category="travel", start_urls=["http://b.example/"])

    assert spider.category == "travel"  # type: ignore[attr-defined]  # that is the point
    assert spider.start_urls == ["http://b.example/"]
    assert Books.start_urls == ["http://a.example/"]


@pytest.mark.parametrize(
    "key", ["name", "parse", "start", "settings", "limits", "__class__", "a-b", "", "1"]
)
def test_arguments_cannot_replace_what_a_spider_is_made_of(key: str):
    with pytest.raises(SpiderError, match="cannot be set: the name is in use or not a Python name"):
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
        "name",
        "helper",
        "today",
        "parse.x",
        "\ud800",
    ],
)
def test_nothing_but_a_method_is_called(name: str):
    with pytest.raises(SpiderError, match="Books has no callback"):
        callback_named(Books(), name)


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


def test_a_spider_has_a_logger_of_its_name_unless_it_has_one_of_its_own():
    class Named(Spider):
        name = "named"

    class Own(Named):
        def __init__(self) -> None:
            self.logger = logging.getLogger("own")

    assert (Named().logger.name, Own().logger.name) == ("named", "own")
    assert "logger" not in vars(Named()), "it is not part of the spider's arguments"
