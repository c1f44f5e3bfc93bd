"""Quotations and their authors from quotes.toscrape.com, a site made to be scraped.

    crawlcw run spiders/quotes.py

100 items {quote, author, tags} and 50 items {author, born, birthplace, about}.
"""

from crawlcw import Settings, Spider


class Quotes(Spider):
    name = "quotes"
    start_urls = ["https://quotes.toscrape.com/"]
    settings = Settings(per_host_concurrency=4)

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "quote": quote.css_first("span.text").text().strip("“”"),
                "author": quote.css_first("small.author").text(),
                "tags": [tag.text() for tag in quote.css("a.tag")],
            }
        yield from response.follow_all("div.quote span a", self.parse_author)
        yield from response.follow_all("li.next a")

    def parse_author(self, response):
        place = response.css_first("span.author-born-location").text()
        yield {
            "author": response.css_first("h3.author-title").text().strip(),
            "born": response.css_first("span.author-born-date").text(),
            "birthplace": place.removeprefix("in "),
            "about": response.css_first("div.author-description").text().strip(),
        }
