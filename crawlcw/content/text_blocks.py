"""Read the blocks of text in a page's tree, with the elements that they are in.

A *block* is a run of text that no start or end of a block-level element interrupts. The tree is
read once, without recursion, in linear time. Text that the page hides is in no block.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from selectolax.lexbor import LexborNode

from crawlcw.content.hidden import is_hidden
from crawlcw.content.structure import WITHOUT_TEXT

_INLINE = frozenset(
    """
    a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark nobr picture q
    rb rt ruby s samp small span strike strong sub sup time tt u var wbr
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
#: Elements whose text means little if a part of it is missing.
_STRUCTURES = frozenset({"dl", "pre", "table"})
_EMPTY = WITHOUT_TEXT | {"br", "hr", "img"}
#: Parts of a page by their ARIA role.
_PART_BY_ROLE = {
    "banner": "header",
    "complementary": "aside",
    "contentinfo": "footer",
    "dialog": "dialog",
    "main": "main",
    "navigation": "nav",
}
#: Parts of a page by words in the class or the id of an element.
_PARTS_BY_CLASS = {
    "comment-class": "comment",
    "cookie-class": "cookie|consent|gdpr|privacy",
    "dropdown-class": "dropdown|submenu",
    "filter-class": "filter|facet|sort|refine|pager|pagina",
    "footer-class": "foot",
    "legal-class": "copyright|legal|disclaim",
    "login-class": "login|account|auth(?!or)",
    "menu-class": "menu",
    "review-class": "review|rating",
    "nav": r"\bnav(?:header|footer|bar|igation)\b",
}
_TAGS = ("article", "aside", "dialog", "footer", "form", "header", "main", "nav", "table")
#: The bit of each part of a page, so that a number stands for a set of parts.
BITS = {part: 1 << number for number, part in enumerate(dict.fromkeys((*_TAGS, *_PARTS_BY_CLASS)))}
_CLASS_BITS = [BITS[part] for part in _PARTS_BY_CLASS]
_CLASS = re.compile("|".join(f"({words})" for words in _PARTS_BY_CLASS.values()), re.IGNORECASE)
_MAX_CLASS_LENGTH = 200
_SPACE = re.compile(r"\s+")
_IMAGE_FILE = re.compile(r"\.(?:avif|gif|jpe?g|png|svg|webp)$", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class Element:
    """A block-level element, with sums over the blocks in it."""

    parent: "Element | None"
    node_id: int
    tag: str
    parts: int  #: `BITS` of the parts of the page that the element is in
    is_shown: bool
    #: The innermost table, definition list or <pre> that the element is or is in.
    structure: "Element | None" = None
    length: int = 0
    link_length: int = 0
    block_count: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Block:
    """A run of text."""

    element: Element  #: the innermost element with the whole block
    text: str  #: without line feeds, except the text of a <pre>
    link_length: int  #: how many characters are in links
    leaves: range  #: the numbers of its text nodes and images among those of the page


class TextBlocks:
    """The blocks of text in an element *root* of a page."""

    def __init__(self, root: LexborNode) -> None:
        tag = root.tag or ""
        self.root = Element(None, root.mem_id, tag, 0, not is_hidden(tag, root.attributes))
        self.elements = [self.root]  #: in document order
        self.blocks: list[Block] = []
        #: The elements to show although the page hides them, by their nodes.
        self.shown_ids: set[int] = set()
        #: For each node with text or images, the numbers of its first and its last text or image.
        #: A node stands behind the nodes that it contains.
        self._spans: list[tuple[int, int, int]] = []
        self._leaf_count = self._first_leaf = 0
        self._texts: list[str] = []
        self._link_length = 0
        #: Whether each open link leads to another page, so that an image in it is no content.
        self._links: list[bool] = []
        self._thumbnails: set[int] = set()  #: the numbers of images in such links
        self._read(root)
        self._leave_out_hidden()

    def _read(self, root: LexborNode) -> None:
        element = self.root
        open_nodes: list[tuple[LexborNode, int]] = []
        #: Nodes to read; None stands for the end of the innermost open node.
        pending = [root.first_child]
        while pending:
            node = pending.pop()
            if node is not None:
                pending.append(node.next)
                inner = self._enter(node, element)
                if inner is not None:
                    open_nodes.append((node, self._leaf_count))
                    pending.append(node.first_child)
                    element = inner
            elif open_nodes:
                node, first_leaf = open_nodes.pop()
                if node.mem_id == element.node_id:
                    self._end_block(element)
                    element = element.parent or self.root
                elif node.tag == "a":
                    self._links.pop()
                if self._leaf_count > first_leaf:
                    self._spans.append((node.mem_id, first_leaf, self._leaf_count))
        self._end_block(element)

    def _enter(self, node: LexborNode, element: Element) -> Element | None:
        """Read the beginning of a node; return its content's element, or None without content."""
        tag = node.tag or "-"
        if tag == "-text":
            text = node.text_content or ""
            self._texts.append(text)
            if text and not text.isspace():
                self._add_leaf(node)
                if self._links:
                    self._link_length += len(text)
            return None
        if tag == "br":
            self._texts.append(" ")
        elif tag == "img":
            if self._links and self._links[-1]:
                self._thumbnails.add(self._leaf_count)
            self._add_leaf(node)
        if tag in _EMPTY or tag[0] in "-!":
            return None
        attributes = node.attributes
        is_shown = not ((attributes or tag == "dialog") and is_hidden(tag, attributes))
        if tag in _INLINE:
            if is_shown and tag == "a":
                self._links.append(not _IMAGE_FILE.search(attributes.get("href") or ""))
            return element if is_shown else None
        self._end_block(element)
        parts = element.parts | _parts(tag, attributes)
        inner = Element(element, node.mem_id, tag, parts, is_shown, element.structure)
        if tag in _STRUCTURES and (element.structure is None or element.structure.tag != "dl"):
            inner.structure = inner
        self.elements.append(inner)
        return inner

    def _add_leaf(self, node: LexborNode) -> None:
        self._spans.append((node.mem_id, self._leaf_count, self._leaf_count + 1))
        self._leaf_count += 1

    def _end_block(self, element: Element) -> None:
        text = "".join(self._texts)
        text = text.strip("\n") if element.tag == "pre" else _SPACE.sub(" ", text).strip()
        if text.isspace():
            text = ""
        if text:
            block = Block(
                element=element,
                text=text,
                link_length=min(self._link_length, len(text)),
                leaves=range(self._first_leaf, self._leaf_count),
            )
            self.blocks.append(block)
        self._texts.clear()
        self._link_length, self._first_leaf = 0, self._leaf_count

    def _leave_out_hidden(self) -> None:
        """Drop the blocks of hidden elements.

        If over half of the text is hidden, no element counts as hidden, because a script will show
        the page.
        """
        hidden_ids = set()
        for element in self.elements:
            if not element.is_shown:
                hidden_ids.add(element.node_id)
            elif element.parent is not None:
                element.is_shown = element.parent.is_shown
        if hidden_ids:
            shown_blocks = [block for block in self.blocks if block.element.is_shown]
            if sum(len(b.text) for b in shown_blocks) * 2 < sum(len(b.text) for b in self.blocks):
                self.shown_ids = hidden_ids
            else:
                self.blocks = shown_blocks
        self._sum_up()

    def _sum_up(self) -> None:
        for element in self.elements:
            element.block_count = element.length = element.link_length = 0
        for block in self.blocks:
            block.element.block_count += 1
            block.element.length += len(block.text)
            block.element.link_length += block.link_length
        for element in reversed(self.elements):
            parent = element.parent
            if parent is not None:
                parent.block_count += element.block_count
                parent.length += element.length
                parent.link_length += element.link_length

    def node_ids(self, chosen: Sequence[bool]) -> frozenset[int]:
        """Return the `mem_id` of each node whose blocks are all chosen, without those inside of it.

        *chosen* says of each block whether it is chosen. An image without text around it is kept
        if the texts before and behind it are chosen.
        """
        is_kept: list[bool | None] = [None] * self._leaf_count
        for block, is_chosen in zip(self.blocks, chosen, strict=True):
            is_kept[block.leaves.start : block.leaves.stop] = [is_chosen] * len(block.leaves)
        is_next_kept = [False] * self._leaf_count
        after = False
        for leaf in reversed(range(self._leaf_count)):
            after = is_next_kept[leaf] = after if (kept := is_kept[leaf]) is None else kept
        before = False
        dropped_counts = [0]
        for leaf, kept in enumerate(is_kept):
            before = before if kept is None else kept
            is_written = before and is_next_kept[leaf] and leaf not in self._thumbnails
            dropped_counts.append(dropped_counts[-1] + (not is_written))
        node_ids = set()
        start = self._leaf_count
        for node_id, first, end in reversed(self._spans):
            if end <= start and dropped_counts[first] == dropped_counts[end]:
                node_ids.add(node_id)
                start = first
        return frozenset(node_ids)


def _parts(tag: str, attributes: Mapping[str, str | None]) -> int:
    """Return the bits of the parts that an element begins, by its tag, role, class and id."""
    bits = BITS.get(tag, 0)
    if attributes:
        bits |= BITS.get(_PART_BY_ROLE.get(attributes.get("role") or "", ""), 0)
        for name in ("class", "id"):
            if words := attributes.get(name):
                bits |= _parts_by_class(words[:_MAX_CLASS_LENGTH])
    return bits


@lru_cache(maxsize=4096)
def _parts_by_class(words: str) -> int:
    bits = 0
    for match in _CLASS.finditer(words):
        bits |= _CLASS_BITS[(match.lastindex or 0) - 1]
    return bits
