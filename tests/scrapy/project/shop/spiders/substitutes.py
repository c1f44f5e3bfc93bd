import os

import scrapy

SITE = os.environ["SHOP_SITE"]
MIDDLEWARES = {"shop.middlewares.Stamping": 540, "shop.middlewares.Substituting": 541}


class BrokenLinks(scrapy.Spider):
    """Own downloader middlewares, an errback and statistics of the crawl."""

    name = "broken-links"
    custom_settings = {
        "DOWNLOADER_MIDDLEWARES": MIDDLEWARES,
        "RETRY_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
    }
    handle_httpstatus_list = [404, 410]

    async def start(self):
        for number in range(3):
            yield self.request(f"/links/{number}")

    def request(self, path, **options):
        return scrapy.Request(SITE + path, self.check, errback=self.report, **options)

    def check(self, response):
        yield {
            "url": response.url,
            "status": response.status,
            "title": response.css("h1::text").get(),
            "seen": response.meta.get("seen"),
            "stamp": response.request.headers.get("X-Stamp", b"").decode(),
            "from": response.request.headers.get("X-From", b"").decode(),
        }
        if "/links/" in response.url:
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, self.check, errback=self.report)
        if response.url.endswith("/links/1"):
            for url in (os.environ["SHOP_CLOSED"], f"{SITE}/slow?rescued"):
                meta = {"rescue": True, "download_timeout": 0.5}
                yield scrapy.Request(url, self.check, errback=self.report, meta=meta)

    def report(self, failure):
        yield {
            "url": failure.request.url,
            "error": failure.type.__name__,
            "stamp": failure.request.headers.get("X-Stamp", b"").decode(),
        }


class Numbered(scrapy.Spider):
    """A project's own spider middleware, which recovers from errors of callbacks."""

    name = "numbered"
    custom_settings = {"SPIDER_MIDDLEWARES": {"shop.middlewares.Numbering": 543}}

    def start_requests(self):
        for number in range(3):
            yield scrapy.Request(f"{SITE}/numbers/{number}")

    def parse(self, response):
        yield {"url": response.url, "started": response.meta["started"]}
        yield scrapy.Request(f"{response.url}/more", self.more)
        yield {"url": response.url, "inputs": response.meta["inputs"]}

    def more(self, response):
        yield {"more": response.url}
        raise KeyError("missing")
