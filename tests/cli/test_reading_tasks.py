"""Tasks from a file: plain lines, JSON Lines or CSV."""

import io

import pytest

from crawlcw.cli import reading_tasks
from crawlcw.errors import UsageError
from crawlcw.tracking import NewTask


def read(text: bytes, style: str) -> list[NewTask]:
    return list(reading_tasks.read(io.BytesIO(text), style, key="key", priority=3))


@pytest.mark.parametrize(
    ("style", "text"), [("lines", "a\n"), ("jsonl", '{"key": "a"}\n'), ("csv", "key\na\n")]
)
def test_a_byte_order_mark_is_no_part_of_the_first_line(style: str, text: str):
    assert read(text.encode("utf-8-sig"), style) == [NewTask("a", priority=3)]


def test_a_field_of_csv_may_be_large():
    large = "x" * 1_000_000

    assert read(f"key,v\na,{large}\n".encode(), "csv") == [NewTask("a", {"v": large}, priority=3)]


@pytest.mark.parametrize("priority", ["1e400", "5.7", "true", "null", "[]", '"many"', "1e2"])
def test_a_priority_is_a_whole_number(priority: str):
    with pytest.raises(UsageError, match=r"line 1: .* is not an integer"):
        read(f'{{"key": "a", "priority": {priority}}}'.encode(), "jsonl")


@pytest.mark.parametrize(("given", "meant"), [("7", 7), ('"-7"', -7), ('""', 3)])
def test_a_priority_may_be_text_or_empty(given: str, meant: int):
    assert read(f'{{"key": "a", "priority": {given}}}'.encode(), "jsonl")[0].priority == meant
