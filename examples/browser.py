"""Pages that scripts build, rendered in a browser.

pip install 'crawlcw[browser]' && apt-get install chromium
crawlcw run examples/browser.py -a url=https://quotes.toscrape.com/js/ -o quotes.jsonl
"""

from crawlcw import Request, Spider


class Quotes(Spider):
    """The quotes of a page that a script writes, and of its next pages."""

    name = "quotes_js"
    url = "https://quotes.toscrape.com/js/"

    async def start(self):
        yield Request(self.url, browser=True)

    async def parse(self, response):
        for quote in response.css("div.quote"):
            yield {"text": quote.css_first(".text").text(), "by": quote.css_first(".author").text()}
        for request in response.follow_all("li.next a", browser=True):
            yield request
