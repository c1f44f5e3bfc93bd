"""Spider of the bundled bookshop: one item for each book."""

from collections.abc import Iterator
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider


class BookshopSpider(Spider):
    """Crawl the bookshop with the home page `start_url`."""

    name = "bookshop"
    settings = Settings(per_host_concurrency=16, backoff_base="1s")

    def __init__(self, start_url: str) -> None:
        super().__init__()
        self.start_urls = [start_url]

    def parse(self, response: Response) -> Iterator[Request]:
        """Follow the links of the home page and of the pages about the shop."""
        yield from response.follow_all("nav.shelves a", self.parse_shelf)
        yield from response.follow_all("article.book a", self.parse_book)
        yield from response.follow_all("main p a, footer a")

    def parse_shelf(self, response: Response) -> Iterator[Request]:
        """Follow the books of a category or an author, and the link to the next page."""
        yield from response.follow_all("article.book a", self.parse_book)
        yield from response.follow_all("a[rel=next]", self.parse_shelf)

    def parse_book(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """Yield a book, and follow its author and related books."""
        properties = {
            node.attributes["itemprop"]: node.attributes.get("value") or node.text(strip=True)
            for node in response.css("[itemprop]")
        }
        yield {
            "title": properties["name"],
            "author": properties["author"],
            "price": float(properties["price"]),
            "currency": properties["priceCurrency"],
            "rating": int(properties["ratingValue"]),
            "in_stock": properties["availability"] == "InStock",
            "category": properties["genre"],
            "url": response.url,
        }
        yield from response.follow_all("a[rel=author]", self.parse_shelf)
        yield from response.follow_all("section.related a", self.parse_book)
