"""Contract of `Ledger.spider_state`, run on every store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.spider_state import Kind, Operation, StoredState, Value, sized
from crawlcw.model.values import frozen
from tests.support.ledgers import BACKENDS, LedgerFactory, on_backend

RUN, OTHER = (b"0123456789abcdef", 3), (b"fedcba9876543210", 1)
ODD = frozen(
    {"a.b": 1, "$c": [None, True, 1.5, b"\0\xff"], "": {"%": datetime(2026, 1, 1, tzinfo=UTC)}}
)


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerFactory]:
    ledgers = on_backend(request, tmp_path)
    yield ledgers
    await ledgers.close()


@pytest.fixture
async def ledger(store: LedgerFactory) -> Ledger:
    return await store.open()


def state(revision: int, *, pending: Any = None, **values: Any) -> StoredState:
    return StoredState(
        revision=revision,
        values={name: sized(value, 7) for name, value in values.items()},
        pending=pending or {},
    )


async def test_there_is_no_state_before_one_is_written(ledger: Ledger):
    assert await ledger.spider_state.read() is None
    assert not await ledger.spider_state.forget()


async def test_a_state_is_read_as_it_was_written(ledger: Ledger):
    change = {
        "n.1": Operation(Kind.ADD, 1 << 60, 2),
        "$set": Operation(Kind.SET, 9, ODD),
        "": Operation(Kind.DELETE, 10),
        "none": Operation(Kind.SET, 11, None),
    }
    whole = StoredState(
        revision=1,
        values={"a.b": Value(ODD, 3), "": Value(-(1 << 63)), "%2E": Value("x"), "0": Value(1.5)},
        pending={RUN: change, OTHER: {"x": Operation(Kind.ADD, 12, -1)}},
    )

    assert await ledger.spider_state.change(StoredState(), whole)

    assert await ledger.spider_state.read() == whole
    assert await ledger.spider_state.read(known=1) is None


async def test_a_change_writes_what_is_other(ledger: Ledger):
    pending = {RUN: {"x": Operation(Kind.ADD, 1, 1)}, OTHER: {"x": Operation(Kind.ADD, 2, 1)}}
    first = state(1, a=1, b=2, c=3, pending=pending)
    await ledger.spider_state.change(StoredState(), first)

    values = {"a": first.values["a"], "b": sized(5, 9), "d.d": sized("new", 9)}
    changed = {OTHER: {"x": Operation(Kind.ADD, 2, 4)}}
    second = StoredState(revision=2, values=values, pending=changed)
    assert await ledger.spider_state.change(first, second)

    assert await ledger.spider_state.read(known=1) == second


async def test_of_two_changes_of_one_revision_one_is_written(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    assert await one.spider_state.change(StoredState(), state(1, a=1))

    assert not await two.spider_state.change(StoredState(), state(1, a=2))
    assert await two.spider_state.change(state(1, a=1), state(2, a=3))
    assert not await one.spider_state.change(state(1, a=1), state(2, a=4))

    assert await one.spider_state.read() == state(2, a=3)


async def test_a_change_that_is_sent_again_is_written_once(ledger: Ledger):
    first, second = state(1, a=1), state(2, a=2)
    assert await ledger.spider_state.change(StoredState(), first)
    assert await ledger.spider_state.change(StoredState(), first)
    assert await ledger.spider_state.change(first, second)
    assert await ledger.spider_state.change(first, second)

    assert await ledger.spider_state.read() == second


async def test_a_state_that_is_forgotten_is_not_taken_for_an_earlier_one(ledger: Ledger):
    pending = {RUN: {"x": Operation(Kind.ADD, 1, 1)}}
    await ledger.spider_state.change(StoredState(), state(1, a=1, pending=pending))

    assert await ledger.spider_state.forget()

    assert await ledger.spider_state.read(known=1) == StoredState(revision=2)
    assert not await ledger.spider_state.change(state(1, a=1), state(2, a=9))
    assert not await ledger.spider_state.forget()


async def test_a_state_goes_with_its_ledger(store: LedgerFactory):
    ledger = await store.open()
    await ledger.spider_state.change(StoredState(), state(1, a=1))

    await ledger.admin.drop()

    assert await (await store.open()).spider_state.read() is None


async def test_a_large_state_is_kept(ledger: Ledger):
    large = state(1, **{f"name {number}": "x" * 1000 for number in range(1000)})
    await ledger.spider_state.change(StoredState(), large)
    again = replace(large, revision=2, values={**large.values, "name 3": sized("y", 8)})

    assert await ledger.spider_state.change(large, again)

    assert await ledger.spider_state.read() == again
