"""The tables that the commands show: names, and numbers beside them."""

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text


def two_columns(title: str, rows: Mapping[str, str]) -> Table:
    """Return a table; what it holds is shown as it is, never read as markup."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(title), min_width=32)
    table.add_column("", justify="right", min_width=8)
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


def columns(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of a name and numbers; what it holds is shown as it is."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for n, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if n else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
