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
    ("text", "said"),
    [
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
