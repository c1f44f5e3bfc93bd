"""Export of all recorded items in one reading, to any number of targets."""

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import fsspec
import pytest
from backports import zstd

from crawlcw.errors import Reason, UsageError
from crawlcw.feeds.export import ItemSelection, export
from crawlcw.feeds.target import Target
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.values import ItemFields
from tests.support import bulk_ledgers
from tests.support.ledgers import FakeClock, claimed, make_task, make_tasks, success
from tests.support.mongod import with_database

PAGES = 30
MIB = 1 << 20


async def recorded(ledger: Ledger, clock: FakeClock) -> None:
    """Record an item for each page, one page a second."""
    await ledger.tasks.add(make_tasks(PAGES))
    for number, lease in enumerate(await claimed(ledger)):
        clock.advance(seconds=1)
        await ledger.outcomes.commit(
            [success(ledger, lease, {"n": number, "even": not number % 2})]
        )


async def exported(
    ledger: Ledger, *places: Path | str, wanted: ItemSelection | None = None
) -> tuple[int, bytes]:
    stdout = io.BytesIO()
    targets = [Target.parse(str(place)) for place in places]
    return await export(
        ledger, targets, wanted or ItemSelection(), stdout=stdout
    ), stdout.getvalue()


def written(folder: Path) -> dict[str, str]:
    """Return the exported files, whose names have one letter, and their temporary files."""
    return {path.name: path.read_text() for path in folder.glob("?.*")}


def numbers(lines: bytes) -> Sequence[int]:
    return sorted(json.loads(line)["n"] for line in lines.splitlines())


async def test_several_feeds_have_the_same_items(ledger: Ledger, clock: FakeClock, tmp_path: Path):
    await recorded(ledger, clock)
    names = ("a.jsonl", "b.json", "c.csv", "d.jsonl.gz", "e.csv.zst")

    count, stdout = await exported(ledger, "-", *(tmp_path / name for name in names))

    assert count == PAGES
    lines = (tmp_path / "a.jsonl").read_bytes()
    assert numbers(lines) == list(range(PAGES))
    assert stdout == lines == gzip.decompress((tmp_path / "d.jsonl.gz").read_bytes())
    items = [json.loads(line) for line in lines.splitlines()]
    assert json.loads((tmp_path / "b.json").read_bytes()) == items
    table = (tmp_path / "c.csv").read_bytes()
    assert zstd.decompress((tmp_path / "e.csv.zst").read_bytes()) == table
    rows = list(csv.DictReader(io.StringIO(table.decode(), newline="")))
    assert [int(row["n"]) for row in rows] == [item["n"] for item in items]
    assert [path.name for path in tmp_path.glob("*.part")] == []


async def test_a_field_that_no_item_has_is_an_error(
    ledger: Ledger, clock: FakeClock, tmp_path: Path
):
    await recorded(ledger, clock)
    earlier = tmp_path / "a.csv"
    earlier.write_text("earlier")

    with pytest.raises(UsageError) as caught:
        await exported(ledger, earlier, wanted=ItemSelection(fields=["n", "evn"]))

    assert str(caught.value) == (
        "no exported item has the field 'evn': did you mean even? there are n, even"
    )
    assert written(tmp_path) == {"a.csv": "earlier"}


async def test_fields_and_meta_are_chosen(ledger: Ledger, clock: FakeClock):
    await recorded(ledger, clock)

    _, plain = await exported(ledger, "-", wanted=ItemSelection(fields=["even"]))
    _, meta = await exported(ledger, "-:csv", wanted=ItemSelection(fields=["n"], with_meta=True))

    fields = ["_url", "n"]
    _, url = await exported(ledger, "-:csv", wanted=ItemSelection(fields=fields, with_meta=True))

    assert {*plain.splitlines()} == {b'{"even":true}', b'{"even":false}'}
    assert meta.splitlines()[0] == b"n,_url,_fetched_at"
    assert url.splitlines()[0] == b"_url,n,_fetched_at"


@pytest.mark.parametrize(("seconds", "last"), [(0, 1), (9, 10), (1000, PAGES)])
async def test_since_means_what_was_fetched_since_then(
    seconds: int, last: int, ledger: Ledger, clock: FakeClock
):
    await recorded(ledger, clock)
    since = clock.time - timedelta(seconds=seconds)

    _, lines = await exported(ledger, "-", wanted=ItemSelection(fetched_since=since))

    assert numbers(lines) == list(range(PAGES))[-last:]


async def test_a_place_that_cannot_be_written_leaves_every_earlier_file(
    ledger: Ledger, clock: FakeClock, tmp_path: Path
):
    await recorded(ledger, clock)
    first = tmp_path / "a.jsonl"
    first.write_text("earlier\n")

    with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left on device"):
        # The target writes its buffer at its close; the first file must not be replaced before.
        await exported(ledger, first, "/dev/full")

    assert first.read_text() == "earlier\n"
    assert [path.name for path in tmp_path.glob("*.part")] == []


@dataclass
class Book:
    title: str
    price: Decimal


@dataclass
class Image:
    path: str
    size: int


async def kinds_recorded(ledger: Ledger) -> None:
    """Record items of two classes, of a Scrapy project's class, and of a dict."""
    await ledger.tasks.add([make_task(f"http://a.example/{n}", callback=f"p{n}") for n in range(2)])
    tool = ItemFields({"weight": 2}, item_class="shop.items:Tool")
    items = [Book("a", Decimal("1.5")), Image("b.png", 3), tool, {"note": "c"}]
    first, last = sorted(await claimed(ledger), key=lambda lease: lease.task.url)
    await ledger.outcomes.commit(
        [success(ledger, first, *items[:2]), success(ledger, last, *items[2:])]
    )


async def test_each_target_gets_the_items_of_its_class(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    await kinds_recorded(ledger)
    names = ("a.csv:Book", "b.jsonl:Image", "c.csv:Tool", "d.csv:shop.items:Tool", "e.csv:dict")

    count, stdout = await exported(ledger, "-:csv:Image", *(tmp_path / name for name in names))

    assert (count, stdout.splitlines()) == (4, [b"path,size", b"b.png,3"])
    assert {name: text.splitlines() for name, text in written(tmp_path).items()} == {
        "a.csv": ["title,price", "a,1.5"],
        "b.jsonl": ['{"path":"b.png","size":3}'],
        "c.csv": ["weight", "2"],
        "d.csv": ["weight", "2"],
        "e.csv": ["note", "c"],
    }
    assert caplog.messages == []


async def test_a_class_that_no_item_has_is_an_error_and_the_other_files_are_written(
    ledger: Ledger, tmp_path: Path
):
    await kinds_recorded(ledger)
    (tmp_path / "a.csv").write_text("earlier")

    with pytest.raises(UsageError) as caught:
        await exported(ledger, f"{tmp_path}/a.csv:Bok", f"{tmp_path}/b.jsonl:Book")

    assert str(caught.value).startswith(f"{tmp_path}/a.csv is not written, because no exported")
    assert "the class 'Bok': did you mean Book? there are " in str(caught.value)
    assert written(tmp_path) == {
        "a.csv": "earlier",
        "b.jsonl": '{"title":"a","price":"1.5"}\n',
    }


async def test_a_table_of_several_classes_gets_advice(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    await kinds_recorded(ledger)

    await exported(ledger, tmp_path / "a.csv", tmp_path / "b.jsonl")

    (message,) = caplog.messages
    assert message == (
        f"{tmp_path}/a.csv mixes the columns of Book, Image, dict, shop.items:Tool: "
        f"-o {tmp_path}/a.csv:Book writes only the items of one class"
    )


async def test_a_callback_selects_the_items_of_its_pages(ledger: Ledger):
    await kinds_recorded(ledger)

    _, lines = await exported(ledger, "-", wanted=ItemSelection(callback="p0"))
    with pytest.raises(UsageError) as caught:
        await exported(ledger, "-", wanted=ItemSelection(callback="p"))

    assert [json.loads(line) for line in lines.splitlines()] == [
        {"title": "a", "price": "1.5"},
        {"path": "b.png", "size": 3},
    ]
    assert str(caught.value).startswith("no task has the callback 'p': did you mean p")


async def test_the_columns_have_the_order_of_the_class(ledger: Ledger, tmp_path: Path):
    await ledger.tasks.add([make_task()])
    (lease,) = await claimed(ledger)
    items = ({"b": 1, "a": 2}, {"b": 1, "c": 2, "a": 3})
    await ledger.outcomes.commit([success(ledger, lease, *items)])

    _, table = await exported(ledger, "-:csv")

    assert table.splitlines()[0] == b"b,a,c"


async def test_an_object_of_a_remote_store(ledger: Ledger, clock: FakeClock):
    await recorded(ledger, clock)

    await exported(ledger, "memory://feeds/items.jsonl.gz")

    with fsspec.open("memory://feeds/items.jsonl.gz", "rb") as stream:
        assert numbers(gzip.decompress(stream.read())) == list(range(PAGES))


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["sqlite", "mongodb"])
async def test_a_large_ledger_is_exported_in_flat_memory(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
):
    tasks = bulk_ledgers.task_documents(
        40_000, callbacks=("parse",), reasons=(Reason.CONNECT, Reason.TIMEOUT_READ)
    )
    ledger: Ledger
    if place == "sqlite":
        ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books", clock=FakeClock())
        bulk_ledgers.fill_sqlite(tmp_path / "ledger.db", "books", tasks)
    else:
        uri, name = (request.getfixturevalue(n) for n in ("mongodb_uri", "database_name"))
        ledger = await MongoLedger.open(with_database(uri, name), "books", clock=FakeClock())
        bulk_ledgers.fill_mongodb(uri, name, "books", tasks)
    # A first export makes all caches, so that the second one measures its own memory.
    first, _ = await exported(ledger, tmp_path / "first.jsonl")

    tracemalloc.start()
    try:
        count, _ = await exported(ledger, *(tmp_path / f"items.{end}" for end in ("jsonl", "csv")))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await ledger.close()

    assert count == first == 25_000
    assert peak < 2 * MIB  # all items at once would take 6
