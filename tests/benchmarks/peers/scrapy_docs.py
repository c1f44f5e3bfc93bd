"""Scrapy's crawl: python -m scrapy runspider scrapy_docs.py -a start=URL."""

from urllib.parse import urlsplit

import scrapy


class Docs(scrapy.Spider):
    """One item for each HTML page; every link of its host is followed."""

    name = "docs"

    def __init__(self, start: str) -> None:
        super().__init__()
        self.start_urls = [start]
        self.host = urlsplit(start).netloc

    def parse(self, response):
        if not isinstance(response, scrapy.http.HtmlResponse):
            return
        yield {"url": response.url, "title": response.css("title::text").get("")}
        for href in response.css("a::attr(href)").getall():
            link = response.urljoin(href)
            if urlsplit(link).netloc == self.host:
                yield scrapy.Request(link)
