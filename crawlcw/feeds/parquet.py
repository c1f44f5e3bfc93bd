"""Tables with typed columns (Apache Parquet), which need the optional dependencies `parquet`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from crawlcw.errors import UsageError
from crawlcw.feeds.forms import Table, text_of

try:
    import pyarrow
    from pyarrow.parquet import ParquetWriter
except ImportError:
    raise UsageError(
        "Parquet needs pyarrow: install it with `pip install 'crawlcw[parquet]'`"
    ) from None

#: Rows in a row group.
_ROW_GROUP = 5_000


class Parquet(Table):
    """Writer of a table with typed columns (Apache Parquet), by the library pyarrow.

    A column gets the type bool, int64 or double if all its values have that type, otherwise string.
    Lists and objects are written as JSON. If a column has integers and fractions, its type is
    string if a double cannot represent one of the integers.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None) -> None:
        super().__init__(stream, columns=columns)
        self._kinds: dict[str, set[type]] = {}
        self._inexact: set[str] = set()  #: columns with an integer that a float cannot represent

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
        types = {name: self._type(name) for name in self.columns}
        arrow = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
        schema = pyarrow.schema([(n, arrow.get(t, pyarrow.string())) for n, t in types.items()])
        with ParquetWriter(self._stream, schema) as table:
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


def _typed(value: Any, kind: type) -> Any:
    if value is None:
        return None
    return text_of(value) if kind is str else kind(value)
