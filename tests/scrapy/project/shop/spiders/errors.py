import os

import scrapy
from scrapy import exceptions
from scrapy.exceptions import IgnoreRequest
from scrapy.http import FormRequest, JsonRequest
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.internet import error
from twisted.web.client import ResponseFailed

SITE = os.environ["SHOP_SITE"]
NEWER_KINDS = (
    "CannotResolveHostError",
    "DownloadConnectionRefusedError",
    "DownloadTimeoutError",
    "ResponseDataLossError",
)
KINDS = (
    HttpError,
    IgnoreRequest,
    # Scrapy 2.15 raises its own exceptions in place of Twisted's.
    *(
        (getattr(exceptions, name) for name in NEWER_KINDS)
        if hasattr(exceptions, "DownloadTimeoutError")
        else (
            *(error.DNSLookupError, error.ConnectionRefusedError, error.TimeoutError),
            ResponseFailed,
        )
    ),
)


class Errors(scrapy.Spider):
    """Statuses, retries, redirects, encodings and methods, with callback and errback."""

    name = "errors"
    start_urls = [f"{SITE}/start"]

    def parse(self, response):
        for path in (
            *("/status/404", "/status/500", "/ok", "/private", "/loop", "/redirect", "/refresh"),
            *("/cut", "/gzip", "/latin", "/meta-charset", "/json", "/text", "/xml", "/empty"),
        ):
            yield self.request(path, meta={"label": path}, headers={"X-Label": path})
        yield self.request("/slow?short", meta={"download_timeout": 0.4, "max_retry_times": 0})
        yield self.request("/slow?long", meta={"download_timeout": 30})
        yield self.request("/flaky")
        yield self.request("/status/404?listed", meta={"handle_httpstatus_list": [404]})
        yield self.request(
            "/status/500?all", meta={"handle_httpstatus_all": True, "dont_retry": True}
        )
        yield self.request(
            "/redirect?stay", meta={"dont_redirect": True, "handle_httpstatus_list": [302]}
        )
        yield self.request("/status/500?more", meta={"max_retry_times": 2})
        yield self.request("/ok?head", method="HEAD")
        yield scrapy.Request(f"{SITE}/status/404?no-errback", self.succeeded)
        yield FormRequest(f"{SITE}/echo", formdata={"a": "1", "b": "ü"}, callback=self.succeeded)
        yield JsonRequest(f"{SITE}/echo?json", data={"x": [1, 2]}, callback=self.succeeded)
        yield self.request("/ok#fragment")
        yield self.request("/query?b=2&a=1")
        yield self.request("/query?a=1&b=2")
        yield scrapy.Request("data:text/plain,hello", self.succeeded, errback=self.failed)
        yield {"drop": True}
        yield {"check": f"{SITE}/ok?checked"}

    def request(self, path, **options):
        return scrapy.Request(SITE + path, self.succeeded, errback=self.failed, **options)

    def succeeded(self, response):
        request, meta = response.request, response.meta
        names = (
            *("redirect_urls", "redirect_reasons", "redirect_times", "retry_times", "depth"),
            "download_slot",
        )
        yield {
            "url": response.url,
            "status": response.status,
            "class": type(response).__name__,
            "text": getattr(response, "text", "")[:60],
            "size": len(response.body),
            "encoding": getattr(response, "encoding", None),
            "content_type": response.headers.get("Content-Type", b"").decode(),
            "method": request.method,
            "referer": request.headers.get("Referer", b"").decode(),
            "label": [meta.get("label"), request.headers.get("X-Label", b"").decode()],
            **{name: meta.get(name) for name in names},
        }

    def failed(self, failure):
        is_http = failure.check(HttpError)
        yield {
            "url": failure.request.url,
            "kinds": [kind.__name__ for kind in KINDS if failure.check(kind)],
            "status": failure.value.response.status if is_http else None,
            "retry_times": failure.request.meta.get("retry_times"),
            "label": failure.request.meta.get("label"),
        }


class Unreachable(Errors):
    """Hosts without a server, in a project that ignores robots.txt."""

    name = "unreachable"
    custom_settings = {"ROBOTSTXT_OBEY": False}

    def parse(self, response):
        for url in (os.environ["SHOP_CLOSED"], "http://no-such-host.invalid/"):
            yield scrapy.Request(url, self.succeeded, errback=self.fail_here)

    def fail_here(self, failure):
        for item in self.failed(failure):
            # crawlcw tries a name that does not exist only once.
            yield {"url": item["url"], "kinds": item["kinds"]}
