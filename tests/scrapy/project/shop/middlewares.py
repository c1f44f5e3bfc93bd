from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse


class Stamping:
    """Add a header to each request, and a mark to each response."""

    @classmethod
    def from_crawler(cls, crawler):
        middleware = cls()
        crawler.signals.connect(middleware.spider_opened, signals.spider_opened)
        return middleware

    def spider_opened(self, spider):
        self.stamp = f"stamp of {spider.name}"

    def process_request(self, request, spider):
        request.headers.setdefault("X-Stamp", self.stamp)

    def process_response(self, request, response, spider):
        request.meta.setdefault("seen", []).append(response.status)
        return response


class Substituting:
    """Return a response, another request or an error in place of the download."""

    def process_request(self, request, spider):
        if "from=memory" in request.url:
            return HtmlResponse(request.url, body=b"<h1>from memory</h1>", request=request)
        if "ignored=1" in request.url:
            raise IgnoreRequest("ignored by the middleware")
        return None

    def process_response(self, request, response, spider):
        if b"come back" in response.body and "again=1" not in request.url:
            return Request(
                f"{request.url}?again=1",
                callback=request.callback,
                errback=request.errback,
                headers={"X-From": "substitute"},
                dont_filter=True,
            )
        return response

    def process_exception(self, request, exception, spider):
        if request.meta.get("rescue"):
            return HtmlResponse(request.url, body=b"<h1>rescued</h1>", request=request)
        return None


class Numbering:
    """A spider middleware of Scrapy 2.12: its methods are plain generators."""

    def process_spider_input(self, response, spider):
        response.meta.setdefault("inputs", []).append(spider.name)

    def process_spider_output(self, response, result, spider):
        for number, output in enumerate(result):
            if isinstance(output, dict):
                output["number"] = number
            yield output

    def process_spider_exception(self, response, exception, spider):
        if isinstance(exception, KeyError):
            return [{"recovered": response.url, "error": str(exception)}]
        return None

    def process_start_requests(self, start_requests, spider):
        for number, request in enumerate(start_requests):
            request.meta["started"] = number
            yield request
