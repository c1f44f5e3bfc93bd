"""Test the writer of a custom feed against its contract, see `FeedWriter`.

class TestMine(FeedContract):
    def feed(self):
        return Mine

    def read(self, content):
        return my_library.load(content)

Any test runner can run the tests.
"""

import copy
import io
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from crawlcw.feeds.forms import FeedWriter

#: Items with all types of values, and with text that looks like the syntax of a file format.
_ITEMS: list[dict[str, Any]] = [
    {"title": 'a "quoted", <b>&amp;</b>\r\nline\x00\x1b', "price": 3, "tags": ["a", "b"]},
    {"title": "é\u202e\U0001f600", "price": 2.5, "when": datetime(2026, 1, 2, tzinfo=UTC)},
    {"price": Decimal("1.50"), "day": date(2026, 1, 2)},
    {"price": None, "raw": b"\x00\xff", "deep": {"k": [1, None, {}]}, "": True, "a b": -(1 << 63)},
    {},
]
_PLAIN = [{"title": "first", "shop": "A & B"}, {"title": "é\U0001f600", "shop": "]]> <c>"}]


class FeedContract:
    """Base class of a feed's tests; a subclass must define `feed`, and may define `read`."""

    def feed(self) -> Any:
        """Return the class of the writer, which the entry point names."""
        raise NotImplementedError("return the class of the writer")

    def read(self, content: bytes) -> Sequence[dict[str, Any]] | None:  # noqa: ARG002  # for a derived class
        """Return the items of *content*; if the result is None, the contract compares no items."""
        return None

    def test_it_has_the_methods_of_a_writer(self) -> None:
        """`crawlcw` calls `write` for each item, then `finish`, and `close` in any case."""
        assert isinstance(self.feed(), type), "an entry point names a class"
        assert issubclass(self.feed(), FeedWriter), "it needs `write`, `finish` and `close`"

    def test_every_value_can_be_written(self) -> None:
        """An item may have any text, and values of any type that a ledger stores."""
        items = copy.deepcopy(_ITEMS)
        self._written(items)
        assert items == _ITEMS, "the writer does not change the items"

    def test_no_items_are_a_valid_file(self) -> None:
        """A crawl may have no items."""
        items = self.read(self._written([]))
        assert items is None or list(items) == []

    def test_the_items_are_read_back(self) -> None:
        """The content has the text of each item, in the same order."""
        items = self.read(self._written(_PLAIN))
        assert items is None or list(items) == _PLAIN

    def test_only_the_chosen_columns_are_written(self) -> None:
        """*columns* has the names of `--fields`; an item may lack such a field."""
        items = self.read(self._written(_PLAIN[:1], columns=["shop", "title"]))
        assert items is None or list(items) == _PLAIN[:1]
        self._written([{"title": "A"}], columns=["shop"])

    def test_the_stream_stays_open(self) -> None:
        """`crawlcw` closes the stream, which may be stdout or a compressed file."""
        stream = io.BytesIO()
        writer = self.feed()(stream, columns=None)
        writer.write(_PLAIN[0])
        writer.finish()
        writer.close()
        assert not stream.closed

    def test_it_can_be_closed_unfinished(self) -> None:
        """After an error `crawlcw` calls `close` without `finish`."""
        writer = self.feed()(io.BytesIO(), columns=None)
        writer.write(_PLAIN[0])
        writer.close()

    def test_two_feeds_at_once_are_separate(self) -> None:
        """`-o` may name two files of the same format."""
        streams = (io.BytesIO(), io.BytesIO())
        writers = [self.feed()(stream, columns=None) for stream in streams]
        for writer, item in zip(writers, _PLAIN, strict=True):
            writer.write(item)
        for writer, stream, item in zip(writers, streams, _PLAIN, strict=True):
            writer.finish()
            writer.close()
            items = self.read(stream.getvalue())
            assert items is None or list(items) == [item]

    def _written(
        self, items: Sequence[dict[str, Any]], *, columns: Sequence[str] | None = None
    ) -> bytes:
        stream = io.BytesIO()
        writer = self.feed()(stream, columns=columns)
        for item in items:
            writer.write(item)
        writer.finish()
        writer.close()
        return stream.getvalue()
