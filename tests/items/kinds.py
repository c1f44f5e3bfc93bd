"""Item classes of the four kinds, made from one declaration, and the pages that fill them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import attrs
from pydantic import BaseModel

from crawlcw import Css, JsonLd, Re, Request, Response, XPath
from crawlcw.model.values import parts

URL = "https://shop.example/books/1"

#: Makes an item class of a name and its annotations.
Kind = Callable[[str, Mapping[str, Any]], Any]


def _annotated(name: str, fields: Mapping[str, Any], *bases: type) -> Any:
    body = {"__annotations__": dict(fields), "__module__": __name__}
    return type(bases[0] if bases else object)(name, bases, body)


def as_dataclass(name: str, fields: Mapping[str, Any]) -> Any:
    return dataclass(_annotated(name, fields))


def as_attrs(name: str, fields: Mapping[str, Any]) -> Any:
    return attrs.define(_annotated(name, fields))


def as_pydantic(name: str, fields: Mapping[str, Any]) -> Any:
    return _annotated(name, fields, BaseModel)


def as_typed_dict(name: str, fields: Mapping[str, Any]) -> Any:
    return TypedDict(name, dict(fields))


KINDS: dict[str, Kind] = {
    "dataclass": as_dataclass,
    "attrs": as_attrs,
    "pydantic": as_pydantic,
    "typeddict": as_typed_dict,
}


def page(*markup: str, url: str = URL) -> Response:
    body = "".join(markup).encode()
    headers = {"content-type": "text/html; charset=utf-8"}
    return Response(url, request=Request(url), headers=headers, body=body)


def jsonld(text: str) -> str:
    return f'<script type="application/ld+json">{text}</script>'


def plain(value: Any) -> Any:
    """Return items as dicts at every depth."""
    if isinstance(value, list):
        return [plain(member) for member in value]
    fields = parts(value)
    return value if fields is None else {name: plain(member) for name, member in fields.items()}


def book(kind: Kind) -> Any:
    review = kind("Review", {"stars": Annotated[int, Css("b")], "text": Annotated[str, Css("i")]})
    return kind(
        "Book",
        {
            "title": Annotated[str, Css("h1")],
            "price": Annotated[Decimal, Css(".price"), Re(r"[\d.]+")],
            "tags": Annotated[list[str], Css("a.tag")],
            "url": Annotated[str, Css("a", attr="href")],
            "author": Annotated[str | None, JsonLd("author.name")],
            "reviews": Annotated[list[review], Css("div.review")],
        },
    )


def article(kind: Kind) -> Any:
    return kind(
        "Article",
        {
            "headline": Annotated[str, JsonLd("headline", "NewsArticle"), Css("h1")],
            "published": Annotated[datetime, JsonLd("datePublished", "NewsArticle")],
            "day": Annotated[date, Css("time", attr="datetime")],
            "words": Annotated[int, JsonLd("wordCount")],
            "score": Annotated[float, Css("[data-score]", attr="data-score")],
            "is_free": Annotated[bool, JsonLd("isAccessibleForFree")],
        },
    )


def product(kind: Kind) -> Any:
    return kind(
        "Product",
        {
            "name": Annotated[str, Css("h3 a", attr="title")],
            "url": Annotated[str, Css("h3 a", attr="href")],
            "image": Annotated[str | None, Css("img", attr="src")],
        },
    )


def catalogue(kind: Kind) -> Any:
    offer = kind(
        "Offer",
        {
            "price": Annotated[Decimal, JsonLd("price")],
            "seller": Annotated[str | None, JsonLd("seller.name")],
        },
    )
    return kind(
        "Catalogue",
        {
            "name": Annotated[str, JsonLd("name", "Product")],
            "brand": Annotated[str | None, JsonLd("brand.name", "Product")],
            "images": Annotated[list[str], JsonLd("image", "Product")],
            "offers": Annotated[list[offer], JsonLd("offers", "Product")],
            "best": Annotated[offer | None, JsonLd("offers", "Product")],
        },
    )


def contact(kind: Kind) -> Any:
    return kind(
        "Contact",
        {
            "name": Annotated[str, XPath("//h1/text()")],
            "mail": Annotated[str | None, Css("a.mail", attr="href")],
            "home": Annotated[str | None, XPath("//a[@class='home']/@href")],
            "phones": Annotated[list[str], Css(".phones"), Re(r"\+[\d ]+\d")],
        },
    )


BOOK = (
    "<h1> A\n <em>book</em> </h1><p class=price>&pound;51.77</p>"
    "<a class=tag href=/tag/1>one</a><a class=tag href='tag/2'> two </a>"
    "<div class=review><b>5</b><i>Good</i></div><div class=review><b> 3</b><i>Bad</i></div>"
    '<script type="application/ld+json">{"@type": "Book", "author": {"name": "Ann"}}</script>'
)
ARTICLE = "<h1>Other</h1><time datetime=2026-07-04>4 July</time><p data-score=0.5>" + jsonld(
    '{"@type": "NewsArticle", "headline": "News", "datePublished": "2026-07-04T10:00:00",'
    '"wordCount": 1200, "isAccessibleForFree": true}'
)
PRODUCTS = (
    "<article><h3><a href=a/1 title='The first'>The...</a></h3><img src=../i/1.png></article>"
    "<article><h3><a href=//cdn.example/2 title='The second'>The...</a></h3></article>"
)
CATALOGUE = jsonld(
    '{"@graph": [{"@type": "WebSite", "name": "Shop"},'
    '{"@type": ["Thing", "Product"], "name": {"@value": "Tea"}, "brand": {"@id": "#b"},'
    ' "image": [["a.png"], {"url": "b.png"}, "c.png"], "offers":'
    ' [{"price": 2.5, "seller": [{"name": "Ann"}, {"name": "Bob"}]}, {"price": "3"}]},'
    '{"@id": "#b", "name": "Leaf"}]}'
)
CONTACT = (
    "<h1>Ann</h1><a class=mail href=' mailto:ann@a.example'>m</a><a class=home href=/~ann>h</a>"
    "<p class=phones>+49 30 1, +49 30 2</p>"
)
