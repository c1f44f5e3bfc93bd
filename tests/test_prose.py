"""Plain English in docstrings, comments, messages and pages.

No clause stands where a noun can stand, and few sentences have the order of another language.
"""

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
#: The beginning of a sentence that states a condition before its subject.
FRONTED = (
    r"(?:^|[.;] |# )(?:Of|By|In|At|With|Without|For|From|Beside|Behind|Until|Beyond|Through|On"
    r"|Under|Before|After|During|Within)"
)
#: Turns that make a reader of English as a second language stop: they have plain equivalents.
TURNS = re.compile(
    "|".join(
        (
            # `where` for if
            r"(?:^|[.;:,] |# )Where (?!possible|applicable|available)",
            r"\bwhere (?:it|that|there|they|one|none|an?|the|no|some|others|all|each|its|this) ",
            # `for` for because, `but for` for except
            r"[,:;] for (?:it|they|there|that|this|an?|the|its|no|each|nothing|otherwise) \w+ ",
            r"\bbut for\b",
            # again; its own
            r"\banew\b|\bof (?:its|their|our|the spider's|the page's|users'|a user's) own\b",
            # must, and another object
            r"\b(?:is|are) to (?:be|have|go|come|wait|find|miss|ask|keep|get|see|try|take|do)\b",
            r"\b(?:that|which) (?:is|are) (?:none|no|one|some)\b|\bhas (?:none|one|some)\b",
            # a condition before the subject
            f"{FRONTED} [^.,;]{{3,60}}, ?(?:it|they|the|an?|no|there|all|each)\\b",
            r"\bso (?:many|long|much|few|seldom|often)\b",
            # a passive without an agent
            r"\b(?:is|are|was|were|has|have) (?:told|asked|given|taken|put|kept|left|held|noted)\b",
        )
    ),
    re.MULTILINE,
)
#: Turns of 1,000 words. Scrapy, httpx, trio, attrs and six others have 0.5 to 1.4.
MOST_IN_CODE, MOST_IN_ROOM, MOST_IN_PAGE = 2.0, 3.0, 3.0
#: Words of a sentence, in the mean of a page.
LONGEST_SENTENCES = 18
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


def docstrings_and_comments(path: Path) -> str:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return "\n".join(
        [*texts, *(token.string for token in tokens if token.type == tokenize.COMMENT)]
    )


def page_text(path: Path) -> str:
    """Return the text of a page without its programs."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def turns(text: str) -> float:
    """Return how many odd turns 1,000 words of the text have."""
    return round(1000 * len(TURNS.findall(text)) / max(1, len(text.split())), 1)


def sentence_length(page: str) -> float:
    """Return the mean number of words of a sentence, without tables and headings."""
    prose = "\n".join(line for line in page.splitlines() if not line.startswith(("|", "#")))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose)
    sentences = [
        each for block in blocks for each in re.split(r"(?<=[.:?!]) +|(?<=[.:?!])\n", block)
    ]
    lengths = [words for each in sentences if (words := len(re.findall(r"\w[\w'`.-]*", each))) > 2]
    return round(sum(lengths) / max(1, len(lengths)), 1)


def test_few_sentences_of_the_code_have_the_order_of_another_language():
    rooms: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path not in FICTION:
            rooms.setdefault(name_of(path.parent), []).append(docstrings_and_comments(path))

    rates = {room: turns("\n".join(texts)) for room, texts in rooms.items()}
    assert {room: rate for room, rate in rates.items() if rate > MOST_IN_ROOM} == {}
    assert turns("\n".join(text for texts in rooms.values() for text in texts)) <= MOST_IN_CODE


def test_few_sentences_of_a_page_have_the_order_of_another_language():
    rates = {name_of(path): turns(page_text(path)) for path in pages()}

    assert {page: rate for page, rate in rates.items() if rate > MOST_IN_PAGE} == {}


def test_the_sentences_of_a_page_are_short():
    lengths = {name_of(path): sentence_length(page_text(path)) for path in pages()}

    assert {page: words for page, words in lengths.items() if words > LONGEST_SENTENCES} == {}
