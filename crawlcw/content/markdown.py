"""Convert a page's tree to Markdown.

The result is CommonMark with the tables, task lists, footnotes, alerts and struck text of GFM. The
module reads the page's tree alone: no stylesheet, no script, no network. It has no recursion, and
its time and memory grow linearly with the page.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from selectolax.lexbor import LexborNode

from crawlcw.content import inline
from crawlcw.content.blocks import BlockWriter, ListState, Table
from crawlcw.content.hidden import is_hidden
from crawlcw.content.inline import Inline, Mark
from crawlcw.content.structure import (
    WITHOUT_TEXT,
    Structure,
    classes_of,
    is_gutter,
    language_of,
    text_within,
)
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.urls import Location

Attributes = Mapping[str, str | None]
#: What follows the content of an element.
Leave = Callable[[], None]

_BLOCKS = frozenset(
    """
    address article body center details dialog div fieldset figcaption figure footer form
    header hgroup legend main nav p search section shadow-root
    """.split()
)
_MARKS = {
    "b": Mark.STRONG,
    "cite": Mark.EMPHASIS,
    "del": Mark.STRUCK,
    "dfn": Mark.EMPHASIS,
    "em": Mark.EMPHASIS,
    "i": Mark.EMPHASIS,
    "s": Mark.STRUCK,
    "strike": Mark.STRUCK,
    "strong": Mark.STRONG,
    "sub": Mark.LOWERED,
    "sup": Mark.RAISED,
    "var": Mark.EMPHASIS,
}
_CODE = frozenset({"code", "kbd", "samp", "tt"})
_QUOTES = {"q": ("“", "”"), "rt": ("(", ")")}
_LISTS = frozenset({"ol", "ul", "menu", "dir"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
#: Links that a reader can use although no crawl fetches them.
_SCHEMES = re.compile(r"(?:mailto|tel|ftp|sms|xmpp|magnet):[^\s]", re.IGNORECASE)
_SAFE_IN_FRAGMENT = "!#$%&'()*+,/:;=?@[]~"
#: The text of a link that only marks its own place, and of a link back from a note.
_PERMALINKS = frozenset({"", "#", "¶", "§", "🔗", "⚓", "⚓︎", "∞", "link", "permalink"})
_BACKLINK_CLASSES = frozenset(
    {"footnote-backref", "footnote-back", "fn-backref", "reversefootnote"}
)
#: Parts of a page that its reader does not need.
_LEFT_OUT = frozenset({"mw-editsection", "mw-cite-backlink"})
_ADDRESSES = ("data-src", "data-original", "data-lazy-src", "src")
_SETS = ("data-srcset", "srcset")
#: What MathJax 2 draws beside the script that has the formula.
_DRAWN = frozenset(
    {"MathJax", "MathJax_CHTML", "MathJax_Display", "MathJax_Preview", "MathJax_SVG"}
)
_TEX = re.compile(r"\\\((.*)\\\)|\\\[(.*)\\\]|\$\$(.*)\$\$|\$(.*)\$", re.DOTALL)
_TEX_COMMENT = re.compile(r"(?<!\\)%.*?(?:\n|$)")
_TEX_STYLE = re.compile(r"\{\\(?:display|text)style (.*)\}", re.DOTALL)
_CALLOUT = re.compile(
    r"(?:^|\s)(?:admonition|theme-admonition|markdown-alert|custom-block|callout|starlight-aside)"
    r"(?:\s|$)"
)
_CALLOUT_KIND = re.compile(r"(?:^|\s)(?:[\w-]*--?)?(?P<kind>[a-z]+)(?=\s|$)")
_CALLOUT_TITLE = re.compile(
    r"(?:admonition|markdown-alert|custom-block|callout)-title|admonition-?heading|aside__title",
    re.IGNORECASE,
)
#: GFM's five kinds of alerts, for the kinds of Sphinx, MkDocs, Docusaurus, VitePress and Quarto.
_ALERTS = {
    "note": "NOTE", "info": "NOTE", "seealso": "NOTE", "abstract": "NOTE", "todo": "NOTE",
    "tip": "TIP", "hint": "TIP", "success": "TIP",
    "important": "IMPORTANT",
    "warning": "WARNING", "attention": "WARNING",
    "caution": "CAUTION", "danger": "CAUTION", "error": "CAUTION", "bug": "CAUTION",
}  # fmt: skip
_HAS_WORD = re.compile(r"\w")
_SMUGGLED = re.compile("[\U000e0000-\U000e0fff]")
_MAX_ALT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Markdown:
    """A page as Markdown."""

    text: str  #: without outer white space; it ends with a line feed if it is not empty
    hidden: int  #: how many parts with text were left out because a browser does not show them


def markdown_of(
    root: LexborNode,
    *,
    base_url: str,
    urljoin: Callable[[str], str] | None = None,
    kept: frozenset[int] | None = None,
) -> Markdown:
    """Return the Markdown of *root*, an element such as <body>, and everything inside of it.

    - *base_url*: the absolute URL that the page's links are relative to (`response.base_url`)
    - *urljoin*: returns the absolute URL of a link that is not ASCII, or raises `FetchError`; the
      page's encoding decides about its query (`response.urljoin`)
    - *kept*: the `mem_id` of each node to write; None writes all of *root*. A node in *kept* is
      written with everything inside of it, so leave out a node that contains unwanted nodes, and
      name its wanted children instead. Structure around the kept nodes (lists, quotes, tables) is
      written, but no text outside of them. A <nav> is not written, even inside of a kept node.

    Text that the page hides is left out and counted, outside of the kept nodes as well.
    """
    converter = _Converter(root, base_url=base_url, urljoin=urljoin, kept=kept)
    converter.walk(root)
    return Markdown(text=converter.text(), hidden=converter.hidden)


def _skip() -> None:
    """Stand for "do not write what is inside of the element"."""


class _Converter:
    def __init__(
        self,
        root: LexborNode,
        *,
        base_url: str,
        urljoin: Callable[[str], str] | None,
        kept: frozenset[int] | None,
    ) -> None:
        self.hidden = 0
        self._writer = BlockWriter()
        self._inline = Inline()
        self._structure = Structure.of(root)
        self._has_tex_scripts = root.css_first('script[type^="math/tex"]') is not None
        self._resolve = urls.resolver(base_url)
        self._urljoin = urljoin
        self._kept = kept
        self._is_writing = kept is None
        #: The marks around the current text, and how often each is open.
        self._marks: list[tuple[Mark, str]] = []
        self._counts: dict[Mark, int] = {}
        self._lists: list[ListState] = []
        self._tables: list[Table] = []
        #: What a block within a heading or a cell becomes; None: a block of its own.
        self._block_break: Leave | None = None
        self._heading_depth = 0
        self._callout_kind = ""

    def text(self) -> str:
        """Return the Markdown of the nodes that were walked."""
        self._flush()
        text = "\n".join(self._writer.lines).strip("\n")
        return f"{text}\n" if text else ""

    def walk(self, root: LexborNode) -> None:
        """Write *root* and everything inside of it."""
        stack: list[tuple[LexborNode, Leave | None]] = []
        node: LexborNode | None = root
        while True:
            while node is not None:
                leave = self._enter(node)
                child = None if leave is _skip else node.first_child
                if child is None:
                    if leave is not None:
                        leave()
                    node = node.next if stack else None
                else:
                    stack.append((node, leave))
                    node = child
            if not stack:
                return
            node, leave = stack.pop()
            if leave is not None:
                leave()
            node = node.next if stack else None

    def _enter(self, node: LexborNode) -> Leave | None:
        """Write the beginning of a node, and return what writes its end."""
        tag = node.tag or "-"
        if tag == "-text":
            if self._is_writing or (self._kept is not None and node.mem_id in self._kept):
                self._write_text(node.text_content or "")
            return None
        if tag[0] in "-!":
            return _skip  # a comment
        attributes = node.attributes
        if attributes or tag == "dialog":
            if is_hidden(tag, attributes) and node.mem_id not in self._structure.labels:
                return self._hide(node, tag, attributes)
            names = attributes.get("class")
            if names and (special := self._special(node, attributes, names)) is not None:
                return special
        if self._kept is not None and not self._is_writing and node.mem_id in self._kept:
            self._is_writing = True
            return self._then(self._element(node, tag, attributes), self._end_kept)
        return self._element(node, tag, attributes)

    def _end_kept(self) -> None:
        self._flush()
        self._is_writing = False

    def _then(self, leave: Leave | None, last: Leave) -> Leave | None:
        if leave is _skip:
            last()
            return _skip

        def both() -> None:
            if leave is not None:
                leave()
            last()

        return both

    def _write_text(self, text: str) -> None:
        if not text.isascii() and _SMUGGLED.search(text):
            self.hidden += 1
        self._inline.text(text)

    def _hide(self, node: LexborNode, tag: str, attributes: Attributes) -> Leave | None:
        """Count a hidden element with text, and return `_skip`."""
        names = attributes.get("class") or ""
        if tag == "img" and "mwe-math-fallback-image" in names:  # the formula is its alt text
            self._write_tex(attributes.get("alt") or "", is_display="-display" in names)
        elif tag not in WITHOUT_TEXT and "katex-html" not in names and "mwe-math" not in names:
            self.hidden += _HAS_WORD.search(node.text()) is not None
        return _skip

    def _special(self, node: LexborNode, attributes: Attributes, names: str) -> Leave | None:
        """Write an element that its classes describe; return None for all others."""
        classes = names.split()
        if is_gutter(attributes) or not _LEFT_OUT.isdisjoint(classes):
            return _skip
        if self._has_tex_scripts and not _DRAWN.isdisjoint(classes):
            return _skip
        if ("math" in classes or "arithmatex" in classes) and self._is_writing:
            tex = _TEX.fullmatch(text_within(node).strip())
            if tex is not None:
                is_display = tex[2] is not None or tex[3] is not None
                self._write_tex(next(filter(None, tex.groups()), ""), is_display=is_display)
                return _skip
        if "sd-tab-label" in classes:
            return self._open_strong_block()
        if self._block_break is None and _CALLOUT.search(names):
            kinds = (_ALERTS.get(match["kind"]) for match in _CALLOUT_KIND.finditer(names))
            if (kind := next(filter(None, kinds), None)) is not None:
                return self._open_quote(f"> [!{kind}]\n", kind)
        if self._callout_kind and _CALLOUT_TITLE.search(names):
            title = inline.collapsed(text_within(node)).strip().rstrip(":")
            if title.lower() in _ALERTS or title.upper() == self._callout_kind:
                return _skip
            return self._open_strong_block()
        return None

    def _element(self, node: LexborNode, tag: str, attributes: Attributes) -> Leave | None:
        if attributes and node.mem_id in self._structure.labels and self._is_writing:
            self._flush()
            leave = self._open_strong_block()
            self._inline.text(self._structure.labels[node.mem_id])
            leave()
        if tag in _BLOCKS:
            if tag == "nav" and self._kept is not None:
                return _skip
            if attributes and node.mem_id in self._structure.bars:
                return _skip
            self._flush()
            return self._flush
        handler = _HANDLERS.get(tag)
        if handler is not None:
            return handler(self, node, tag, attributes)
        if tag in WITHOUT_TEXT:
            return _skip
        if attributes.get("role") == "heading" and attributes.get("aria-level", "") in set(
            "123456"
        ):
            return self._open_heading(node, f"h{attributes['aria-level']}", attributes)
        return None

    # Blocks

    def _flush(self) -> None:
        """End the current block, and begin the next inside of the same marks."""
        if self._block_break is not None:
            self._block_break()
            return
        for mark, _ in reversed(self._marks):
            self._inline.close(mark)
        if self._inline:
            text = self._inline.markdown("\\\n")
            if text:
                self._writer.write(text.split("\n"))
        self._restart()

    def _restart(self) -> None:
        self._inline = Inline()
        for mark, address in self._marks:
            self._inline.open(mark, address)

    def _open_heading(self, node: LexborNode, tag: str, _: Attributes) -> Leave:
        if self._block_break is not None:
            self._block_break()
            return self._block_break
        self._flush()
        self._block_break = lambda: self._inline.text(" ")
        self._heading_depth += 1

        def leave() -> None:
            self._block_break = None
            self._heading_depth -= 1
            for mark, _ in reversed(self._marks):
                self._inline.close(mark)
            text = self._inline.markdown(" ")
            if text:
                if text.endswith("#") and (len(text) == 1 or text[-2] in " #"):
                    text = f"{text[:-1]}\\#"
                self._writer.write([f"{'#' * _HEADINGS[tag]} {text}"])
            self._restart()

        return leave

    def _open_strong_block(self) -> Leave:
        self._flush()
        close = self._open_mark(Mark.STRONG)

        def leave() -> None:
            if close is not None:
                close()
            self._flush()

        return leave

    def _open_summary(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        return self._open_strong_block()

    def _open_blockquote(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        return self._open_quote("", "")

    def _open_quote(self, first_line: str, kind: str) -> Leave:
        self._flush()
        depth, outer_kind = self._writer.depth, self._callout_kind
        self._writer.open(f"{first_line}> ", "> ")
        self._callout_kind = kind

        def leave() -> None:
            self._flush()
            self._writer.close_to(depth)
            self._callout_kind = outer_kind

        return leave

    def _open_list(self, node: LexborNode, tag: str, attributes: Attributes) -> Leave:
        if attributes and node.mem_id in self._structure.bars:
            return _skip
        self._flush()
        number = _number(attributes.get("start"), 1) if tag == "ol" else None
        state = self._writer.begin_list(number=number, is_tight=_is_tight(node))
        self._lists.append(state)

        def leave() -> None:
            self._flush()
            self._lists.pop()
            self._writer.end_list(state)

        return leave

    def _open_item(self, _: LexborNode, __: str, attributes: Attributes) -> Leave:
        self._flush()
        note = self._structure.notes.get(attributes.get("id") or "")
        if not self._lists:
            state = self._writer.begin_list(number=None, is_tight=True)
            self._begin_item(state, note)

            def leave() -> None:
                self._flush()
                self._writer.end_list(state)

            return leave
        state = self._lists[-1]
        if state.number is not None and attributes.get("value"):
            state.number = _number(attributes["value"], state.number)
        self._begin_item(state, note)
        return self._flush

    def _begin_item(self, state: ListState, note: int | None) -> None:
        if self._block_break is not None:  # in a cell
            mark = "-" if state.number is None else f"{state.number}."
            state.number = None if state.number is None else state.number + 1
            self._inline.raw(f"{mark}")
            self._inline.text(" ")
        elif note is None:
            self._writer.begin_item(state)
        else:
            self._writer.close_to(state.depth)
            self._writer.open(f"[^{note}]: ", "    ")

    def _open_aside(self, _: LexborNode, __: str, attributes: Attributes) -> Leave:
        note = self._structure.notes.get(attributes.get("id") or "")
        self._flush()
        if note is None or self._block_break is not None:
            return self._flush
        depth = self._writer.depth
        self._writer.open(f"[^{note}]: ", "    ")

        def leave() -> None:
            self._flush()
            self._writer.close_to(depth)

        return leave

    def _open_definitions(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        self._flush()
        state = self._writer.begin_list(number=None, is_tight=False)
        self._lists.append(state)

        def leave() -> None:
            self._flush()
            self._lists.pop()
            self._writer.end_list(state)

        return leave

    def _open_term(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        self._flush()
        if self._lists and self._block_break is None:
            self._writer.begin_item(self._lists[-1])
        return self._open_strong_block()

    def _open_definition(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        self._flush()
        if self._lists and not self._lists[-1].has_items and self._block_break is None:
            self._writer.begin_item(self._lists[-1])
        return self._flush

    def _write_rule(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        self._flush()
        if self._is_writing and self._block_break is None:
            # `- ---` would be a rule without its item.
            self._writer.write(["___" if self._writer.is_at_start else "---"])
        return _skip

    def _write_code_block(self, node: LexborNode, _: str, __: Attributes) -> Leave | None:
        if not self._is_writing:
            return None
        self._flush()
        text = text_within(node, with_lines=True).rstrip()
        if not text.strip():
            return _skip
        lines = text.split("\n")
        if self._block_break is not None:
            for line in lines:
                self._inline.raw(inline.code_span(line))
                self._flush()
            return _skip
        while not lines[0].strip() and len(lines) > 1 and not lines[1].strip():
            del lines[0]
        runs = re.findall(r"`{3,}", text)
        fence = "`" * max(3, 1 + max(map(len, runs), default=0))
        self._writer.write([fence + language_of(node), *lines, fence])
        return _skip

    # Tables

    def _open_table(self, node: LexborNode, _: str, attributes: Attributes) -> Leave:
        self._flush()
        if self._block_break is not None or not _has_data(node, attributes):
            self._tables.append(_LAYOUT)
            return self._end_layout_table
        table = Table()
        self._tables.append(table)

        def leave() -> None:
            self._tables.pop()
            self._restart()
            lines = table.lines()
            if lines:
                self._writer.write(lines)

        return leave

    def _end_layout_table(self) -> None:
        self._flush()
        self._tables.pop()

    def _open_row(self, _: LexborNode, __: str, ___: Attributes) -> Leave | None:
        if self._tables and self._tables[-1] is not _LAYOUT:
            self._tables[-1].begin_row()
            return None
        self._flush()
        return self._flush

    def _open_cell(self, _: LexborNode, tag: str, attributes: Attributes) -> Leave:
        if not self._tables or self._tables[-1] is _LAYOUT:
            self._flush()
            return self._flush
        table = self._tables[-1]
        self._restart()
        self._block_break = lambda: self._inline.line_break()

        def leave() -> None:
            self._block_break = None
            for mark, _ in reversed(self._marks):
                self._inline.close(mark)
            table.add(
                self._inline.markdown("<br>"),
                columns=min(_number(attributes.get("colspan"), 1), 1000) or 1,
                rows=min(_number(attributes.get("rowspan"), 1), 65534) or 1,
                is_header=tag == "th",
            )
            self._restart()

        return leave

    def _open_caption(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        self._flush()
        return self._flush

    # Text

    def _open_mark(self, mark: Mark, address: str = "") -> Leave | None:
        count = self._counts[mark] = self._counts.get(mark, 0) + 1
        if count == 1:
            self._inline.open(mark, address)
            self._marks.append((mark, address))
        return partial(self._close_mark, mark)

    def _close_mark(self, mark: Mark) -> None:
        self._counts[mark] -= 1
        if not self._counts[mark]:
            self._inline.close(mark)
            self._marks.pop()

    def _open_marked(self, node: LexborNode, tag: str, _: Attributes) -> Leave | None:
        if tag == "sup" and self._structure.notes and self._holds_reference(node):
            return None
        return self._open_mark(_MARKS[tag])

    def _holds_reference(self, node: LexborNode) -> bool:
        child = node.first_child
        for _ in range(2):
            if child is None or child.tag == "a":
                break
            child = child.first_child
        return (
            child is not None
            and child.tag == "a"
            and self._structure.note_of(child, child.attributes) is not None
        )

    def _open_quotation(self, _: LexborNode, tag: str, __: Attributes) -> Leave | None:
        if not self._is_writing:
            return None
        begin, end = _QUOTES[tag]
        self._inline.text(begin)
        return lambda: self._inline.text(end)

    def _open_link(self, node: LexborNode, _: str, attributes: Attributes) -> Leave | None:
        href = attributes.get("href")
        if href is None:
            return None
        note = self._structure.note_of(node, attributes)
        if note is not None and self._is_writing:
            self._inline.raw(f"[^{note}]")
            return _skip
        if "#" in href:
            if _is_backlink(attributes):
                return _skip
            is_here = href[0] == "#"
            if (is_here or self._heading_depth) and _is_permalink(node):
                return _skip
            if is_here and self._heading_depth:
                return None
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

    def _write_image(self, _: LexborNode, __: str, attributes: Attributes) -> Leave:
        if not self._is_writing or {attributes.get("width"), attributes.get("height")} & {"0", "1"}:
            return _skip
        alt = inline.collapsed((attributes.get("alt") or "")[:_MAX_ALT]).strip()
        address = self._image_address(attributes)
        if address is None:
            self._inline.text(alt)
        else:
            self._inline.raw(f"![{inline.escaped(alt, in_brackets=True)}]({address})")
        return _skip

    def _image_address(self, attributes: Attributes) -> str | None:
        for name in _ADDRESSES:
            source = attributes.get(name)
            if source and (address := self._address(source)) is not None:
                return address
        for name in _SETS:
            candidates = (attributes.get(name) or "").split(maxsplit=1)
            if candidates and (address := self._address(candidates[0].rstrip(","))) is not None:
                return address
        return None

    def _write_break(self, _: LexborNode, __: str, ___: Attributes) -> Leave:
        if self._is_writing:
            if self._block_break is not None:
                self._block_break()
            elif self._inline.ends_in_break:
                self._flush()  # a reader sees two breaks as a new paragraph
            else:
                self._inline.line_break()
        return _skip

    def _write_code(self, node: LexborNode, _: str, __: Attributes) -> Leave | None:
        if not self._is_writing:
            return None
        self._inline.raw(inline.code_span(text_within(node)))
        return _skip

    def _write_control(self, _: LexborNode, tag: str, attributes: Attributes) -> Leave | None:
        """Write the box of a task, or the text of a button that is a heading."""
        if tag == "button":
            return None if self._heading_depth or self._counts.get(Mark.STRONG) else _skip
        is_box = (attributes.get("type") or "").lower() == "checkbox"
        if is_box and self._is_writing and self._lists and self._is_at_item_start():
            self._inline.raw("[x]" if "checked" in attributes else "[ ]")
            self._inline.text(" ")
        return _skip

    def _is_at_item_start(self) -> bool:
        return self._writer.is_at_start and not self._inline and self._block_break is None

    def _write_script(self, node: LexborNode, _: str, attributes: Attributes) -> Leave:
        kind = (attributes.get("type") or "").lower()
        if self._is_writing and kind.startswith("math/tex"):
            self._write_tex(node.text(), is_display="mode=display" in kind)
        return _skip

    def _write_math(self, node: LexborNode, _: str, attributes: Attributes) -> Leave | None:
        if not self._is_writing:
            return None
        annotation = node.css_first('annotation[encoding="application/x-tex"]')
        tex = attributes.get("alttext") if annotation is None else annotation.text()
        if not tex:
            return None
        is_display = attributes.get("display") == "block" or _is_display(node)
        self._write_tex(tex, is_display=is_display)
        return _skip

    def _write_tex(self, tex: str, *, is_display: bool) -> None:
        if not self._is_writing:
            return
        if (styled := _TEX_STYLE.fullmatch(tex.strip())) is not None:
            tex = styled[1]
        tex = inline.collapsed(_TEX_COMMENT.sub(" ", tex)).strip()
        if not tex:
            return
        # Other spellings of the same formula, which are no HTML, code or link for Markdown.
        tex = re.sub(r"<(?=[A-Za-z/!?])", "< ", tex).replace("](", "] (").replace("][", "] [")
        tex = re.sub(r"(?<!\\)\$", r"\\$", tex.replace("`", "'"))
        if is_display and self._block_break is None:
            self._flush()
            self._writer.write([f"$${tex}$$"])
        else:
            self._inline.raw(f"$${tex}$$" if is_display else f"${tex}$")


#: Stands for a table whose cells are written as plain blocks.
_LAYOUT = Table()


def _number(text: str | None, default: int) -> int:
    """Return a number of at most nine digits from an attribute, or *default*."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else default


def _is_tight(node: LexborNode) -> bool:
    """Return whether no item of a list has paragraphs."""
    item = node.first_child
    while item is not None:
        child = item.first_child if item.tag == "li" else None
        while child is not None:
            if child.tag == "p":
                return False
            child = child.next
        item = item.next
    return True


def _has_data(table: LexborNode, attributes: Attributes) -> bool:
    """Return whether a table has data, and is not only there for the layout."""
    if attributes.get("role") in {"presentation", "none"}:
        return False
    # The search ends at the first match, so tables in tables take linear time together.
    if table.css_first("table, h1, h2, h3, h4, [role=main]") not in {None, table}:
        return False
    rows = 0
    is_wide = has_header = False
    for row in _rows(table):
        cells = 0
        cell = row.first_child
        while cell is not None:
            if cell.tag in {"td", "th"} and not is_gutter(cell.attributes):
                cells += 1
                has_header = has_header or cell.tag == "th"
            cell = cell.next
        rows += cells > 0
        is_wide = is_wide or cells > 1
    return has_header or (rows > 1 and is_wide)


def _rows(table: LexborNode) -> list[LexborNode]:
    rows: list[LexborNode] = []
    section = table.first_child
    while section is not None:
        if section.tag == "tr":
            rows.append(section)
        elif section.tag in {"thead", "tbody", "tfoot"}:
            row = section.first_child
            while row is not None:
                if row.tag == "tr":
                    rows.append(row)
                row = row.next
        section = section.next
    return rows


def _is_permalink(link: LexborNode) -> bool:
    text = inline.collapsed(text_within(link)).strip().lower()
    return text in _PERMALINKS and (text != "" or link.css_first("img") is None)


def _is_backlink(attributes: Attributes) -> bool:
    return (
        attributes.get("role") == "doc-backlink"
        or "data-footnote-backref" in attributes
        or not _BACKLINK_CLASSES.isdisjoint(classes_of(attributes))
    )


def _is_display(math: LexborNode) -> bool:
    """Return whether a formula stands in a line of its own."""
    node = math.parent
    for _ in range(4):
        if node is None or node.tag == "body":
            return False
        attributes = node.attributes
        if (
            "katex-display" in (attributes.get("class") or "")
            or attributes.get("display") == "true"
        ):
            return True
        node = node.parent
    return False


_HANDLERS: dict[str, Callable[[_Converter, LexborNode, str, Attributes], Leave | None]] = {
    **dict.fromkeys(_MARKS, _Converter._open_marked),
    **dict.fromkeys(_CODE, _Converter._write_code),
    **dict.fromkeys(_QUOTES, _Converter._open_quotation),
    **dict.fromkeys(_HEADINGS, _Converter._open_heading),
    **dict.fromkeys(_LISTS, _Converter._open_list),
    "a": _Converter._open_link,
    "aside": _Converter._open_aside,
    "blockquote": _Converter._open_blockquote,
    "br": _Converter._write_break,
    "button": _Converter._write_control,
    "caption": _Converter._open_caption,
    "dd": _Converter._open_definition,
    "dl": _Converter._open_definitions,
    "dt": _Converter._open_term,
    "hr": _Converter._write_rule,
    "img": _Converter._write_image,
    "input": _Converter._write_control,
    "li": _Converter._open_item,
    "listing": _Converter._write_code_block,
    "math": _Converter._write_math,
    "plaintext": _Converter._write_code_block,
    "pre": _Converter._write_code_block,
    "script": _Converter._write_script,
    "summary": _Converter._open_summary,
    "table": _Converter._open_table,
    "td": _Converter._open_cell,
    "th": _Converter._open_cell,
    "tr": _Converter._open_row,
    "xmp": _Converter._write_code_block,
}
