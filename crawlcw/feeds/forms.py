"""The forms of a feed: each a writer of items on a stream of bytes."""

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from crawlcw.errors import UsageError
from crawlcw.feeds import cells
from crawlcw.feeds.inert import inert, inert_cell, visible_cell
from crawlcw.feeds.spool import Spool
from crawlcw.model import values

#: Rows of a Parquet file that are written together.
_ROW_GROUP = 5_000


class Form(Protocol):
    """Writes items in one form."""

    def write(self, item: Mapping[str, Any]) -> None:
        """Take the next item."""

    def finish(self) -> None:
        """Write what is missing to make the stream whole; the stream stays open."""

    def close(self) -> None:
        """Let go of what the form keeps, whether it is finished or not."""


class JsonLines:
    """One item a line (https://jsonlines.org)."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, item: Mapping[str, Any]) -> None:
        """Write a line."""
        self._stream.write(f"{inert(values.to_json(item))}\n".encode())

    def finish(self) -> None:
        """Write nothing: a stream of lines is whole after each."""

    def close(self) -> None:
        """Keep nothing."""


class Json:
    """One array of all items, an item a line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._opening = b"[\n"

    def write(self, item: Mapping[str, Any]) -> None:
        """Write the next element."""
        self._stream.write(self._opening + inert(values.to_json(item)).encode())
        self._opening = b",\n"

    def finish(self) -> None:
        """Write the end of the array."""
        self._stream.write(b"[]\n" if self._opening == b"[\n" else b"\n]\n")

    def close(self) -> None:
        """Keep nothing."""


class Csv:
    """A table (RFC 4180), in UTF-8; its columns are those of all items.

    A list or an object is written as JSON. With *defuse*, no cell begins as a
    formula does: what a page wrote must not run in somebody's spreadsheet. On a
    terminal each row is one line: one within a cell would look like another row.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None, defuse: bool) -> None:
        self._stream = stream
        self._spool = Spool(columns)
        self._is_seen = stream.isatty()
        self._defuse = cells.defused if defuse else str

    def write(self, item: Mapping[str, Any]) -> None:
        """Keep the item until all columns are known."""
        self._spool.add(item)

    def finish(self) -> None:
        """Write the table."""
        text = io.TextIOWrapper(self._stream, encoding="utf-8", newline="")
        try:
            table = csv.writer(text, lineterminator="\n" if self._is_seen else "\r\n")
            columns = self._spool.columns
            if columns:
                table.writerow([self._shown(name) for name in columns])
            for row in self._spool.rows():
                table.writerow([self._shown(cells.text_of(row.get(name))) for name in columns])
        finally:
            text.detach()

    def close(self) -> None:
        """Forget the items."""
        self._spool.close()

    def _shown(self, text: str) -> str:
        return self._defuse(visible_cell(text) if self._is_seen else inert_cell(text))


class Parquet:
    """A table of columns with types (Apache Parquet), by pyarrow.

    A column is of numbers, of integers or of truth values where all of its
    values are, else of text: a list or an object is written as JSON, and so are integers
    beside fractions where a float would not hold them.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None) -> None:
        self._stream = stream
        self._spool = Spool(columns)
        self._kinds: dict[str, set[type]] = {}
        self._inexact: set[str] = set()  #: columns with an integer that is no float

    def write(self, item: Mapping[str, Any]) -> None:
        """Keep the item until all columns are known."""
        self._spool.add(item)
        for name, value in item.items():
            if value is not None:
                self._kinds.setdefault(name, set()).add(type(value))
                if type(value) is int and int(float(value)) != value:
                    self._inexact.add(name)

    def finish(self) -> None:
        """Write the table."""
        import pyarrow
        from pyarrow import parquet

        types = {name: self._type(name) for name in self._spool.columns}
        arrow = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
        schema = pyarrow.schema([(n, arrow.get(t, pyarrow.string())) for n, t in types.items()])
        with parquet.ParquetWriter(self._stream, schema) as table:
            for some in _batches(self._spool.rows()):
                columns = {n: [_typed(row.get(n), t) for row in some] for n, t in types.items()}
                table.write_table(pyarrow.table(columns, schema=schema))

    def close(self) -> None:
        """Forget the items."""
        self._spool.close()

    def _type(self, name: str) -> type:
        kinds = self._kinds.get(name, set())
        if len(kinds) == 1:
            (kind,) = kinds
            return kind if kind in (bool, int, float) else str
        return float if kinds == {int, float} and name not in self._inexact else str


def check(form: str) -> None:
    """Raise `UsageError` where *form* needs a library that is not installed."""
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow: install it with `pip install 'crawlcw[parquet]'`"
            ) from None


def form_of(name: str, stream: BinaryIO, *, columns: Sequence[str] | None, defuse: bool) -> Form:
    """Return the writer for a form of `target.FORMATS`."""
    match name:
        case "json":
            return Json(stream)
        case "csv":
            return Csv(stream, columns=columns, defuse=defuse)
        case "parquet":
            return Parquet(stream, columns=columns)
        case _:
            return JsonLines(stream)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while some := list(itertools.islice(rows, _ROW_GROUP)):
        yield some


def _typed(value: Any, kind: type) -> Any:
    if value is None:
        return None
    return cells.text_of(value) if kind is str else kind(value)
