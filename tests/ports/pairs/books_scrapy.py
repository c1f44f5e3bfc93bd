"""Books with data from two pages, by item loaders and pipelines: with Scrapy."""

import scrapy
from itemloaders.processors import Join, MapCompose, TakeFirst
from scrapy.exceptions import DropItem
from scrapy.loader import ItemLoader


class Book(scrapy.Item):
    title = scrapy.Field(input_processor=MapCompose(str.strip), output_processor=TakeFirst())
    price = scrapy.Field(
        input_processor=MapCompose(lambda text: text.lstrip("£")), output_processor=TakeFirst()
    )
    authors = scrapy.Field(input_processor=MapCompose(str.title), output_processor=Join(", "))
    shelf = scrapy.Field(output_processor=TakeFirst())


class WithPrice:
    def process_item(self, item):
        if not item.get("price"):
            raise DropItem("no price")
        item["price"] = float(item["price"])
        return item


class Shortened:
    def process_item(self, item):
        item["title"] = item["title"][:10]
        return item


class Books(scrapy.Spider):
    name = "books"
    custom_settings = {"ITEM_PIPELINES": {WithPrice: 100, Shortened: 200}}

    async def start(self):
        yield scrapy.Request(self.home, self.parse_shelves, errback=self.failed)

    def parse_shelves(self, response):
        for shelf in response.css("a.shelf"):
            yield response.follow(shelf, cb_kwargs={"shelf": shelf.css("::text").get()})

    def parse(self, response, shelf):
        for book in response.css("li.book"):
            loader = ItemLoader(item=Book(), selector=book)
            loader.add_css("title", "b::text")
            loader.add_css("price", "i::text")
            loader.add_value("shelf", shelf)
            link = response.urljoin(book.css("a::attr(href)").get())
            yield scrapy.Request(
                link, self.parse_book, meta={"book": loader.load_item()}, errback=self.failed
            )

    def parse_book(self, response):
        loader = ItemLoader(item=response.meta["book"], response=response)
        loader.add_css("authors", "span.author::text")
        yield loader.load_item()

    def failed(self, failure):
        yield {"title": f"no {failure.value.response.status}", "price": "0.5"}
