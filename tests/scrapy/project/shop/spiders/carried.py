import os

import scrapy
from scrapy.exceptions import CloseSpider

from shop.items import Book, BookLoader

SITE = os.environ["SHOP_SITE"]


class Carried(scrapy.Spider):
    """Loaders, items, functions and responses that go from page to page."""

    name = "carried"
    start_urls = [f"{SITE}/numbers/{number}" for number in range(10)]

    def parse(self, response):
        loader = BookLoader(response=response)
        loader.add_css("title", "h1::text")
        yield scrapy.Request(f"{response.url}/loader", self.load, meta={"loader": loader})
        title = response.css("h1::text").get()
        book = Book(title=f"item {title}", authors="A")
        values = (1, {2}, b"three", None)
        yield scrapy.Request(
            f"{response.url}/item", self.complete, cb_kwargs={"book": book, "values": values}
        )
        number = response.url.rpartition("/")[2]
        yield scrapy.Request(
            f"{response.url}/lambda", callback=lambda answer: self.close_over(answer, book, number)
        )
        yield scrapy.Request(f"{response.url}/page", self.compare, meta={"earlier": response})
        yield response.follow(
            f"{number}/more", self.follow, meta={"kept": {"n": [number]}}, priority=5
        )

    def load(self, response):
        loader = response.meta["loader"]
        loader.add_value("authors", [" ann ", "bob"])
        loader.add_value("url", response.url)
        yield loader.load_item()

    def complete(self, response, book, values):
        assert values == (1, {2}, b"three", None), values
        book["url"] = response.url
        yield book

    def close_over(self, response, book, number):
        yield {"title": book["title"], "number": number, "url": response.url}

    def compare(self, response):
        earlier = response.meta["earlier"]
        yield {"title": earlier.css("h1::text").get(), "url": response.url, "was": earlier.url}

    def follow(self, response):
        yield {"kept": response.meta["kept"], "depth": response.meta["depth"]}


class Jars(scrapy.Spider):
    """A cookie jar for each of six sessions."""

    name = "jars"

    async def start(self):
        for number in range(6):
            yield scrapy.Request(
                f"{SITE}/set-cookie?user={number}",
                self.show,
                meta={"cookiejar": number},
                dont_filter=True,
            )

    def show(self, response):
        jar = response.meta["cookiejar"]
        for number in range(4):
            yield scrapy.Request(
                f"{SITE}/show-cookie?{jar}-{number}", self.compare, meta={"cookiejar": jar}
            )

    def compare(self, response):
        yield {"url": response.url, "cookies": response.text}


class Closing(scrapy.Spider):
    """CloseSpider on the sixth page of a chain."""

    name = "closing"
    start_urls = [f"{SITE}/numbers/0"]

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        yield {"number": number}
        if number == 5:
            raise CloseSpider("enough")
        yield scrapy.Request(f"{SITE}/numbers/{number + 1}")


class Raising(scrapy.Spider):
    """A callback that raises half-way: its earlier items stay."""

    name = "raising"
    start_urls = [f"{SITE}/numbers/{number}" for number in range(4)]

    def parse(self, response):
        yield {"first": response.url}
        yield scrapy.Request(f"{response.url}/more", self.more)
        raise ValueError("after two")

    def more(self, response):
        yield {"second": response.url}


class Ticket:
    """A value that no ledger can store."""

    def __init__(self, number):
        self.number = number


class Tickets(scrapy.Spider):
    """Start requests with values that no ledger can store."""

    name = "tickets"

    async def start(self):
        for number in range(6):
            meta = {"ticket": Ticket(number)}
            yield scrapy.Request(f"{SITE}/numbers/{number}", meta=meta, dont_filter=number < 3)

    def parse(self, response):
        yield {"number": response.meta["ticket"].number, "url": response.url}
