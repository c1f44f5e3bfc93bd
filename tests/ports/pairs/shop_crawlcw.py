"""A shop by rules, without its media, its login and other hosts."""

from crawlcw import Rule, Spider


class Shop(Spider):
    name = "shop"
    rules = [
        Rule(allow=r"/category/", deny=r"/login"),
        Rule(allow=r"/item/", restrict="article", callback="parse_item"),
    ]

    def __init__(self, home):
        super().__init__(start_urls=[home])

    def parse_item(self, response):
        yield {
            "title": response.css_first("h1").text(),
            "price": response.selector.css("p.price::text").re_first(r"[\d.]+"),
            "image": response.urljoin(response.css_first("img").attributes["src"]),
        }
