"""Every row has a test, and every test a row that exists."""

import importlib
import inspect
from collections import defaultdict
from pathlib import Path

import pytest

from tests.capabilities.rows import ROWS


def seeds_of(thing: object) -> list[str]:
    marks = getattr(thing, "pytestmark", [])
    return [row for mark in marks if mark.name == "seed" for row in mark.args]


def named_by_row() -> dict[str, list[str]]:
    """Return the tests of this folder by the rows that they are marked with."""
    found = defaultdict(list)
    for path in sorted(Path(__file__).parent.glob("test_s*_*.py")):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_"):
                for row in seeds_of(module) + seeds_of(function):
                    found[row].append(f"{path.stem}::{name}")
    return found


def named_without_row() -> list[str]:
    marked = {name for names in named_by_row().values() for name in names}
    return [
        f"{path.stem}::{name}"
        for path in sorted(Path(__file__).parent.glob("test_s*_*.py"))
        for name in vars(importlib.import_module(f"{__package__}.{path.stem}"))
        if name.startswith("test_") and f"{path.stem}::{name}" not in marked
    ]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_a_test(row: str):
    assert named_by_row()[row], f"no test is marked with {row}: {ROWS[row]}"


def test_no_test_has_a_row_that_does_not_exist():
    assert set(named_by_row()) <= set(ROWS)


def test_no_test_is_without_a_row():
    assert named_without_row() == []


def test_a_test_is_in_the_file_of_its_rows_system():
    strangers = [
        (row, name)
        for row, names in named_by_row().items()
        for name in names
        if not name.startswith(f"test_s{row.partition('.')[0]}_")
    ]
    assert strangers == []
