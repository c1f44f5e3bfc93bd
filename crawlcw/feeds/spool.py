"""Rows kept in a temporary file, until it is known which columns they have."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crawlcw.model import values


class Spool:
    """All rows of a feed, on disk, and the names of their columns in the order they came up.

    With *columns* these are the only ones, in that order.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        # Closed by `close`: the rows outlive this call.
        self._file = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", newline="\n"
        )
        self._given = columns
        self._found: dict[str, None] = {}

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._found if self._given is None else self._given)

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        if self._given is None:
            self._found.update(dict.fromkeys(row))
        self._file.write(values.to_json(row) + "\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, as JSON gives them back: dates and bytes as text."""
        self._file.flush()
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def close(self) -> None:
        """Forget the rows."""
        self._file.close()
