"""Give the content of a page as text, as JSON, and as trees for selectors."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawlcw.api import charset, markup
from crawlcw.errors import ParseRefusedError

if TYPE_CHECKING:
    from parsel import Selector, SelectorList


_JSONLD = "application/ld+json"
#: Marks around a script that hide it from XML parsers or from old browsers.
_OPENING = re.compile(r"(?:[\s\ufeff]|(?:(?://|/\*)\s*+)?+(?:<!--|<!\[CDATA\[)(?:\s*+\*/)?+)*+")
_CLOSING = re.compile(r"(?:\s|;|(?:(?://|/\*)\s*+)?(?:-->|\]\]>)(?:\s*+\*/)?+)++\Z")
_LONGEST_CLOSING = 60
_TEXT = r"(?P<text>\"(?:[^\"\\]|\\.)*+\"?+)"
_COMMENT_OR_TEXT = re.compile(_TEXT + r"|//[^\r\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?+", re.DOTALL)
_HTML_COMMENT = re.compile(_TEXT + r"|<!--(?:[^-]|-(?!->))*+(?:-->)?+")
_COMMA_OR_TEXT = re.compile(_TEXT + r"|,(?=\s*+[}\]])", re.DOTALL)


class Metas(dict[str, str]):
    """The content of a page's <meta>s by name; the `KeyError` for a missing name gives a hint."""

    def __missing__(self, name: str) -> str:
        raise KeyError(
            f"the page has no <meta> {name!r}; the request's own values are in response.context"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The trees of a page, or why it has none, as known before the crawl runs the callback."""

    tree: LexborHTMLParser | None = None  #: if made already
    refusal: ParseRefusedError | None = None  #: why the page has no tree
    selector: "Selector | None" = None
    selector_refusal: ParseRefusedError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """The file of a request with `save_to`; its values are plain, so it can be part of an item."""

    path: str  #: `save_to` and the file's name, which files of equal content share
    sha256: str  #: SHA-256 of the file, in hexadecimal
    size: int  #: bytes


class Document:
    """The content of a page, and methods that select parts of it."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    file: SavedFile | None = None  #: the body of a request with `save_to`; then `body` is empty

    #: The library behind `css` and `css_first`: "lexbor", or "parsel" for Scrapy's selectors.
    _selector_library: str = "lexbor"
    #: The trees that the crawl has made before the callback; None if the crawl made none.
    trees: Trees | None = None
    _chosen_charset: str | None = None
    _plain_body: bytes | None = None  #: the body, if it needs no change

    @property
    def size(self) -> int:
        """The size of the body, or of the saved file, in bytes."""
        return len(self.body) if self.file is None else self.file.size

    @property
    def encoding(self) -> str:
        """The name of Python's codec for the encoding that a browser would choose for the body.

        `text` and links use the tables of browsers, which have more characters than the codec. Set
        `encoding` if the page declares a wrong encoding; crawlcw then makes text, trees and links
        again. Setting `encoding` raises `ValueError` for an encoding that browsers do not know.
        """
        return charset.python_name(self._charset)

    @encoding.setter
    def encoding(self, label: str) -> None:
        new_charset = charset.named(label)
        if new_charset is None:
            raise ValueError(f"{label!r} is not a web encoding; try 'utf-8' or 'windows-1251'")
        if new_charset == self._charset:
            return
        self._chosen_charset, self._plain_body = new_charset, None
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                del self.__dict__[name]
        # Drop the trees, because the crawl made them from text in the old encoding.
        self.trees = None

    @property
    def _charset(self) -> str:
        """The encoding's name in the Encoding Standard, as `charset.choose` returns it."""
        if self._chosen_charset is None:
            self._chosen_charset = charset.choose(self.headers.get("content-type"), self.body)
        return self._chosen_charset

    @cached_property
    def text(self) -> str:
        """The body as text, with U+FFFD for bytes that are invalid in the body's encoding."""
        return charset.decode(self.body, self._charset)

    def json(self) -> Any:
        """Return the body as JSON; raises `ValueError` if the body is not JSON."""
        try:
            # Try UTF-8 first. If a server sends JSON as HTML, a <meta charset> in a string of the
            # JSON does not name the encoding of the JSON.
            text = self.body.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = self.text
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None

    def source(self) -> bytes:
        """Return the body in UTF-8, prepared for the parser by `markup.prepared`."""
        body = self.body
        if body is self._plain_body:
            return body  # checked already
        source = body
        if self._charset != "utf-8":
            # Do not use `self.text`, because the text would stay in memory.
            source = charset.decode(body, self._charset).encode(errors="replace")
        kind = self.headers.get("content-type")
        if kind is not None and "+" in kind and markup.is_xhtml(kind):
            source = markup.xhtml_as_html(source)
        source = markup.prepared(source)
        if source is body:
            self._plain_body = body
        return source

    @cached_property
    def tree(self) -> LexborHTMLParser:
        """The page's tree.

        Raises `ParseRefusedError` for a page that would hang the parser. A crawl first parses large
        and suspicious pages in a separate process, before the callback. Outside of a crawl, `tree`
        refuses suspicious pages.
        """
        trees = self.trees
        if trees is None:
            source = self.source()
            markup.screen(source)
            return markup.parse_bounded(source)
        check(trees.refusal)
        return markup.parse_bounded(self.source()) if trees.tree is None else trees.tree

    @property
    def is_html(self) -> bool:
        """Whether the response is HTML, by its Content-Type and its first character."""
        return self.selector_kind == "html" and markup.is_markup(
            self.headers.get("content-type"), self.body
        )

    def css(self, query: str) -> list[LexborNode]:
        """Return the nodes that match a CSS selector, in document order.

        A spider with `selectors = "parsel"` gets parsel's `SelectorList` instead.
        """
        if self._selector_library != "lexbor":
            # The declared return type is the type for the default library, because a type checker
            # does not know the spider's choice.
            return self.selector.css(query)  # type: ignore[return-value]
        return self._nodes(query)

    def _nodes(self, query: str) -> list[LexborNode]:
        """Return lexbor's nodes that match a CSS selector, whatever `selectors` is."""
        try:
            return self.tree.css(query)
        except SelectolaxError as error:
            raise not_css(query, error) from None

    def css_first(self, query: str) -> LexborNode | None:
        """Return the first node that matches a CSS selector, or None.

        A spider with `selectors = "parsel"` gets parsel's `Selector` instead.
        """
        if self._selector_library != "lexbor":
            return next(iter(self.selector.css(query)), None)  # type: ignore[return-value]  # see `css`
        try:
            return self.tree.css_first(query)
        except SelectolaxError as error:
            raise not_css(query, error) from None

    @cached_property
    def selector(self) -> "Selector":
        """The page as a parsel selector, like Scrapy's: `.xpath()`, `.css("a::text")`, `.re()`.

        `selector` parses the page as XML if the server says that the page is XML. Raises
        `ParseRefusedError` for the same pages as `tree`, and for XML that declares entities. Raises
        `SpiderError` without parsel.
        """
        trees = self.trees or Trees()
        check(trees.refusal)
        check(trees.selector_refusal)
        if trees.selector is not None:
            return trees.selector
        kind = self.selector_kind
        source = self.source()
        markup.screen(source, kind)
        return markup.selector(source, kind=kind, url=self.url)

    @property
    def selector_kind(self) -> markup.Kind:
        """The parser that parsel uses for this page, for HTML or XML."""
        return markup.kind_of(self.headers.get("content-type"))

    def xpath(self, query: str, **variables: Any) -> "SelectorList[Selector]":
        """Return the matches of an XPath expression; *variables* are the values of its `$name`s."""
        return self.selector.xpath(query, **variables)

    @cached_property
    def meta(self) -> Metas:
        """The content of each <meta>; the key is its name or property in lower case (`og:title`).

        If several <meta> have the same name, the first <meta> counts.
        """
        metas = Metas()
        for node in self._nodes("meta[content]"):
            attributes = node.attributes
            for name_attribute in ("name", "property"):  # a <meta> may have a name and a property
                name = (attributes.get(name_attribute) or "").strip().lower()
                metas.setdefault(name, attributes.get("content") or "")
        metas.pop("", None)
        return metas

    def jsonld(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the page's JSON-LD objects; *kind* selects only objects with this `@type`.

        JSON-LD objects in lists and in a `@graph` are returned separately. Comments, trailing
        commas and CDATA marks in JSON-LD are accepted. Scripts that are not JSON are ignored.
        """
        objects = [
            entity
            for node in self._nodes('script[type*="application/ld+json" i]')
            # Ignore parameters of the script's type, such as `profile=` (JSON-LD 1.1, section 7).
            if (node.attrs["type"] or "").partition(";")[0].strip().lower() == _JSONLD
            for entity in _objects(_json_of(node.text()))
        ]
        types = [(entity, entity.get("@type")) for entity in objects]
        return [
            entity
            for entity, entity_type in types
            if kind is None
            or kind == entity_type
            or (isinstance(entity_type, list) and kind in entity_type)
        ]


def check(refusal: ParseRefusedError | None) -> None:
    """Raise a copy of the error *refusal* if it is not None."""
    if refusal is not None:
        # Raise a copy, because the traceback of a stored error would keep the response and its
        # bytes in memory until the next garbage collection.
        raise ParseRefusedError(refusal.message, reason=refusal.reason)


def not_css(query: str, error: SelectolaxError) -> ValueError:
    """Return the error for a query that lexbor does not accept as a CSS selector."""
    plain, pseudo, _ = query.partition("::")
    if plain and pseudo:
        return ValueError(
            f"{query!r}: ::text and ::attr() work only in response.selector.css(); here, write "
            f"response.css_first({plain!r}).text() or .attributes['...']"
        )
    return ValueError(f"{query!r} is not a CSS selector: {error}")


def _json_of(script: str) -> Any:
    # An HTML comment may surround the whole script, or stand before or behind the script.
    tolerant_readers = (
        _loosely_json,
        lambda text: _loosely_json(_HTML_COMMENT.sub(_text_alone, text)),
    )
    for read in (str.strip, *tolerant_readers):
        try:
            # `strict` is off, because line ends within strings are common and harmless.
            return json.loads(read(script), strict=False)
        except (ValueError, RecursionError):
            pass
    return None


def _text_alone(match: re.Match[str]) -> str:
    return match["text"] or " "


def _loosely_json(script: str) -> str:
    """Return the JSON of a script, without comments, trailing commas and CDATA marks."""
    opening = _OPENING.match(script)
    text = script[opening.end() if opening else 0 :]
    closing = _CLOSING.search(text, max(0, len(text) - _LONGEST_CLOSING))
    text = text[: closing.start() if closing else None]
    text = _COMMENT_OR_TEXT.sub(_text_alone, text)
    return _COMMA_OR_TEXT.sub(lambda match: match["text"] or "", text)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    match value:
        case list():
            for member in value:
                if isinstance(member, dict):
                    yield from _objects(member)
        case {"@graph": list(graph)}:
            yield from (member for member in graph if isinstance(member, dict))
        case dict():
            yield value
