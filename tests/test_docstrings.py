"""Examples in docstrings: correctly indented, and runnable."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import crawlcw
from crawlcw import tracking
from crawlcw.tracking import Tracker

PACKAGE = Path(crawlcw.__file__).parent
#: A line that is a Python statement and no prose.
CODE = re.compile(
    r"(class \w+.*:|(async )?def \w+\(|await \w|async (with|for) |from \S+ import |import \w+\s*$"
    r"|for \w+ in .*:\s*$|with .*:\s*$|[a-z_.]+ = |@\w+)"
)


@dataclass(frozen=True)
class Docstring:
    module: str
    name: str  #: of the described object, empty for the module
    text: str

    @property
    def place(self) -> str:
        return f"{self.module}:{self.name}".rstrip(":")

    @property
    def blocks(self) -> Iterator[str]:
        """Yield the indented blocks, without the indentation."""
        for block in re.findall(r"(?:^(?: {4}.*)?\n)+", f"{self.text}\n", flags=re.MULTILINE):
            if block.strip():
                yield textwrap.dedent(block)

    @property
    def examples(self) -> list[str]:
        return [block for block in self.blocks if any(map(CODE.match, block.splitlines()))]


@cache
def docstrings() -> list[Docstring]:
    """Return all docstrings of the package; reading it takes seconds."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                found.append(Docstring(module, getattr(node, "name", ""), text))
    return found


#: The places with examples.
EXAMPLES = (
    "crawlcw.api.rules",
    "crawlcw.api.sitemap_spider",
    "crawlcw.api.spider",
    "crawlcw.demo.bookshop",
    "crawlcw.items.selectors",
    "crawlcw.testing.command_contract",
    "crawlcw.testing.contracts",
    "crawlcw.testing.feed_contract",
    "crawlcw.testing.store_contract",
    "crawlcw.tracking",
    "crawlcw.tracking.dispenser:Dispenser",
)


def test_every_place_with_an_example_is_known():
    assert [each.place for each in docstrings() if each.examples] == list(EXAMPLES)


@pytest.mark.parametrize("place", EXAMPLES)
async def test_an_example_runs(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (described,) = (each for each in docstrings() if each.place == place)
    (example,) = described.examples
    module = described.module

    async def charge(data: Any) -> str:
        return f"charged {data['amount']}"

    monkeypatch.chdir(tmp_path)
    code = compile(example, module, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with Tracker.open("sqlite:///a.db", "orders") as tracker:
        await tracker.add("one")
        names = vars(crawlcw) | vars(tracking) | vars(importlib.import_module(module))
        names |= {"charge": charge, "tracker": tracker}
        if inspect.isawaitable(running := eval(code, names)):
            await running
        if (other := names["tracker"]) is not tracker:
            assert (await other.get("order-1")).data == {"amount": 3, "receipt": "charged 3"}
            await other.close()
