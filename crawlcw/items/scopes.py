"""Read values with one selector: on a page, or in one block of the page."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawlcw.errors import FetchError, Reason, SpiderError
from crawlcw.items.selectors import Css, JsonLd, Selector, XPath
from crawlcw.model import urls
from crawlcw.model.urls import Location, Refusal

if TYPE_CHECKING:
    from parsel import Selector as ParselSelector

#: Attributes whose values are links.
_LINKS = frozenset({"href", "src"})
_LINK_PATH = re.compile(r"@(?:href|src)\s*$")


class Page(Protocol):
    """The members of a `Response` that this package uses."""

    url: str
    field_sources: "Counter[tuple[str, str]] | None"
    invalid_item_reasons: "list[str] | None"

    @property
    def base_url(self) -> str:
        """The base URL of the page's links."""

    @property
    def tree(self) -> LexborHTMLParser:
        """The page's tree."""

    @property
    def selector(self) -> "ParselSelector":
        """The page as a parsel selector."""

    def jsonld(self) -> list[dict[str, Any]]:
        """Return the page's JSON-LD objects."""

    def urljoin(self, href: str) -> str:
        """Return the absolute URL of *href*; raises `FetchError`."""


class PageData:
    """The parts of a page that all of its blocks share."""

    def __init__(self, page: Page) -> None:
        self.page = page
        #: The values of JSON-LD paths from the page's objects, by reader.
        self.jsonld_values: dict[object, list[Any]] = {}

    @property
    def node(self) -> LexborHTMLParser:
        """The page's tree."""
        return self.page.tree

    @property
    def selector(self) -> "ParselSelector":
        """The page as a parsel selector."""
        return self.page.selector

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """The page's JSON-LD objects."""
        return self.page.jsonld()

    @cached_property
    def objects_by_id(self) -> dict[str, dict[str, Any]]:
        """The first object for each `@id`, without the objects that have only an `@id`."""
        by_id: dict[str, dict[str, Any]] = {}
        for entity in self.objects:
            if isinstance(identity := entity.get("@id"), str) and len(entity) > 1:
                by_id.setdefault(identity, entity)
        return by_id

    def absolute(self, link: str) -> str:
        """Return the absolute URL of *link*, or "" for a broken link.

        A link that no crawl fetches (`mailto:`) stays as it is.
        """
        if not link.isascii():
            with suppress(FetchError):
                return self.page.urljoin(link)
        location = self._resolve(link)
        if isinstance(location, Location):
            return location.url
        return link.strip() if location.reason is Reason.REFUSED_SCHEME else ""

    @cached_property
    def _resolve(self) -> Callable[[str], Location | Refusal]:
        # It is faster than `urljoin` for each link, but does not know the encoding of the page.
        return urls.resolver(self.page.base_url)


class Scope:
    """The page, or the block of the page, that selectors read."""

    __slots__ = ("_outer", "data", "has_object", "node", "objects", "selector")

    has_object: bool  #: whether `objects` are those of a block
    # An attribute without a value gets one at its first use, because many pages need no JSON-LD.
    node: LexborNode | LexborHTMLParser  #: for CSS selectors
    selector: "ParselSelector"  #: for XPath expressions
    objects: list[dict[str, Any]]  #: JSON-LD: the objects of the page, or the object of a block

    def __init__(self, data: PageData, outer: "Scope | None" = None) -> None:
        """*outer* is the scope around a block; the block's reader sets the other attributes."""
        self.data = data
        self.has_object = outer is not None and outer.has_object
        self._outer = outer

    def __getattr__(self, name: str) -> Any:
        if self._outer is None:
            value = getattr(self.data, name)
        elif name == "objects":
            value = self._outer.objects
        else:
            raise SpiderError("Css needs a block that a Css selects, and XPath a block of an XPath")
        setattr(self, name, value)
        return value


class _ObjectScope(Scope):
    """A JSON-LD object, in the scope that contains it."""

    __slots__ = ()

    def __init__(self, outer: Scope, entity: dict[str, Any]) -> None:
        super().__init__(outer.data, outer)
        self.has_object = True
        self.objects = [entity]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)


class Reader(Protocol):
    """Reads values with one selector; a text has no surrounding white space."""

    def first(self, scope: Scope) -> str | None:
        """Return the first value; None or "" is no value."""

    def all(self, scope: Scope) -> list[str]:
        """Return the value of each match; "" is no value."""

    def blocks(self, scope: Scope) -> Iterator[Scope]:
        """Yield the scope of each match."""


class _CssReader:
    def __init__(self, css: Css) -> None:
        try:
            LexborHTMLParser("").css_first(css.query)
        except SelectolaxError as error:
            raise SpiderError(f"{css.query!r} is not a CSS selector: {error}") from None
        self._query = css.query
        self._value = _text_of if css.attr is None else _attribute_reader(css.attr.lower())

    def first(self, scope: Scope) -> str | None:
        node = scope.node.css_first(self._query)
        return None if node is None else self._value(node, scope)

    def all(self, scope: Scope) -> list[str]:
        value = self._value
        return [value(node, scope) for node in scope.node.css(self._query)]

    def blocks(self, scope: Scope) -> Iterator[Scope]:
        for node in scope.node.css(self._query):
            block = Scope(scope.data, scope)
            block.node = node
            yield block


def _text_of(node: LexborNode, _: Scope) -> str:
    return " ".join(node.text().split())


def _attribute_reader(name: str) -> Callable[[LexborNode, Scope], str]:
    def value_of(node: LexborNode, _: Scope) -> str:
        return _on_one_line(node.attrs.get(name) or "")

    def link_of(node: LexborNode, scope: Scope) -> str:
        link = node.attrs.get(name)
        return scope.data.absolute(link) if link else ""

    return link_of if name in _LINKS else value_of


class _XPathReader:
    def __init__(self, xpath: XPath) -> None:
        if find_spec("parsel") is None:
            raise SpiderError(
                f"{xpath!r} needs parsel: install it with `pip install 'crawlcw[xpath]'`"
            )
        self._query = xpath.query
        self._is_link = _LINK_PATH.search(xpath.query) is not None

    def first(self, scope: Scope) -> str | None:
        matches = scope.selector.xpath(self._query)
        return self._value(matches[0], scope) if matches else None

    def all(self, scope: Scope) -> list[str]:
        return [self._value(match, scope) for match in scope.selector.xpath(self._query)]

    def blocks(self, scope: Scope) -> Iterator[Scope]:
        for match in scope.selector.xpath(self._query):
            block = Scope(scope.data, scope)
            block.selector = match
            yield block

    def _value(self, match: "ParselSelector", scope: Scope) -> str:
        # The root of an attribute or a text is a `str`.
        text = match.root if isinstance(match.root, str) else match.xpath("string()").get("")
        return scope.data.absolute(text) if text and self._is_link else _on_one_line(text)


class _JsonLdReader:
    def __init__(self, jsonld: JsonLd) -> None:
        self._names = jsonld.path.split(".")
        self._kind = jsonld.kind

    def first(self, scope: Scope) -> str | None:
        return next(filter(None, map(_json_text, self._values(scope))), None)

    def all(self, scope: Scope) -> list[str]:
        return [_json_text(value) for value in self._values(scope)]

    def blocks(self, scope: Scope) -> Iterator[Scope]:
        for entity in self._values(scope):
            if isinstance(entity, dict):
                yield _ObjectScope(scope, _resolved(entity, scope.data))

    def _values(self, scope: Scope) -> Iterable[Any]:
        data = scope.data
        if scope.has_object:
            return self._walk(scope.objects, data)
        values = data.jsonld_values.get(self)
        if values is None:
            values = data.jsonld_values[self] = self._walk(data.objects, data)
        return values

    def _walk(self, objects: list[dict[str, Any]], data: PageData) -> list[Any]:
        values: list[Any] = [
            entity for entity in objects if self._kind is None or _is_of(entity, self._kind)
        ]
        for name in self._names:
            values = [
                member
                for value in values
                if isinstance(value, dict)
                for member in _flat(_resolved(value, data).get(name))
            ]
        return values


def _is_of(entity: dict[str, Any], kind: str) -> bool:
    entity_type = entity.get("@type")
    return kind == entity_type or (isinstance(entity_type, list) and kind in entity_type)


def _resolved(entity: dict[str, Any], data: PageData) -> dict[str, Any]:
    """Return the object of the page that *entity* only names, or *entity*."""
    identity = entity.get("@id")
    if len(entity) > 1 or not isinstance(identity, str):
        return entity
    return data.objects_by_id.get(identity, entity)


def _flat(value: Any) -> Iterator[Any]:
    """Yield the members of nested lists, without recursion, because a page may nest deeply."""
    stack = [value]
    while stack:
        member = stack.pop()
        if isinstance(member, list):
            stack.extend(reversed(member))
        else:
            yield member


def _json_text(value: Any) -> str:
    """Return a value of JSON-LD as text; "" for an object without a `@value`."""
    if isinstance(value, dict):
        value = value.get("@value")
    if isinstance(value, str):
        return _on_one_line(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def reader_of(selector: Selector) -> Reader:
    """Return the reader for *selector*; raises `SpiderError` for an invalid CSS selector."""
    match selector:
        case Css():
            return _CssReader(selector)
        case XPath():
            return _XPathReader(selector)
        case JsonLd():
            return _JsonLdReader(selector)
