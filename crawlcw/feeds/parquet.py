"""Tables with typed columns (Apache Parquet), which need the optional dependencies `parquet`."""

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
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
#: Maximum number of fields of a struct. The keys of a larger mapping are data, not a structure.
_MAX_FIELDS = 100
#: Precisions of decimal columns: few, so that the files of two exports usually have equal types.
_PRECISIONS = (18, 38)


class Parquet(Table):
    """Writer of a table with typed columns (Apache Parquet), by the library pyarrow.

    All values of a column have one type: bool, int64, double, decimal128, date32, timestamp in
    microseconds (with the zone UTC, or without a zone), binary, string, or a list or struct of such
    types. A column of integers and fractions is double, and a column of integers and decimals is
    decimal128, if the type represents each value exactly. The type of any other mixed column is
    string, with JSON for lists and objects.
    """

    def __init__(self, stream: BinaryIO, *, columns: Sequence[str] | None) -> None:
        super().__init__(stream, columns=columns)
        self._values: dict[str, _Values] = {}

    def write(self, item: Mapping[str, Any]) -> None:
        """Store the item until all columns and their types are known."""
        super().write(item)
        for name, value in item.items():
            if value is not None:
                if (values := self._values.get(name)) is None:
                    values = self._values[name] = _Values()
                values.add(value)

    def finish(self) -> None:
        """Write the table."""
        columns = {name: self._values.get(name, _Values()) for name in self.columns}
        types = {name: values.arrow_type() for name, values in columns.items()}
        decoders = {name: _decoder(arrow_type) for name, arrow_type in types.items()}
        schema = pyarrow.schema(list(types.items()))
        with ParquetWriter(self._stream, schema) as table:
            rows = self.rows()
            while batch := list(itertools.islice(rows, _ROW_GROUP)):
                arrays = [
                    pyarrow.array(
                        [None if (v := row.get(name)) is None else decode(v) for row in batch],
                        type=types[name],
                    )
                    for name, decode in decoders.items()
                ]
                table.write_table(pyarrow.table(arrays, schema=schema))


class _Values:
    """The common properties of the values of a column, of the members of lists, or of a field."""

    __slots__ = ("_digits", "_fields", "_is_inexact", "_kinds", "_largest", "_members", "_scale")

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._is_inexact = False  #: whether a float cannot represent one of the integers
        self._largest = 0  #: the largest absolute value of the integers
        self._digits = self._scale = 0  #: most digits of a decimal before and after the point
        self._members: _Values | None = None  #: the members of lists
        self._fields: dict[str, _Values] = {}  #: the fields of mappings, at most `_MAX_FIELDS` + 1

    def add(self, value: Any) -> None:
        """Add a value other than None."""
        if isinstance(value, str):
            self._kinds.add("str")
        elif isinstance(value, dict):
            self._kinds.add("dict")
            self._add_fields(value)
        elif isinstance(value, list):
            self._kinds.add("list")
            if self._members is None:
                self._members = _Values()
            for member in value:
                if member is not None:
                    self._members.add(member)
        elif isinstance(value, datetime):
            self._kinds.add("naive time" if value.tzinfo is None else "time")
        else:
            self._kinds.add(type(value).__name__)
            if type(value) is int:
                self._largest = max(self._largest, abs(value))
                self._is_inexact = self._is_inexact or int(float(value)) != value
            elif isinstance(value, Decimal):
                self._add_digits(value)

    def _add_fields(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if (values := self._fields.get(name)) is None:
                if len(self._fields) > _MAX_FIELDS:
                    return
                values = self._fields[name] = _Values()
            if value is not None:
                values.add(value)

    def _add_digits(self, value: Decimal) -> None:
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int), "a clean decimal is finite"
        self._scale = max(self._scale, -exponent)
        self._digits = max(self._digits, len(digits) + exponent)

    def _precision(self) -> int:
        return max(self._digits, len(str(self._largest))) + self._scale

    def arrow_type(self) -> Any:
        """Return the type of Arrow that represents all values exactly."""
        match sorted(self._kinds):
            case ["bool"]:
                return pyarrow.bool_()
            case ["int"]:
                return pyarrow.int64()
            case ["float"]:
                return pyarrow.float64()
            case ["float", "int"] if not self._is_inexact:
                return pyarrow.float64()
            case ["Decimal"] | ["Decimal", "int"] if self._precision() <= _PRECISIONS[-1]:
                precision = next(p for p in _PRECISIONS if self._precision() <= p)
                return pyarrow.decimal128(precision, self._scale)
            case ["date"]:
                return pyarrow.date32()
            case ["time"]:
                return pyarrow.timestamp("us", tz="UTC")
            case ["naive time"]:
                return pyarrow.timestamp("us")
            case ["bytes"]:
                return pyarrow.binary()
            case ["list"] if self._members is not None:
                return pyarrow.list_(self._members.arrow_type())
            case ["dict"] if 0 < len(self._fields) <= _MAX_FIELDS:
                fields = self._fields.items()
                return pyarrow.struct([(name, values.arrow_type()) for name, values in fields])
        return pyarrow.string()


def _decoder(arrow_type: Any) -> Callable[[Any], Any]:
    """Return the function that makes values of *arrow_type* from the JSON values of rows."""
    types = pyarrow.types
    if types.is_string(arrow_type):
        return text_of
    if types.is_decimal(arrow_type):
        return Decimal
    if types.is_date(arrow_type):
        return date.fromisoformat
    if types.is_timestamp(arrow_type):
        return datetime.fromisoformat
    if types.is_binary(arrow_type):
        return base64.b64decode
    if types.is_list(arrow_type):
        decode = _decoder(arrow_type.value_type)
        return lambda members: [None if m is None else decode(m) for m in members]
    if types.is_struct(arrow_type):
        decoders = [(field.name, _decoder(field.type)) for field in arrow_type]
        return lambda fields: {
            name: None if (value := fields.get(name)) is None else decode(value)
            for name, decode in decoders
        }
    return _unchanged


def _unchanged(value: Any) -> Any:
    return value
