"""Convert a page's tree to Markdown.

The result is CommonMark with the tables, task lists, footnotes, alerts and struck text of GFM. The
module reads the page's tree alone: no stylesheet, no script, no network. It has no recursion, and
its time and memory grow linearly with the page.
"""

import re
from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from selectolax.lexbor import LexborNode

from crawlcw.content import inline, tex
from crawlcw.content.blocks import BlockWriter, ListState, Table
from crawlcw.content.hidden import is_hidden
from crawlcw.content.inline import Inline, Mark
from crawlcw.content.structure import (
    ALERTS,
    GUTTERS,
    WITHOUT_TEXT,
    Attributes,
    Structure,
    callout_of,
    is_backlink,
    is_callout_title,
    is_code_of_lines,
    is_gutter,
    label_of,
    language_of,
    text_within,
)
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.urls import Location

#: Writes the end of an element.
Leave = Callable[[], None]

_BLOCKS = frozenset(
    """
    address article body caption center details dialog div fieldset figcaption figure footer form
    header hgroup legend main nav p search section shadow-root
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
_MARKS = {
    **dict.fromkeys(("cite", "dfn", "em", "i", "var"), Mark.EMPHASIS),
    **dict.fromkeys(("b", "strong"), Mark.STRONG),
    **dict.fromkeys(("del", "s", "strike"), Mark.STRUCK),
    "sub": Mark.LOWERED,
    "sup": Mark.RAISED,
}
_LEAVES = frozenset(
    "br code hr img input kbd listing math plaintext pre samp script tt xmp".split()  # noqa: SIM905  # as above
)
#: Links that a reader can use although no crawl fetches them.
_SCHEMES = re.compile(r"(?:mailto|tel|ftp|sms|xmpp|magnet):\S", re.IGNORECASE)
_SAFE_IN_FRAGMENT = "!#$%&'()*+,/:;=?@[]~"
#: The text of a link that only marks its own place.
_SIGNS = frozenset({"", "#", "¶", "§", "🔗", "⚓", "⚓︎", "∞", "link", "permalink"})
#: Parts of a page that its reader does not need.
_LEFT_OUT = GUTTERS | {"fn-bracket", "mw-editsection", "mw-cite-backlink"}
#: Attributes of an image with its address, the best first, and with several addresses.
_ADDRESSES = ("data-src", "data-original", "data-lazy-src", "src")
_SETS = ("data-srcset", "srcset")
#: What MathJax 2 draws beside the script that has the formula.
_DRAWN = frozenset(
    {"MathJax", "MathJax_CHTML", "MathJax_Display", "MathJax_Preview", "MathJax_SVG"}
)
_MATH = frozenset({"arithmatex", "math"})
_HEADING_END = re.compile(r"((?:^| )#*)#$")
_IMAGE_FILE = re.compile(r"\.(?:avif|gif|jpe?g|png|svg|webp)$", re.IGNORECASE)
_FENCES = re.compile(r"`{3,}")
_WORD = re.compile(r"\w")
_SMUGGLED = re.compile("[\U000e0000-\U000e0fff]")
_MAX_ALT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Markdown:
    """A page as Markdown."""

    text: str  #: without outer white space; it ends with a line feed if it is not empty
    hidden: int  #: the number of parts with text that were left out, because the page hides them


def markdown_of(
    root: LexborNode,
    *,
    base_url: str,
    urljoin: Callable[[str], str] | None = None,
    node_ids: frozenset[int] | None = None,
    shown_ids: frozenset[int] = frozenset(),
) -> Markdown:
    """Return the Markdown of *root*, an element such as <body>, and everything inside of it.

    - *base_url*: the absolute URL that the page's links are relative to (`response.base_url`)
    - *urljoin*: returns the absolute URL of a link that is not ASCII, or raises `FetchError`; the
      page's encoding decides about its query (`response.urljoin`)
    - *node_ids*: the `mem_id` of each node to write; None writes all of *root*. These nodes are
      written with everything inside of them, except <nav>. For a node with unwanted parts, give the
      ids of its wanted children instead. The lists, quotes and tables around the nodes are written,
      but no other text.
    - *shown_ids*: the `mem_id` of each element to write although it is hidden, or is a <noscript>

    The result has no text that the page hides. All hidden parts of *root* are counted.
    """
    converter = _Converter(
        root, base_url=base_url, urljoin=urljoin, node_ids=node_ids, shown_ids=shown_ids
    )
    converter.walk(root)
    return Markdown(text=converter.text(), hidden=converter.hidden)


def _skip() -> None:
    """Tell `walk`, as the result of `_enter`, to skip the content of the element."""


class _Converter:
    def __init__(
        self,
        root: LexborNode,
        *,
        base_url: str,
        urljoin: Callable[[str], str] | None,
        node_ids: frozenset[int] | None,
        shown_ids: frozenset[int],
    ) -> None:
        self.hidden = 0
        self._writer = BlockWriter()
        self._inline = Inline()
        self._structure = Structure.of(root)
        self._has_tex_scripts = root.css_first('script[type^="math/tex"]') is not None
        self._resolve = urls.resolver(base_url)
        self._urljoin = urljoin
        self._node_ids = node_ids
        self._shown_ids = shown_ids
        self._written_root: int | None = None  #: the node of `node_ids` that is being written
        self._is_writing = node_ids is None
        #: The marks around the current text, and how often each is open.
        self._marks: list[tuple[Mark, str]] = []
        self._mark_counts: Counter[Mark] = Counter()
        self._lists: list[ListState] = []
        self._tables: list[Table | None] = []  #: None for a table that is only there for the layout
        #: Stands for the start and end of a block within a heading or a cell; None elsewhere.
        self._block_break: Leave | None = None
        self._is_in_heading = False
        self._callout = ""  #: the kind of the innermost callout

    def text(self) -> str:
        """Return the Markdown of the nodes that were walked."""
        self._flush()
        text = "\n".join(self._writer.lines)
        return f"{text}\n" if text else ""

    def walk(self, root: LexborNode) -> None:
        """Write *root* and everything inside of it."""
        stack: list[tuple[LexborNode, Leave | None]] = []
        node: LexborNode | None = root
        while node is not None:
            leave = self._enter(node)
            child = None if leave is _skip else node.first_child
            if child is not None:
                stack.append((node, leave))
                node = child
                continue
            self._leave(node, leave)
            while stack and node.next is None:
                node, leave = stack.pop()
                self._leave(node, leave)
            node = node.next if stack else None

    def _leave(self, node: LexborNode, leave: Leave | None) -> None:
        if leave is not None:
            leave()
        if self._written_root is not None and node.mem_id == self._written_root:
            self._inline.text(" ")
            self._written_root, self._is_writing = None, False

    def _enter(self, node: LexborNode) -> Leave | None:
        """Write the beginning of a node, and return what writes its end."""
        tag = node.tag or "-"
        if self._node_ids is not None and not self._is_writing and node.mem_id in self._node_ids:
            self._written_root, self._is_writing = node.mem_id, True
        if tag == "-text":
            if self._is_writing:
                self._write_text(node.text_content or "")
            return None
        if tag[0] in "-!":
            return _skip  # a comment
        attributes = node.attributes
        if attributes or tag == "dialog":
            if (
                is_hidden(tag, attributes)
                and node.mem_id not in self._structure.labels
                and node.mem_id not in self._shown_ids
            ):
                self._hide(node)
                return _skip
            if self._structure.bars and node.mem_id in self._structure.bars:
                return _skip
            names = attributes.get("class")
            if names and (leave := self._enter_by_class(node, names)) is not None:
                return leave
            labels = self._structure.labels
            if labels and self._is_writing and (label := labels.get(node.mem_id)):
                leave = self._open_strong_block()
                self._inline.text(label)
                leave()
        return self._enter_by_tag(node, tag, attributes)

    def _write_text(self, text: str) -> None:
        if not text.isascii() and _SMUGGLED.search(text):
            self.hidden += 1
        self._inline.text(text)

    def _hide(self, node: LexborNode) -> None:
        """Count a hidden element if it has text, and write a formula that it has for readers."""
        names = node.attributes.get("class") or ""
        if "mwe-math-fallback-image" in names:  # Wikipedia's image of a formula
            tex = node.attributes.get("alt") or ""
            self._write_formula(tex, is_display="-display" in names)
        elif node.tag not in WITHOUT_TEXT and "katex-html" not in names:
            self.hidden += _WORD.search(node.text()) is not None

    def _enter_by_class(self, node: LexborNode, names: str) -> Leave | None:
        """Write an element that its classes describe; return None for all others."""
        classes = names.split()
        if not _LEFT_OUT.isdisjoint(classes):
            return _skip
        if self._has_tex_scripts and not _DRAWN.isdisjoint(classes):
            return _skip
        if self._is_writing and not _MATH.isdisjoint(classes):
            formula = tex.delimited(label_of(node))
            if formula is not None:
                self._write_formula(formula[0], is_display=formula[1])
                return _skip
        if "fragment" in classes and self._is_writing and is_code_of_lines(node):
            self._write_code(node)
            return _skip
        if "sd-tab-label" in classes:
            return self._open_strong_block()
        if self._block_break is None and (kind := callout_of(names)) is not None:
            return self._open_quote(kind)
        if self._callout and is_callout_title(names):
            self._callout = ""  # a callout has one title
            title = label_of(node).lower()
            return _skip if title in ALERTS else self._open_strong_block()
        return None

    def _enter_by_tag(  # noqa: C901  # one case for each tag
        self, node: LexborNode, tag: str, attributes: Attributes
    ) -> Leave | None:
        if tag in _BLOCKS:
            if tag == "nav" and self._node_ids is not None:
                return _skip
            self._flush()
            return self._flush
        if tag in _MARKS:
            if tag == "sup" and self._holds_reference(node):
                return None
            return self._open_mark(_MARKS[tag])
        match tag:
            case "a":
                return self._open_link(node, attributes)
            case "ul" | "ol" | "menu" | "dir":
                number = _number(attributes.get("start"), 1) if tag == "ol" else None
                return self._open_list(number=number, is_tight=_is_tight(node))
            case "li":
                return self._open_item(attributes)
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                return self._open_heading(int(tag[1]))
            case "blockquote":
                return self._open_quote()
            case "table":
                return self._open_table(node, attributes)
            case "tr" | "td" | "th" if self._tables and self._tables[-1] is not None:
                return self._open_part(self._tables[-1], tag, attributes)
            case "dl":
                return self._open_list(number=None, is_tight=False)
            case "dt" | "dd":
                return self._open_definition(is_term=tag == "dt")
            case "summary":
                return self._open_strong_block()
            case "aside":
                return self._open_note(attributes)
            case "q" | "rt" if self._is_writing:
                begin, end = ("“", "”") if tag == "q" else ("(", ")")
                self._inline.text(begin)
                return partial(self._inline_text, end)
            case "button" if self._is_in_heading or self._mark_counts[Mark.STRONG]:
                return None  # it opens a part of the page, and has its title
            case "tr" | "td" | "th":
                self._flush()
                return self._flush
        if tag in _LEAVES and self._is_writing:
            self._write_leaf(node, tag, attributes)
            return _skip
        return _skip if tag in WITHOUT_TEXT and node.mem_id not in self._shown_ids else None

    def _write_leaf(  # noqa: C901  # one case for each tag
        self, node: LexborNode, tag: str, attributes: Attributes
    ) -> None:
        """Write an element that has no further elements for Markdown."""
        match tag:
            case "img":
                self._write_image(attributes)
            case "br":
                if self._block_break is None and self._inline.ends_in_break:
                    self._flush()  # a reader sees two breaks as a new paragraph
                elif self._block_break is None:
                    self._inline.line_break()
                else:
                    self._block_break()
            case "code" | "kbd" | "samp" | "tt":
                self._inline.code(text_within(node, hide=self._hide))
            case "pre" | "listing" | "xmp" | "plaintext":
                self._write_code(node)
            case "hr" if self._block_break is None:
                self._flush()
                # `- ---` would be a line without its item.
                self._writer.write(["___" if self._writer.is_at_start else "---"])
            case "input" if (attributes.get("type") or "").lower() == "checkbox":
                if self._lists and self._writer.is_at_start and not self._inline:
                    self._inline.raw("[x]" if "checked" in attributes else "[ ]")
                    self._inline.text(" ")
            case "math":
                formula = tex.tex_of(node)
                if formula:
                    self._write_formula(formula, is_display=tex.is_display(node))
                else:
                    self._inline.text(text_within(node, hide=self._hide))
            case "script" if (kind := (attributes.get("type") or "").lower()).startswith(
                "math/tex"
            ):
                self._write_formula(node.text(), is_display="mode=display" in kind)

    # Blocks

    def _flush(self) -> None:
        """End the current block, and begin the next inside of the same marks."""
        if self._block_break is not None:
            self._block_break()
        elif text := self._end_text("\\\n"):
            self._writer.write(text.split("\n"))

    def _end_text(self, line_break: str) -> str:
        """Return the Markdown of the current block, and begin the next inside of the same marks."""
        if not self._inline:
            return ""
        for mark, _ in reversed(self._marks):
            self._inline.close(mark)
        text = self._inline.markdown(line_break)
        self._inline = Inline()
        for mark, address in self._marks:
            self._inline.open(mark, address)
        return text

    def _open_heading(self, level: int) -> Leave:
        self._flush()
        if self._block_break is not None:
            return self._block_break
        self._block_break = partial(self._inline_text, " ")
        self._is_in_heading = True

        def leave() -> None:
            self._block_break = None
            self._is_in_heading = False
            if text := self._end_text(" "):
                text = _HEADING_END.sub(r"\1\\#", text)
                self._writer.write([f"{'#' * level} {text}"])

        return leave

    def _open_strong_block(self) -> Leave:
        self._flush()
        close = self._open_mark(Mark.STRONG)

        def leave() -> None:
            close()
            self._flush()

        return leave

    def _open_container(self, first: str, rest: str) -> Leave:
        self._flush()
        depth = self._writer.depth
        self._writer.open(first, rest)

        def leave() -> None:
            self._flush()
            self._writer.close_to(depth)

        return leave

    def _open_quote(self, callout: str = "") -> Leave:
        close = self._open_container(f"> [!{callout}]\n> " if callout else "> ", "> ")
        outer, self._callout = self._callout, callout

        def leave() -> None:
            close()
            self._callout = outer

        return leave

    def _open_note(self, attributes: Attributes) -> Leave:
        note = self._structure.notes.get(attributes.get("id") or "")
        if note is not None and self._block_break is None:
            return self._open_container(f"[^{note}]: ", "    ")
        self._flush()
        return self._flush

    def _open_list(self, *, number: int | None, is_tight: bool) -> Leave:
        self._flush()
        state = self._writer.begin_list(number=number, is_tight=is_tight)
        self._lists.append(state)

        def leave() -> None:
            self._flush()
            self._lists.pop()
            self._writer.end_list(state)

        return leave

    def _open_item(self, attributes: Attributes) -> Leave:
        if not self._lists:  # an item without a list
            end_list = self._open_list(number=None, is_tight=True)
            self._begin_item(self._lists[-1], attributes)
            return end_list
        self._flush()
        self._begin_item(self._lists[-1], attributes)
        return self._flush

    def _begin_item(self, state: ListState, attributes: Attributes) -> None:
        note = self._structure.notes.get(attributes.get("id") or "")
        if state.number is not None:
            state.number = _number(attributes.get("value"), state.number)
        if self._block_break is not None:  # in a cell
            self._inline.raw(state.next_mark().rstrip())
            self._inline.text(" ")
        elif note is None:
            self._writer.begin_item(state)
        else:
            self._writer.close_to(state.depth)
            self._writer.open(f"[^{note}]: ", "    ")

    def _open_definition(self, *, is_term: bool) -> Leave:
        self._flush()
        if self._lists and self._block_break is None:
            state = self._lists[-1]
            if is_term or self._writer.depth == state.depth:
                self._writer.begin_item(state)
        return self._open_strong_block() if is_term else self._flush

    def _write_code(self, node: LexborNode) -> None:
        self._flush()
        text = text_within(node, hide=self._hide, in_lines=True).rstrip()
        lines = text.split("\n")
        if self._block_break is not None:  # in a cell
            for line in lines:
                self._inline.code(line)
                self._flush()
        elif text:
            longest = max(map(len, _FENCES.findall(text)), default=2)
            fence = "`" * (longest + 1)
            self._writer.write([fence + language_of(node), *lines, fence])

    # Tables

    def _open_table(self, node: LexborNode, attributes: Attributes) -> Leave:
        self._flush()
        is_layout = self._block_break is not None or not _has_data(node, attributes)
        table = None if is_layout else Table()
        self._tables.append(table)

        def leave() -> None:
            self._flush()
            self._tables.pop()
            if table is not None and (lines := table.lines()):
                self._writer.write(lines)

        return leave

    def _open_part(self, table: Table, tag: str, attributes: Attributes) -> Leave | None:
        """Begin a row or a cell."""
        self._flush()
        if tag == "tr":
            table.begin_row()
            return None
        self._block_break = self._inline_break

        def leave() -> None:
            self._block_break = None
            table.add(
                self._end_text("<br>"),
                columns=_number(attributes.get("colspan"), 1),
                rows=_number(attributes.get("rowspan"), 1),
                is_header=tag == "th",
            )

        return leave

    def _inline_text(self, text: str) -> None:
        """Add text to the block that is open at the time of the call."""
        self._inline.text(text)

    def _inline_break(self) -> None:
        self._inline.line_break()

    # Text

    def _open_mark(self, mark: Mark, address: str = "") -> Leave:
        self._mark_counts[mark] += 1
        if self._mark_counts[mark] > 1:
            return partial(self._mark_counts.subtract, (mark,))
        self._inline.open(mark, address)
        self._marks.append((mark, address))

        def close() -> None:
            self._mark_counts[mark] = 0
            self._inline.close(mark)
            self._marks.pop()

        return close

    def _holds_reference(self, node: LexborNode) -> bool:
        """Return whether a <sup> only holds a reference to a note, which needs no <sup>."""
        child = node.first_child if self._structure.notes else None
        if child is not None and child.tag == "span":
            child = child.first_child
        if child is None or child.tag != "a":
            return False
        return self._structure.note_of(child, child.attributes) is not None

    def _open_link(self, node: LexborNode, attributes: Attributes) -> Leave | None:
        href = attributes.get("href")
        if href is None:
            return None
        if self._is_writing and (note := self._structure.note_of(node, attributes)) is not None:
            self._inline.raw(f"[^{note}]")
            return _skip
        if "#" in href:
            is_here = href[0] == "#"
            if (is_here or self._is_in_heading) and _is_sign(node):
                return _skip
            if is_here and self._is_in_heading:
                return None  # a link of a heading to itself or to the table of contents
            if is_backlink(attributes):
                return _skip
        if _IMAGE_FILE.search(href) and label_of(node) == "":
            return None  # the image in the link is enough
        address = self._address(href)
        return None if address is None else self._open_mark(Mark.LINK, address)

    def _address(self, href: str) -> str | None:
        """Return the absolute address of a link, or None if a reader cannot use the link."""
        location = self._resolve(href)
        if isinstance(location, Location):
            url = location.url
            if self._urljoin is not None and not href.isascii():
                with suppress(FetchError):
                    url = self._urljoin(href)
            _, mark, fragment = href.partition("#")
            fragment = quote(fragment.strip(), safe=_SAFE_IN_FRAGMENT) if mark else ""
            return inline.link_address(url + mark + fragment)
        href = href.strip()
        if location.reason is Reason.REFUSED_SCHEME and _SCHEMES.match(href):
            return inline.link_address(href)
        return None

    def _write_image(self, attributes: Attributes) -> None:
        if {attributes.get("width"), attributes.get("height")} & {"0", "1"}:
            return  # it counts visitors
        sources = [attributes.get(name) for name in _ADDRESSES]
        sources += [(attributes.get(name) or "").split(" ")[0].rstrip(",") for name in _SETS]
        addresses = (self._address(source) for source in sources if source)
        address = next(filter(None, addresses), None)
        alt = inline.collapsed((attributes.get("alt") or "")[:_MAX_ALT]).strip()
        if address is None:
            self._inline.text(alt)
        else:
            self._inline.raw(f"![{inline.escaped(alt, in_brackets=True)}]({address})")

    def _write_formula(self, text: str, *, is_display: bool) -> None:
        formula = tex.formula(text, is_display=is_display) if self._is_writing else ""
        if formula and is_display and self._block_break is None:
            self._flush()
            self._writer.write([formula])
        else:
            self._inline.raw(formula)


def _number(text: str | None, default: int) -> int:
    """Return a number of at most nine digits from an attribute, or *default*."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else default


def _is_tight(node: LexborNode) -> bool:
    """Return whether no item of a list has paragraphs."""
    items = _children(node, {"li"})
    return not any(child.tag == "p" for item in items for child in item.iter())


def _has_data(table: LexborNode, attributes: Attributes) -> bool:
    """Return whether a table has data, and is not only there for the layout."""
    # The search ends at the first match, so tables in tables take linear time together.
    if attributes.get("role") in {"presentation", "none"} or any(
        child.css_first("table, h1, h2, h3, h4") for child in table.iter()
    ):
        return False
    sections = _children(table, {"thead", "tbody", "tfoot"})
    rows = [row for section in (table, *sections) for row in _children(section, {"tr"})]
    tags = [
        [cell.tag for cell in _children(row, {"td", "th"}) if not is_gutter(cell.attributes)]
        for row in rows
    ]
    return any("th" in row for row in tags) or (
        sum(map(bool, tags)) > 1 and max(map(len, tags)) > 1
    )


def _children(node: LexborNode, tags: Container[str]) -> list[LexborNode]:
    return [child for child in node.iter() if child.tag in tags]


def _is_sign(link: LexborNode) -> bool:
    """Return whether the text of a link is only a sign for the link itself."""
    text = label_of(link).lower()
    return text in _SIGNS and (text != "" or link.css_first("img") is None)
