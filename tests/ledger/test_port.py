"""Every store does with random operations what the dictionaries of the model do."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import RATE_KEY, AtMost, Edit, Key, Store, Table, Unit, Within, Write
from tests.support.dict_store import DictStore
from tests.support.ledgers import BACKENDS, START, on_backend

MINUTE = timedelta(minutes=1)

some_number = st.integers(-3, 3)
some_time = some_number.map(lambda n: START + n * timedelta(seconds=29, milliseconds=1))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a primitive of a table."""

    table: str
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]

    async def on(self, unit: Unit) -> Any:
        table: Table = getattr(unit, self.table)
        found = await getattr(table, self.name)(*self.args, **self.options)
        return found if isinstance(found, int) else [without_nothing(each) for each in found]


def without_nothing(document: Document) -> Document:
    """Return a document without the fields that are None: a store may leave those out."""
    return {name: value for name, value in document.items() if value is not None}


def called(table: str, name: str, *args: Any, **options: Any) -> st.SearchStrategy[Call]:
    return st.builds(
        Call, st.just(table), st.just(name), st.tuples(*args), st.fixed_dictionaries(options)
    )


def changes(table: str, *writes: st.SearchStrategy[Write]) -> st.SearchStrategy[Call]:
    """Return writes of different keys: of one key the order would count."""
    some = st.lists(st.one_of(writes), max_size=3, unique_by=lambda write: write.key)
    return called(table, "change", some)


# The points of workers.

some_minute = st.integers(-2, 2).map(lambda n: START + n * MINUTE)
some_place = st.tuples(st.sampled_from([1, 7]), some_minute, st.sampled_from(["a", "b c"]))
some_stretch = st.tuples(some_place, some_place).map(
    lambda ends: Within(ends[0][:2], ends[1][:2])
) | some_place.map(lambda end: Within(end[:1], end[:2]))
some_point = st.builds(
    lambda place, time, count: {
        **dict(zip(RATE_KEY, place, strict=True)),
        "started": START,
        "time": time,
        "vitals": {"finished": count, "rate": count / 4},
    },
    some_place,
    some_time,
    some_number,
)


def of_point(write: Callable[[Key, Document], Write]) -> st.SearchStrategy[Write]:
    return some_point.map(lambda point: write(tuple(point[name] for name in RATE_KEY), point))


rates = (
    changes(
        "rates",
        of_point(
            lambda key, new: Write(key, {"time": AtMost(new["time"])}, Edit(set=new), new=new)
        ),
        of_point(lambda key, new: Write(key, {"started": START}, Edit(set={"time": new["time"]}))),
        of_point(lambda key, new: Write(key, {"time": new["time"]}, Edit(set={"vitals": {}}))),
    ),
    some_stretch.flatmap(
        lambda stretch: called(
            "rates",
            "scan",
            st.just({"_id": stretch}),
            limit=st.integers(1, 3),
            after=st.none() | some_place.filter(lambda key: stretch.first <= key < stretch.end),
        )
    ),
    called("rates", "delete", some_stretch.map(lambda stretch: {"_id": stretch})),
)

some_calls = st.lists(st.one_of(*rates), max_size=20)
TABLES = ("rates",)


async def answers(store: Store, calls: list[Call]) -> list[Any]:
    """Return what a store that is emptied first answers to calls, each of them a unit."""
    for table in TABLES:
        await store.writing(Call(table, "delete", ({},), {}).on)
    everything = [Call(table, "scan", ({},), {"limit": 100}) for table in TABLES]
    return [
        await (store.reading if call.name == "scan" else store.writing)(call.on)
        for call in [*calls, *everything]
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_answers_as_the_model_does(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
):
    request.param = backend
    ledgers = on_backend(request, tmp_path)
    with asyncio.Runner() as runner:
        store = runner.run(ledgers.open()).store

        @settings(max_examples=100, derandomize=True, database=None, deadline=None)
        @given(some_calls)
        def check(calls: list[Call]) -> None:
            expected = runner.run(answers(DictStore(), calls))
            assert runner.run(answers(store, calls)) == expected

        try:
            check()
        finally:
            runner.run(ledgers.close())
