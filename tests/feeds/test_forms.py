"""Each format of a feed, read back by a reader of that format."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from crawlcw.feeds import forms
from crawlcw.feeds.forms import writer_class
from crawlcw.model import values

pytestmark = pytest.mark.quick

NAIVE = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  # tested on purpose

ITEMS: list[dict[str, Any]] = [
    {"title": 'A "quoted", comma\nand a line', "price": 3, "tags": ["a", "b"]},
    {"title": "é\u202e", "stock": True, "price": 2.5, "when": datetime(2026, 1, 2, tzinfo=UTC)},
    {"price": None, "raw": b"\x00\xff", "deep": {"k": [1, None]}},
]


def written(
    name: str, items: list[dict[str, Any]], *, columns: Sequence[str] | None = None, **options: Any
) -> bytes:
    stream = io.BytesIO()
    form = writer_class(name)(stream, columns=columns, **options)
    for item in items:
        form.write(item)
    form.finish()
    form.close()
    return stream.getvalue()


def table(items: list[dict[str, Any]], **options: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(written("csv", items, **options).decode(), newline="")))


@pytest.mark.parametrize("items", [[], ITEMS[:1], ITEMS])
def test_json_is_one_array_and_json_lines_a_line_each(items: list[dict[str, Any]]):
    lines = [json.loads(line) for line in written("jsonl", items).decode().split("\n")[:-1]]

    assert json.loads(written("json", items)) == lines
    assert [set(line) for line in lines] == [set(item) for item in items]


def test_a_table_has_the_columns_of_all_items():
    assert table(ITEMS) == [
        ["title", "price", "tags", "stock", "when", "raw", "deep"],
        ['A "quoted", comma\nand a line', "3", '["a","b"]', "", "", "", ""],
        ["é\\u202e", "2.5", "", "true", "2026-01-02T00:00:00Z", "", ""],
        ["", "", "", "", "", "AP8=", '{"k":[1,null]}'],
    ]


def test_a_table_of_chosen_columns_has_these_in_their_order():
    assert table(ITEMS[:1], columns=["price", "none", "title"]) == [
        ["price", "none", "title"],
        ["3", "", ITEMS[0]["title"]],
    ]


def test_on_a_terminal_each_row_of_a_table_is_one_line_that_acts_on_nothing():
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    form = writer_class("csv")(stream, columns=None)
    form.write({"title": "a\r\nforged\x1b[2J", "n": 1})
    form.finish()
    form.close()

    assert stream.getvalue() == b"title,n\na\\u000d\\u000aforged\\u001b[2J,1\n"


def test_no_items_are_an_empty_table():
    assert table([]) == []


@pytest.mark.parametrize(
    "text",
    ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\r=1", "\uff1d1", "-", "+1+1"],
)
def test_a_formula_is_defused_unless_it_is_asked_for(text: str):
    item = {text: text, "n": -3, "number": "-3.5", "plain": "a=b"}

    assert table([item]) == [
        [f"'{text}", "n", "number", "plain"],
        [f"'{text}", "-3", "-3.5", "a=b"],
    ]
    assert table([item], defuse=False)[1][0] == text


@given(st.text())
def test_no_defused_cell_begins_as_a_formula_does(text: str):
    cell = forms.defused(text)

    assert cell in (text, f"'{text}")
    if cell[:1] and cell[0] in "=+-@\t\r\uff1d\uff0b\uff0d\uff20":
        float(cell)  # a float for an empty cell


def test_a_parquet_column_has_the_type_that_all_its_values_have():
    items = [
        *({"n": n, "mixed": n if n % 2 else str(n), "share": n / 2} for n in range(12_000)),
        {"n": None, "flag": True, "share": 1, "deep": {"a": 1}},
    ]

    read = parquet.read_table(io.BytesIO(written("parquet", items)))

    assert {field.name: str(field.type) for field in read.schema} == {
        "n": "int64",
        "mixed": "string",
        "share": "double",
        "flag": "bool",
        "deep": "struct<a: int64>",
    }
    assert read.num_rows == len(items)
    last = read.to_pylist()[-1]
    assert last == {"n": None, "mixed": None, "share": 1.0, "flag": True, "deep": {"a": 1}}
    assert read.column("mixed").to_pylist()[:3] == ["0", "1", "2"]


def test_a_parquet_column_keeps_each_digit_of_an_integer_beside_fractions():
    items = [{"n": 9223372036854775807, "m": 2}, {"n": 0.5, "m": 0.5}]

    read = parquet.read_table(io.BytesIO(written("parquet", items)))

    assert read.to_pydict() == {"n": ["9223372036854775807", "0.5"], "m": [2.0, 0.5]}


#: Values of a column, the type of the column, and the values that a reader gets, if they differ.
TYPED: list[tuple[list[Any], str, list[Any] | None]] = [
    ([Decimal("1.20"), None, Decimal(-3)], "decimal128(18, 2)", None),
    ([Decimal("0.1"), 12], "decimal128(18, 1)", None),
    ([Decimal(10**18), Decimal("0.5")], "decimal128(38, 1)", None),
    ([Decimal(10**16), Decimal("0.25")], "decimal128(38, 2)", None),
    ([Decimal("0.01"), 10**16], "decimal128(38, 2)", None),
    ([Decimal("9" * 36), Decimal("0.25")], "decimal128(38, 2)", None),
    ([Decimal("9" * 37), Decimal("0.25")], "string", ["9" * 37, "0.25"]),
    ([Decimal("1E+50"), Decimal("0.1")], "string", ["1E+50", "0.1"]),
    ([Decimal("0.1"), 0.1], "string", ["0.1", "0.1"]),
    ([date(2026, 1, 2), date.min, date.max], "date32[day]", None),
    ([datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)], "timestamp[us, tz=UTC]", None),
    ([NAIVE, NAIVE.replace(year=9999)], "timestamp[us]", None),
    ([NAIVE, date(2026, 1, 2)], "string", ["2026-01-02T03:04:05", "2026-01-02"]),
    ([b"\x00\xff", b""], "binary", None),
    ([b"\x00", "a"], "string", ["AA==", "a"]),
    ([["a", None], []], "list<element: string>", None),
    ([[], None], "list<element: string>", None),
    ([[1], ["a"]], "list<element: string>", [["1"], ["a"]]),
    ([[1], "a"], "string", ["[1]", "a"]),
    (
        [{"a": 1, "b": [Decimal("1.5")]}, {"c": date(2026, 1, 2)}],
        "struct<a: int64, b: list<element: decimal128(18, 1)>, c: date32[day]>",
        [
            {"a": 1, "b": [Decimal("1.5")], "c": None},
            {"a": None, "b": None, "c": date(2026, 1, 2)},
        ],
    ),
    ([{}], "string", ["{}"]),
    ([{str(n): 1} for n in range(101)], "string", [f'{{"{n}":1}}' for n in range(101)]),
    ([{"": {"a.b": 1}}], "struct<: struct<a.b: int64>>", None),
]


@pytest.mark.parametrize(("column", "type_", "expected"), TYPED)
def test_a_parquet_column_has_a_type_for_each_value_of_an_item(
    column: list[Any], type_: str, expected: list[Any] | None
):
    items = [values.clean({"v": value, "n": n}) for n, value in enumerate(column)]

    read = parquet.read_table(io.BytesIO(written("parquet", items)))

    assert str(read.schema.field("v").type) == type_
    assert read.column("v").to_pylist() == (column if expected is None else expected)


def test_a_parquet_column_takes_values_of_any_depth():
    deep: Any = 1
    for _ in range(100):
        deep = [{"a": deep}]

    read = parquet.read_table(io.BytesIO(written("parquet", [values.clean({"v": deep})])))

    assert read.num_rows == 1


def test_a_parquet_file_of_no_items_can_be_read():
    assert parquet.read_table(io.BytesIO(written("parquet", []))).num_rows == 0
