"""Export formats: writers of items to a byte stream."""

import csv
import io
import itertools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from crawlcw.errors import UsageError
from crawlcw.feeds.escaping import escape_cell, escape_json, visible_cell
from crawlcw.model import values

#: Number of rows in a row group of a Parquet file.
_ROW_GROUP = 5_000
#: Characters that start a formula in a spreadsheet (CWE-1236), including full-width forms.
_FORMULA = re.compile(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\Z")


class JsonLines:
    """Writer of JSON Lines, which has one item on each line (https://jsonlines.org)."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, item: Mapping[str, Any]) -> None:
        """Write the next item."""
        self._stream.write(f"{escape_json(values.to_json(item))}\n".encode())

    def finish(self) -> None:
        """Write the end of the content, and leave the stream open."""

    def close(self) -> None:
        """Delete the writer's temporary files, even if the export is not finished."""


class Json(JsonLines):
    """Writer of one JSON array of all items, with one item on each line."""

    _opening = b"[\n"

    def write(self, item: Mapping[str, Any]) -> None:
        """Write the next element."""
        self._stream.write(self._opening + escape_json(values.to_json(item)).encode())
        self._opening = b",\n"

    def finish(self) -> None:
        """Write the end of the array."""
        self._stream.write(b"[]\n" if self._opening == b"[\n" else b"\n]\n")


class _Table(JsonLines):
    """Base of table writers, which keep the rows on disk until all columns are known.

    The columns are *columns*, or the fields of all items in the order of their appearance.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None) -> None:
        super().__init__(stream)
        # `close` closes this file.
        self._file = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", newline="\n"
        )
        self._fixed_columns = columns
        self._item_columns: dict[str, None] = {}

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._item_columns if self._fixed_columns is None else self._fixed_columns)

    def write(self, item: Mapping[str, Any]) -> None:
        """Store the item until all columns are known."""
        if self._fixed_columns is None:
            self._item_columns.update(dict.fromkeys(item))
        self._file.write(values.to_json(item) + "\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as read from JSON, so dates and bytes are text."""
        self._file.flush()
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def close(self) -> None:
        """Delete the stored items."""
        self._file.close()


class Csv(_Table):
    """Writer of a CSV table (RFC 4180) in UTF-8, with the columns of all items.

    Lists and objects are written as JSON. With *defuse*, cells that look like formulas are escaped,
    because text from a page must not run in a spreadsheet. On a terminal, line ends in cells are
    escaped, because a line end would look like a new row.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None, defuse: bool) -> None:
        super().__init__(stream, columns=columns)
        self._is_seen = stream.isatty()
        self._defuse = defused if defuse else str

    def finish(self) -> None:
        """Write the table."""
        text = io.TextIOWrapper(self._stream, encoding="utf-8", newline="")
        try:
            table = csv.writer(text, lineterminator="\n" if self._is_seen else "\r\n")
            columns = self.columns
            if columns:
                table.writerow([self._shown(name) for name in columns])
            for row in self.rows():
                table.writerow([self._shown(text_of(row.get(name))) for name in columns])
        finally:
            text.detach()

    def _shown(self, text: str) -> str:
        return self._defuse(visible_cell(text) if self._is_seen else escape_cell(text))


class Parquet(_Table):
    """Writer of an Apache Parquet table, whose columns have types; needs pyarrow.

    The type of a column is bool, int64 or double if all its values have this type, otherwise
    string. Lists and objects are written as JSON. A column of integers and fractions has the type
    string if a double cannot represent one of its integers.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None) -> None:
        super().__init__(stream, columns=columns)
        self._kinds: dict[str, set[type]] = {}
        self._inexact: set[str] = set()  #: columns with an integer that no float can represent

    def write(self, item: Mapping[str, Any]) -> None:
        """Store the item until all columns and their types are known."""
        super().write(item)
        for name, value in item.items():
            if value is not None:
                self._kinds.setdefault(name, set()).add(type(value))
                if type(value) is int and int(float(value)) != value:
                    self._inexact.add(name)

    def finish(self) -> None:
        """Write the table."""
        import pyarrow
        from pyarrow import parquet

        types = {name: self._type(name) for name in self.columns}
        arrow = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
        schema = pyarrow.schema([(n, arrow.get(t, pyarrow.string())) for n, t in types.items()])
        with parquet.ParquetWriter(self._stream, schema) as table:
            rows = self.rows()
            while batch := list(itertools.islice(rows, _ROW_GROUP)):
                columns = {n: [_typed(row.get(n), t) for row in batch] for n, t in types.items()}
                table.write_table(pyarrow.table(columns, schema=schema))

    def _type(self, name: str) -> type:
        kinds = self._kinds.get(name, set())
        if len(kinds) == 1:
            (kind,) = kinds
            return kind if kind in (bool, int, float) else str
        return float if kinds == {int, float} and name not in self._inexact else str


def check(form: str) -> None:
    """Raise `UsageError` if *form* needs a library that is not installed."""
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow: install it with `pip install 'crawlcw[parquet]'`"
            ) from None


def form_of(
    name: str, stream: BinaryIO, *, columns: Sequence[str] | None, defuse: bool
) -> JsonLines:
    """Return the writer for a format of `target.FORMATS`."""
    match name:
        case "json":
            return Json(stream)
        case "csv":
            return Csv(stream, columns=columns, defuse=defuse)
        case "parquet":
            return Parquet(stream, columns=columns)
        case _:
            return JsonLines(stream)


def _typed(value: Any, kind: type) -> Any:
    if value is None:
        return None
    return text_of(value) if kind is str else kind(value)


def text_of(value: Any) -> str:
    """Return the text of a cell: empty for None, JSON for a list or an object."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    encoded = values.to_json(value)
    # JSON encodes dates and bytes as strings, so remove the quotes.
    return encoded[1:-1] if encoded.startswith('"') else encoded


def defused(text: str) -> str:
    """Return *text*, with an apostrophe before it if a spreadsheet would run it as a formula."""
    if _FORMULA.match(text) and not _NUMBER.match(text):
        return f"'{text}"
    return text
