"""Exceptions of a spider or a use case fail only their own page or task."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Spider, StopCrawl, open_ledger, run_spider
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import Reason, SpiderError
from crawlcw.model.task import Record, Status
from crawlcw.testing import ReplayDownloader
from crawlcw.tracking import Tracker
from tests.blame.code_site import Command, Site, crawled, spider
from tests.support.work_process import crawlcw

pytestmark = pytest.mark.thorough


async def records(ledger_url: str, site: Site, *, name: str = "pages") -> dict[str, Record]:
    """Return every task by its path."""
    from crawlcw.ledger.protocol import TaskFilter

    ledger = await open_ledger(ledger_url, name)
    try:
        found = await ledger.queries.find(TaskFilter(), limit=1000)
        whole = [await ledger.tasks.get(each.task.id) for each in found]
        return {each.task.url.removeprefix(site.url): each for each in whole if each is not None}
    finally:
        await ledger.close()


RAISING = """
    def parse(self, response):
        yield from response.follow_all("a")
        yield {"url": response.url}
        if response.url.endswith("/0"):
            sys.exit(3)
        if response.url.endswith("/1"):
            raise asyncio.CancelledError
        if response.url.endswith("/2"):
            raise GeneratorExit
        if response.url.endswith("/3"):
            raise KeyboardInterrupt
        if response.url.endswith("/4"):
            yield from self.parse_later()

    def parse_later(self):
        yield {"half": "a page"}
        raise SystemExit
"""


@pytest.mark.representative("sqlite")
async def test_what_would_end_the_process_ends_only_the_page(ledger_url: str, tmp_path: Path):
    with Site(12) as site:
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, RAISING), ledger_url
        )

    tasks = await records(ledger_url, site)
    bad = [tasks[str(n)] for n in range(5)]
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert [(r.task.status, r.task.reason) for r in bad] == [
        (Status.IGNORED, Reason.PARSE_ERROR)
    ] * 5
    assert [r.errors[0].message.partition(":")[0] for r in bad] == [
        "SystemExit",
        "CancelledError",
        "GeneratorExit",
        "KeyboardInterrupt",
        "SystemExit",
    ]
    assert all(record.items == () for record in bad), "no items of a failed page"
    assert (report["pages"], report["failures"]) == (8, {"parse-error": 5})
    assert {site.hits[f"/{n}"] for n in range(12)} == {1}, "each page is fetched once"


BROKEN = """
    def parse(self, response):
        yield from response.follow_all("a", callback=self.parse_book)

    def parse_book(self, response):
        return self.title_of(response)

    def title_of(self, response):
        return {"title": response.css_first("h1").attributes["id"]}
"""


async def test_a_callback_with_a_bug_is_told_once_and_stops_the_crawl(
    ledger_url: str, tmp_path: Path
):
    with Site(150) as site:
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, BROKEN), ledger_url
        )
        told = command.records("callback_failed")
        tasks = await records(ledger_url, site)
        failed = [r for r in tasks.values() if r.task.reason is Reason.PARSE_ERROR]
        ledger = await open_ledger(ledger_url, "pages")
        hosts = [host async for host in ledger.hosts.all()]
        await ledger.close()

        raised = "parse_book raised KeyError: 'id'"
        assert (code, report["finish_reason"]) == (3, "callback-broken"), command.log
        assert report["detail"].startswith(
            "a callback is broken: parse_book raised on each of its first 20 pages"
        )
        assert len(failed) == report["failures"]["parse-error"] == 20
        assert len(tasks) == 151, "the other pages wait"
        assert max(site.hits.values()) == 1, "each page is fetched once"
        assert [record["level"] for record in told] == ["warning"]
        assert told[0]["message"].startswith(f"{raised} at {tmp_path}/spider.py:16 on http")
        assert "title_of" in told[0]["traceback"]
        assert [(host.delay, host.page_failures) for host in hosts] == [(0.0, 0)]

        mended = BROKEN.replace('attributes["id"]', "text()")
        crawlcw("retry-failed", "pages", "--ledger", ledger_url)
        _, report, _ = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, mended), ledger_url
        )
        assert (report["finish_reason"], report["counts"]["finished"]) == ("drained", 151)


STOPPING = """
    def parse(self, response):
        yield {"url": response.url}
        if response.url.endswith("/3"):
            raise StopCrawl("enough of\\x1b it")
        # PostgreSQL does not keep the order of a page among tasks that are due at once.
        yield response.follow("/3", priority=1)
        yield from response.follow_all("a")
"""


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_spider_ends_its_crawl_by_raising_stop_crawl(
    ledger_url: str, tmp_path: Path, processes: int
):
    # With this delay the whole crawl would take minutes.
    slowly = ("-s", "delay=0.3s", "--processes", processes)
    with Site(500) as site:
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, STOPPING), ledger_url, *slowly
        )

    tasks = await records(ledger_url, site)
    assert (code, report["finish_reason"]) == (0, "stopped-by-spider"), command.log
    assert report["detail"] == "enough of\\x1b it"
    assert tasks["3"].task.status is Status.FINISHED
    assert tasks["3"].items == ({"url": f"{site.url}3"},)
    assert {r.task.status for r in tasks.values()} == {Status.TODO, Status.FINISHED}, "released"


# --- hooks, in this process


class Home(Spider):
    name = "pages"
    start_urls = ["http://a.example/"]

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


async def ran(spider: Spider, tmp_path: Path, **settings: Any) -> Any:
    return await run_spider(
        spider,
        ledger=f"sqlite:///{tmp_path}/ledger.db",
        settings=Settings(**settings),
        downloader=ReplayDownloader(dict.fromkeys(("http://a.example/", "http://a.example/2"), "")),
    )


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("hook", ["opened", "closed", "start"])
async def test_what_a_hook_raises_is_an_error_of_the_spider(
    tmp_path: Path, hook: str, error: type[BaseException]
):
    async def raising(*_: object) -> None:
        raise error

    async def raising_start() -> AsyncIterator[Request]:
        yield Request("http://a.example/")
        raise error

    home = Home()
    setattr(home, hook, raising_start if hook == "start" else raising)

    with pytest.raises(SpiderError, match=f"the spider's {hook}\\(\\) raised {error.__name__}"):
        await ran(home, tmp_path)


@pytest.mark.parametrize("hook", ["opened", "start"])
async def test_a_hook_may_end_the_crawl(tmp_path: Path, hook: str):
    class Stopping(Home):
        started = False

        async def opened(self) -> None:
            if hook == "opened":
                raise StopCrawl("not today")

        async def start(self) -> AsyncIterator[Request]:
            Stopping.started = True
            yield Request("http://a.example/")
            if hook == "start":
                raise StopCrawl("not today")

    report = await ran(Stopping(), tmp_path)

    assert (report.finish_reason, report.detail) == ("stopped-by-spider", "not today")
    assert report.counts.total == (1 if hook == "start" else 0), "requests yielded before are kept"
    assert Stopping.started == (hook == "start")


async def test_an_errback_may_end_the_crawl(tmp_path: Path):
    class Stopping(Home):
        def on_error(self, request: Request, error: Exception) -> None:
            raise StopCrawl("it is gone")

        def parse(self, response: Response) -> Iterator[Any]:
            yield Request("http://a.example/gone")

    report = await ran(Stopping(), tmp_path)

    assert (report.finish_reason, report.detail) == ("stopped-by-spider", "it is gone")
    assert report.counts[Status.IGNORED] == 1


async def test_an_own_timeout_of_a_callback_is_its_own_error(tmp_path: Path):
    class Impatient(Home):
        async def parse(self, response: Response) -> None:  # type: ignore[override]  # a coroutine
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)

    report = await ran(Impatient(), tmp_path)

    assert (report.finish_reason, report.failures) == ("drained", {"parse-error": 1})


# --- a tracked worker

USE_CASE = """
import asyncio
from crawlcw.tracking import UseCase

orders = UseCase("orders", max_retry=1)

def end(key):
    if key.endswith("exits"):
        raise SystemExit(3)
    if key.endswith("cancels"):
        raise asyncio.CancelledError
    if key.endswith("closes"):
        raise GeneratorExit
    if key.endswith("interrupts"):
        raise KeyboardInterrupt

@orders.stage
async def loop(execution):
    end(execution.key)

@orders.stage
def thread(execution):
    end(execution.key)

@orders.stage(process=True)
def process(key, data, context):
    end(key)
"""
_ENDS = {
    "exits": "SystemExit: 3",
    "cancels": "CancelledError: ",
    "closes": "GeneratorExit: ",
    "interrupts": "KeyboardInterrupt: ",
}


async def test_what_would_end_a_tracked_worker_fails_only_its_task(ledger_url: str, tmp_path: Path):
    (tmp_path / "orders.py").write_text(USE_CASE)
    async with Tracker.open(ledger_url, "orders") as tracker:
        for stage in ("loop", "thread", "process"):
            for end in (*_ENDS, "well"):
                await tracker.add(f"{stage}-{end}", stage=stage)

    # One at a time, so that a process that should exit gets the next task.
    given = ("work", "orders.py", "--ledger", ledger_url, "--drain", "--concurrency", "1")
    with Command(tmp_path, *given) as command:
        code, _ = await asyncio.to_thread(command.end)

    async with Tracker.open(ledger_url, "orders") as tracker:
        tasks = {task.key: task async for task in tracker.walk(limit=100)}
    assert code == 0, command.log
    assert {k for k, t in tasks.items() if t.status is Status.FINISHED} == {
        "loop-well",
        "thread-well",
        "process-well",
    }
    for stage in ("loop", "thread", "process"):
        for end, message in _ENDS.items():
            task = tasks[f"{stage}-{end}"]
            assert (task.status, task.reason) == (Status.IGNORED, Reason.TASK_ERROR), task
            assert [error.message for error in task.errors] == [message], (stage, end)
