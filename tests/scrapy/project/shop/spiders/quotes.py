import os

import scrapy
from scrapy.http import FormRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

SITE = os.environ["SHOP_SITE"]


class QuotesByCss(scrapy.Spider):
    name = "quotes-css"
    start_urls = [f"{SITE}/quotes/1"]

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").get(),
                "author": quote.css("small.author::text").get(),
                "tags": quote.css("a.tag::text").getall(),
            }
        if next_page := response.css("li.next a::attr(href)").get():
            yield response.follow(next_page, self.parse)


class QuotesByXpath(scrapy.Spider):
    name = "quotes-xpath"

    def start_requests(self):
        yield scrapy.Request(f"{SITE}/quotes/1", callback=self.parse_quotes)

    def parse_quotes(self, response):
        for quote in response.xpath('//div[@class="quote"]'):
            yield {
                "text": quote.xpath('./span[@class="text"]/text()').get(),
                "tags": quote.xpath('.//a[@class="tag"]/text()').getall(),
            }
        if next_page := response.xpath('//li[@class="next"]/a/@href').get():
            yield scrapy.Request(response.urljoin(next_page), callback=self.parse_quotes)


class Login(scrapy.Spider):
    """A login by its form, a secret in a hidden field, and pages that need the session."""

    name = "login"
    start_urls = [f"{SITE}/login"]
    password = "right"

    def parse(self, response):
        return FormRequest.from_response(
            response,
            formdata={"user": "ann", "password": self.password},
            callback=self.after_login,
        )

    def after_login(self, response):
        if "wrong password" in response.text:
            self.logger.error("the login has failed")
            yield {"failed": response.url}
            return
        yield {"greeting": response.css("h1::text").get(), "url": response.url}
        for number in range(5):
            yield scrapy.Request(f"{SITE}/account/{number}", self.account)

    def account(self, response):
        yield {"account": response.css("h1::text").get(), "url": response.url}


class Catalogue(CrawlSpider):
    """Rules with link extractors, a callback and a filter of links."""

    name = "catalogue"
    allowed_domains = ["127.0.0.1"]
    start_urls = [f"{SITE}/catalogue"]
    rules = (
        Rule(LinkExtractor(allow=r"/catalogue/\w+$"), follow=True),
        Rule(
            LinkExtractor(allow=r"/book/\d+", restrict_css="ul.books"),
            callback="parse_book",
            process_links="unseen",
            cb_kwargs={"kind": "book"},
        ),
    )

    def unseen(self, links):
        return [link for link in links if "sold-out" not in link.url]

    def parse_book(self, response, kind):
        yield {
            "kind": kind,
            "url": response.url,
            "title": response.css("h1::text").get(),
            "linked_as": response.meta["link_text"],
        }


class Stored(Catalogue):
    """The catalogue, with a pipeline that has a database of its own."""

    name = "stored"
    custom_settings = {"ITEM_PIPELINES": {"shop.pipelines.Storing": 400}}

    def parse_book(self, response, kind):
        # Many books have the same title: the pipeline drops the later ones.
        title = response.css("h1::text").get().split()[0]
        yield {"title": title, "url": f"{SITE}/title/{title}"}
