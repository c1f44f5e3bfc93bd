"""Scrapy's requests and values in the context of a task, and back."""

import dataclasses
import functools
import importlib
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import pydantic
import pytest
import scrapy
from hypothesis import strategies as st
from itemloaders import ItemLoader
from scrapy.http import FormRequest, Headers, JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK

from crawlcw import Request, Response, Settings, Spider
from crawlcw.assembly import run_spider
from crawlcw.errors import SpiderError
from crawlcw.ledger import documents
from crawlcw.model import values
from crawlcw.scrapy import codec
from crawlcw.testing import Replay, ReplayDownloader
from tests.support.fuzzing import fuzzed

pytestmark = pytest.mark.quick

URL = "https://shop.example/product"
#: What `decoded` raises for a value that does not fit the code.
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Product(scrapy.Item):
    name = scrapy.Field()
    offers = scrapy.Field()


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    price: Decimal
    sizes: tuple[int, ...] = ()
    label: str = dataclasses.field(init=False, default="new")


@attrs.define
class Shop:
    _city: str
    stock: set[str] = attrs.field(factory=set)


class Brand(pydantic.BaseModel):
    name: str = pydantic.Field(alias="brandName")


class Colour(Enum):
    RED = "red"


class Helper:
    def parse_offer(self, response: Any) -> Any:
        return "helper", response


class SignedRequest(scrapy.Request):
    """A request whose constructor takes other arguments than Scrapy's."""

    def __init__(self, secret: str, **options: Any) -> None:
        super().__init__(f"{URL}?signed={secret}", **options)
        self.signature = (secret, 1)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return wrapper


def parse_outside(response: Any) -> Any:
    return "module", response


class BaseSpider(scrapy.Spider):
    def parse_product(self, response: Any, **arguments: Any) -> Any:
        return "base", response, arguments


class ShopSpider(BaseSpider):
    name = "shop"

    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def parse_product(self, response: Any, **arguments: Any) -> Any:
        return "product", response, arguments

    def __parse_hidden(self, response: Any) -> Any:
        return "hidden", response

    @logged
    def parse_logged(self, response: Any) -> Any:
        return "logged", response

    @classmethod
    def parse_by_class(cls, response: Any) -> Any:
        return cls.name, response

    @staticmethod
    def parse_static(response: Any) -> Any:
        return "static", response

    def callbacks(self) -> dict[str, Callable[..., Any]]:
        sku, product = {"sku": "b"}, Product(name="a")

        def parse_nested(response: Any, *, page: int = 2) -> Any:
            return self.parse_product(response, page=page, **sku)

        return {
            "method": self.parse_product,
            "hidden method": self.__parse_hidden,
            "decorated method": self.parse_logged,
            "class method": self.parse_by_class,
            "static method": self.parse_static,
            "method of an object": self.helper.parse_offer,
            "partial": functools.partial(self.parse_product, sku="c", next=self.parse_static),
            "module function": parse_outside,
            "lambda": lambda response: self.parse_product(response, **sku),
            "lambda with a default": lambda response, product=product: (
                response,
                product,
            ),
            "nested function": parse_nested,
            "partial of a lambda": functools.partial(lambda tag, response: (tag, response), "t"),
        }

    def super_method(self) -> Callable[..., Any]:
        return super().parse_product

    def recursive(self) -> Callable[..., Any]:
        def parse_again(response: Any) -> Any:
            return response or parse_again

        return parse_again


@pytest.fixture
def spider() -> ShopSpider:
    return ShopSpider()


def kept(value: Any) -> Any:
    """Return *value* as the ledger returns it; the ledger must not change it."""
    assert values.clean(value) == value
    returned = documents.value(documents.value_document(value))
    assert returned == value
    return values.frozen(returned)


def round_trip(request: scrapy.Request, spider: scrapy.Spider) -> scrapy.Request:
    context = kept(codec.context_of(request, spider))
    body = request.body or None
    task_request = Request(
        request.url,
        method=request.method,
        headers=codec.task_headers(request),
        body=body,
        context=context,
    )
    return codec.request_of(task_request, spider)


def decoded(value: Any, spider: scrapy.Spider) -> Any:
    return codec.decoded(kept(codec.encoded(value, spider)), spider)


def read(context: dict[str, Any], spider: scrapy.Spider) -> scrapy.Request:
    return codec.request_of(Request(URL, context=context), spider)


VALUES = {
    "text": "é",
    "text that no store can hold": "\ud800",
    "bytes": b"\xff",
    "large integer": -(1 << 70),
    "very large integer": 10**5000,
    "infinity": -math.inf,
    "tuple": (1, (2,), []),
    "set": {1, "a"},
    "frozenset": frozenset({(1, 2)}),
    "keys of several types": {1: "a", None: "b", (1, 2): "c", "": "d", "a.b": "e", "$f": 1},
    "keys like a tag": {"@tuple": [1]},
    "key that no store can hold": {"\udfff": 1},
    "key in another script": {"цена": "1"},
    "datetime": datetime.fromisoformat("2026-01-02T03:04:05.678901"),
    "datetime with a zone": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    "date": date(2026, 1, 2),
    "time": time(3, 4, 5, 6),
    "timedelta": timedelta(days=-1, microseconds=7),
    "longest timedelta": timedelta.max,
    "decimal": Decimal("1.10"),
    "range": range(10, -2, -3),
    "ordered dictionary": OrderedDict([("b", 1), ("a", (2,))]),
    "headers": Headers({"X-Token": "é", "Accept": ["a", "b"]}),
    "item": Product(name="a", offers=[Offer(Decimal(1), (38, 39))]),
    "dataclass": Offer(Decimal(1)),
    "attrs": Shop("Bonn", {"a"}),
    "pydantic": Brand(brandName="b"),
    "class": Product,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_returns_with_its_type(value, spider):
    again = decoded({"value": [value]}, spider)["value"][0]

    assert again == value
    assert type(again) is type(value)


def test_not_a_number_returns(spider):
    assert math.isnan(decoded(math.nan, spider))


def test_the_spider_returns_as_the_spider_of_the_process(spider):
    other_spider = ShopSpider()

    assert codec.decoded(codec.encoded([spider], spider), other_spider) == [other_spider]


def test_an_ordered_dictionary_keeps_its_order(spider):
    assert list(decoded(OrderedDict([("b", 1), ("a", 2)]), spider)) == ["b", "a"]


def test_a_callback_can_change_the_values_that_return(spider):
    request = scrapy.Request(URL, meta={"tags": ["a"], "product": {"name": "b"}})

    again = round_trip(request, spider)

    again.meta["tags"].append("c")
    again.meta["product"]["price"] = 1
    assert (type(again.meta["tags"]), type(again.meta["product"])) == (list, dict)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False)
)
KEYS = st.text() | st.integers() | st.dates() | st.tuples(st.text(), st.integers())
LEAVES = (
    SCALARS
    | st.text()
    | st.binary()
    | st.datetimes().map(lambda moment: moment.replace(fold=0))
    | st.timedeltas()
    | KEYS
)
NESTED = st.recursive(
    LEAVES,
    lambda members: (
        st.lists(members)
        | st.dictionaries(KEYS | st.just("@tuple"), members)
        | st.lists(members).map(tuple)
        | st.sets(KEYS)
        | members.map(lambda name: Product(name=name))
    ),
    max_leaves=20,
)


@fuzzed(quick=100, thorough=2000, value=NESTED)
def test_nested_values_return_with_their_types(value):
    again = decoded(value, SPIDER)

    assert again == value
    assert repr(again) == repr(value) or "{" in repr(value)  # the order of sets may differ


SPIDER = ShopSpider()


def test_a_request_returns_with_all_its_attributes(spider):
    request = scrapy.Request(
        f"{URL}?b=1&a=2#reviews",
        spider.parse_product,
        method="PUT",
        headers={"X-Token": "é", "Accept": ["a", "b"]},
        body="ü",
        cookies=[{"name": "a", "value": "b", "domain": "shop.example"}],
        meta={"page": 1},
        encoding="latin-1",
        priority=1000,
        dont_filter=True,
        errback=spider.parse_logged,
        flags=["seen"],
        cb_kwargs={"sku": "b"},
    )

    again = round_trip(request, spider)

    assert again.to_dict(spider=spider) == request.to_dict(spider=spider)
    assert again.headers.getlist("X-Token") == ["é".encode("latin-1")]
    again.headers["X-Other"] = "é"
    assert again.headers["x-other"] == "é".encode("latin-1")


def test_the_context_shows_no_headers_cookies_and_passwords(spider):
    request = scrapy.Request(
        "http://user:s3cret@shop.example/",
        headers={
            "Authorization": "s3cret",
            "X-Twice": ["s3cret a", "s3cret b"],
            "X-Odd": "s3cret\x01",
            "User-Agent": None,
        },
        cookies={"session": "s3cret", "number": 1},
        meta={"proxy": "http://user:s3cret@proxy.example/", "page": 1},
        cb_kwargs={"sku": "b"},
    )
    task = Request(
        request.url,
        headers=codec.task_headers(request),
        context=kept(codec.context_of(request, spider)),
    ).task(now=datetime.now(UTC))

    again = codec.request_of(Request.of(task), spider)

    assert task.shown_context == {"cb_kwargs": {"sku": "b"}}
    assert task.headers == (
        ("Authorization", "s3cret"),
        ("X-Twice", "s3cret a"),
        ("X-Twice", "s3cret b"),
    )
    assert again.to_dict(spider=spider) == request.to_dict(spider=spider)


def test_a_context_shows_a_proxy_without_a_password(spider):
    meta = {"proxy": "http://proxy.example/"}

    assert codec.context_of(scrapy.Request(URL, meta=meta), spider) == {"meta": meta}


def test_a_request_without_a_context_has_the_callback_and_the_headers_of_its_task(spider):
    added = Request(URL, "parse_product", headers={"x-token": "é"})

    request = codec.request_of(added, spider)

    assert request.callback == spider.parse_product
    assert request.headers.getlist("X-Token") == ["é".encode("latin-1")]
    assert codec.request_of(Request(URL), spider).callback is None


def test_a_plain_request_has_a_short_context_and_gets_no_empty_attributes(spider):
    request = scrapy.Request(URL, spider.parse_product)

    assert codec.context_of(request, spider) == {"cb": "parse_product"}
    assert codec.context_of(scrapy.Request(URL), spider) == {}
    again = round_trip(request, spider)
    for empty in (request, again):
        assert (empty._meta, empty._cb_kwargs) == (None, None)
        if hasattr(scrapy.Request, "_headers"):  # since Scrapy 2.15
            assert (empty._headers, empty._cookies, empty._flags) == (None, None, None)


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest(URL, formdata={"a": "1"}),
        JsonRequest(URL, data={"b": 1}, dumps_kwargs={"sort_keys": False}),
        XmlRpcRequest(URL, methodname="list", params=(1,)),
        SignedRequest("s", meta={"page": 1}),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_of_a_subclass_returns_with_its_class_and_state(request_, spider):
    again = round_trip(request_, spider)

    assert type(again) is type(request_)
    assert again.to_dict() == request_.to_dict()
    assert getattr(again, "signature", None) == getattr(request_, "signature", None)


@pytest.mark.parametrize("name", ShopSpider().callbacks())
def test_a_callback_of_each_kind_returns(name, spider):
    callback = spider.callbacks()[name]

    again = round_trip(scrapy.Request(URL, callback, errback=callback), spider)

    assert again.callback("page") == again.errback("page") == callback("page")


def test_no_callback_returns_as_itself(spider):
    assert round_trip(scrapy.Request(URL, NO_CALLBACK), spider).callback is NO_CALLBACK


def test_a_callback_in_the_values_of_a_request_returns(spider):
    again = round_trip(scrapy.Request(URL, meta={"next": spider.parse_product}), spider)

    assert again.meta["next"] == spider.parse_product


def cyclic_list() -> list[Any]:
    members: list[Any] = []
    members.append(members)
    return members


def local_item() -> Any:
    @dataclasses.dataclass
    class LocalItem:
        name: str = ""

    return LocalItem()


UNSTORABLE = {
    "a loader": (lambda _: ItemLoader(Product()), "ItemLoader in meta"),
    "a response": (lambda _: scrapy.http.HtmlResponse(URL), "HtmlResponse in meta"),
    "a file": (lambda _: sys.stdout, "in meta"),
    "an enum": (lambda _: Colour.RED, "Colour in meta"),
    "another dictionary": (lambda _: defaultdict(list), "defaultdict in meta"),
    "an item of a local class": (lambda _: local_item(), "LocalItem in meta"),
    "an item with a loader": (lambda _: Product(name=ItemLoader()), "ItemLoader in meta"),
    "a cycle": (lambda _: cyclic_list(), "nested deeper"),
    "a function of another package": (
        lambda _: importlib.import_module,
        "the function import_module, which",
    ),
    "a method of another object": (lambda _: Helper().parse_offer, "Helper.parse_offer, which"),
    "a function of Python": (lambda _: len, "the function len, which"),
    "a class of another package": (
        lambda _: Path,
        "Path, which the code of the project does not define in meta",
    ),
    "another spider": (lambda _: ShopSpider(), "ShopSpider in meta"),
    "large values": (lambda _: b"0" * (codec.MAX_SIZE + 1), "more than 8 MiB"),
    "a method that a subclass replaces": (
        lambda spider: spider.super_method(),
        "BaseSpider.parse_product, which",
    ),
    "a function that refers to itself": (lambda spider: spider.recursive(), "nested deeper"),
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_value_that_no_ledger_can_store_is_refused_with_its_reason(name, spider):
    value_of, reason = UNSTORABLE[name]

    with pytest.raises(codec.Unstorable) as refusal:
        codec.context_of(scrapy.Request(URL, meta={"value": value_of(spider)}), spider)

    assert reason in str(refusal.value)


def test_the_deepest_values_that_are_stored_return(spider):
    request = scrapy.Request(URL, meta={"value": nested(codec.MAX_DEPTH - 1, Offer(Decimal(1)))})
    with pytest.raises(codec.Unstorable, match="nested deeper"):
        codec.context_of(request, spider)

    request = scrapy.Request(URL, meta={"value": nested(codec.MAX_DEPTH - 4, Offer(Decimal(1)))})
    assert round_trip(request, spider).meta == request.meta


def nested(depth: int, value: Any) -> Any:
    return value if depth == 1 else [nested(depth - 1, value)]


class Bridge(Spider):
    """Sends one Scrapy request through the ledger, and keeps it in `requests`."""

    name = "bridge"

    request: scrapy.Request
    scrapy_spider: ShopSpider
    requests: list[scrapy.Request]

    async def start(self) -> AsyncIterator[Request]:
        context = codec.context_of(self.request, self.scrapy_spider)
        yield Request(self.request.url, context=context)

    def parse(self, response: Response) -> None:
        self.requests.append(codec.request_of(response.request, self.scrapy_spider))


async def test_a_request_returns_from_a_ledger(spider, tmp_path):
    bridge = Bridge(start_urls=[])
    bridge.request = scrapy.Request(URL, spider.parse_product, meta=VALUES)
    bridge.scrapy_spider, bridge.requests = spider, []

    report = await run_spider(
        bridge,
        ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
        settings=Settings(obey_robots=False),
        downloader=ReplayDownloader({URL: Replay(body="")}),
    )

    assert report.failures == {}
    assert [request.meta for request in bridge.requests] == [VALUES]
    assert bridge.requests[0].callback == spider.parse_product


def test_a_request_of_a_local_class_is_refused(spider):
    class LocalRequest(scrapy.Request):
        pass

    with pytest.raises(codec.Unstorable, match="LocalRequest, which no module defines"):
        codec.context_of(LocalRequest(URL), spider)


LAMBDA_SPIDER = """
import scrapy

class LambdaSpider(scrapy.Spider):
    name = "lambda"

    def callback(self, sku):
        return lambda response: (response, sku, {constant!r})
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a project's module anew, as another process does after a change of its text."""
    monkeypatch.syspath_prepend(tmp_path)

    def load_spider(text: str) -> Any:
        (tmp_path / "lambda_project.py").write_text(text)
        sys.modules.pop("lambda_project", None)
        importlib.invalidate_caches()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)
            return importlib.import_module("lambda_project").LambdaSpider()

    yield load_spider
    sys.modules.pop("lambda_project", None)


def test_a_lambda_returns_in_another_process_after_a_change_elsewhere(load):
    spider = load(LAMBDA_SPIDER.format(constant="a"))
    context = codec.context_of(scrapy.Request(URL, spider.callback("b")), spider)

    spider = load("# A comment moves all lines.\n" + LAMBDA_SPIDER.format(constant="a"))

    assert read(context, spider).callback("page") == ("page", "b", "a")


def test_a_lambda_whose_code_has_changed_is_an_error_with_a_way_out(load):
    spider = load(LAMBDA_SPIDER.format(constant="a"))
    context = codec.context_of(scrapy.Request(URL, spider.callback("b")), spider)

    spider = load(LAMBDA_SPIDER.format(constant="c"))

    with pytest.raises(SpiderError) as error:
        read(context, spider)
    assert "LambdaSpider.callback.<locals>.<lambda> has changed" in str(error.value)
    assert str(error.value).endswith("start again with `crawlcw run ... --fresh`")


def test_a_project_of_installed_packages_is_one_package(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    for package in ("installed_shop", "installed_tools"):
        (packages / package).mkdir(parents=True)
        (packages / package / "__init__.py").write_text("def parse(response): return response\n")
    spider_text = "import scrapy\nclass InstalledSpider(scrapy.Spider):\n    name = 'installed'\n"
    (packages / "installed_shop" / "spiders.py").write_text(spider_text)
    monkeypatch.syspath_prepend(packages)
    names = ("installed_shop.spiders", "installed_shop", "installed_tools")
    spiders, shop, tools = map(importlib.import_module, names)
    spider = spiders.InstalledSpider()

    assert codec.decoded(codec.encoded(shop.parse, spider), spider) is shop.parse
    with pytest.raises(codec.Unstorable, match="the function parse, which"):
        codec.encoded(tools.parse, spider)
    for name in names:
        del sys.modules[name]


def test_a_method_that_the_spider_no_longer_has_is_an_error_with_a_way_out(spider):
    with pytest.raises(SpiderError, match=r"ShopSpider has no method parse_old.*--fresh"):
        read({"cb": "parse_old"}, spider)


PRODUCT = codec.class_name(Product)
HOSTILE = {
    "unknown module": {"@item": ["antigravity:Item", {}]},
    "class that is no item": {"@item": ["subprocess:Popen", {"args": ["true"]}]},
    "dictionary as an item": {"@item": ["collections:OrderedDict", {}]},
    "name with dots": {"@item": [f"{PRODUCT}.__class__", {}]},
    "dunder name": {"@item": [f"{PRODUCT.partition(':')[0]}:__builtins__.eval", {}]},
    "module of a module": {"@item": [f"{__name__}:dataclasses.dataclass", {}]},
    "dunder field": {"@item": [PRODUCT, {"__class__": {"@name": [PRODUCT]}}]},
    "name without a module": {"@item": ["Product", {}]},
    "item without a name": {"@item": []},
    "function of another module": {"@name": ["os:system"]},
    "function that a module imports": {"@name": [f"{__name__}:dataclasses"]},
    "imported function": {"@name": [f"{__name__}:fuzzed"]},
    "built-in function": {"@name": ["builtins:eval"]},
    "partial of another function": {"@partial": [{"@name": ["os:system"]}, ["true"], {}]},
    "partial of text": {"@partial": ["parse", [], {}]},
    "code of another module": {"@code": ["os:makedirs", "0" * 16, [], None, None]},
    "unknown code": {"@code": [f"{__name__}:f", "0" * 16, [], None, None]},
    "code without parts": {"@code": [f"{__name__}:f"]},
    "dunder method": {"@method": ["__init__"]},
    "attribute that is no method": {"@method": ["name"]},
    "dunder method of an object": {"@method": ["__reduce__", "helper"]},
    "object that the spider lacks": {"@method": ["parse", "helpers"]},
    "unknown tag": {"@pickle": "gASV"},
    "number that is none": {"@int": "x"},
    "decimal that is none": {"@decimal": "x"},
    "date of a number": {"@date": 1},
    "text of text": {"@text": "x"},
    "set of lists": {"@set": [[]]},
    "pair of three": {"@dict": [[1, 2, 3]]},
    "headers of numbers": {"@headers": [[1]]},
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_value_imports_nothing_and_is_an_error(value, spider):
    modules = set(sys.modules)

    with pytest.raises(MISFITS):
        codec.decoded(value, spider)
    with pytest.raises(SpiderError, match="--fresh"):
        read({"meta": {"value": value}}, spider)
    with pytest.raises(SpiderError, match="--fresh"):
        read({"cb": value}, spider)

    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    "context",
    [
        {"cb": "__init__"},
        {"cb": "name"},
        {"cb": 1},
        {"class": "subprocess:Popen"},
        {"class": "antigravity:Request"},
        {"class": PRODUCT},
        {"class": 1},
        {"class": codec.class_name(SignedRequest), "state": {"__class__": 1}},
        {"url": "no address"},
        {"url": 1},
        {"headers": {"a": "b"}},
        {"__private__": 1},
        {"__private__": {"headers": {"a": "b"}}},
        {"priority": "high"},
        {"encoding": "nothing"},
    ],
    ids=str,
)
def test_a_hostile_context_is_an_error(context, spider):
    with pytest.raises(SpiderError, match="--fresh"):
        read(context, spider)


def test_the_class_of_an_item_has_a_name():
    assert codec.item_class(codec.class_name(Product)) is Product
    assert codec.item_class("antigravity:Item") is None
    assert codec.item_class(codec.class_name(Helper)) is None


def test_the_values_of_an_item_are_those_of_a_json_feed():
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    product = Product(
        name="a",
        offers=[
            Offer(Decimal("1.5"), (38,)),
            {1: date(2026, 1, 2), "set": {1}},
            b"x",
            Colour.RED,
            scrapy.Request(URL),
            Path("/x"),
        ],
    )

    assert codec.item_values(product) == {
        "name": "a",
        "offers": [
            {"price": "1.5", "sizes": [38], "label": "new"},
            {"1": "2026-01-02", "set": [1]},
            b"x",
            Colour.RED,
            f"<Request GET {URL}>",
            "/x",
        ],
    }
    values.clean(codec.item_values(loop))


def test_the_headers_of_a_response_are_bytes_with_each_cookie_apart():
    response = Response(
        URL, request=Request(URL), headers={"X-Name": "\udcff", "Set-Cookie": "a=1, b=2"}
    )
    response.set_cookies = ("a=1", "b=2")

    headers = codec.response_headers(response)

    assert headers["x-name"] == b"\xff"
    assert headers.getlist("Set-Cookie") == [b"a=1", b"b=2"]
