"""Names are nouns or verbs: few of them are a pronoun, a participle or a picture."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

PACKAGE = Path(__file__).parents[1] / "crawlcw"
#: They do not say whether they hold a task, a row, a time or a number.
VAGUE = {
    word
    for line in (
        "after again alike alone another apart asked beside before began behind came done each",
        "ended enough few found given gone got heard held here kept known least left made meant",
        "most one ones own place places said seen since so some stood taken there together told",
        "until wanted way ways what which who whole whose word words",
    )
    for word in line.split()
}
#: Vague names of 1,000 definitions. Crawlee has 1.2, procrastinate 1.4 and trio 5.4.
MOST_IN_PACKAGE, MOST_IN_ROOM = 10, 20


def definitions(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module defines, as often as it does."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name


def share(names: Counter[str]) -> float:
    vague = sum(names[name] for name in names if name.strip("_") in VAGUE)
    return round(1000 * vague / max(1, names.total()), 1)


def test_few_names_are_a_pronoun_a_participle_or_a_picture():
    rooms: dict[str, Counter[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        rooms.setdefault(room, Counter()).update(definitions(ast.parse(path.read_text())))

    # A small room may have one.
    vague_rooms = {room: share(names) for room, names in rooms.items() if names.total() > 50}
    assert {room: rate for room, rate in vague_rooms.items() if rate > MOST_IN_ROOM} == {}
    assert share(sum(rooms.values(), Counter())) <= MOST_IN_PACKAGE
