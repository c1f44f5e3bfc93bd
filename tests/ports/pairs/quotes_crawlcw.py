"""Pages of quotes, one after the other."""

from crawlcw import Request, Spider


class Quotes(Spider):
    name = "quotes"
    home: str

    async def start(self):
        yield Request(self.home)

    def parse(self, response):
        for quote in response.selector.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.xpath("./small[@class='author']/text()").get(),
                "tags": quote.css("div.tags > a.tag::text").getall(),
            }
        yield from response.follow_all("li.next > a")
