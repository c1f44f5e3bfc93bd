"""Writers of items to a byte stream, one class for each feed format.

Another package adds a format with an entry point of the group `crawlcw.feeds`. The entry point's
name is the name of the format and the extension of its files. The entry point's value is a class
with the methods of `FeedWriter`.
"""

import csv
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Protocol, runtime_checkable

from crawlcw import extensions
from crawlcw.errors import UsageError
from crawlcw.feeds.escaping import escape_cell, escape_json, visible_cell
from crawlcw.model import values

#: Characters that start a formula in a spreadsheet (CWE-1236), including full-width forms.
_FORMULA = re.compile(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\Z")


@runtime_checkable
class FeedWriter(Protocol):
    """Writes items in one format to a byte stream.

    `crawlcw` calls the class as `Writer(stream, columns=columns)`. *stream* is binary and open for
    writing. *columns* are the values of `--fields`, or None for all fields.
    """

    def write(self, item: Mapping[str, Any]) -> None:
        """Write the next item, whose values are JSON values, times, dates, decimals or bytes.

        Two items may have different fields.
        """

    def finish(self) -> None:
        """Write the end of the content; crawlcw calls `finish` once, unless a write has failed."""

    def close(self) -> None:
        """Release temporary files; crawlcw calls `close` once, even after a failure."""


class JsonLines:
    """Writer of JSON Lines: one item on each line (https://jsonlines.org)."""

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None = None) -> None:  # noqa: ARG002
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
        """Write the end of the JSON array."""
        self._stream.write(b"[]\n" if self._opening == b"[\n" else b"\n]\n")


class Table(JsonLines):
    """Base of table writers, which keep the rows on disk until all columns are known.

    If *columns* is None, the columns are the fields of all items, in order of appearance.
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
        """The names of the table's columns."""
        return list(self._item_columns if self._fixed_columns is None else self._fixed_columns)

    def write(self, item: Mapping[str, Any]) -> None:
        """Store the item on disk until all columns are known."""
        if self._fixed_columns is None:
            self._item_columns.update(dict.fromkeys(item))
        self._file.write(values.to_json(item) + "\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows; they come from JSON, so times, dates, decimals and bytes are texts."""
        self._file.flush()
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def close(self) -> None:
        """Delete the stored items."""
        self._file.close()


class Csv(Table):
    """Writer of a CSV table (RFC 4180) in UTF-8, with the columns of all items.

    Lists and objects are written as JSON. If *defuse* is true, cells that look like formulas are
    escaped, because a spreadsheet must not run text from a page. On a terminal, a line end in a
    cell is escaped, because it would look like a new row.
    """

    def __init__(
        self, stream: BinaryIO, *, columns: Sequence[str] | None, defuse: bool = True
    ) -> None:
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


_BUILT_IN: dict[str, Callable[..., FeedWriter]] = {
    "jsonl": JsonLines,
    "json": Json,
    "csv": Csv,
}


def writer_class(name: str) -> Callable[..., FeedWriter]:
    """Return the writer of a format; raises `UsageError` if the writer cannot be loaded."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    writer = extensions.load(extensions.FEEDS, name)
    if writer is None:
        raise UsageError(f"no installed package writes {name!r}: `crawlcw plugins` lists the feeds")
    if not isinstance(writer, type) or not issubclass(writer, FeedWriter):
        raise UsageError(
            f"the feed {name!r} cannot be used: write a class with `write`, `finish` and `close`"
        )
    return writer


def text_of(value: Any) -> str:
    """Return the text of a table cell, which is empty for None, and JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    encoded = values.to_json(value)
    # JSON encodes times, dates, decimals and bytes as strings, so remove the quotes.
    return encoded[1:-1] if encoded.startswith('"') else encoded


def defused(text: str) -> str:
    """Return *text*, with an apostrophe before it if a spreadsheet would run it as a formula."""
    if _FORMULA.match(text) and not _NUMBER.match(text):
        return f"'{text}"
    return text
