"""The README, the manual and the other pages, for the tests of their contents."""

import re
from pathlib import Path

from crawlcw.guide.pages import KINDS, NAMES

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "crawlcw" / "guide"
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "crawlcw" / "ARCHITECTURE.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
#: Pages with rules for reports, conduct and releases.
POLICIES = [ROOT / f"{name}.md" for name in ("CODE_OF_CONDUCT", "RELEASING", "SECURITY")]

GUIDE_PAGES = [GUIDE / f"{name}.md" for name in NAMES]
#: Pages that `tests.support.api_reference` generates from the docstrings.
GENERATED = [GUIDE / f"{name}.md" for name in KINDS["API reference"]]
#: Pages written by hand.
WRITTEN = [
    README,
    CONTRIBUTING,
    ROOT / "CHANGELOG.md",
    ROOT / ".changes" / "README.md",
    *POLICIES,
    *(page for page in GUIDE_PAGES if page not in GENERATED),
]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def guide(name: str) -> str:
    return text_of(GUIDE / f"{name}.md")


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of code of *language*; "" stands for blocks without one."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def block(text: str, language: str, containing: str) -> str:
    """Return the first block of *language* with *containing* in it."""
    return next(found for found in blocks(text, language) if containing in found)


def modules(text: str) -> dict[str, str]:
    """Return the blocks of Python whose first line is a comment with the file of a module."""
    found = {re.match(r"# ([\w/]+)\.py\n", block): block for block in blocks(text, "python")}
    return {match[1]: block for match, block in found.items() if match}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def section(text: str, heading: str) -> str:
    """Return the text below a second-level heading, up to the next one."""
    return re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Return the rows of all tables without their heads, with stripped cells."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            found.append([cell.strip() for cell in cells])
        else:
            found.append([])
    # A head is followed by a line of dashes.
    is_rule = [bool(row) and set("".join(row)) <= {"-"} for row in found]
    return [
        row
        for n, row in enumerate(found)
        if row and not is_rule[n] and not (n + 1 < len(found) and is_rule[n + 1])
    ]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
