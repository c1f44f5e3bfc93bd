"""The class of an item, recorded beside the item's fields on every store."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import attrs
import pydantic
import pytest

from crawlcw.ledger.protocol import ItemRow, Ledger
from crawlcw.ledger.values import ItemRow as Row
from crawlcw.model.task import Task
from crawlcw.model.transitions import Succeeded
from crawlcw.model.values import ItemFields, cleaned_item
from tests.ledger.test_reparse_contract import again
from tests.ledger.test_revisits_contract import ended, record
from tests.support.ledgers import make_task, visit

LARGE = "x" * ((1 << 20) + 1)  #: outside of the task's document on MongoDB


@dataclass
class Book:
    title: str


@attrs.define
class Image:
    title: str


class Author(pydantic.BaseModel):
    title: str


#: Each item, the fields that a reader sees, and the name of its class.
ITEMS: list[tuple[Any, dict[str, Any], str | None]] = [
    (Book("a"), {"title": "a"}, "Book"),
    (Image("b"), {"title": "b"}, "Image"),
    (Author(title="c"), {"title": "c"}, "Author"),
    ({"title": "d"}, {"title": "d"}, None),
    (Book(LARGE), {"title": LARGE}, "Book"),
    (ItemFields({"n": 1}, item_class="shop.items:Tool"), {"n": 1}, "shop.items:Tool"),
    ({"__class__": "x", "%class": 1}, {"__class__": "x", "%class": 1}, None),
    (
        ItemFields({"__class__": "x", "%class": 1, "%25class": 2}, item_class="Odd"),
        {"__class__": "x", "%class": 1, "%25class": 2},
        "Odd",
    ),
    ({"nested": {"%class": "x"}}, {"nested": {"%class": "x"}}, None),
    (ItemFields({}, item_class="Empty"), {}, "Empty"),
    (ItemFields({"n": 1}, item_class="\ud800é"), {"n": 1}, "\ufffdé"),
]
EXPECTED = [(fields, item_class) for _, fields, item_class in ITEMS]


async def classes(rows: AsyncIterator[ItemRow]) -> list[tuple[dict[str, Any], str | None]]:
    return [(row.item, row.item_class) async for row in rows]


async def crawled(ledger: Ledger, *, versions: int = 0) -> Task:
    """Record all items as one page's."""
    task = make_task()
    await ledger.tasks.add([task])
    items = tuple(cleaned_item(item) for item, _, _ in ITEMS)
    await ended(ledger, Succeeded(visit=visit(), items=items, kept_versions=versions))
    return task


@pytest.mark.parametrize("versions", [0, 2])
async def test_the_class_of_an_item_is_beside_its_fields(ledger: Ledger, versions: int):
    task = await crawled(ledger, versions=versions)

    assert await classes(ledger.queries.items()) == EXPECTED
    assert await classes(ledger.queries.versions()) == (EXPECTED if versions else [])
    items = (await record(ledger, task)).items
    rows = [Row(item=item, url=task.url, fetched_at=task.update_time) for item in items]
    assert [(row.item, row.item_class) for row in rows] == EXPECTED


async def test_items_that_replace_others_keep_their_classes(ledger: Ledger):
    """As `parse --stored --save` and `item_key_wins = "last"` replace them."""
    task = await crawled(ledger)
    found = await record(ledger, task)

    await ledger.outcomes.replace([again(found, *found.items[1:])])

    assert await classes(ledger.queries.items()) == EXPECTED[1:]
