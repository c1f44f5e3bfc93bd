"""`response.extract` and `extract_all` fill item classes of every kind by their annotations."""

import dataclasses
import sys
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, NotRequired, TypedDict

import attrs
import pytest
from pydantic import AliasChoices, BaseModel, Field, HttpUrl, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from crawlcw import Css, Extraction, JsonLd, Re, XPath
from crawlcw.errors import InvalidItemError, SpiderError
from crawlcw.model.values import ItemFields, cleaned_item
from tests.items import kinds
from tests.items.kinds import KINDS, URL, Kind, jsonld, page, plain

pytestmark = pytest.mark.quick


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


# The same five classes in every kind


def test_a_book(kind: Kind):
    item = page(kinds.BOOK).extract(kinds.book(kind))

    assert plain(item) == {
        "title": "A book",
        "price": Decimal("51.77"),
        "tags": ["one", "two"],
        "url": "https://shop.example/tag/1",
        "author": "Ann",
        "reviews": [{"stars": 5, "text": "Good"}, {"stars": 3, "text": "Bad"}],
    }


def test_an_article(kind: Kind):
    item = page(kinds.ARTICLE).extract(kinds.article(kind))

    assert plain(item) == {
        "headline": "News",
        "published": datetime(2026, 7, 4, 10),  # noqa: DTZ001  # as on the page
        "day": date(2026, 7, 4),
        "words": 1200,
        "score": 0.5,
        "is_free": True,
    }


def test_products_in_blocks(kind: Kind):
    items = page(kinds.PRODUCTS).extract_all(kinds.product(kind), "article")

    assert [plain(item) for item in items] == [
        {
            "name": "The first",
            "url": "https://shop.example/books/a/1",
            "image": "https://shop.example/i/1.png",
        },
        {"name": "The second", "url": "https://cdn.example/2", "image": None},
    ]


def test_a_catalogue_in_a_graph_of_json_ld(kind: Kind):
    item = page(kinds.CATALOGUE).extract(kinds.catalogue(kind))

    assert plain(item) == {
        "name": "Tea",
        "brand": "Leaf",
        "images": ["a.png", "c.png"],
        "offers": [
            {"price": Decimal("2.5"), "seller": "Ann"},
            {"price": Decimal(3), "seller": None},
        ],
        "best": {"price": Decimal("2.5"), "seller": "Ann"},
    }


def test_a_contact_by_xpath_and_patterns(kind: Kind):
    item = page(kinds.CONTACT).extract(kinds.contact(kind))

    assert plain(item) == {
        "name": "Ann",
        "mail": "mailto:ann@a.example",
        "home": "https://shop.example/~ann",
        "phones": ["+49 30 1", "+49 30 2"],
    }


def test_the_ledger_gets_the_name_of_the_class(kind: Kind):
    item = cleaned_item(page(kinds.BOOK).extract(kinds.book(kind)))

    assert isinstance(item, ItemFields)
    assert item.item_class == "Book"
    assert item["price"] == Decimal("51.77")


# Wrong pages


def test_a_missing_required_field_names_item_field_selector_and_page(kind: Kind):
    without_title = kinds.BOOK.replace("h1", "h2")

    with pytest.raises(InvalidItemError) as caught:
        page(without_title).extract(kinds.book(kind))

    assert str(caught.value) == (f"Book.title is missing: no value from Css('h1') (page {URL})")
    assert caught.value.reason == "Book.title is missing: no value from Css('h1')"


@pytest.mark.parametrize(
    ("old", "new"),
    [("A\n <em>book</em>", "<em> </em>"), ("51.77", "on request"), ("<b>5</b>", "")],
)
def test_a_blank_value_is_a_missing_value(kind: Kind, old: str, new: str):
    with pytest.raises(InvalidItemError, match=r" is missing: no value from "):
        page(kinds.BOOK.replace(old, new)).extract(kinds.book(kind))


@pytest.mark.parametrize(
    ("markup", "make", "old", "new", "message"),
    [
        (kinds.BOOK, kinds.book, "51.77", "1.2.3", r"^Book.price is .*'1.2.3'"),
        (kinds.BOOK, kinds.book, "<b>5</b>", "<b>five</b>", r"^Review.stars is .*'five'"),
        (kinds.ARTICLE, kinds.article, "true", '"maybe"', r"^Article.is_free is .*'maybe'"),
        (kinds.ARTICLE, kinds.article, "1200", "12.5", r"^Article.words is .*'12.5'"),
        (kinds.ARTICLE, kinds.article, "2026-07-04>", "4.7.2026>", r"^Article.day is .*'4.7.2026'"),
        (kinds.ARTICLE, kinds.article, "2026-07-04>", "2026-07-04T01:00>", r"^Article.day is "),
        (kinds.ARTICLE, kinds.article, "T10:", "T1:", r"^Article.published is "),
        (kinds.ARTICLE, kinds.article, "=0.5", "=half", r"^Article.score is .*'half'"),
        (kinds.CATALOGUE, kinds.catalogue, '"3"', '"NaN"', r"^Offer.price is .*'NaN'"),
    ],
)
def test_a_wrong_type_names_field_selector_and_page(
    kind: Kind, markup: str, make: Any, old: str, new: str, message: str
):
    with pytest.raises(InvalidItemError, match=message) as caught:
        page(markup.replace(old, new)).extract(make(kind))

    assert f" (page {URL})" in str(caught.value)
    assert "Css(" in caught.value.reason or "JsonLd(" in caught.value.reason


def test_the_reason_has_no_text_of_the_page(kind: Kind):
    """Reasons are counted, and a site must not make as many reasons as it has pages."""
    with pytest.raises(InvalidItemError) as caught:
        page(kinds.BOOK.replace("51.77", "1.2.3")).extract(kinds.book(kind))

    assert "1.2.3" not in caught.value.reason
    assert URL not in caught.value.reason


def test_a_list_without_a_match_is_empty(kind: Kind):
    item = page("<h1>B</h1><p class=price>1</p><a href=x>y</a>").extract(kinds.book(kind))

    assert plain(item)["tags"] == plain(item)["reviews"] == []


def test_blank_members_of_a_list_are_left_out(kind: Kind):
    item = page(kinds.BOOK, "<a class=tag> </a><a class=tag>three</a>").extract(kinds.book(kind))

    assert plain(item)["tags"] == ["one", "two", "three"]


def test_the_first_of_several_matches_counts(kind: Kind):
    item = page(kinds.BOOK, "<h1>Another</h1><p class=price>9</p>").extract(kinds.book(kind))

    assert (plain(item)["title"], plain(item)["price"]) == ("A book", Decimal("51.77"))


def test_the_second_selector_helps_if_the_first_has_no_value(kind: Kind):
    item = page(kinds.ARTICLE.replace('"headline": "News",', "")).extract(kinds.article(kind))

    assert plain(item)["headline"] == "Other"


HOSTILE = "\x1b[2J$where \u202e{{7*7}}' OR 1=1 --"


def test_hostile_text_is_a_value_like_others(kind: Kind):
    item = page(kinds.BOOK.replace("A\n <em>book</em>", HOSTILE)).extract(kinds.book(kind))

    assert plain(item)["title"] == HOSTILE


def test_hostile_text_is_quoted_in_an_error(kind: Kind):
    hostile = kinds.BOOK.replace("<b>5</b>", f"<b>{HOSTILE}{'x' * 5000}</b>")

    with pytest.raises(InvalidItemError) as caught:
        page(hostile).extract(kinds.book(kind))

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("x", "https://base.example/d/x"),
        ("?q=ä", "https://base.example/d/?q=%C3%A4"),
        ("#top", "https://base.example/d/"),
        ("javascript:void(0)", "javascript:void(0)"),
    ],
)
def test_links_are_relative_to_the_base(kind: Kind, href: str, url: str):
    based = "<base href=https://base.example/d/>" + kinds.BOOK.replace("/tag/1", f"'{href}'")

    assert plain(page(based).extract(kinds.book(kind)))["url"] == url


@pytest.mark.parametrize("href", ["http://[", "''", "https://:99999/"])
def test_a_broken_link_is_a_missing_value(kind: Kind, href: str):
    with pytest.raises(
        InvalidItemError, match=r"Book.url is missing: no value from Css\('a', attr"
    ):
        page(kinds.BOOK.replace("/tag/1", href)).extract(kinds.book(kind))


@pytest.mark.parametrize(
    "text",
    [
        '{"@type": "Book", "author": {"name": ',
        '{"@type": "Book", "author": "Ann"}',
        '{"@type": "Book", "author": {"name": null}}',
        '{"@type": "Book", "author": {"@id": "#nowhere"}}',
        '[[["Ann"]]]',
        "[" * 100_000,
        '{"author": ' + "[" * 900 + "]" * 900 + "}",
        '{"author": {"name": {"@value": {"@value": "Ann"}}}}',
        "",
    ],
)
def test_broken_json_ld_has_no_value(kind: Kind, text: str):
    without_script = kinds.BOOK.partition("<script")[0]

    item = page(without_script, jsonld(text)).extract(kinds.book(kind))

    assert plain(item)["author"] is None


def test_loose_json_ld_is_read(kind: Kind):
    script = jsonld('<!-- [{"x": 1,}, {"author": [[{"name": ["Ann"]}]],},] -->')

    item = page(kinds.BOOK.partition("<script")[0], script).extract(kinds.book(kind))

    assert plain(item)["author"] == "Ann"


def test_objects_that_name_one_another_end(kind: Kind):
    script = jsonld('[{"@id": "#a", "author": {"@id": "#a"}}, {"@id": "#b"}]')

    item = page(kinds.BOOK.partition("<script")[0], script).extract(kinds.book(kind))

    assert plain(item)["author"] is None


@pytest.mark.parametrize(
    ("pattern", "phones"),
    [
        (r"(x)?\+49", []),
        (r"30( \d)", ["1", "2"]),
        (r"(\+49).*", ["+49"]),
        (r"nothing", []),
    ],
)
def test_a_list_has_the_first_group_of_each_match(kind: Kind, pattern: str, phones: list[str]):
    hint = Annotated[list[str], Css(".phones"), Re(pattern)]

    item = page(kinds.CONTACT).extract(kind("Phones", {"phones": hint}))

    assert plain(item)["phones"] == phones


def test_a_second_pattern_reads_the_value_of_the_first(kind: Kind):
    hint = Annotated[int, Css(".phones"), Re(r"\+49 30 (\d|x)?"), Re(r"\d")]

    assert plain(page(kinds.CONTACT).extract(kind("Phone", {"digit": hint}))) == {"digit": 1}


def test_blocks_without_a_match_give_no_items(kind: Kind):
    assert page(kinds.BOOK).extract_all(kinds.product(kind), "article") == []


def test_an_invalid_block_fails_all(kind: Kind):
    with pytest.raises(InvalidItemError, match=r"^Product.name is missing"):
        page(kinds.PRODUCTS, "<article></article>").extract_all(kinds.product(kind), "article")


# Blocks


def test_a_block_counts_itself():
    links = page(kinds.BOOK).extract_all(Link, "a.tag")

    assert [link.text for link in links] == ["one", "two"]
    assert links[1].url == "https://shop.example/books/tag/2"


@dataclasses.dataclass
class Link:
    url: Annotated[str, Css("a", attr="HREF")]
    text: Annotated[str, Css("*")]


@dataclasses.dataclass
class Row:
    text: Annotated[str, XPath("./td[1]")]
    link: Annotated[str, XPath(".//a/@href")]


def test_blocks_by_xpath():
    markup = "<table><tr><td>1<!--x--><td><a href=a>a</a><tr><td>2<td><a href=b>b</a></table>"

    assert page(markup).extract_all(Row, XPath("//tr")) == [
        Row("1", "https://shop.example/books/a"),
        Row("2", "https://shop.example/books/b"),
    ]


def test_blocks_by_json_ld():
    script = jsonld('{"itemListElement": [{"item": {"name": "a"}}, {"item": {"name": "b"}}]}')

    names = page(script).extract_all(Named, JsonLd("itemListElement.item"))

    assert [named.name for named in names] == ["a", "b"]


@dataclasses.dataclass
class Named:
    name: Annotated[str, JsonLd("name")]


@pytest.mark.parametrize(("item_class", "blocks"), [(Row, "article"), (Link, XPath("//article"))])
def test_a_block_has_selectors_of_its_own_kind(item_class: type, blocks: Any):
    with pytest.raises(SpiderError, match="Css needs a block that a Css selects"):
        page(kinds.PRODUCTS).extract_all(item_class, blocks)


# Each kind of class has its own defaults


@dataclasses.dataclass
class WithDefaults:
    title: Annotated[str, Css("h1")]
    kind: str = "book"
    price: Annotated[Decimal, Css(".price")] = Decimal(0)
    tags: Annotated[list[str], Css("a")] = dataclasses.field(default_factory=lambda: ["none"])
    size: int = dataclasses.field(init=False, default=7)


@attrs.frozen
class FrozenDefaults:
    title: Annotated[str, Css("h1")]
    _shelf: Annotated[str, Css(".shelf")] = "s"
    tags: Annotated[list[str], Css("a")] = attrs.field(factory=lambda: ["none"])


class PartialBook(TypedDict):
    title: Annotated[str, Css("h1")]
    price: NotRequired[Annotated[Decimal, Css(".price")]]


def test_a_class_has_its_own_defaults():
    only_title, full = page("<h1>T</h1>"), page("<h1>T</h1><p class=shelf>A</p><p class=price>2")

    assert only_title.extract(WithDefaults) == WithDefaults("T")
    assert only_title.extract(FrozenDefaults) == FrozenDefaults("T")
    assert full.extract(FrozenDefaults) == FrozenDefaults("T", "A")
    assert only_title.extract(PartialBook) == {"title": "T"}
    assert full.extract(PartialBook) == {"title": "T", "price": Decimal(2)}


class Model(BaseModel, populate_by_name=False):
    name: Annotated[str, Css("h1")] = Field(alias="theName", min_length=2)
    site: Annotated[HttpUrl, Css("a", attr="href")] = Field(validation_alias=AliasChoices("s", "t"))
    stock: Annotated[int, Css(".stock"), Field(ge=0)] = 3

    @field_validator("stock", mode="before")
    @classmethod
    def words(cls, value: Any) -> Any:
        return {"none": 0}.get(value, value)


def test_pydantic_validates_its_own_models():
    item = page("<h1>Tea</h1><a href=/x>x</a><p class=stock>none</p>").extract(Model)

    assert (item.name, str(item.site), item.stock) == ("Tea", "https://shop.example/x", 0)
    with pytest.raises(InvalidItemError, match=r"^Model.name is invalid \(string_too_short\): Css"):
        page("<h1>T</h1><a href=/x>x</a>").extract(Model)
    with pytest.raises(InvalidItemError, match=r"^Model.stock is invalid \(greater_than_equal\)"):
        page("<h1>Tea</h1><a href=/x>x</a><p class=stock>-1</p>").extract(Model)


@pydantic_dataclass
class Checked:
    stock: Annotated[int, Css("p"), Field(ge=0)]


@dataclasses.dataclass
class Even:
    number: Annotated[int, Css("p")]

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


def test_a_class_that_refuses_its_values_is_an_invalid_item():
    with pytest.raises(InvalidItemError, match=r"^Even is invalid: 3 is odd \(page "):
        page("<p>3</p>").extract(Even)
    with pytest.raises(InvalidItemError, match=r"^Checked.stock is invalid \(greater_than_equal\)"):
        page("<p>-3</p>").extract(Checked)


# Classes that are wrong


class Plain:
    title: Annotated[str, Css("h1")]


@dataclasses.dataclass
class Tree:
    children: "Annotated[list[Tree], Css('div')]"


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Annotated[set[str], Css("b")], {"2", "1"}),
        (Annotated[frozenset[int], Css("b")], frozenset({1, 2})),
        (Annotated[tuple[int, ...], Css("b")], (2, 1, 2)),
        (Annotated[tuple, Css("b")], ("2", "1", "2")),
        (Annotated[set[int] | None, Css("i")], None),
        (Annotated[tuple[str, ...], Css("i")], ()),
    ],
)
def test_the_values_of_a_selector_fill_a_set_or_a_tuple(kind: Kind, hint: Any, value: Any):
    item = page("<b>2</b><b>1</b><b>2</b>").extract(kind("Numbers", {"x": hint}))

    assert (item["x"] if isinstance(item, dict) else item.x) == value


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Stars(IntEnum):
    ONE = 1
    TWO = 2


def test_a_text_is_the_value_of_a_member_of_an_enumeration(kind: Kind):
    hints = {"colour": Annotated[Colour, Css("b")], "stars": Annotated[list[Stars], Css("i")]}

    item = page("<b>blue</b><i>2</i><i>1</i>").extract(kind("Kinds", hints))

    assert (item["stars"] if isinstance(item, dict) else item.stars) == [Stars.TWO, Stars.ONE]
    assert cleaned_item(item) == {"colour": "blue", "stars": [2, 1]}


def test_a_text_that_is_no_member_makes_the_item_invalid():
    item_class = kinds.as_dataclass("Kinds", {"colour": Annotated[Colour, Css("b")]})

    with pytest.raises(InvalidItemError, match=r"^Kinds.colour is not a Colour: Css\('b'\): gives"):
        page("<b>green</b>").extract(item_class)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Annotated[str, Css("h1[")], r"^Bad.x: 'h1\[' is not a CSS selector"),
        (Annotated[str, Css("h1::text")], r"^Bad.x: 'h1::text' is not a CSS selector"),
        (Annotated[str, Re("x")], r"^Bad.x: write Re\('x'\) behind its selector"),
        (Annotated[str, Css("h1"), Re("(")], r"^Bad.x: Re\('\('\) is not a regular expression"),
        (Annotated[tuple[str, int], Css("h1")], r"^Bad.x: a selector fills a list, a set or a t"),
        (Annotated[list[list[str]], Css("h1")], r"^Bad.x: a selector fills a list, a set or a t"),
        (Annotated[dict[str, str], Css("h1")], r"^Bad.x: a selector fills a list, a set or a t"),
        (Annotated[set[Row], Css("h1")], r"^Bad.x: items cannot be in a set: use a list or a"),
        (Annotated[bytes, Css("h1")], r"^Bad.x: use str, int, float, .*, an Enum, a list, set"),
        (Annotated[int | str, Css("h1")], r"^Bad.x: use str, int"),
        (
            Annotated[list[Row], Css("h1"), Re("x")],
            r"^Bad.x has an item class, so it can have no Re",
        ),
        (str, r"^Bad.x has no selector: write Annotated"),
        (str | None, r"^Bad has no selector: write title: Annotated"),
    ],
)
def test_a_wrong_annotation_is_an_error_of_the_spider(hint: Any, message: str):
    with pytest.raises(SpiderError, match=message):
        page("<h1>x</h1>").extract(kinds.as_dataclass("Bad", {"x": hint}))


def test_an_xpath_without_parsel_is_an_error_before_the_first_page(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "parsel", None)
    specification = {"fields": {"title": {"xpath": "//h1"}}}

    with pytest.raises(SpiderError, match=r"^Item.title: XPath\('//h1'\) needs parsel: install it"):
        Extraction.of(specification)


@pytest.mark.parametrize(
    ("item_class", "message"),
    [
        (Plain, "is not an item class: write a dataclass"),
        (dict, "is not an item class"),
        (Tree, r"^Tree contains itself"),
    ],
)
def test_a_wrong_class_is_an_error_of_the_spider(item_class: type, message: str):
    with pytest.raises(SpiderError, match=message):
        page("<h1>x</h1>").extract(item_class)


def test_a_type_that_no_module_has_is_an_error_of_the_spider():
    class Inner:
        pass

    with pytest.raises(SpiderError, match="define the types of its fields at module level"):
        page("").extract(kinds.as_dataclass("Bad", {"x": "Annotated[Inner, Css('a')]"}))


# What `crawlcw parse` shows


def test_the_selectors_that_filled_the_fields_are_counted():
    response = page(kinds.ARTICLE.replace('"headline": "News",', ""), kinds.PRODUCTS)
    response.field_sources = Counter()

    response.extract_all(kinds.product(kinds.as_attrs), "article")
    response.extract(kinds.article(kinds.as_attrs))

    assert response.field_sources["Product.name", "Css('h3 a', attr='title')"] == 2
    assert response.field_sources["Product.image", "Css('img', attr='src')"] == 1
    assert response.field_sources["Product.image", ""] == 1
    assert response.field_sources["Article.headline", "Css('h1')"] == 1
