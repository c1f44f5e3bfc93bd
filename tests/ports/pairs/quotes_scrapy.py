"""Pages of quotes, one after the other: with Scrapy."""

import scrapy


class Quotes(scrapy.Spider):
    name = "quotes"

    async def start(self):
        yield scrapy.Request(self.home)

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").extract_first(),
                "author": quote.xpath("./small[@class='author']/text()").extract_first(),
                "tags": quote.css("div.tags > a.tag::text").extract(),
            }
        next_page = response.css("li.next > a::attr(href)").extract_first()
        if next_page is not None:
            yield scrapy.Request(response.urljoin(next_page))
