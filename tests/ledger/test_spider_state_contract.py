"""Contract of `Ledger.spider_state`, run on every store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.spider_state import PageSums, StoredState
from crawlcw.model.values import frozen
from tests.support.ledgers import BACKENDS, LedgerFactory, on_backend

TASK, OTHER = b"0123456789abcdef", b"fedcba9876543210"
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
        values=values,
        pending=pending or {},
    )


async def test_there_is_no_state_before_one_is_written(ledger: Ledger):
    assert await ledger.spider_state.read() is None
    assert not await ledger.spider_state.forget()


async def test_a_state_is_read_as_it_was_written(ledger: Ledger):
    whole = StoredState(
        revision=1,
        values={"a.b": ODD, "": -(1 << 63), "%2E": "x", "0": 1.5, "$set": None, "%naive": [True]},
        pending={
            TASK: PageSums(3, {"n.1": 2, "$set": 1 << 60, "": 0.5}),
            OTHER: PageSums(1, {"x": -1}),
        },
    )

    assert await ledger.spider_state.change(StoredState(), whole)

    assert await ledger.spider_state.read() == whole
    assert await ledger.spider_state.read(known_revision=1) is None


async def test_a_change_writes_what_is_other(ledger: Ledger):
    first = state(
        1, a=1, b=2, c=3, pending={TASK: PageSums(1, {"x": 1}), OTHER: PageSums(1, {"x": 1})}
    )
    await ledger.spider_state.change(StoredState(), first)

    values = {"a": 1, "b": 5, "d.d": None}
    second = StoredState(revision=2, values=values, pending={OTHER: PageSums(2, {"x": 4})})
    assert await ledger.spider_state.change(first, second)

    assert await ledger.spider_state.read(known_revision=1) == second


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
    first = state(1, a=1, pending={TASK: PageSums(1, {"x": 1})})
    await ledger.spider_state.change(StoredState(), first)

    assert await ledger.spider_state.forget()

    assert await ledger.spider_state.read(known_revision=1) == StoredState(revision=2)
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
    again = replace(large, revision=2, values={**large.values, "name 3": "y"})

    assert await ledger.spider_state.change(large, again)

    assert await ledger.spider_state.read() == again
