"""Tables of names and numbers, as plain text.

It does not use rich, which takes 20 ms to load and only draws the live displays.
"""

import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import click

from crawlcw.model.counters import Counters
from crawlcw.model.durations import format_duration

_LEAST_NAME, _LEAST_NUMBER = 32, 8
_GAP = "   "
_WIDE = ("W", "F")  #: two cells on a terminal, by Unicode's UAX 11


def two_columns(title: str, rows: Mapping[str, str]) -> str:
    """Return a table under *title*, its values on the right."""
    return _table([title, ""], rows.items(), least=(_LEAST_NAME, _LEAST_NUMBER))


def columns(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of a name and numbers."""
    return _table(headers, rows, least=[0] * len(headers))


def stalls(counters: Counters) -> dict[str, str]:
    """Return the row about an event loop that stood still; empty: it did not."""
    longest = format_duration(timedelta(seconds=counters.longest_stall))
    text = f"{counters.stalls:,} times, {longest} at most"
    return {"event loop blocked": text} if counters.stalls else {}


def show(text: str, *, err: bool = False) -> None:
    """Print a table; with an ASCII rule if the stream is not Unicode."""
    stream = sys.stderr if err else sys.stdout
    takes_unicode = (stream.encoding or "").lower().startswith("utf")
    click.echo(text if takes_unicode else text.replace("─", "-"), err=err)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, least: Sequence[int]) -> str:
    lines = [list(headers), *map(list, rows)]
    widths = [
        max(min_width, *map(_cells, column))
        for min_width, column in zip(least, zip(*lines, strict=True), strict=True)
    ]
    head, *body = (_line(cells, widths) for cells in lines)
    rule = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return "\n".join(["", head, f" {rule}", *body, ""])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    (name, *numbers), (name_width, *number_widths) = cells, widths
    padded_cells = [name + " " * (name_width - _cells(name))]
    padded_cells += [
        " " * (width - _cells(cell)) + cell
        for cell, width in zip(numbers, number_widths, strict=True)
    ]
    return f" {_GAP.join(padded_cells)}".rstrip()


def _cells(text: str) -> int:
    """Return the width of *text* on a terminal, in cells."""
    if text.isascii():
        return len(text)
    wide_count = sum(unicodedata.east_asian_width(character) in _WIDE for character in text)
    return len(text) + wide_count - sum(map(bool, map(unicodedata.combining, text)))
