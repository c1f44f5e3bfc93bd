"""Commands in the ledger to a running crawl, in the process of the test."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from crawlcw import Request, Settings, Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.crawl import Crawl
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.durations import iso_time
from crawlcw.model.task import Status
from crawlcw.testing.replay import ReplayDownloader
from tests.crawl.test_crawl import HOME, Books, Slowly, in_virtual_time, links, numbered
from tests.crawl.test_crawl import crawl_of as quick_crawl
from tests.support.ledgers import make_task

pytestmark = pytest.mark.quick
START = "http://pages.test/"


class Pages(Spider):
    name = "pages"
    start_urls = [START]
    settings = Settings(concurrency=3)

    def parse(self, response):
        yield {"url": response.url}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    yield opened
    await opened.close()


def crawl_of(ledger: Ledger) -> Crawl:
    return assemble(Pages(), ledger, ReplayDownloader({START: "<p>page"}), Pages.settings)


async def test_a_crawl_that_began_before_a_stop_ends_and_one_after_it_does_not(ledger: Ledger):
    before = crawl_of(ledger)
    await ledger.notes.set_control({"stopped": iso_time(ledger.now())})

    report = await before.run()
    assert (report.finish_reason, report.pages) == (FinishReason.STOPPED, 0)
    assert report.detail == "by `crawlcw stop`"

    earlier = ledger.now() - timedelta(hours=1)
    await ledger.notes.set_control({"stopped": iso_time(earlier)})
    report = await crawl_of(ledger).run()
    assert (report.finish_reason, report.pages) == (FinishReason.DRAINED, 1)


class Opening(Pages):
    """Waits in `opened` for ever; in `closed`, too, if it waits there."""

    settings = Settings(grace="20ms")
    waits_in = "opened"
    began = cancelled = ""

    async def opened(self) -> None:
        await self.wait("opened")

    async def closed(self, report: Report) -> None:
        await self.wait("closed")

    async def wait(self, method: str) -> None:
        self.began = method
        try:
            while self.waits_in == method:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled = method
            raise


async def test_a_stop_in_the_ledger_ends_opened_within_the_grace(ledger: Ledger):
    spider = Opening()
    crawl = assemble(spider, ledger, ReplayDownloader({START: "<p>page"}), spider.settings)
    running = asyncio.create_task(crawl.run())
    while not spider.began:
        await asyncio.sleep(0)
    await ledger.notes.set_control({"stopped": iso_time(ledger.now())})

    report = await running

    assert (report.finish_reason, report.detail) == (FinishReason.STOPPED, "by `crawlcw stop`")
    assert (spider.cancelled, spider.began) == ("opened", "opened"), "closed is not called"


async def test_closed_is_cancelled_when_the_grace_is_over(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("crawlcw.crawl.crawl.LAST_WORDS", timedelta(milliseconds=20))
    spider = Opening()
    spider.waits_in = "closed"
    graces: list[timedelta] = []
    crawl = assemble(spider, ledger, ReplayDownloader({START: "<p>page"}), spider.settings)
    crawl.on_end(graces.append)

    report = await crawl.run()

    assert (report.finish_reason, report.pages) == (FinishReason.DRAINED, 1)
    assert spider.cancelled == "closed"
    assert graces == [spider.settings.grace]
    assert "cancelled closed(), because it did not end within the grace period" in caplog.text


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"paused": "soon", "concurrency": "5"}, "paused='soon', which is not a time"),
        ({"concurrency": "none"}, "concurrency"),
    ],
)
async def test_what_makes_no_sense_is_said_and_not_followed(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, written: dict[str, str], said: str
):
    await ledger.notes.set_control(written)

    report = await crawl_of(ledger).run()

    assert report.finish_reason is FinishReason.DRAINED
    (warning,) = [each for each in caplog.messages if "an order in the ledger is invalid" in each]
    assert said in warning


async def test_a_crawl_follows_the_settings_of_the_ledger_from_its_beginning(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    await ledger.notes.set_control({"concurrency": "7", "per_host_concurrency": "0"})
    crawl = crawl_of(ledger)

    report = await crawl.run()

    assert report.pages == 1
    assert "settings from the ledger: concurrency=7, per_host_concurrency=0" in caplog.messages
    assert crawl.settings == Pages.settings


@in_virtual_time
async def test_a_crawl_that_runs_is_paused_and_resumed(ledger: Ledger):
    web = Slowly(dict.fromkeys(numbered(10), ""), seconds=4)
    crawl = quick_crawl(Books(start_urls=numbered(10)), web, ledger, per_host_concurrency=1)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(6)

    await ledger.notes.set_control({"paused": iso_time(ledger.now())})
    await asyncio.sleep(10)
    begun, counts = len(web.began), await ledger.queries.counts()
    (host,) = (await ledger.hosts.get(["a.example"])).values()
    await ledger.notes.set_control({"paused": None})

    assert (await running).pages == 10
    assert begun == 2
    assert counts.by_status == {Status.FINISHED: 2, Status.TODO: 8}
    assert host.owner is None, "others may ask it"


@in_virtual_time
async def test_more_concurrency_is_used_at_once_at_more_hosts(ledger: SqliteLedger):
    pages = [f"http://{n}.example/" for n in range(20)]
    web = Slowly(dict.fromkeys(pages, ""), seconds=20)
    crawl = quick_crawl(Books(start_urls=pages), web, ledger, concurrency=1)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(10)

    await ledger.notes.set_control({"concurrency": "20"})
    await asyncio.sleep(2)

    assert len(web.began) == 20
    assert (await running).pages == 20


@in_virtual_time
async def test_what_is_added_by_hand_is_begun_while_pages_of_its_host_are_under_way(
    ledger: Ledger,
):
    first, added = numbered(2)
    web = Slowly({first: "", added: ""}, seconds=20)
    crawl = quick_crawl(Books(start_urls=[first]), web, ledger, per_host_concurrency=0)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(10)

    began = asyncio.get_running_loop().time()
    await ledger.tasks.add([make_task(added, due=ledger.now())])
    await ledger.notes.set_control({"fed": "once"})

    assert (await running).pages == 2
    assert web.began[added] - began < 1


@in_virtual_time
async def test_a_page_that_is_purged_is_done_again_if_the_running_crawl_finds_a_link_to_it(
    ledger: SqliteLedger,
):
    quick, slow = numbered(2)
    answers = {HOME: links(quick, slow), quick: "", slow: links(quick)}
    web = Slowly(answers, seconds=1, those={slow: 20})
    crawl = quick_crawl(Books(), web, ledger, per_host_concurrency=0)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(10)

    assert await ledger.admin.purge(TaskFilter(ids=[Request(quick).identity()[1]])) == 1

    assert (await running).pages == 4
    assert web.requested_urls.count(quick) == 2
