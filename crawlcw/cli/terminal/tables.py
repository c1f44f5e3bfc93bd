"""The one kind of table that the commands show: names and numbers under a title."""

from collections.abc import Mapping

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
