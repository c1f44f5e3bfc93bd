"""Statements that take many rows at once.

For each statement a thread gives up the interpreter's lock several times, and waits
for it again beside a crawl that keeps it busy; meanwhile it holds the file's one write
lock. So a transaction costs its number of statements more than that of its rows.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

Row = tuple[Any, ...]

#: Rows of one statement: each number is a text of its own, which SQLite prepares once.
_SIZES = (64, 32, 16, 8, 4, 2, 1)
#: It has UPDATE ... FROM, and takes more than 999 parameters.
_LEAST_VERSION = (3, 33)


class Bulk:
    """A statement that changes rows by values, for any number of them."""

    def __init__(self, before: str, after: str, *, columns: Sequence[str], single: str) -> None:
        """*before* and *after* stand around the values; *single* does the same for one row.

        Its parameters are numbered as the *columns* are, from 1 on.
        """
        self._before = before
        self._after = after
        self._single = single
        self._values = f"({', '.join('?' * len(columns))})"
        self._columns = columns

    def write(self, db: sqlite3.Connection, rows: Sequence[Row]) -> int:
        """Change what the rows say, within a transaction; return how many were changed."""
        changed = 0
        for some in _divided(rows):
            if len(some) == 1:
                changed += db.execute(self._single, some[0]).rowcount
                continue
            values = ", ".join([self._values] * len(some))
            statement = f"{self._before} {values} {self._after}"
            changed += db.execute(statement, tuple(chain.from_iterable(some))).rowcount
        return changed

    def rows(self, found: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Return the values of the columns; there are at least two."""
        return list(map(itemgetter(*self._columns), found))


def _divided(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = 0
    for size in _SIZES if sqlite3.sqlite_version_info >= _LEAST_VERSION else (1,):
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size
