"""Items: accepted types, and refused values with their path and a hint."""

import re
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import parsel
import pydantic
import pytest
import yarl
from selectolax.lexbor import LexborHTMLParser

from crawlcw.errors import InvalidItemError
from crawlcw.model.values import cleaned_item, is_item

pytestmark = pytest.mark.quick

NODE = LexborHTMLParser("<h1 id=a>Tea</h1>").css_first("h1")
SELECTOR = parsel.Selector("<h1>Tea</h1>")


class Address(pydantic.BaseModel):
    url: pydantic.HttpUrl


class Odd:
    pass


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"t": NODE}, "'t' is a LexborNode: did you mean .text()?"),
        ({"n": 1, "all": [1, NODE]}, "'all[1]' is a LexborNode: did you mean .text()?"),
        ({"a": {"b": ({"c": NODE},)}}, "'a.b[0].c' is a LexborNode: did you mean .text()?"),
        ({"t": SELECTOR.css("h1")}, "'t' is a SelectorList: did you mean .get() or .getall()?"),
        ({"t": SELECTOR.css("h1")[0]}, "'t' is a Selector: did you mean .get()?"),
        ({"t": NODE.text}, "'t' is a method: did you mean to call it?"),
        ({"t": (n for n in "ab")}, "'t' is a generator: did you mean list(...)?"),
        ({"t": re.match("a", "a")}, "'t' is a Match: did you mean .group()?"),
        ({"t": {}.keys()}, "'t' is a dict_keys: did you mean list(...)?"),
        ({"t": Odd()}, "'t' is an Odd: make it text, a number, a date, a list or a dict"),
        ({"\x1b[31m": Odd()}, r"'\x1b[31m' is an Odd: "),
    ],
)
def test_a_value_of_no_known_kind_is_refused_with_its_place(fields: Mapping[str, Any], told: str):
    with pytest.raises(InvalidItemError) as caught:
        cleaned_item(fields)

    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (timedelta(seconds=5), "0:00:05"),
        (Fraction(1, 2), "1/2"),
        (1 + 2j, "(1+2j)"),
        (PurePosixPath("/a"), "/a"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (ip_address("192.0.2.1"), "192.0.2.1"),
        (yarl.URL("http://a.example/"), "http://a.example/"),
        (Address(url="http://a.example/x"), {"url": "http://a.example/x"}),
    ],
)
def test_what_has_a_text_that_says_all_of_it_is_stored_as_that(value: object, stored: object):
    assert cleaned_item({"v": [value]}) == {"v": [stored]}


def test_what_is_nested_without_end_is_stored_as_ever():
    endless: dict[str, Any] = {"n": 1}
    endless["again"] = endless

    assert cleaned_item(endless)["n"] == 1


def test_an_item_has_named_parts():
    assert is_item({"a": 1})
    assert is_item(Address(url="http://a.example/"))
    assert not is_item("text")
    with pytest.raises(InvalidItemError, match="str is not an item: yield a dict"):
        cleaned_item("text")
