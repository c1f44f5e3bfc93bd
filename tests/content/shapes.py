"""Small pages with their right Markdown, and the comparison of two Markdown texts.

A file of `pages/` has, for each page, a heading, a fence of HTML, and one or more fences of right
Markdown. Several fences are answers that are right alike, because CommonMark and GFM have no single
form for the page.
"""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import unescape
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin

from markdown_it import MarkdownIt

PAGES = Path(__file__).parent / "pages"
URL = "https://site.example/docs/page.html"
_LEAD = (
    "This page begins with two sentences that only make it longer. They are the same on each of "
    "the pages, so that a program that looks for the main content finds enough of it."
)
_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
#: The token between two paragraphs.
_NEXT = "¶"
_TAG_OR_WORD = re.compile(r"(<[a-zA-Z/!][^>]*>)|([^\s<]+|<)")
_TAG_NAME = re.compile(r"</?[a-z0-9]+")
_ADDRESS = re.compile(r' (?:href|src)="([^"]*)"')
_DETAILS = re.compile(r' (?:alt|class|start)="([^"]*)"')
_INLINE = frozenset(["<a", "<em", "<strong", "<code", "<s", "<sup", "<sub", "<img", "<br", "<kbd"])
_NOTE = re.compile(r"(?<!\\)\[(\^[^\]\s]+)\]")
_FORMULA = re.compile(r"\$\$(?:[^$\\]|\\.)+\$\$|(?<![\\$])\$(?=[^\s$])[^$\n]*[^\s$\\]\$(?![\d$])")
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
    return [shape for path in sorted(PAGES.glob("*.txt")) for shape in _shapes_of(path)]


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


def framed(html: str) -> str:
    """Return a whole page of *html*, long enough for extractors of main content."""
    lead = f"<p>{_LEAD}</p>"
    # Without a <title>, because some converters write it in front of the page.
    return f"<html lang='en'><body><article>{lead}\n{html}</article></body></html>"


def score(markdown: str, shape: Shape) -> float:
    """Return how alike *markdown* is to the best of a shape's answers; 1.0 is right.

    Both texts are rendered to HTML by markdown-it-py, with the tables and the struck text of GFM,
    and compared as a sequence of tags and words. So these spellings do not count: marks of lists
    and emphasis, line width, padding of tables, blank lines between items, spelling of escapes,
    and the text in front of a page, `framed`. Relative addresses are resolved, because some
    converters get no base. Formulas are compared as code.
    """
    tokens = _tokens(markdown)
    lead = _tokens(_LEAD)
    if tokens[: len(lead)] == lead:
        tokens = [token for token in tokens[len(lead) :] if token != _NEXT or tokens[:1] != [token]]
    tokens = tokens[1:] if tokens[:1] == [_NEXT] else tokens
    return max(
        SequenceMatcher(None, tokens, _tokens(answer), autojunk=False).ratio()
        for answer in shape.answers
    )


def _tokens(markdown: str) -> list[str]:
    html = _PARSER.render(_as_parsed(markdown))
    tokens: list[str] = []
    for tag, word in _TAG_OR_WORD.findall(html):
        if not tag:
            tokens.append(unescape(word))
            continue
        name = _TAG_NAME.match(tag)
        if tag == "</p>":
            tokens.append(_NEXT)
        elif name is not None and name[0] != "<p":
            address = _ADDRESS.search(tag)
            details = [unescape(detail) for detail in _DETAILS.findall(tag)]
            if address is not None:
                details.append(unquote(urljoin(URL, unescape(address[1]))))
            tokens.append(" ".join([name[0], *details]))
    # The end of a paragraph counts only in front of another text.
    return [
        token
        for token, following in pairwise([*tokens, "<"])
        if token != _NEXT or following[0] != "<" or following.split()[0] in _INLINE
    ]


def _as_parsed(markdown: str) -> str:
    """Return *markdown* with notes and formulas in a form that a plain parser leaves alone."""
    return _FORMULA.sub(r"`\g<0>`", _NOTE.sub(r"⟦\1⟧", markdown.replace("\u00a0", " ")))
