"""`crawlcw run -o` and `crawlcw export` with classes, types and wrong names."""

import csv
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.cli.test_cli import crawlcw
from tests.support import media_site
from tests.support.commands import invoke
from tests.support.media_site import Media, MediaSite

SPIDER = """
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, TypedDict

import attrs
import pydantic

from crawlcw import Css, Request, Spider


@dataclass
class Book:
    title: str
    price: Decimal
    published: date
    seen_at: datetime
    opens: datetime
    digest: bytes
    tags: list[str]
    sizes: dict
    cover: Request


@attrs.define
class Shop:
    name: str


class Author(pydantic.BaseModel):
    last_name: str
    first_name: str | None = None


class Heading(TypedDict):
    text: Annotated[str, Css("h1")]


class Shelf(Spider):
    name = "shelf"

    def __init__(self, start_url):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield response.extract(Heading)
        yield from response.follow_all("a", self.parse_book)

    def parse_book(self, response):
        yield Book(
            title="=1+1",
            price=Decimal("12.30"),
            published=date(2026, 1, 2),
            seen_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            opens=datetime(2026, 1, 2, 9),
            digest=b"\\x00\\xff",
            tags=["a", "b"],
            sizes={"cm": 21, "cost": Decimal("0.5")},
            cover=response.follow("/cover.png", save_to="covers"),
        )
        yield Shop("shelf")
        yield Author(last_name="A")
        yield {"note": "n"}
"""


@pytest.fixture
def site() -> Iterator[MediaSite]:
    with media_site.served() as running:
        running.pages = {"/": '<h1>Books</h1><a href="/1">', "/1": "<p>"}
        running.files = {"/cover.png": Media(size=1000)}
        yield running


@pytest.fixture
def crawl(
    site: MediaSite, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "subprocess.CompletedProcess[str]":
    """A finished `crawlcw run`, which has written a file for each class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)
    (tmp_path / "shelf.py").write_text(SPIDER)
    names = ("books.parquet:Book", "shops.csv:Shop", "authors.csv:Author", "titles.csv:Heading")
    outputs = [word for name in (*names, "notes.jsonl:dict") for word in ("-o", name)]
    return crawlcw("run", "shelf.py", "-a", f"start_url={site.url('/')}", *outputs, folder=tmp_path)


def test_a_run_writes_a_file_for_each_class_with_the_types_of_its_values(
    crawl, site: MediaSite, tmp_path: Path
):
    assert crawl.returncode == 0, crawl.stderr
    assert (tmp_path / "shops.csv").read_text().splitlines() == ["name", "shelf"]
    assert (tmp_path / "authors.csv").read_text().splitlines() == ["last_name,first_name", "A,"]
    assert (tmp_path / "titles.csv").read_text().splitlines() == ["text", "Books"]
    assert json.loads((tmp_path / "notes.jsonl").read_text()) == {"note": "n"}
    table = parquet.read_table(tmp_path / "books.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "title": "string",
        "price": "decimal128(18, 2)",
        "published": "date32[day]",
        "seen_at": "timestamp[us, tz=UTC]",
        "opens": "timestamp[us]",
        "digest": "binary",
        "tags": "list<element: string>",
        "sizes": "struct<cm: int64, cost: decimal128(18, 1)>",
        "cover": "struct<url: string, path: string, sha256: string, size: int64, status: string, "
        "reason: string>",
    }
    (book,) = table.to_pylist()
    cover = book.pop("cover")
    assert book == {
        "title": "=1+1",
        "price": Decimal("12.30"),
        "published": date(2026, 1, 2),
        "seen_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "opens": datetime(2026, 1, 2, 9),  # noqa: DTZ001  # as the spider's
        "digest": b"\x00\xff",
        "tags": ["a", "b"],
        "sizes": {"cm": 21, "cost": Decimal("0.5")},
    }
    digest = site.files["/cover.png"].sha256
    assert (cover["sha256"], cover["size"], cover["status"]) == (digest, 1000, "finished")
    assert (tmp_path / cover["path"]).stat().st_size == 1000


def test_export_selects_by_class_callback_and_field(crawl, tmp_path: Path):
    fields = invoke("export", "shelf", "-o", "-:csv:Book", "--fields", "price,published")
    pages = invoke("export", "shelf", "-o", "-", "--callback", "parse")
    authors = invoke("export", "shelf", "-o", "-:jsonl:Author", "--follow")
    mixed = invoke("export", "shelf", "-o", "all.csv")

    assert fields.stdout.splitlines() == ["price,published", "12.30,2026-01-02"]
    assert pages.stdout == '{"text":"Books"}\n'
    assert authors.stdout == '{"last_name":"A","first_name":null}\n'
    assert (
        "all.csv mixes the columns of Author, Book, Heading, Shop, dict: "
        "-o all.csv:Author writes only the items of one class"
    ) in mixed.stderr
    header = next(csv.reader((tmp_path / "all.csv").read_text().splitlines()))
    assert len(header) == 14


#: Wrong arguments of `export`, each with a part of the error.
WRONG = [
    (
        ["-o", "books.parquet:Book", "--fields", "title,prize"],
        "no exported item has the field 'prize': did you mean price? there are title, price, ",
    ),
    (
        ["-o", "books.parquet:Bok"],
        "is not written, because no exported item has the class 'Bok': did you mean Book? there ",
    ),
    (["-o", "-:jsonl:Bok", "--follow"], "stdout is not written, because no exported item"),
    (["-o", "-", "--fields", "x", "--follow"], "no exported item has the field 'x': there are"),
    (
        ["-o", "books.parquet", "--callback", "parse_bok"],
        "no task has the callback 'parse_bok': did you mean parse_book? there are ",
    ),
    (["-o", "-", "--callback", "parse", "--versions"], "--callback selects the items of last"),
]


def test_a_wrong_name_is_an_error_that_leaves_the_file(crawl, tmp_path: Path):
    before = (tmp_path / "books.parquet").read_bytes()

    results = [invoke("export", "shelf", *arguments) for arguments, _ in WRONG]

    assert [result.returncode for result in results] == [2] * len(WRONG)
    for result, (_, message) in zip(results, WRONG, strict=True):
        assert message in result.stderr
    assert (tmp_path / "books.parquet").read_bytes() == before
    assert list(tmp_path.glob("*.part")) == []
