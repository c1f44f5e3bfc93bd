"""What keeps the house in order, where no linter looks: classes stay small.

Those that are larger today are named with their size, which must not grow.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

PACKAGE = Path(__file__).parents[1] / "crawlcw"
MOST = 15
#: Public methods of the classes that have more: a protocol of all that a ledger does,
#: and two that are asked by everybody in a crawl.
LARGER = {"Ledger": 45, "Frontier": 29, "Lanes": 18}


def classes() -> Iterator[ast.ClassDef]:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def public_methods(found: ast.ClassDef) -> int:
    methods = (
        each for each in found.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(not method.name.startswith("_") for method in methods)


def test_no_class_has_more_public_methods_than_a_reader_keeps_in_mind():
    sizes = {each.name: public_methods(each) for each in classes()}

    assert {name: size for name, size in sizes.items() if size > MOST} == LARGER


def test_nobody_spells_the_waiting_for_a_ledger_but_those_that_must():
    """Renewals change while they wait; the rest is the retrying ledger's."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if ".insist(" in path.read_text()
    }

    assert found == {
        "crawl/crawl.py",
        "engine/leases.py",
        "engine/retrying_ledger.py",
        "tracking/shares.py",
    }
