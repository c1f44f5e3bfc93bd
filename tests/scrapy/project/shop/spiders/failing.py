import os

import scrapy

SITE = os.environ["SHOP_SITE"]


class Failing(scrapy.Spider):
    """Errors of callbacks, errbacks and pipelines, and outputs of wrong types."""

    name = "failing"
    custom_settings = {"ITEM_PIPELINES": {"shop.pipelines.Refusing": 1}, "RETRY_ENABLED": False}

    def start_requests(self):
        for number in range(3):
            yield scrapy.Request(f"{SITE}/numbers/{number}", self.yield_all)
        yield scrapy.Request(f"{SITE}/numbers/10", self.raise_first)
        yield scrapy.Request(f"{SITE}/numbers/11", self.return_wrong)
        yield scrapy.Request(f"{SITE}/numbers/12", self.yield_wrong)
        yield scrapy.Request(f"{SITE}/numbers/13", self.return_nothing)
        yield scrapy.Request(f"{SITE}/status/500", self.yield_all, errback=self.raise_again)
        yield scrapy.Request(f"{SITE}/status/404", self.yield_all, errback=self.follow)

    def yield_all(self, response):
        yield {"url": response.url}
        yield {"url": response.url, "refuse": True}
        yield {"url": response.url, "last": True}

    def raise_first(self, response):
        raise LookupError("first")

    def return_wrong(self, response):
        return 5

    def yield_wrong(self, response):
        yield 7
        yield {"after": response.url}

    def return_nothing(self, response):
        pass

    def raise_again(self, failure):
        raise RuntimeError("again")

    def follow(self, failure):
        yield {"failed": failure.request.url}
        yield scrapy.Request(f"{SITE}/numbers/20", self.yield_all)


class Cached(scrapy.Spider):
    """Scrapy's HTTP cache, which answers the same pages a second time."""

    name = "cached"
    custom_settings = {
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_DIR": os.environ.get("SHOP_FILES", "."),
        "ROBOTSTXT_OBEY": False,
    }
    start_urls = [f"{SITE}/numbers/{number}" for number in range(3)]

    def parse(self, response):
        yield {"url": response.url, "cached": "cached" in response.flags}
        if response.meta.get("is_start_request"):
            yield scrapy.Request(response.url, dont_filter=True)
