"""Modules that crawlcw does not use, so that no page can abuse them."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "crawlcw"
#: Modules, and the reason why crawled text never reaches them.
ABSENT = {
    "selectolax.parser": "HOSTILE 3.13: the Modest backend is gone from selectolax 1.0",
    "html.parser": "HOSTILE 3.15: it is quadratic",
    "xml": "HOSTILE 3.16-3.18: what reads XML here gives no parser a DTD or an entity",
    "lxml": "HOSTILE 3.16-3.18: as above",
    "xmltodict": "HOSTILE 3.16-3.18: as above",
    "defusedxml": "HOSTILE 3.16-3.18: as above",
    "pickle": "HOSTILE 5.15: whoever writes the ledger would run code in its readers",
    "marshal": "HOSTILE 5.15: as above",
    "shelve": "HOSTILE 5.15: as above",
    "telnetlib": "HOSTILE 5.16: a crawl has no console of its own",
    "code": "HOSTILE 5.16: as above; the shell is a person's, at its own terminal",
}
#: Exceptions: the shell; the only reader of XML, see tests/api/test_xml_records.py.
_PRIVATE = {
    ("code", "cli/commands/shell.py"),
    ("xml", "api/xml_records.py"),
}


@cache
def imports() -> Sequence[tuple[str, str]]:
    """Return each module of the package with each module that it imports."""
    return [*_imports()]


def _imports() -> Iterator[tuple[str, str]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            yield from ((path.relative_to(PACKAGE).as_posix(), name) for name in names)


@pytest.mark.parametrize("absent", ABSENT)
def test_nothing_else_imports_it(absent: str) -> None:
    found = {
        path
        for path, imported in imports()
        if imported == absent or imported.startswith(f"{absent}.")
    }

    assert found == {path for name, path in _PRIVATE if name == absent}, ABSENT[absent]


def test_nothing_that_is_crawled_is_run() -> None:
    """HOSTILE 5.14: callbacks are looked up by the name in their request."""
    called = {
        (path.relative_to(PACKAGE).as_posix(), node.func.id)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert {path for path, name in called if name in ("eval", "exec", "__import__")} == set()
