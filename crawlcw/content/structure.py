"""Find the parts of a page that belong together: footnotes and tabs; read code and its language."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from selectolax.lexbor import LexborNode

from crawlcw.content import inline
from crawlcw.content.hidden import is_hidden

Attributes = Mapping[str, str | None]

#: Elements whose content is not text of the page.
WITHOUT_TEXT = frozenset(
    """
    script style template noscript head title iframe object embed video audio canvas svg datalist
    select textarea input button option optgroup map area rp param source track link meta progress
    meter frameset noframes
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
_LINES = frozenset({"div", "li", "ol", "p", "pre", "table", "tbody", "tr", "ul"})
#: Classes of line numbers: Pygments, Sphinx, Rouge, Hugo, Prism, highlight.js, GitHub, CodeMirror.
GUTTERS = frozenset(
    """
    lineno linenos linenodiv linenumber linenumbers line-number line-numbers-rows lnt ln gutter
    rouge-gutter hljs-ln-numbers hljs-ln-line-number blob-num react-code-line-number
    react-syntax-highlighter-line-number code-line-number cm-gutters gp-linenos
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
_LANGUAGE_ATTRIBUTES = ("data-lang", "data-language", "data-code-lang")
_LANGUAGE = re.compile(
    r"(?:^|\s)(?:language-|lang-|highlight-source-|highlight-|brush:\s*|src-)([\w+#.-]+)"
    r"|(?:^|\s)(?:hljs|sourceCode|prettyprint|src)\s+([\w+#.-]+)"
)
_LANGUAGE_OF_WRAPPER = re.compile(
    r"(?:^|\s)(?:language-|highlight-source-|highlight-text-|highlight-)([\w+#.-]+)"
)
_WRAPPERS = frozenset({"div", "figure", "span", "td", "tr", "tbody", "table", "code", "pre"})
_MAX_WRAPPERS = 6
#: The nodes that a label can have, so that labels in labels take linear time together.
_MAX_LABEL_NODES = 50
#: Words in the place of a language that name none.
_NO_LANGUAGE = frozenset(
    """
    none plaintext text txt plain nohighlight highlight hljs default notranslate line-numbers
    numbersource number-lines prettyprinted linenums unknown auto wrapper container toolbar
    copyable undefined null
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
_LANGUAGE_NAME = re.compile(r"[A-Za-z][\w+#.-]{0,30}")
_CALLOUT = re.compile(
    r"(?:^|\s)(?:admonition|theme-admonition|markdown-alert|custom-block|callout|starlight-aside)"
    r"(?:\s|$)"
)
_CALLOUT_KIND = re.compile(r"(?:^|\s)(?:[\w-]*-)?(?P<kind>[a-z]+)(?=\s|$)")
_CALLOUT_TITLE = re.compile(
    r"(?:admonition|markdown-alert|custom-block|callout)-title|admonition-?heading|aside__title",
    re.IGNORECASE,
)
#: GFM's five kinds of alerts, by the kinds of Sphinx, MkDocs, Docusaurus, VitePress and Quarto.
ALERTS = {
    **dict.fromkeys(("abstract", "info", "note", "seealso", "todo"), "NOTE"),
    **dict.fromkeys(("hint", "success", "tip"), "TIP"),
    "important": "IMPORTANT",
    **dict.fromkeys(("attention", "warning"), "WARNING"),
    **dict.fromkeys(("bug", "caution", "danger", "error"), "CAUTION"),
}
_REFERENCES = "sup, a[role=doc-noteref], a.footnote-ref, a.footnote-reference, a[data-footnote-ref]"
_NOTES = "li[id], aside[id], [role=doc-footnote]"
_REFERENCE_CLASSES = frozenset({"footnote-ref", "footnote-reference", "footnote"})
_BACKLINK_CLASSES = frozenset(
    {"footnote-backref", "footnote-back", "fn-backref", "reversefootnote"}
)
_TABS = "[role=tablist], [role=tab], [role=tabpanel], .tabbed-labels, .tabbed-block"


def classes_of(attributes: Attributes) -> list[str]:
    """Return the classes of an element."""
    return (attributes.get("class") or "").split()


def is_gutter(attributes: Attributes) -> bool:
    """Return whether an element has the line numbers of code."""
    return not GUTTERS.isdisjoint(classes_of(attributes))


def text_within(
    root: LexborNode,
    *,
    hide: Callable[[LexborNode], None] | None = None,
    in_lines: bool = False,
    max_nodes: int | None = None,
) -> str:
    """Return the shown text of *root*; with *in_lines* each block is a line, as in code.

    *hide* gets each hidden element.
    """
    parts: list[str] = []
    for node, is_start in _shown_nodes(root, hide or (lambda _: None), max_nodes):
        tag = node.tag
        if in_lines and tag in _LINES and parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        if is_start and tag == "-text":
            parts.append(node.text_content or "")
        elif is_start and tag == "br":
            parts.append("\n")
    return inline.preformatted("".join(parts))


def label_of(node: LexborNode) -> str:
    """Return the text of a short element, such as the title of a tab, on one line."""
    return inline.collapsed(text_within(node, max_nodes=_MAX_LABEL_NODES)).strip()


def _shown_nodes(
    root: LexborNode, hide: Callable[[LexborNode], None], max_nodes: int | None
) -> Iterator[tuple[LexborNode, bool]]:
    """Yield each shown node within *root* at its start (True) and at its end (False)."""
    stack: list[LexborNode] = []
    node = root.first_child
    for _ in count() if max_nodes is None else range(max_nodes):
        if node is None:
            if not stack:
                return
            node = stack.pop()
            yield node, False
            node = node.next
            continue
        yield node, True
        child = None
        tag = node.tag or "-"
        if tag[0] not in "-!" and tag not in WITHOUT_TEXT:
            attributes = node.attributes
            if is_hidden(tag, attributes):
                hide(node)
            elif not is_gutter(attributes):
                child = node.first_child
        if child is not None:
            stack.append(node)
        node = node.next if child is None else child


def callout_of(names: str) -> str | None:
    """Return the alert of GFM for the classes of a callout, or None if they name none."""
    if _CALLOUT.search(names):
        for match in _CALLOUT_KIND.finditer(names):
            if match["kind"] in ALERTS:
                return ALERTS[match["kind"]]
    return None


def is_callout_title(names: str) -> bool:
    """Return whether an element is the title of a callout."""
    return _CALLOUT_TITLE.search(names) is not None


def is_code_of_lines(node: LexborNode) -> bool:
    """Return whether an element is code of Doxygen, which has no <pre>."""
    line = node.first_child
    return line is not None and line.tag == "div" and "line" in classes_of(line.attributes)


def language_of(pre: LexborNode) -> str:
    """Return the language of code that the classes of a <pre> and its neighbours name, or ""."""
    inner = pre.first_child
    while inner is not None and inner.tag == "-text" and not (inner.text_content or "").strip():
        inner = inner.next
    nodes = [inner, pre] if inner is not None and inner.tag == "code" else [pre]
    for node in nodes:
        if name := _language_in(node, _LANGUAGE):
            return name
    outer = pre.parent
    for _ in range(_MAX_WRAPPERS):
        if outer is None or outer.tag not in _WRAPPERS:
            break
        if name := _language_in(outer, _LANGUAGE_OF_WRAPPER):
            return name
        outer = outer.parent
    return ""


def _language_in(node: LexborNode, pattern: re.Pattern[str]) -> str:
    attributes = node.attributes
    names = [attributes.get(name) for name in _LANGUAGE_ATTRIBUTES]
    names += [
        name for match in pattern.finditer(attributes.get("class") or "") for name in match.groups()
    ]
    for name in names:
        if name and name.lower() not in _NO_LANGUAGE and _LANGUAGE_NAME.fullmatch(name):
            return name
    return ""


@dataclass(slots=True)
class Structure:
    """The footnotes and the tabs of a page."""

    notes: dict[str, int] = field(default_factory=dict)  #: the number of a note, by its id
    labels: dict[int, str] = field(default_factory=dict)  #: the label of a tab panel, by `mem_id`
    bars: set[int] = field(default_factory=set)  #: the bars of labels that are written elsewhere

    @classmethod
    def of(cls, root: LexborNode) -> "Structure":
        """Return the structure of a page."""
        structure = cls()
        structure._find_notes(root)
        structure._find_tabs(root)
        return structure

    def note_of(self, link: LexborNode, attributes: Attributes) -> int | None:
        """Return the number of the note that a link refers to, or None."""
        href = attributes.get("href") or ""
        number = self.notes.get(href[1:]) if self.notes and href[:1] == "#" else None
        if number is None:
            return None
        parent = link.parent
        for _ in range(2):  # the link may be in an element of the <sup>
            if parent is not None and parent.tag == "sup":
                return number
            parent = parent.parent if parent is not None else None
        return number if _is_reference(attributes) else None

    def _find_notes(self, root: LexborNode) -> None:
        numbers: dict[str, int] = {}
        for node in root.css(_REFERENCES):
            link: LexborNode | None = node
            for _ in range(3):
                if link is None or link.tag == "a":
                    break
                link = link.first_child
            if link is not None and link.tag == "a":
                href = link.attributes.get("href") or ""
                if href[:1] == "#" and href[1:]:
                    numbers.setdefault(href[1:], 0)
        if not numbers:
            return
        ids = {node.attributes.get("id") or "" for node in root.css(_NOTES)}
        names = [name for name in numbers if name in ids]
        self.notes = {name: number for number, name in enumerate(names, 1)}

    def _find_tabs(self, root: LexborNode) -> None:
        labels_by_id: dict[str, str] = {}
        groups: list[tuple[int, deque[str]]] = []
        for node in root.css(_TABS):
            attributes = node.attributes
            role, names = attributes.get("role"), classes_of(attributes)
            if role == "tablist" or "tabbed-labels" in names:
                groups.append((node.mem_id, deque(_labels(node) if role != "tablist" else ())))
            elif role == "tab" and groups:
                label = label_of(node)
                groups[-1][1].append(label)
                for name in (attributes.get("id"), attributes.get("aria-controls")):
                    if name:
                        labels_by_id[name] = label
            elif role == "tabpanel" or "tabbed-block" in names:
                while len(groups) > 1 and not groups[-1][1]:
                    groups.pop()
                if not groups or not groups[-1][1]:
                    continue
                bar, waiting = groups[-1]
                label = waiting.popleft()
                for name in (attributes.get("id"), attributes.get("aria-labelledby")):
                    label = labels_by_id.get(name or "", label)
                self.labels[node.mem_id] = label
                if not _is_within(node, bar):  # some accordions are a bar with panels in it
                    self.bars.add(bar)


def _is_within(node: LexborNode, ancestor_id: int) -> bool:
    for _ in range(_MAX_WRAPPERS):
        parent = node.parent
        if parent is None:
            return False
        if parent.mem_id == ancestor_id:
            return True
        node = parent
    return False


def is_backlink(attributes: Attributes) -> bool:
    """Return whether a link leads from a note back to its reference."""
    return (
        attributes.get("role") == "doc-backlink"
        or "data-footnote-backref" in attributes
        or not _BACKLINK_CLASSES.isdisjoint(classes_of(attributes))
    )


def _is_reference(attributes: Attributes) -> bool:
    return (
        attributes.get("role") == "doc-noteref"
        or "data-footnote-ref" in attributes
        or not _REFERENCE_CLASSES.isdisjoint(classes_of(attributes))
    )


def _labels(bar: LexborNode) -> Iterator[str]:
    label = bar.first_child
    while label is not None:
        if label.tag == "label":
            yield label_of(label)
        label = label.next
