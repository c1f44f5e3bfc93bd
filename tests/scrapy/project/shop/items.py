import scrapy
from itemloaders.processors import Join, MapCompose, TakeFirst
from scrapy.loader import ItemLoader


class Book(scrapy.Item):
    title = scrapy.Field()
    authors = scrapy.Field()
    url = scrapy.Field()
    measured = scrapy.Field()


class BookLoader(ItemLoader):
    default_item_class = Book
    default_output_processor = TakeFirst()
    authors_in = MapCompose(str.strip, str.title)
    authors_out = Join(", ")
