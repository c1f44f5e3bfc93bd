"""Lists and dictionaries that refuse changes, and equal the plain ones."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from crawlcw.model import values
from crawlcw.model.values import frozen, thawed

pytestmark = pytest.mark.quick

PLAIN = {"list": [1, {"deep": [2]}], "none": None, "text": "x"}


def test_what_is_frozen_is_equal_and_may_be_stored_anew():
    made = frozen(PLAIN)

    assert made == PLAIN
    assert json.loads(json.dumps(made)) == PLAIN
    assert values.clean(made) == PLAIN
    assert thawed(made) == PLAIN
    assert type(thawed(made)["list"][1]) is dict


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, dict])
def test_a_copy_may_be_changed(copied: Callable[[Any], Any]):
    made = frozen(PLAIN)
    another = copied(made)

    another["text"] = "y"

    assert made["text"] == "x"


def test_it_goes_to_another_process_and_back():
    assert pickle.loads(pickle.dumps(frozen(PLAIN))) == PLAIN  # crawlcw's own pickle


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(x=1),
        lambda d: d.setdefault("x", 1),
        lambda d: d.pop("none"),
        lambda d: d.popitem(),
        lambda d: d.clear(),
        lambda d: d.__setitem__("x", 1),
        lambda d: d.__delitem__("none"),
    ],
)
def test_a_dictionary_says_what_to_do_instead(change: Callable[[Any], object]):
    with pytest.raises(TypeError, match=r"this dict is read-only: change a copy, dict\(\.\.\.\)"):
        change(frozen(PLAIN))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.append(1),
        lambda d: d.extend([1]),
        lambda d: d.insert(0, 1),
        lambda d: d.remove(1),
        lambda d: d.pop(),
        lambda d: d.clear(),
        lambda d: d.sort(),
        lambda d: d.reverse(),
        lambda d: d.__setitem__(0, 1),
        lambda d: d.__delitem__(0),
        lambda d: d.__imul__(2),
    ],
)
def test_a_list_says_what_to_do_instead(change: Callable[[Any], object]):
    with pytest.raises(TypeError, match=r"this list is read-only: change a copy, list\(\.\.\.\)"):
        change(frozen(PLAIN)["list"])


def test_more_of_both_is_another_one():
    made = frozen({"a": [1], "b": {"x": 1}})
    longer, larger = made["a"], made["b"]

    longer += [2]
    larger |= {"y": 2}

    assert (longer, larger) == ([1, 2], {"x": 1, "y": 2})
    assert made == {"a": [1], "b": {"x": 1}}
