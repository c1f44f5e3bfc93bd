"""`self.state` as a mapping: accepted values, and errors for others."""

from typing import Any

import pytest

from crawlcw import Request, Spider
from crawlcw.errors import SpiderError
from crawlcw.model.spider_state import State

pytestmark = pytest.mark.quick


class Books(Spider):
    name = "books"

    def parse(self, response: Any) -> Any:
        self.state.add("pages")


def test_a_callback_may_be_tried_without_a_crawl():
    spider = Books()

    spider.parse(None)
    spider.parse(None)

    assert dict(spider.state) == {"pages": 2}
    assert dict(Books().state) == {}


def test_it_is_a_mapping():
    state = State()
    state["a"] = 1
    state.update(b=[1], c=None)
    state["b"] += [2]
    del state["a"]

    assert state == {"b": [1, 2], "c": None}
    assert (len(state), list(state), "a" in state, state.get("a", 7)) == (2, ["b", "c"], False, 7)
    assert state.setdefault("d", 4) == 4
    assert state.pop("d") == 4
    assert repr(state) == "State({'b': [1, 2], 'c': None})"
    with pytest.raises(KeyError):
        state["a"]
    with pytest.raises(KeyError):
        del state["a"]


def test_a_value_is_a_copy_that_cannot_be_changed():
    state, seen = State(), ["a"]
    state["seen"] = seen
    seen.append("b")

    assert state["seen"] == ["a"]
    with pytest.raises(TypeError, match="this list is read-only"):
        state["seen"].append("c")


def test_what_no_item_may_have_is_named():
    state = State()

    with pytest.raises(TypeError, match=r"self\.state cannot store it: 'next\[0\]' is a Request"):
        state["next"] = [Request("https://a.example/")]
    with pytest.raises(TypeError, match=r"a name in self\.state must be text, but 7 is int"):
        state[7] = 1  # type: ignore[index]  # as a user may write it


def test_adding_takes_numbers_alone():
    state = State()
    state.add("n")
    state.add("n", 2.5)
    state["text"] = "x"

    assert state["n"] == 3.5
    with pytest.raises(TypeError, match=r"self\.state\['text'\] is not a number but str"):
        state.add("text")
    for wrong in (float("nan"), "1", True, None):
        with pytest.raises(TypeError, match=r"self\.state\.add\(\) takes a number"):
            state.add("n", wrong)  # type: ignore[arg-type]  # as a user may write it
    with pytest.raises(OverflowError, match="over 64 bits"):
        state.add("m", 1 << 63)


def test_a_state_that_is_too_large_is_told_with_the_way_out():
    state = State()
    state["small"] = "x" * 1000

    with pytest.raises(SpiderError, match=r"1,048,576 are allowed.*Request\(context=\.\.\.\)"):
        state["large"] = "x" * (1 << 20)

    state["small"] = "x" * 1_000_000
    with pytest.raises(SpiderError, match="with 'more'"):
        state["more"] = ["x" * 100_000]
    del state["small"]
    state["more"] = ["x" * 100_000]
    assert list(state) == ["more"]


def test_an_attribute_of_the_spiders_own_may_stand_for_it():
    class Shops(Spider):
        name = "shops"
        start_urls = ("https://a.example/",)

    assert Shops(state="CA").state == "CA"
    assert type(Shops().state) is State
