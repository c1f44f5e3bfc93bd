"""A spider with its own downloader and hooks, and the tests that such a downloader must pass.

    python -m pytest examples/test_own_downloader.py

`crawlcw run` loads them with the spider, and so do parse, fetch and shell.
"""

from collections import Counter

from crawlcw import Downloader, FetchError, Reason, Request, Response, Settings, Spider, run_spider
from crawlcw.testing import DownloaderContract, ReplayDownloader


class Counting:
    """Wraps another downloader and counts the answers by their status."""

    def __init__(self, inner: Downloader) -> None:
        self.inner = inner
        self.statuses: Counter[int] = Counter()

    async def fetch(self, request: Request, *, url: str) -> Response:
        response = await self.inner.fetch(request, url=url)
        self.statuses[response.status] += 1
        return response

    async def close(self) -> None:
        await self.inner.close()


class Teas(Spider):
    name = "teas"
    start_urls = ["https://tea.example/"]

    def downloader(self, default: Downloader) -> Downloader:
        self.counting = Counting(default)
        return self.counting

    def before_request(self, request):
        request.set_header("X-Request-Source", "teas")

    def after_response(self, response):
        if "Are you a robot?" in response.text:
            raise FetchError(Reason.HTTP_STATUS, "a captcha", status=503)  # it will be tried again

    def parse(self, response):
        yield {"title": response.css_first("h1").text()}


class TestCounting(DownloaderContract):
    def downloader(self, default):
        return Counting(default)


async def test_a_captcha_is_tried_again(tmp_path):
    pages = ReplayDownloader({"https://tea.example/": ["Are you a robot?", "<h1>Tea</h1>"]})
    spider = Teas()
    settings = Settings(backoff_base=0)

    report = await run_spider(
        spider, ledger=f"sqlite:///{tmp_path}/teas.db", settings=settings, downloader=pages
    )

    assert report.items == 1
    assert spider.counting.statuses == {404: 1, 200: 2}  # the first is robots.txt
