"""Choose the main content of a page: its text without menus, footers, advertising and the like.

A logistic model computes the probability of each block of text to be main content, from features
of the page's tree. Then the module chooses the most probable blocks, up to the number with the
highest expected F1 (the harmonic mean of precision and recall, here of words).

The weights were fitted on 420 pages of seven kinds (articles, collections, documentation, forums,
listings, products, services) of 358 sites, the development split of the Web Content Extraction
Benchmark (WCXB, M. Foley 2026, CC-BY-4.0). Each page counted alike, each block by the square root
of its words, with an L2 penalty.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from selectolax.lexbor import LexborNode

from crawlcw.content.text_blocks import BITS, Block, Element, TextBlocks

_BIAS = -1.04
_WEIGHTS = {
    "links on the page": 0.98,
    "blocks on the page": -0.34,
    "length of blocks": -0.36,
    "before the heading": -1.54,
    "link at the start": -3.96,
    "before the last fifth": 1.63,
    "outside of main": -2.12,
    "outside of a large article": -2.11,
    "copies": -0.47,
    "li": 0.65,
    "p": 0.75,
    "links in the parent": -0.78,
    "length of the parent": 0.25,
    "blocks in the parent": -0.13,
    "length of the third parent": 0.16,
    "length of the fourth parent": 0.25,
    "blocks in the fourth parent": -0.29,
    "article": 0.60,
    "aside": -2.35,
    "dialog": -3.24,
    "footer": -2.80,
    "form": -0.64,
    "header": -0.81,
    "nav": -1.55,
    "table": 0.82,
    "comment-class": -1.30,
    "cookie-class": -4.30,
    "dropdown-class": -1.19,
    "filter-class": -0.65,
    "footer-class": -1.08,
    "legal-class": -3.90,
    "login-class": -1.15,
    "menu-class": -1.62,
    "review-class": -1.10,
}
#: More would take quadratic time if they are nested.
_MAX_NOSCRIPTS = 10
#: Most blocks between two chosen blocks that are added to them.
_MAX_BETWEEN = 30
#: Most levels of elements from a section to such a block.
_MAX_LEVELS = 8
#: Part of the text that is in links; text with more links is a menu.
_MAX_LINKS = 0.3
_HEADINGS = frozenset({"h1", "h2"})
_WEIGHTED_BITS = [(part, bit) for part, bit in BITS.items() if part != "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MainContent:
    """The main content of a page."""

    #: The `mem_id` of each node to write, with everything inside of it.
    node_ids: frozenset[int]
    #: The `mem_id` of each element to write although it is hidden, or is a <noscript>.
    shown_ids: frozenset[int]
    text: str  #: a line for each block


def main_content(body: LexborNode) -> MainContent:
    """Return the main content of a page."""
    page = TextBlocks(body)
    shown_ids = set(page.shown_ids)
    noscripts = body.css("noscript")[:_MAX_NOSCRIPTS]
    if noscripts:
        # Some pages that scripts fill have all of their content in a <noscript> as well.
        largest = max(noscripts, key=lambda node: len(node.text()))
        fallback = TextBlocks(largest)
        if fallback.root.length > page.root.length:
            page = fallback
            shown_ids |= page.shown_ids | {largest.mem_id}
    chosen = _completed(page.blocks, _chosen(page))
    texts = [block.text for block, is_kept in zip(page.blocks, chosen, strict=True) if is_kept]
    return MainContent(
        node_ids=page.node_ids(chosen), shown_ids=frozenset(shown_ids), text="\n".join(texts)
    )


def _chosen(page: TextBlocks) -> list[bool]:
    """Choose the blocks with the highest expected F1 of their words."""
    sizes = [block.text.count(" ") + 1 for block in page.blocks]
    probabilities = [_probability(values) for values in features(page)]
    expected_size = sum(size * chance for size, chance in zip(sizes, probabilities, strict=True))
    best_f1 = right_size = size = 0.0
    limit = 0
    ranking = sorted(range(len(sizes)), key=probabilities.__getitem__, reverse=True)
    for count, number in enumerate(ranking, 1):
        size += sizes[number]
        right_size += sizes[number] * probabilities[number]
        f1 = 2 * right_size / (size + expected_size)
        if f1 > best_f1:
            best_f1, limit = f1, count
    best = set(ranking[:limit])
    return [number in best for number in range(len(sizes))]


def _completed(blocks: Sequence[Block], chosen: Sequence[bool]) -> list[bool]:
    """Add the blocks between chosen blocks that a reader would miss.

    A table, a definition list or a <pre> is whole if the blocks around it are chosen. The same is
    true of a run of blocks in the section that both of its neighbours are in. Menus stay out,
    because a menu has more links than text. A heading stands before its chosen text.
    """
    is_kept = [False, *chosen, False]
    for structure, group in groupby(enumerate(blocks, 1), lambda entry: entry[1].element.structure):
        numbers = [number for number, _ in group]
        around = (is_kept[numbers[0] - 1], is_kept[numbers[-1] + 1])
        if structure is not None and (all(around) if structure.tag == "table" else any(around)):
            _keep(blocks, is_kept, numbers)
    last = 0
    for number in [number for number, kept in enumerate(is_kept) if kept]:
        between = range(last + 1, number)
        if last and 0 < len(between) <= _MAX_BETWEEN:
            section = blocks[last - 1].element.parent
            if section is blocks[number - 1].element.parent and all(
                _is_in(section, blocks[inner - 1].element) for inner in between
            ):
                _keep(blocks, is_kept, between)
        last = number
    for number in range(len(blocks) - 1, 0, -1):
        if is_kept[number + 1] and blocks[number - 1].element.tag in _HEADINGS:
            is_kept[number] = True
    return is_kept[1:-1]


def _keep(blocks: Sequence[Block], is_kept: list[bool], numbers: Sequence[int]) -> None:
    """Keep blocks, unless they are a menu; *numbers* count from 1."""
    lengths = [(blocks[number - 1].link_length, len(blocks[number - 1].text)) for number in numbers]
    if sum(links for links, _ in lengths) < _MAX_LINKS * sum(length for _, length in lengths):
        for number in numbers:
            is_kept[number] = True


def _is_in(section: Element | None, element: Element) -> bool:
    """Return whether *element* is in *section*, within a few levels."""
    inner: Element | None = element
    for _ in range(_MAX_LEVELS):
        if inner is None or inner is section:
            break
        inner = inner.parent
    return inner is section


def _probability(values: Mapping[str, float]) -> float:
    score = _BIAS + sum(_WEIGHTS[name] * value for name, value in values.items())
    return 1 / (1 + math.exp(-score))


def features(page: TextBlocks) -> Iterator[dict[str, float]]:
    """Yield the features of each block of a page, by their names in `_WEIGHTS`; others are 0."""
    blocks, page_length = page.blocks, max(1, page.root.length)
    copies = Counter(block.text for block in blocks)
    heading = next((n for n, block in enumerate(blocks) if block.element.tag == "h1"), 0)
    has_main = any(block.element.parts & BITS["main"] for block in blocks)
    article_length = sum(
        len(block.text) for block in blocks if block.element.parts & BITS["article"]
    )
    has_large_article = article_length > 0.4 * page_length
    of_page = {
        "links on the page": page.root.link_length / page_length,
        "blocks on the page": math.log1p(len(blocks)),
        "length of blocks": math.log1p(page_length / max(1, len(blocks))),
    }
    length_before = 0
    for number, block in enumerate(blocks):
        element = block.element
        parts, tag = element.parts, element.tag
        length_before += len(block.text)
        around = [element := element.parent or element for _ in range(4)]
        values = {
            "before the heading": float(number < heading),
            "link at the start": block.link_length / len(block.text) / (1 + number),
            "before the last fifth": min(1.0, 5 * (1 - length_before / page_length)),
            "outside of main": float(has_main and not parts & BITS["main"]),
            "outside of a large article": float(has_large_article and not parts & BITS["article"]),
            "copies": min(copies[block.text] - 1, 3),
            "li": float(tag == "li"),
            "p": float(tag == "p"),
            "links in the parent": around[0].link_length / around[0].length,
            "length of the parent": math.log1p(around[0].length),
            "blocks in the parent": math.log1p(around[0].block_count),
            "length of the third parent": math.log1p(around[2].length),
            "length of the fourth parent": math.log1p(around[3].length),
            "blocks in the fourth parent": math.log1p(around[3].block_count),
        }
        yield of_page | values | {part: 1.0 for part, bit in _WEIGHTED_BITS if parts & bit}
