"""Rules for the code that no linter checks: small classes and functions."""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import crawlcw
import crawlcw.ledger

pytestmark = pytest.mark.quick

PACKAGE = Path(__file__).parents[1] / "crawlcw"
MOST = 15
#: Lines of a function below its docstring; the signature does not count.
MOST_LINES = 50
#: Methods of a facet of a ledger, and of its protocol.
MOST_OF_A_FACET = 12


@functools.cache
def sizes() -> tuple[dict[str, int], dict[str, int]]:
    """Return the public methods of each class, and the lines of each function."""
    methods: dict[str, int] = {}
    lines: dict[str, int] = {}
    # In one pass: to parse the package takes half a second.
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods[node.name] = public_methods(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
                lines[name] = lines_of_work(node)
    return methods, lines


def public_methods(found: ast.ClassDef) -> int:
    methods = (
        each for each in found.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(not method.name.startswith("_") for method in methods)


def test_no_class_has_more_public_methods_than_a_reader_keeps_in_mind():
    methods, _ = sizes()

    assert {name: size for name, size in methods.items() if size > MOST} == {}


def lines_of_work(found: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = found.body[0]
    if ast.get_docstring(found) is None:
        return last_line(found) - first.lineno + 1
    return last_line(found) - last_line(first)


def last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def test_no_function_is_longer_than_a_reader_sees_at_once():
    _, lines = sizes()

    assert {name: size for name, size in lines.items() if size > MOST_LINES} == {}
    assert max(lines.values()) > MOST_LINES // 2, "nothing was counted"


def test_ledgers_are_composed_of_small_facets_and_inherit_from_nobody():
    ledgers = {
        name: found
        for module in ledger_modules()
        for name, found in vars(module).items()
        if inspect.isclass(found) and found.__module__ == module.__name__
    }

    inherited = {
        name
        for name, found in ledgers.items()
        if sum(base.__module__.startswith("crawlcw") for base in found.__mro__) > 2
    }
    assert inherited == set()
    methods, _ = sizes()
    assert {name for name in ledgers if methods[name] > MOST_OF_A_FACET} == set()
    assert {"MongoLedger", "SqliteLedger", "Tasks", "HostLeases"} <= ledgers.keys()


def ledger_modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(crawlcw.ledger.__path__, "crawlcw.ledger."):
        yield importlib.import_module(found.name)


def test_both_stores_have_their_facets_in_files_of_the_same_names():
    facets = {each.stem for each in (PACKAGE / "ledger" / "mongo").iterdir()}
    beside = {
        each.stem for room in ("sql", "sqlite") for each in (PACKAGE / "ledger" / room).iterdir()
    }

    assert {
        *("tasks", "leases", "outcomes", "hosts", "host_leases"),
        *("blobs", "changes", "inspection", "ledger", "store"),
    } <= facets & beside


def test_ci_keeps_what_the_tests_in_a_browser_have_seen():
    root = Path(crawlcw.__file__).parents[1]
    script = (root / ".ci" / "run").read_text()

    # The name is in two files that no import connects.
    (name,) = re.findall(r"^export (\w+)=.*/screenshots", script, re.MULTILINE)
    assert f'os.environ.get("{name}", ' in (root / "tests/dashboard/test_browser.py").read_text()


def test_nobody_spells_the_waiting_for_a_ledger_but_those_that_must():
    """Renewals do, since leases change during the wait; other waits are the retrying ledger's."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "retry.call(" in path.read_text()
    }

    assert found == {"engine/session.py"}


#: Private words for which the field has its own terms, as words or as parts of names.
PRIVATE = re.compile(
    r"(?i)(?<![a-z])(?:witness|doubt|vouch|verdict|suspect|convict|excuse|spared?(?![a-z])|overrul"
    r"|pardon|(?:no|some|any)body(?![a-z]))\w*"
)
#: Its books have titles and texts.
FICTION = "demo/bookshop.py"


def test_no_private_word_stands_where_the_field_has_a_term():
    texts = [*PACKAGE.rglob("*.py"), *(PACKAGE / "guide").glob("*.md")]
    found = {
        name: words
        for path in texts
        if (name := path.relative_to(PACKAGE).as_posix()) != FICTION
        and (words := PRIVATE.findall(path.read_text()))
    }

    assert found == {}


@pytest.mark.parametrize("name", ["_doubt", "is_excused", "_NOBODY", "doubtful"])
def test_a_private_word_is_found_in_a_name(name: str):
    assert PRIVATE.search(name)
