"""Small pages with their right Markdown, and the comparison of two Markdown texts.

A file of `pages/` has, for each page, a heading, a fence of HTML, and one or more fences of right
Markdown. Several fences are answers that are right alike, because CommonMark and GFM have no single
form for the page.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
URL = "https://site.example/docs/page.html"
_HEADING_OR_FENCE = re.compile(
    r"^## (?P<name>.+)$|^(?P<fence>`{4,})(?P<kind>html|markdown)\n(?P<text>(?:.|\n)*?)^(?P=fence)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A page of one kind of markup."""

    name: str
    html: str
    answers: tuple[str, ...]


def shapes() -> list[Shape]:
    """Return the pages of all files, in their order."""
    return [shape for path in sorted(PAGES.glob("*.md")) for shape in _shapes_of(path)]


def _shapes_of(path: Path) -> list[Shape]:
    names: list[str] = []
    pages: list[str] = []
    answers: list[list[str]] = []
    for match in _HEADING_OR_FENCE.finditer(path.read_text()):
        if match["name"] is not None:
            names.append(f"{path.stem}: {match['name']}")
            answers.append([])
        elif match["kind"] == "html":
            pages.append(match["text"])
        else:
            answers[-1].append(match["text"])
    return [
        Shape(name=name, html=html, answers=tuple(texts))
        for name, html, texts in zip(names, pages, answers, strict=True)
    ]
