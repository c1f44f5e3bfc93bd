"""Values of the option `-o`."""

import os
from pathlib import Path

import pytest

from crawlcw.errors import UsageError
from crawlcw.feeds import export
from crawlcw.feeds.target import Target

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "format_", "compression"),
    [
        ("books.jsonl", "jsonl", None),
        ("a.b/books.JL", "jsonl", None),
        ("books.ndjson.gz", "jsonl", "gzip"),
        ("books.json", "json", None),
        ("books.2026.csv.zst", "csv", "zstd"),
        ("books.parquet", "parquet", None),
        ("s3://bucket/books.csv.gz", "csv", "gzip"),
        ("-", "jsonl", None),
        ("-:csv", "csv", None),
    ],
)
def test_the_extension_says_the_form(text: str, format_: str, compression: str | None):
    target = Target.parse(text)

    assert (target.format, target.compression) == (format_, compression)
    assert target.is_stdout == text.startswith("-")
    assert target.is_remote == text.startswith("s3")


@pytest.mark.parametrize(
    ("text", "location", "item_class"),
    [
        ("books.csv:Book", "books.csv", "Book"),
        ("books.csv.gz:shop.items:Tool", "books.csv.gz", "shop.items:Tool"),
        ("s3://bucket/x.csv", "s3://bucket/x.csv", None),
        ("s3://bucket/x.csv:Book", "s3://bucket/x.csv", "Book"),
        ("gs://u:p@bucket:1/a.csv:b.csv", "gs://u:p@bucket:1/a.csv:b.csv", None),
        (r"C:\data\x.csv", r"C:\data\x.csv", None),
        (r"C:\data\x.csv:Book", r"C:\data\x.csv", "Book"),
        ("12:30.csv", "12:30.csv", None),
        ("/dev/null:Book", "/dev/null", "Book"),
        ("-:jsonl:Book", "-", "Book"),
    ],
)
def test_a_class_follows_a_target(text: str, location: str, item_class: str | None):
    target = Target.parse(text)

    assert (target.location, target.item_class) == (location, item_class)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("books.csv:", "'books.csv:' has no known format"),
        ("books.csv:a/b", "'books.csv:a/b' has no known format"),
        ("-:Book", "'Book' is not a format"),
        ("books.xlsx", "'books.xlsx' has no known format"),
        ("books", "'books' has no known format"),
        (".gz", "'.gz' has no known format"),
        ("books.gz", "'books.gz' has no known format"),
        ("", "'' has no known format"),
        ("books.parquet.gz", "a Parquet file is already compressed"),
        ("-:xml", "'xml' is not a format"),
    ],
)
def test_what_says_no_form_is_refused(text: str, said: str):
    with pytest.raises(UsageError, match=said):
        Target.parse(text)


def test_a_pipe_needs_no_extension(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")

    assert Target.parse(str(tmp_path / "pipe")).format == "jsonl"


def test_a_folder_is_not_written(tmp_path: Path):
    (tmp_path / "items.csv").mkdir()

    with pytest.raises(UsageError, match=r"items.csv: it is a folder"):
        export.check([Target.parse(str(tmp_path / "items.csv"))])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["no/such/folder.csv"], "cannot write no/such/folder.csv: there is no folder"),
        (["a.csv", "b.json", "a.csv"], "-o a.csv occurs twice: remove one"),
        (["nowhere://bucket/a.csv"], "cannot write to nowhere://"),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(names: list[str], said: str):
    with pytest.raises(UsageError, match=said):
        export.check([Target.parse(name) for name in names])
