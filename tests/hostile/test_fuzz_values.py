"""Anything a page makes a spider yield is written, read back, exported and shown."""

import asyncio
import io
import json
import math
import unicodedata
from collections import OrderedDict
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from crawlcw.feeds import escaping
from crawlcw.feeds.export import ItemSelection, export
from crawlcw.feeds.target import Target
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import values
from crawlcw.model.counters import KEPT_EXAMPLES, DroppedLinks
from crawlcw.model.sanitize import printable, printable_block
from crawlcw.model.values import MAX_DEPTH, clean, cleaned_item
from tests.support import ledgers
from tests.support.fuzzing import UNSEEN, fuzzed, soup
from tests.support.ledgers import LedgerFactory, claimed_one, failure, make_task, success

T = TypeVar("T")
ZONES = [UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=23, minutes=59))]
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
SPECIAL = """
    $ . % $set $where a.b _id $ref $id $date $bytes $oid %24 %blob %00 \\u0000 {} [] " ' \\ = + @
    =1+1 [/x] [red] {0.__class__} %s %(x)s \x1b[31m \x1b]52;c; \x9b2J \u2066 \u2069 \u202e \u115f
    \ue000 \uffff
""".split()  # noqa: SIM905  # as a list it would be twice as long
texts = soup([*SPECIAL, *UNSEEN, *LINE_ENDS, "\x7f", "\U000e0041", "\U0010ffff"], most=6)


class Text(str):
    """A subclass of str, as parsers return it."""

    __slots__ = ()


def nested(depth: int, leaf: object) -> object:
    for level in range(depth):
        leaf = [leaf] if level % 2 else {"k": leaf}
    return leaf


leaves = st.one_of(
    st.none() | st.booleans(),
    st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from([2**31, 2**63 - 1, -(2**63)]),
    st.floats() | st.sampled_from([-0.0, 1e16, 5e-324, 2.0**63]),
    texts | texts.map(Text) | st.binary(max_size=6) | st.binary(max_size=6).map(bytearray),
    st.datetimes() | st.datetimes(timezones=st.sampled_from(ZONES)) | st.dates() | st.times(),
    st.decimals() | st.fractions() | st.complex_numbers() | st.timedeltas(),
    st.builds(nested, st.integers(MAX_DEPTH - 5, MAX_DEPTH + 5), texts),
)
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(texts | st.integers() | st.none(), inner, max_size=3),
        st.dictionaries(texts, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=8,
)


def is_same(one: Any, other: Any) -> bool:
    """Return whether a stored value equals the clean *other*, with its type and sign of zero."""
    if isinstance(other, dict):
        is_dict = isinstance(one, dict) and list(one) == list(other)
        return is_dict and all(is_same(one[key], other[key]) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(other, float):
        return isinstance(one, float) and repr(one) == repr(other)
    # The driver returns a large integer as a type of its own.
    same_kind = isinstance(one, type(other)) and isinstance(one, bool) is isinstance(other, bool)
    return same_kind and bool(one == other)


def assert_is_shown(value: object) -> None:
    """Check that a clean value is one line of JSON, and printable on a terminal."""
    line = values.to_json(value) + "\n"
    shown = escaping.visible(line)

    line.encode()
    assert line.count("\n") == 1
    assert shown[:-1].isprintable()
    # Neither NaN nor Infinity is JSON, though Python reads them.
    assert json.loads(shown, parse_constant=pytest.fail) == json.loads(line)


@fuzzed(value=anything, quick=40, thorough=3000)
@example(value={"a": math.nan, "\ud800": Text("\udfff")})
def test_what_is_cleaned_stays_as_it_is_and_can_be_shown(value: object) -> None:
    once = clean(value)

    assert is_same(clean(once), once)
    assert values.size(once) >= 0
    assert_is_shown(once)


class Store:
    """A ledger with a new task for each example."""

    def __init__(self, opened: LedgerFactory) -> None:
        self._runner = asyncio.Runner()
        self._opened = opened
        self.ledger: Ledger = self.run(opened.open())
        self._number = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self._opened.close())
        self._runner.close()

    def check(self, batch: list[object], said: str) -> None:
        self._number += 1
        self.run(self._check(batch, said))

    async def _check(self, batch: list[object], said: str) -> None:
        cleaned = [clean(value) for value in batch]
        finished = make_task(f"http://example.com/{self._number}", context={"all": cleaned})
        failed = make_task(f"http://example.com/failed/{self._number}")

        await self.ledger.tasks.add([finished])
        lease = await claimed_one(self.ledger)
        items = [{"value": value, said: value} for value in batch]
        wrote = await self.ledger.outcomes.commit([success(self.ledger, lease, *items)])
        await self.ledger.tasks.add([failed])
        lease = await claimed_one(self.ledger)
        await self.ledger.outcomes.commit([failure(self.ledger, lease, message=said)])

        assert not wrote.rejected
        record = await self.ledger.tasks.get(finished.id)
        assert record is not None
        assert isinstance(record.task.context, dict)
        assert is_same(record.task.context["all"], cleaned)
        assert is_same(list(record.items), [cleaned_item(item) for item in items])
        record = await self.ledger.tasks.get(failed.id)
        assert record is not None
        assert record.errors[0].message.isprintable()


def check_store(store: Store, folder: Path, *, examples: int) -> None:
    """Write and read values, several in each round trip, and export them all."""
    chosen = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    with_batches = given(batch=st.lists(anything, min_size=10, max_size=20), said=texts)
    last = datetime.max.replace(tzinfo=UTC)
    hard = [{"\ud800": 2**70}, last, {"$set": {"a.b": math.nan}}, nested(MAX_DEPTH, "\0")]
    chosen(example(batch=hard, said="\udfff\n")(with_batches(store.check)))()
    target = Target.parse(str(folder / "out.jsonl"))
    count = store.run(export(store.ledger, [target], ItemSelection(), stdout=io.BytesIO()))
    lines = (folder / "out.jsonl").read_bytes().split(b"\n")

    assert len(lines) == count + 1
    for line in lines[:-1]:
        assert_is_shown(json.loads(line))


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=pytest.mark.thorough)])
def test_what_is_cleaned_comes_back_from_sqlite(examples: int, tmp_path: Path) -> None:
    store = Store(ledgers.on_sqlite(tmp_path))
    try:
        check_store(store, tmp_path, examples=examples)
    finally:
        store.close()


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=pytest.mark.thorough)])
def test_what_is_cleaned_comes_back_from_mongodb(
    examples: int, tmp_path: Path, mongodb_uri: str, emptied_database: str
) -> None:
    store = Store(ledgers.on_mongodb(mongodb_uri, emptied_database, driver="pymongo"))
    try:
        check_store(store, tmp_path, examples=examples)
    finally:
        store.close()


@fuzzed(text=texts | st.binary(max_size=9), limit=st.integers(1, 40), quick=80, thorough=5000)
def test_whatever_is_printed_is_one_line_of_what_can_be_seen(text: object, limit: int) -> None:
    for shown in (printable(text), printable(text, limit=limit)):
        assert {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Cn"} == set()
        assert not set(shown) & set(LINE_ENDS)
        assert printable(shown) == shown
        shown.encode()
    assert len(printable(text, limit=limit)) <= limit
    block = printable_block(f"{text}\n{text}")
    assert all(line.isprintable() for line in block.split("\n"))


@fuzzed(links=st.lists(texts, max_size=10), quick=50, thorough=3000)
def test_any_links_that_are_dropped_are_counted_and_shown(links: list[str]) -> None:
    dropped = DroppedLinks()
    for link in links:
        dropped.note("url-invalid", link)
    merged = DroppedLinks()
    merged.add(dropped)

    kept = merged.examples.get("url-invalid", [])
    assert merged.counts["url-invalid"] == len(links)
    assert len(kept) == min(KEPT_EXAMPLES, len({printable(link) for link in links}))
    assert all(example.isprintable() for example in kept)
