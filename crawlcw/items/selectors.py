"""The selectors in the annotations of an item class.

    from typing import Annotated

    @dataclass
    class Book:
        title: Annotated[str, Css("h1")]
        price: Annotated[float, Css(".price"), Re(r"[0-9.]+")]

A field may have several selectors: the first selector that finds a value fills the field.
"""

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Css:
    """A CSS selector of nodes; the value is the text of a node, or its attribute *attr*.

    Each run of white space in a text becomes one space. A URL in `href` or `src` becomes absolute.
    A selector in a block also matches the block itself.
    """

    query: str
    _: KW_ONLY
    attr: str | None = None

    def __repr__(self) -> str:
        suffix = "" if self.attr is None else f", attr={self.attr!r}"
        return f"Css({self.query!r}{suffix})"


@dataclass(frozen=True, slots=True, repr=False)
class XPath:
    """An XPath expression for nodes, attributes or texts; it needs the extra `xpath`.

    An expression in a block must be relative (`.//h2`). Only blocks that an `XPath` selects can
    have fields with `XPath`.
    """

    query: str

    def __repr__(self) -> str:
        return f"XPath({self.query!r})"


@dataclass(frozen=True, slots=True, repr=False)
class JsonLd:
    """A path in the page's JSON-LD, such as `author.name`; *kind* is the `@type` of its object.

    A list in the path means each of its members. An object that has only an `@id` means the object
    of the page with this `@id`.
    """

    path: str
    kind: str | None = None

    def __repr__(self) -> str:
        suffix = "" if self.kind is None else f", {self.kind!r}"
        return f"JsonLd({self.path!r}{suffix})"


@dataclass(frozen=True, slots=True, repr=False)
class Re:
    """A regular expression that cuts the value out of the text of the selector before it.

    The value is the first group of the first match, or the whole match without a group. A list gets
    the values of all matches.
    """

    pattern: str

    def __repr__(self) -> str:
        return f"Re({self.pattern!r})"


Selector = Css | XPath | JsonLd
