"""Feeds of a Scrapy project from the items of a ledger: the same files as Scrapy writes."""

import asyncio
import gzip
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.crawler import Crawler
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.utils.test import get_crawler

from crawlcw.engine.workers import this_worker
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.values import ItemFields
from crawlcw.scrapy import codec, feeds, reactor
from tests.support.ledgers import claimed, make_task, success

pytestmark = pytest.mark.quick


class Book(scrapy.Item):
    title = scrapy.Field()
    price = scrapy.Field(serializer=lambda price: f"£{price}")
    tags = scrapy.Field()
    pages = scrapy.Field()


@dataclass
class Author:
    name: str
    born: date | None = None
    rating: Decimal = Decimal("4.50")


ITEMS: list[Any] = [
    Book(title='Ä, "quoted" & <b>', price=5, tags=["x", "y"], pages=7),
    Author("A. Author", date(1970, 1, 2)),
    Book(title="no tags", price=6.5),
    Author("line\nbreak"),
    {"plain": True, "nested": {"a": [1, 2.5, None]}},
]


class Shop(scrapy.Spider):
    name = "shop"


class Failing(FileFeedStorage):
    """A storage whose first file cannot be stored."""

    failures = 1

    def store(self, file: Any) -> None:
        super().store(file)
        if Failing.failures:
            Failing.failures -= 1
            raise OSError("disk full")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    reactor.install()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
async def ledger(tmp_path: Path) -> Any:
    ledger = await open_ledger(f"sqlite:///{tmp_path / 'shop.db'}", "shop")
    yield ledger
    await ledger.close()


def crawler_with(settings: Mapping[str, Any]) -> Crawler:
    crawler = get_crawler(Shop, {"EXTENSIONS_BASE": {}, **settings})
    crawler.spider = crawler._create_spider()
    return crawler


async def record(ledger: Ledger, items: Sequence[Any]) -> None:
    """Record items as those of one more page, which keeps their order."""
    pages = len([record async for record in ledger.queries.walk(TaskFilter())])
    await ledger.tasks.add([make_task(f"https://shop.example/{pages}")])
    (lease,) = await claimed(ledger)
    await ledger.outcomes.commit([success(ledger, lease, *map(recorded, items))])


def recorded(item: Any) -> dict[str, Any]:
    if isinstance(item, dict):
        return item
    return ItemFields(codec.item_values(item), item_class=codec.class_name(type(item)))


async def write_as_scrapy(settings: Mapping[str, Any], items: Sequence[Any]) -> None:
    crawler = crawler_with(settings)
    exporter = FeedExporter(crawler)
    exporter.open_spider(crawler.spider)
    for item in items:
        exporter.item_scraped(item, crawler.spider)
    await exporter.close_spider(crawler.spider)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


BOOKS = ["tests.scrapy.test_feeds.Book"]
FORMATS: dict[str, dict[str, Any]] = {
    "all.json": {"format": "json", "indent": 2},
    "all.jl": {"format": "jsonlines", "encoding": "latin-1"},
    "all.csv": {"format": "csv"},
    "all.xml": {"format": "xml", "item_export_kwargs": {"item_element": "book"}},
    "books.csv": {"format": "csv", "item_classes": BOOKS},
    "books.xml": {"format": "xml", "item_classes": BOOKS, "fields": ["price", "title"]},
    "titles.csv": {"format": "csv", "fields": {"title": "Title", "name": "Name"}},
    "books.jl.gz": {
        "format": "jsonlines",
        "item_classes": BOOKS,
        "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"],
    },
    "part-%(batch_id)d.json": {"format": "json", "batch_item_count": 2},
    "%(name)s/part-%(batch_id)02d.csv": {
        "format": "csv",
        "batch_item_count": 1,
        "fields": ["name"],
    },
}


def feeds_in(folder: Path) -> dict[str, Any]:
    return {"FEEDS": {f"{folder}/{name}": options for name, options in FORMATS.items()}}


async def test_the_files_are_those_that_scrapy_writes(ledger: Ledger, folder: Path):
    here, there = folder / "here", folder / "there"
    await record(ledger, ITEMS)

    await feeds.write(crawler_with(feeds_in(here)), ledger)
    await write_as_scrapy(feeds_in(there), ITEMS)

    ours, theirs = files(here), files(there)
    for written in (ours, theirs):
        written["books.jl"] = gzip.decompress(written.pop("books.jl.gz"))
    assert ours == theirs
    assert len(ours) == 8 + 3 + 5
    assert b"tags" in ours["books.csv"].splitlines()[0], "the fields of the class"
    assert b"\xc2\xa35" in ours["books.csv"], "the serializer of the field"


async def test_a_project_without_feeds_writes_nothing(ledger: Ledger, folder: Path):
    await record(ledger, ITEMS)
    before = files(folder)

    await feeds.write(crawler_with({}), ledger)

    assert files(folder).keys() == before.keys()


async def test_settings_of_old_projects(ledger: Ledger):
    await record(ledger, ITEMS)

    with pytest.warns(ScrapyDeprecationWarning, match="FEED_URI"):
        await feeds.write(crawler_with({"FEED_URI": "old.csv", "FEED_FORMAT": "csv"}), ledger)

    assert Path("old.csv").read_text(encoding="utf-8").count("\n") >= len(ITEMS)


FEEDS = {
    "FEEDS": {
        "appended.jl": {"format": "jsonlines"},
        "whole.jl": {"format": "jsonlines", "overwrite": True},
    }
}


def lines(name: str) -> list[str]:
    return sorted(Path(name).read_text(encoding="utf-8").splitlines())


async def test_a_resumed_crawl_writes_each_item_once(ledger: Ledger):
    numbers = [f'{{"n": {number}}}' for number in range(4)]
    await record(ledger, [{"n": 0}, {"n": 1}])
    await feeds.write(crawler_with(FEEDS), ledger)
    assert lines("appended.jl") == lines("whole.jl") == numbers[:2], "an incomplete crawl"

    await record(ledger, [{"n": 2}])
    await record(ledger, [{"n": 3}])
    await feeds.write(crawler_with(FEEDS), ledger)

    assert lines("appended.jl") == lines("whole.jl") == numbers


async def test_a_run_without_new_items_leaves_the_files_as_they_are(ledger: Ledger):
    await record(ledger, [{"n": 0}])
    await feeds.write(crawler_with(FEEDS), ledger)
    for name in ("appended.jl", "whole.jl"):
        Path(name).write_text("mine", encoding="utf-8")

    await feeds.write(crawler_with(FEEDS), ledger)
    assert lines("appended.jl") == lines("whole.jl") == ["mine"]

    more = {"FEEDS": {**FEEDS["FEEDS"], "new.jl": {"format": "jsonlines"}}}
    await feeds.write(crawler_with(more), ledger)
    assert lines("appended.jl") == ["mine"]
    assert lines("new.jl") == ['{"n": 0}'], "a feed that the settings have from now on"


async def test_a_crawl_without_items_writes_empty_files(ledger: Ledger):
    await feeds.write(crawler_with(FEEDS), ledger)

    assert lines("whole.jl") == []


async def test_the_last_process_of_a_crawl_writes(ledger: Ledger):
    await record(ledger, [{"n": 0}])
    now = ledger.now()
    other = replace(this_worker(now=now), name="other")
    await ledger.workers.join(other)
    await feeds.write(crawler_with(FEEDS), ledger)
    assert not Path("whole.jl").exists(), "the other process writes when it ends"

    await ledger.workers.leave(other.name)
    killed = replace(other, name="killed", birth="0")
    silent = replace(
        other,
        name="silent",
        machine="other",
        started=now - timedelta(minutes=1),
        heartbeat=now - timedelta(minutes=1),
    )
    for worker in (killed, silent):
        await ledger.workers.join(worker)
    await feeds.write(crawler_with(FEEDS), ledger)

    assert lines("whole.jl") == ['{"n": 0}']


async def test_processes_that_end_together_write_once(ledger: Ledger):
    await record(ledger, [{"n": number} for number in range(2_000)])

    await asyncio.gather(*(feeds.write(crawler_with(FEEDS), ledger) for _ in range(3)))

    assert len(lines("appended.jl")) == len(lines("whole.jl")) == 2_000


async def test_a_feed_that_could_not_be_stored_is_written_by_the_next_run(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    settings = {
        "FEED_STORAGES": {"failing": "tests.scrapy.test_feeds.Failing"},
        "FEEDS": {"failing:out.jl": {"format": "jsonlines", "overwrite": True}},
    }
    await record(ledger, [{"n": 0}])
    Failing.failures = 1

    await feeds.write(crawler_with(settings), ledger)
    assert "disk full" in caplog.text
    caplog.clear()
    await feeds.write(crawler_with(settings), ledger)

    assert lines("failing:out.jl") == ['{"n": 0}']
    assert "disk full" not in caplog.text


class Strict(scrapy.Item):
    n = scrapy.Field(serializer=lambda n: 1 // n)


async def test_an_item_that_a_serializer_refuses_is_left_out(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    await record(ledger, [Strict(n=1), Strict(n=0), Strict(n=1)])

    await feeds.write(crawler_with(FEEDS), ledger)

    assert lines("appended.jl") == ['{"n": 1}'] * 2
    (error,) = (entry for entry in caplog.records if entry.levelno == logging.ERROR)
    assert error.getMessage() == "could not export an item of https://shop.example/0"
    assert error.event == "feed_error"


async def test_an_item_whose_class_is_gone_is_written_as_a_dictionary(ledger: Ledger):
    await record(ledger, [ItemFields({"n": 1}, item_class="gone.items:Gone")])

    await feeds.write(crawler_with(FEEDS), ledger)

    assert lines("whole.jl") == ['{"n": 1}']
