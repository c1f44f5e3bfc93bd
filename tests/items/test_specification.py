"""`Extraction` makes items by a specification in JSON."""

import json
from decimal import Decimal
from typing import Any

import pytest

from crawlcw import Extraction
from crawlcw.errors import InvalidItemError, SpiderError
from crawlcw.model.values import ItemFields
from tests.items import kinds
from tests.items.kinds import page, plain

pytestmark = pytest.mark.quick

BOOK = """{
    "name": "Book",
    "fields": {
        "title": "h1",
        "price": {"css": ".price", "re": "[\\\\d.]+", "type": "decimal"},
        "tags": {"css": "a.tag", "list": true},
        "url": {"css": "a", "attr": "href"},
        "author": {"jsonld": "author.name", "kind": "Book", "optional": true},
        "reviews": {
            "css": "div.review",
            "list": true,
            "fields": {"stars": {"css": "b", "type": "int"}, "text": "i"}
        }
    }
}"""


def test_a_specification_makes_the_item_of_a_class():
    (item,) = Extraction.of(json.loads(BOOK)).items(page(kinds.BOOK))

    assert plain(item) == plain(page(kinds.BOOK).extract(kinds.book(kinds.as_typed_dict)))
    assert isinstance(item, ItemFields)
    assert item.item_class == "Book"


def test_a_specification_makes_an_item_of_each_block():
    document = {"blocks": {"css": "article"}, "fields": {"name": {"css": "a", "attr": "title"}}}

    items = Extraction.of(document).items(page(kinds.PRODUCTS))

    assert items == [{"name": "The first"}, {"name": "The second"}]


def test_blocks_can_be_those_of_other_selectors():
    by_jsonld = {
        "blocks": {"jsonld": "offers", "kind": "Product"},
        "fields": {"price": {"jsonld": "price", "type": "decimal"}},
    }
    by_xpath = {"blocks": {"xpath": "//article"}, "fields": {"name": {"xpath": ".//a/@title"}}}

    assert Extraction.of(by_jsonld).items(page(kinds.CATALOGUE)) == [
        {"price": Decimal("2.5")},
        {"price": Decimal(3)},
    ]
    assert len(Extraction.of(by_xpath).items(page(kinds.PRODUCTS))) == 2


def test_an_error_names_the_path_of_the_field():
    with pytest.raises(InvalidItemError, match=r"^Book.reviews.stars is not an int: Css\('b'\)"):
        Extraction.of(json.loads(BOOK)).items(page(kinds.BOOK.replace("<b>5", "<b>x")))


def test_an_invalid_item_can_be_left_out():
    response = page(kinds.BOOK.replace("h1", "h2"))
    response.invalid_item_reasons = []

    assert Extraction.of(json.loads(BOOK)).items(response) == []
    assert response.invalid_item_reasons == ["Book.title is missing: no value from Css('h1')"]


def nested(depth: int) -> dict[str, Any]:
    fields: Any = {"x": "h1"}
    for _ in range(depth):
        fields = {"x": {"css": "div", "fields": fields}}
    return {"fields": fields}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], r"^the specification must be an object, not \[\]"),
        ({}, r"^Item: 'fields' must be an object with a selector for each field"),
        ({"fields": {}}, r"^Item: 'fields' must be an object"),
        ({"fields": []}, r"^the specification: 'fields' must be a dict"),
        ({"name": 1, "fields": {"x": "a"}}, r"'name' must be a str, not 1"),
        ({"field": {}}, r"^the specification: unknown key 'field': use blocks, fields, name"),
        ({"fields": {"x": 1}}, r"^Item.x: write a CSS selector or an object, not 1"),
        ({"fields": {"x": {}}}, r"^Item.x: write one of 'css', 'xpath' and 'jsonld'"),
        ({"fields": {"x": {"css": "a", "xpath": "//a"}}}, r"^Item.x: write one of"),
        ({"fields": {"x": {"css": "a["}}}, r"^Item.x: 'a\[' is not a CSS selector"),
        ({"fields": {"x": {"css": "a", "re": "("}}}, r"^Item.x: Re\('\('\) is not a regular"),
        ({"fields": {"x": {"css": "a", "type": "url"}}}, r"^Item.x: unknown type 'url': use one"),
        ({"fields": {"x": {"css": "a", "code": "1+1"}}}, r"^Item.x: unknown key 'code'"),
        ({"fields": {"x": {"css": "a", "kind": "Book"}}}, r"^Item.x: 'kind' needs 'jsonld'"),
        ({"fields": {"x": {"jsonld": "a", "attr": "b"}}}, r"^Item.x: 'attr' needs 'css'"),
        ({"fields": {"x": {"css": "a", "list": 1}}}, r"^Item.x: 'list' must be a bool, not 1"),
        (
            {"fields": {"x": {"css": "a", "type": "int", "fields": {"y": "b"}}}},
            r"^Item.x: write 'fields' or 'type', not both",
        ),
        ({"blocks": {}, "fields": {"x": "a"}}, r"^blocks: write one of 'css'"),
        ({"blocks": {"css": "a["}, "fields": {"x": "a"}}, r"^blocks: 'a\[' is not a CSS selector"),
        (nested(11), r"items are nested more than 10 deep"),
    ],
)
def test_a_wrong_specification_names_its_place(document: Any, message: str):
    with pytest.raises(SpiderError, match=message):
        Extraction.of(document)


def test_a_specification_can_be_deep():
    assert Extraction.of(nested(10)).items(page("<div><h1>x")) != []
