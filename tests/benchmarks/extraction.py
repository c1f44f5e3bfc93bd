"""CPU time of items by annotations, beside the same selectors by hand.

    python -m tests.benchmarks.extraction [--pages 300] [--rounds 15]

A page of a shop has 20 books in blocks, or one book, and its JSON-LD. Each kind of item class is
filled in two ways: by `extract_all` or `extract` with its annotations, and by a function that calls
the same selectors. Both ways start with a parsed page. They take turns, and the fastest round of
each counts.
"""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import attrs
from pydantic import BaseModel

from crawlcw import Css, JsonLd, Re, Request, Response
from crawlcw.model.values import ItemFields

_URL = "https://shop.example/catalogue/page-1.html"
_BLOCK = """
<article class="product_pod">
  <div class="image_container"><a href="book-{n}/index.html"><img src="../media/{n}.jpg"></a></div>
  <p class="star-rating Three"><i class="icon-star"></i><i class="icon-star"></i></p>
  <h3><a href="book-{n}/index.html" title="A book with the number {n}">A book with the ...</a></h3>
  <div class="product_price"><p class="price_color">£{n}1.77</p>
  <p class="instock availability"><i class="icon-ok"></i> In stock </p></div>
  <a class="tag" href="/tag/poetry">poetry</a> <a class="tag" href="/tag/fiction">fiction</a>
</article>"""
_JSONLD = """<script type="application/ld+json">
{"@context": "https://schema.org", "@type": "Book", "name": "A book", "author": {"name": "Ann"}}
</script>"""
_PRICE = re.compile(r"[\d.]+")

Title = Annotated[str, Css("h3 a", attr="title")]
Price = Annotated[Decimal, Css(".price_color"), Re(r"[\d.]+")]
Tags = Annotated[list[str], Css("a.tag")]
Url = Annotated[str, Css("h3 a", attr="href")]
Stock = Annotated[str, Css(".availability")]
Author = Annotated[str | None, JsonLd("author.name")]


@dataclass
class DataclassBook:
    title: Title
    price: Price
    tags: Tags
    url: Url
    stock: Stock
    author: Author


@attrs.define
class AttrsBook:
    title: Title
    price: Price
    tags: Tags
    url: Url
    stock: Stock
    author: Author


class PydanticBook(BaseModel):
    title: Title
    price: Price
    tags: Tags
    url: Url
    stock: Stock
    author: Author


class TypedDictBook(TypedDict):
    title: Title
    price: Price
    tags: Tags
    url: Url
    stock: Stock
    author: Author


def typed_dict(**fields: Any) -> ItemFields:
    """Return a dict that knows its class, as `extract` does for a TypedDict."""
    return ItemFields(fields, item_class="TypedDictBook")


Make = Callable[..., Any]


def by_hand(response: Response, make: Make, price: Callable[[str], Any]) -> list[Any]:
    """Return the books of a page, as a user writes it without annotations."""
    author = next((thing["author"]["name"] for thing in response.jsonld("Book")), None)
    return [
        make(
            title=block.css_first("h3 a").attributes["title"],
            price=price(_PRICE.search(block.css_first(".price_color").text()).group()),
            tags=[tag.text(strip=True) for tag in block.css("a.tag")],
            url=response.urljoin(block.css_first("h3 a").attributes["href"]),
            stock=block.css_first(".availability").text(strip=True),
            author=author,
        )
        for block in response.css("article.product_pod")
    ]


def page(number: int, *, books: int) -> Response:
    """Return a page with its tree, which both ways need."""
    blocks = "".join(_BLOCK.format(n=n) for n in range(books))
    body = f"<html><head><title>{number}</title>{_JSONLD}</head><body>{blocks}</body></html>"
    response = Response(_URL, request=Request(_URL), body=body.encode())
    assert response.tree is not None
    return response


def seconds(way: Callable[[Response], object], pages: list[Response]) -> float:
    started = time.process_time()
    for response in pages:
        way(response)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    kinds: list[tuple[Any, Make, Callable[[str], Any]]] = [
        (DataclassBook, DataclassBook, Decimal),
        (AttrsBook, AttrsBook, Decimal),
        (PydanticBook, PydanticBook, str),
        (TypedDictBook, typed_dict, Decimal),
    ]
    for books in (20, 1):
        pages = [page(number, books=books) for number in range(options.pages)]
        for item_class, make, price in kinds:

            def by_annotations(
                response: Response, item_class: Any = item_class, books: int = books
            ) -> list[Any]:
                if books == 1:
                    return [response.extract(item_class)]
                return response.extract_all(item_class, "article.product_pod")

            ways: dict[str, Callable[[Response], Any]] = {
                "by hand": lambda page, make=make, price=price: by_hand(page, make, price),
                "annotations": by_annotations,
            }
            hand_items, items = (way(pages[0]) for way in ways.values())
            assert hand_items == items, "the ways make different items"
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(options.rounds):
                for name, way in ways.items():
                    best[name] = min(best[name], seconds(way, pages))
            hand, annotations = (spent / len(pages) * 1e6 for spent in best.values())
            print(
                f"{books:2} books, {item_class.__name__:13}: by hand {hand:4.0f} us a page, "
                f"by annotations {annotations:4.0f} us, factor {annotations / hand:.2f}"
            )


if __name__ == "__main__":
    main()
