"""Each format of a feed, read back by a reader of that format."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from crawlcw.feeds import forms
from crawlcw.feeds.forms import writer_class

pytestmark = pytest.mark.quick

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
        "deep": "string",
    }
    assert read.num_rows == len(items)
    last = read.to_pylist()[-1]
    assert last == {"n": None, "mixed": None, "share": 1.0, "flag": True, "deep": '{"a":1}'}
    assert read.column("mixed").to_pylist()[:3] == ["0", "1", "2"]


def test_a_parquet_column_keeps_each_digit_of_an_integer_beside_fractions():
    items = [{"n": 9223372036854775807, "m": 2}, {"n": 0.5, "m": 0.5}]

    read = parquet.read_table(io.BytesIO(written("parquet", items)))

    assert read.to_pydict() == {"n": ["9223372036854775807", "0.5"], "m": [2.0, 0.5]}


def test_a_parquet_file_of_no_items_can_be_read():
    assert parquet.read_table(io.BytesIO(written("parquet", []))).num_rows == 0
