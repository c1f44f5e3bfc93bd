"""Any value of a spider becomes one that every ledger can hold."""

import dataclasses
import json
import math
from collections import OrderedDict, UserDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType

import attrs
import bson
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawlcw.errors import InvalidItemError
from crawlcw.ledger import documents
from crawlcw.ledger.sql import rows
from crawlcw.model import values
from crawlcw.model.values import MAX_DEPTH, clean, cleaned_item

pytestmark = pytest.mark.quick


class Colour(Enum):
    RED = "red"
    NESTED = ("a", b"b")


class Size(IntEnum):
    BIG = 3


class Kind(StrEnum):
    BOOK = "book"


@dataclasses.dataclass
class Book:
    title: str
    tags: set = dataclasses.field(default_factory=set)


@attrs.define
class Film:
    title: str
    year: int = 1999


class Song(pydantic.BaseModel):
    title: str
    length: timedelta | None = None


NAIVE = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  # tested on purpose


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (None, None),
        (True, True),
        (1, 1),
        (1.5, 1.5),
        ("text", "text"),
        ("ключ", "ключ"),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("a\0b", "a\0b"),
        (2**63 - 1, 2**63 - 1),
        (2**63, "9223372036854775808"),
        (-(2**63), -(2**63)),
        (-(2**63) - 1, "-9223372036854775809"),
        (math.nan, None),
        (math.inf, None),
        (b"\xff", b"\xff"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
        ((1, (2,)), [1, [2]]),
        ({3}, [3]),
        (frozenset({"x", "z", "y"}), ["x", "y", "z"]),
        (Decimal("1.10"), Decimal("1.10")),
        (Decimal("NaN"), None),
        (Fraction(1, 3), "1/3"),
        (date(2026, 1, 2), date(2026, 1, 2)),
        (time(3, 4), "03:04:00"),
        (NAIVE, NAIVE.replace(microsecond=678000)),
        (
            datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))),
            datetime(2026, 1, 2, 1, tzinfo=UTC),
        ),
        (Colour.RED, "red"),
        (Colour.NESTED, ["a", b"b"]),
        (Size.BIG, 3),
        (Kind.BOOK, "book"),
        (PurePosixPath("/a"), "/a"),
        ({1: "a", None: "b", "\ud800": "c"}, {"1": "a", "None": "b", "\ufffd": "c"}),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (namedtuple("Pair", "a b")(1, 2), [1, 2]),
        (Book("t", {"x"}), {"title": "t", "tags": ["x"]}),
        (Film("t"), {"title": "t", "year": 1999}),
        (Song(title="t"), {"title": "t", "length": None}),
        (Book, "<class 'tests.model.test_values.Book'>"),
    ],
)  # fmt: skip
def test_what_a_value_becomes(value, cleaned):
    assert clean(value) == cleaned
    assert type(clean(value)) is type(cleaned)


@pytest.mark.parametrize("hours", [-14, 14])
@pytest.mark.parametrize("edge", [datetime.min, datetime.max])  # noqa: DTZ901  # aware below
def test_a_date_at_the_edge_of_time_is_still_a_date(edge: datetime, hours: int):
    cleaned = clean(edge.replace(tzinfo=timezone(timedelta(hours=hours))))

    assert cleaned.tzinfo is UTC
    assert cleaned.year == edge.year


def test_what_lies_too_deep_becomes_text():
    deep = leaf = []
    for _ in range(MAX_DEPTH + 5):
        leaf.append([])
        leaf = leaf[0]

    cleaned = clean(deep)

    for _ in range(MAX_DEPTH):
        (cleaned,) = cleaned
    assert json.loads(cleaned) == [[[[[[]]]]]]


def test_what_contains_itself_comes_to_an_end():
    loop: dict = {"n": 1}
    loop["self"] = loop
    listed: list = []
    listed.append(listed)

    assert clean(loop)["self"]["self"]["n"] == 1
    assert isinstance(clean(listed), list)


class Rude:
    """An object that raises in every method."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("thing", [Rude(), {"v": Rude()}, {Rude(): 1}, [Rude()]])
def test_an_object_without_a_text_is_named_by_its_type(thing):
    assert "Rude" in json.dumps(clean(thing))


@pytest.mark.parametrize("thing", [1, "text", ["a"], None, object(), Book])
def test_what_is_no_item_is_refused(thing):
    with pytest.raises(InvalidItemError, match="is not an item: yield a dict"):
        cleaned_item(thing)


def test_json_has_dates_as_text_and_bytes_as_base64():
    value = {"t": datetime(2026, 1, 2, tzinfo=UTC), "b": b"\xff", "s": "é"}
    value |= {"d": date(2026, 1, 2), "n": Decimal("1.10")}

    assert values.to_json(value) == (
        '{"t":"2026-01-02T00:00:00Z","b":"/w==","s":"é","d":"2026-01-02","n":"1.10"}'
    )


texts = st.text(
    st.characters(codec=None, categories=None) | st.sampled_from("$.%\0\ud800"), max_size=8
)
keys = texts | st.sampled_from(
    ["$set", "a.b", "", "$bytes", "$date", "%24", "%", "%naive", "%date"]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | texts
    | st.binary(max_size=8)
    | st.datetimes()
    | st.datetimes(timezones=st.timezones())
    | st.dates()
    | st.times()
    | st.decimals()
    | st.complex_numbers()
    | st.sampled_from(Colour)
)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys | st.integers() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(anything)
def test_cleaning_twice_is_cleaning_once(value):
    once = clean(value)

    assert clean(once) == once
    json.loads(values.to_json(once))


@given(anything)
@settings(max_examples=200)
def test_a_clean_value_comes_back_from_both_stores(value):
    cleaned = clean(value)
    escaped = documents.escaped({"v": cleaned})

    options = bson.CodecOptions(tz_aware=True)
    from_bson = bson.decode(bson.encode(escaped), codec_options=options)
    from_json = rows.from_json(rows.to_json(escaped))

    assert documents.unescaped(from_bson) == {"v": cleaned}
    assert documents.unescaped(from_json) == {"v": cleaned}
