"""A shop by rules, without its media, its login and other hosts: with Scrapy."""

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Shop(CrawlSpider):
    name = "shop"
    allowed_domains = ["127.0.0.1"]
    rules = (
        Rule(LinkExtractor(allow=r"/category/", deny=r"/login")),
        Rule(LinkExtractor(allow=r"/item/", restrict_css="article"), callback="parse_item"),
    )

    def __init__(self, home, **arguments):
        super().__init__(**arguments)
        self.start_urls = [home]

    def parse_item(self, response):
        yield {
            "title": response.css("h1::text").get(),
            "price": response.css("p.price::text").re_first(r"[\d.]+"),
            "image": response.urljoin(response.css("img").attrib["src"]),
        }
