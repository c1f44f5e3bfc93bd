"""Checks of selections from a page: methods of lexbor's nodes and of parsel's selectors."""

import ast

from crawlcw.checking.bindings import Kind, Known, Walk
from crawlcw.checking.findings import Findings

#: Members of parsel's selectors, but not of lexbor nodes or lists.
_PARSELS = frozenset(
    """
    attrib extract extract_first get getall jmespath re re_first register_namespace
    remove_namespaces xpath
    """.split()  # noqa: SIM905  # as a list it would be ten times as long
)
#: Members of lexbor's nodes, but not of parsel's selectors.
_LEXBORS = frozenset({"attributes", "attrs", "css_first", "text"})
_FIRST = frozenset({"get", "extract_first"})
_ALL = frozenset({"getall", "extract"})
_NODES = (Kind.NODE, Kind.NODES, Kind.PARSER)
_SELECTING = (Kind.RESPONSE, *_NODES)
_SELECTORS = (Kind.SELECTOR, Kind.SELECTORS)
_RESPONSES = "spiders#Responses"
_LONGEST = 70


class Selection:
    """Finds parsel's members used on lexbor nodes, and lexbor's used on parsel's selectors."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        #: Message and replacement by expression.
        self._said: dict[ast.expr, tuple[str, str]] = {}

    def finish(self) -> None:
        """Add the findings; of a chain of calls only the outermost one."""
        parts = {part for node in self._said for part in _chain(node)}
        for node, (what, instead) in self._said.items():
            if node not in parts:
                # In a chain over several lines, the line of the last part, which has the mistake.
                last = node.func if isinstance(node, ast.Call) else node
                self._found.tell(last.end_lineno or last.lineno, what, instead, _RESPONSES)

    def look(self, node: ast.expr, owner: Known | None, walk: Walk) -> None:  # noqa: ARG002  # the protocol's
        """See `Rule.look`."""
        kind = None if owner is None else owner.kind
        match node:
            case ast.Call(func=ast.Attribute(attr=name)):
                if (said := self._said.pop(node.func, None)) is not None:
                    # The call replaces the finding of its attribute.
                    what = said[0].replace(_shown(node.func), _shown(node), 1)
                    of_parsel = name in _PARSELS and kind in _NODES
                    self._tell(node, what, _advice(node, name, owner) if of_parsel else said[1])
                elif kind in _SELECTING and name in ("css", "css_first") and _pseudo(node):
                    self._tell_pseudo(node, owner)
                elif kind in _SELECTORS and name == "text":
                    self._tell(node, f"{_shown(node)}: of a lexbor node", '.css("::text").get()')
                elif kind is Kind.RESPONSE and name in ("follow", "follow_all"):
                    self._follow(node)
            case ast.Attribute(attr=name):
                if kind in _NODES and name in _PARSELS:
                    self._tell(node, _shown(node), _advice(node, name, owner))
                elif kind is Kind.NODES and name in {*_LEXBORS, "css", "html"}:
                    self._tell(node, f"{_shown(node)}: css() gives a list", _single(node))
                elif kind in _SELECTORS and name in _LEXBORS - {"text"}:
                    instead = '.css("...")' if name == "css_first" else ".attrib"
                    self._tell(node, f"{_shown(node)}: of a lexbor node, not of parsel", instead)

    def _tell(self, node: ast.expr, what: str, instead: str) -> None:
        self._said[node] = what, instead

    def _tell_pseudo(self, node: ast.Call, owner: Known | None) -> None:
        assert isinstance(node.func, ast.Attribute)
        query, pseudo = _pseudo(node) or ("", "")
        value = ast.unparse(node.func.value)
        plain = f"{value}.{node.func.attr}({query!r})" if query else value
        self._tell(
            node,
            f"{_shown(node)}: ::text and ::attr() are parsel's",
            f"{plain} and {_of_node(pseudo)} of its nodes, or {_by_parsel(node, owner)}",
        )

    def _follow(self, node: ast.Call) -> None:
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        for keyword in node.keywords:
            if name == "follow_all" and keyword.arg in ("css", "xpath"):
                given = ast.unparse(keyword.value)
                given = given if keyword.arg == "css" else f"response.xpath({given})"
                what = f"follow_all({keyword.arg}=...)"
                self._tell(node, what, f"response.follow_all({given})")
        first = node.args[0] if node.args else None
        if name == "follow_all" and isinstance(first, ast.Constant) and "::" in str(first.value):
            plain = str(first.value).partition("::")[0]
            self._tell(node, _shown(node), f"response.follow_all({plain!r})")


def _chain(node: ast.expr) -> list[ast.expr]:
    """Return the owner of an expression, the owner of that, and so on."""
    found = []
    while True:
        match node:
            case ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
                found.append(inner)
                node = inner
            case _:
                return found


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 24]}...{text[-20:]}"


def _pseudo(call: ast.expr) -> tuple[str, str] | None:
    """Return the selector and the pseudo-element of `x.css("a::text")`."""
    match call:
        case ast.Call(args=[ast.Constant(value=str(query)), *_]) if "::" in query:
            plain, _, pseudo = query.partition("::")
            return plain.strip(), pseudo.strip()
        case _:
            return None


def _advice(node: ast.expr, name: str, owner: Known | None) -> str:
    """Return the replacements of parsel's `owner.name`: by lexbor's nodes, and by parsel."""
    value = node.func if isinstance(node, ast.Call) else node
    assert isinstance(value, ast.Attribute)
    selected = value.value
    ways = [_by_nodes(selected, name), _by_parsel(node, owner)]
    return ", or ".join(each for each in ways if each)


def _by_nodes(selected: ast.expr, name: str) -> str:
    match selected:
        case ast.Call(
            func=ast.Attribute(value=receiver, attr="css"), args=[ast.Constant(value=str(query))]
        ):
            pseudo = _pseudo(selected)
            plain = query if pseudo is None else pseudo[0]
            taken = ".html" if pseudo is None else _of_node(pseudo[1])
            of = ast.unparse(receiver)
            if name in _FIRST:
                return f"{of}.css_first({plain!r}){taken}" if plain else f"{of}{taken}"
            if name in _ALL:
                return f"[node{taken} for node in {of}.css({plain!r})]" if plain else ""
            return f"{of}.css_first({plain!r}).attributes" if name == "attrib" else ""
        case _:
            text = ast.unparse(selected)
            if name == "attrib":
                return f"{text}.attributes"
            return f"{text}.html" if name in _FIRST | _ALL else ""


def _of_node(pseudo: str) -> str:
    """Return a lexbor node's counterpart of `::text` or `::attr(href)`."""
    if pseudo.startswith("attr("):
        return f".attributes[{pseudo[5:].rstrip(')').strip()!r}]"
    return ".text()"


def _by_parsel(node: ast.expr, owner: Known | None) -> str:
    text = ast.unparse(node)
    start = text.find("response.css(")
    if start >= 0 or (owner is not None and owner.line == node.lineno and ".css(" in text):
        return text[max(start, 0) :].replace(".css(", ".selector.css(", 1)
    line = "" if owner is None else f" on line {owner.line}"
    return f"response.selector.css(...){line}"


def _single(node: ast.Attribute) -> str:
    """Return code for one node instead of a list: `css_first`, or an index."""
    match node.value:
        case ast.Call(func=ast.Attribute(value=receiver, attr="css"), args=[query, *_]):
            of = f"{ast.unparse(receiver)}.css_first({ast.unparse(query)})"
            return f"{of}.{node.attr}"
        case _:
            return f"a loop over it, or {ast.unparse(node.value)}[0].{node.attr}"
