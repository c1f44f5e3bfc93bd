import os
from dataclasses import dataclass

import scrapy
from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from scrapy.spiders import SitemapSpider
from twisted.internet.defer import inlineCallbacks

SITE = os.environ["SHOP_SITE"]


class Idle(scrapy.Spider):
    """Requests from a queue of its own, whenever the spider is idle."""

    name = "idle"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.queue = [f"{SITE}/numbers/{number}" for number in range(4)]
        crawler.signals.connect(spider.idle, signals.spider_idle)
        return spider

    def start_requests(self):
        return []

    def idle(self, spider):
        if self.queue:
            request = scrapy.Request(self.queue.pop(0), callback=self.parse)
            self.crawler.engine.crawl(request)
            raise DontCloseSpider

    def parse(self, response):
        yield {"url": response.url, "title": response.css("h1::text").get()}


class Arguments(scrapy.Spider):
    """Arguments of the command line, a setting, and a reason in `closed`."""

    name = "arguments"

    def __init__(self, category=None, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.category = category
        self.start_urls = [f"{SITE}/query?category={category}"]
        self.pages = 0

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.greeting = crawler.settings.get("GREETING", "hello")
        return spider

    def parse(self, response):
        self.pages += 1
        self.crawler.stats.inc_value("shop/pages")
        yield {
            "url": response.url,
            "category": self.category,
            "limit": getattr(self, "limit", None),
            "greeting": self.greeting,
        }


class Mapped(SitemapSpider):
    """A sitemap of robots.txt, an index and a filter of entries."""

    name = "mapped"
    sitemap_urls = [f"{SITE}/robots.txt"]
    sitemap_rules = [("/numbers/", "parse_number"), ("/book/", "parse_book")]
    sitemap_follow = ["/sitemap-"]

    def sitemap_filter(self, entries):
        for entry in entries:
            if "skipped" not in entry["loc"]:
                yield entry

    def parse_number(self, response):
        yield {"number": response.css("h1::text").get()}

    def parse_book(self, response):
        yield {"book": response.css("h1::text").get(), "referer": self.referer(response)}

    def referer(self, response):
        return response.request.headers.get("Referer", b"").decode()


@dataclass
class Price:
    url: str
    amount: float = 0.0
    notes: list = None


class Asynchronous(scrapy.Spider):
    """Coroutines, asynchronous generators, Deferreds, lists and items of a dataclass."""

    name = "asynchronous"

    async def start(self):
        yield scrapy.Request(f"{SITE}/numbers/1", self.generate)
        yield scrapy.Request(f"{SITE}/numbers/2", self.gather)
        yield scrapy.Request(f"{SITE}/numbers/3", self.defer)
        yield scrapy.Request(f"{SITE}/numbers/4", self.return_one)

    async def generate(self, response):
        inner = await self.crawler.engine.download_async(scrapy.Request(f"{response.url}/inner"))
        yield Price(url=response.url, amount=1.5, notes=[inner.css("h1::text").get()])
        for request in response.follow_all(["5", "6"], self.gather):
            yield request

    async def gather(self, response):
        return [Price(url=response.url), {"plain": response.url}]

    @inlineCallbacks
    def defer(self, response):
        from twisted.internet import reactor, task

        yield task.deferLater(reactor, 0.01, lambda: None)
        return [{"deferred": response.url}]

    def return_one(self, response):
        return {"one": response.url}


class OwnFilter(scrapy.Spider):
    """A dupe filter and limits of its own."""

    name = "own-filter"
    custom_settings = {"DUPEFILTER_CLASS": "shop.filters.WithoutSession", "DEPTH_LIMIT": 3}
    start_urls = [f"{SITE}/numbers/0"]

    def parse(self, response):
        depth = response.meta["depth"]
        yield {"url": response.url.partition("?")[0], "depth": depth}
        for session in ("a", "b"):
            yield scrapy.Request(f"{SITE}/numbers/{depth + 1}?session={session}")
        yield scrapy.Request(f"{SITE}/numbers/0", dont_filter=True, callback=self.again)

    def again(self, response):
        yield {"again": response.url, "depth": response.meta["depth"]}


class Downloads(scrapy.Spider):
    """Files by Scrapy's pipeline, with a name of its own."""

    name = "downloads"
    custom_settings = {
        "ITEM_PIPELINES": {"shop.pipelines.Files": 1},
        "FILES_STORE": os.environ.get("SHOP_FILES", "."),
    }
    start_urls = [f"{SITE}/numbers/{number}" for number in range(3)]

    def parse(self, response):
        yield {"file_urls": [f"{response.url}/file", f"{SITE}/text", f"{SITE}/status/404"]}


class Guarded(scrapy.Spider):
    """HTTP authentication, headers and cookies of a request, and offsite links."""

    name = "guarded"
    http_user, http_pass, http_auth_domain = "ann", "secret", None
    allowed_domains = ["127.0.0.1"]
    custom_settings = {
        "DEFAULT_REQUEST_HEADERS": {"Accept": "text/html", "Accept-Language": "de"},
        "USER_AGENT": "shop-spider",
        "HTTPERROR_ALLOWED_CODES": [404],
    }

    def start_requests(self):
        yield scrapy.Request(f"{SITE}/headers", cookies={"a": "1", "b": "ü"}, headers={"X-A": "1"})
        yield scrapy.Request(
            f"{SITE}/headers?post",
            method="POST",
            body="x",
            # Without it, Scrapy sends no such header, and crawlcw the type of any bytes.
            headers={"Content-Type": "text/plain"},
        )
        yield scrapy.Request(f"{SITE}/status/404", self.parse_error)

    def parse(self, response):
        yield {"url": response.url, "headers": response.json()}
        yield scrapy.Request("http://offsite.test/", self.parse)

    def parse_error(self, response):
        yield {"status": response.status}
