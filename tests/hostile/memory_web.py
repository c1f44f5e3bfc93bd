"""A crawl of prepared pages, and the records of every URL in its ledger at the end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import run_spider
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Report
from crawlcw.model.task import Record, Status
from crawlcw.testing import Replay, ReplayDownloader

HOME = "http://a.example/"
SETTINGS: Mapping[str, Any] = {
    "auto_throttle": False,
    "backoff_base": "1ms",
    "backoff_max": "1ms",
    "host_backoff_base": "1ms",
    "host_backoff_max": "1ms",
}


class Everything(Spider):
    """Records every page and follows every link."""

    name = "everything"

    def parse(self, response: Response) -> Iterator[Any]:
        title = response.css_first("title")
        yield {"url": response.url, "title": title.text() if title else None}
        yield from response.follow_all("a")


@dataclass(kw_only=True)
class Crawled:
    """The result of a crawl."""

    report: Report
    requested: list[str]  #: without robots.txt
    records: dict[str, Record]
    items: list[dict[str, Any]] = field(default_factory=list)

    def outcome(self, url: str = HOME) -> str:
        """Return `finished`, or the reason why the task of *url* is ignored."""
        task = self.records[url].task
        return str(task.reason) if task.status is Status.IGNORED else task.status.name.lower()

    @property
    def pages(self) -> list[str]:
        """Return the URLs with an item, sorted."""
        return sorted(item["url"] for item in self.items)


async def crawl(
    pages: Mapping[str, Any],
    folder: Path,
    *,
    spider: Spider | None = None,
    start: str = HOME,
    **settings: Any,
) -> Crawled:
    """Crawl prepared *pages* from *start* on; return the result."""
    downloader = ReplayDownloader(pages)
    spider = spider or Everything(start_urls=[start])
    url = f"sqlite:///{folder}/ledger.db"
    report = await run_spider(
        spider, ledger=url, settings=Settings(**SETTINGS | settings), downloader=downloader
    )
    ledger = await SqliteLedger.open(folder / "ledger.db", spider.name)
    try:
        crawled = await looked_up(ledger, report)
    finally:
        await ledger.close()
    crawled.requested = [each for each in downloader.requested_urls if "robots.txt" not in each]
    return crawled


async def looked_up(ledger: Ledger, report: Report) -> Crawled:
    """Return the result of a crawl as its ledger has it."""
    records = await ledger.queries.find(TaskFilter(statuses=tuple(Status)), limit=10_000)
    items = [row.item async for row in ledger.queries.items()]
    found = {record.task.url: record for record in records}
    return Crawled(report=report, requested=[], records=found, items=items)


def links(*addresses: str) -> str:
    return "".join(f'<a href="{address}">x</a>' for address in addresses)


def to(location: str, *, status: int = 302) -> Replay:
    return Replay(status=status, headers={"Location": location})


def page(body: str = "<title>a page</title>", **headers: str) -> Replay:
    """Return an HTML page; `x_robots_tag` is the header X-Robots-Tag."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Replay(headers={"Content-Type": "text/html; charset=utf-8"} | named, body=body)
