"""Make tables of names and numbers, with statuses in colour.

`click.echo` removes the colours unless it writes to a terminal. This module does not use rich,
because rich takes 20 ms to load.
"""

import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import click

from crawlcw.model.counters import Counters
from crawlcw.model.durations import format_duration

#: The colour of each status. click and rich use the same names for these colours.
STATUS_COLOURS = {
    "todo": "cyan",
    "processing": "yellow",
    "failed": "red",
    "finished": "green",
    "ignored": "magenta",
}

_MIN_NAME_WIDTH, _MIN_NUMBER_WIDTH = 32, 8
_GAP = "   "
_WIDE = ("W", "F")  #: Unicode's names (UAX 11) for characters that are two cells wide


def two_columns(title: str, rows: Mapping[str, str]) -> str:
    """Return a table with names on the left and values on the right, under *title*."""
    return _table([title, ""], rows.items(), min_widths=(_MIN_NAME_WIDTH, _MIN_NUMBER_WIDTH))


def columns(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose rows have a name and numbers, under *headers*."""
    return _table(headers, rows, min_widths=[0] * len(headers))


def stalls(counters: Counters) -> dict[str, str]:
    """Return a row about stalls of the event loop, or `{}` if the loop did not stall."""
    longest = format_duration(timedelta(seconds=counters.longest_stall))
    text = f"{counters.stalls:,} times, {longest} at most"
    return {"event loop blocked": text} if counters.stalls else {}


def coloured(text: str, status: str) -> str:
    """Return *text* in the colour of *status*, or without a colour if *status* has none."""
    return click.style(text, fg=STATUS_COLOURS[status]) if status in STATUS_COLOURS else text


def terminal_width() -> int | None:
    """Return the width of stdout's terminal in columns, or None if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, *, indent: int) -> str:
    """Break *text* into lines for a terminal; indent all lines but the first by *indent* spaces."""
    width = terminal_width()
    if width is None:
        return text
    lines = textwrap.wrap(text, max(width - indent, 20), break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def padded(text: str, width: int) -> str:
    """Return *text* with spaces at its end, up to *width* cells of a terminal."""
    return text + " " * (width - cells(text))


def show(text: str, *, err: bool = False) -> None:
    """Print a table; if the stream cannot write Unicode, draw the table's lines with `-`."""
    stream = sys.stderr if err else sys.stdout
    takes_unicode = (stream.encoding or "").lower().startswith("utf")
    click.echo(text if takes_unicode else text.replace("─", "-"), err=err)


def _table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, min_widths: Sequence[int]
) -> str:
    lines = [list(headers), *map(list, rows)]
    widths = [
        max(min_width, *map(cells, column))
        for min_width, column in zip(min_widths, zip(*lines, strict=True), strict=True)
    ]
    head, *body = (_line(row, widths) for row in lines)
    rule = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return "\n".join(["", head, f" {rule}", *body, ""])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    (name, *values), (name_width, *value_widths) = row, widths
    name_cell = padded(name, name_width)
    if values != ["0"]:  # without colour, because a red 0 looks like a failure
        name_cell = coloured(name_cell, name)
    padded_cells = [
        " " * (width - cells(value)) + value
        for value, width in zip(values, value_widths, strict=True)
    ]
    return f" {_GAP.join([name_cell, *padded_cells])}".rstrip()


def cells(text: str) -> int:
    """Return the width of *text* on a terminal, in cells."""
    if text.isascii():
        return len(text)
    wide_count = sum(unicodedata.east_asian_width(character) in _WIDE for character in text)
    return len(text) + wide_count - sum(map(bool, map(unicodedata.combining, text)))
