"""Spider for `crawlcw run` in the benchmarks: url and title, and every link of the host."""

from crawlcw import Spider


class Docs(Spider):
    """One item for each page."""

    name = "docs"

    def __init__(self, start: str, follow: str = "all") -> None:
        super().__init__()
        self.start_urls = [start]
        self.follow = follow

    def parse(self, response):
        title = response.css_first("title")
        yield {"url": response.url, "title": title.text() if title else ""}
        if self.follow == "all":
            yield from response.follow_all("a[href]")
            return
        for a in response.css("a[href]"):
            yield response.follow(a)
