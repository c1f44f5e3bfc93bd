"""Plain English in docstrings, comments, messages and pages: no clauses where a noun can stand."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "crawlcw"
#: Its books have titles and texts.
FICTION = (PACKAGE / "demo" / "bookshop.py",)
FOLDERS = ("crawlcw", "tests", "examples", "spiders")
#: Clauses headed by a wh-word or an indefinite pronoun: a reader must guess the noun.
CLAUSES = re.compile(
    "|".join(
        (
            r"\b[Ww]hat (?:is|was|are|has|have|comes|came|it|they|a|the|no|others)\b",
            r"\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever)\b",
            r"(?:^|[.;:,] )Who [a-z]+",
            r"(?:^|[.;] |# )Of (?:what|which|whom|each|many|a|the|all)\b",
            r"\b(?:makes?|made|comes?|came|becomes?|became) of\b",
            r"\bso (?:many|long|much) (?:as|that)?\b",
            r"\bis (?:not )?to be had\b",
        )
    ),
    re.MULTILINE,
)
OPENING = re.compile(
    r"(?:#.*\n)*\"{3}(?:What|Who|Whose|Which|Where|When|Why|How|Whether)(?:ever)?\b"
)
#: Generated from docstrings, which are counted in the code.
GENERATED = "crawlcw/guide/api"


def files(suffix: str) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob(f"*{suffix}"))


def modules() -> list[Path]:
    return files(".py")


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *files(".md")])


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose_of(path: Path) -> str:
    """Return the docstrings and comments of a module, or the text of a page.

    The strings of the package count as well: they are messages and help.
    """
    source = path.read_text()
    if path.suffix == ".md":
        return source
    if not CLAUSES.search(source):
        return ""  # most files: tokenizing them all would be slow
    nodes = list(ast.walk(ast.parse(source)))
    if path.is_relative_to(PACKAGE) and path not in FICTION:
        strings = [node.value for node in nodes if isinstance(node, ast.Constant)]
        texts = [each for each in strings if isinstance(each, str)]
    else:
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*texts, *comments])


def clauses() -> dict[str, list[str]]:
    """Return the lines with a clause, by file."""
    found = {}
    for path in [*modules(), *pages()]:
        lines = [line for line in prose_of(path).splitlines() if CLAUSES.search(line)]
        if lines and not name_of(path).startswith(GENERATED):
            found[name_of(path)] = lines
    return found


def test_no_file_has_a_clause_where_a_noun_can_stand():
    assert clauses() == {}


def test_no_module_docstring_opens_with_a_clause():
    opened = [name_of(path) for path in modules() if OPENING.match(path.read_text())]

    assert opened == []
