"""Commands in the ledger to a running crawl, in the process of the test."""

import asyncio
import resource
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from crawlcw import Settings, Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.control import written_moment
from crawlcw.crawl.crawl import Crawl
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import FinishReason
from crawlcw.model.task import Status
from crawlcw.testing.replay import ReplayDownloader
from tests.crawl.test_crawl import Books, Slowly, in_virtual_time, numbered
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
    await ledger.notes.set_control({"stopped": written_moment(ledger.now())})

    report = await before.run()
    assert (report.finish_reason, report.pages) == (FinishReason.STOPPED, 0)
    assert report.detail == "by `crawlcw stop`"

    earlier = ledger.now() - timedelta(hours=1)
    await ledger.notes.set_control({"stopped": written_moment(earlier)})
    report = await crawl_of(ledger).run()
    assert (report.finish_reason, report.pages) == (FinishReason.DRAINED, 1)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"paused": "soon", "concurrency": "5"}, "paused='soon', which is no time"),
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


async def test_a_concurrency_that_this_machine_has_no_descriptors_for_is_not_followed(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    await ledger.notes.set_control({"concurrency": "1000000000000"})

    report = await crawl_of(ledger).run()

    assert report.finish_reason is FinishReason.DRAINED
    (warning,) = [each for each in caplog.messages if "an order in the ledger is invalid" in each]
    assert "concurrency=1000000000000 needs 2,000,000,000,300 file descriptors" in warning
    assert not [each for each in caplog.messages if "settings from the ledger" in each]


async def test_a_crawl_that_follows_more_concurrency_may_open_as_many_files(ledger: Ledger):
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        await ledger.notes.set_control({"concurrency": "200"})
        await crawl_of(ledger).run()
        after, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))

    assert after == 2 * (200 + 150)


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


async def test_each_order_is_told_once(ledger: Ledger, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    steering = crawl_of(ledger)._parts.steering
    paused = written_moment(ledger.now())

    for orders in (
        {"paused": paused},
        {"paused": None, "delay": "2s\n"},
        {"delay": "long"},
        {"delay": None},
    ):
        await ledger.notes.set_control(orders)
        await steering.look()
        await steering.look()

    assert [each.partition(":")[0] for each in caplog.messages] == [
        "paused",
        "settings from the ledger",
        "resumed",
        "an order in the ledger is invalid",
        "settings from the ledger",
    ]
    assert caplog.messages[1].endswith(r": delay=2s\n")
    assert caplog.messages[-1].endswith(": the crawl's own again")


@in_virtual_time
async def test_a_crawl_that_runs_is_paused_and_resumed(ledger: Ledger):
    web = Slowly(dict.fromkeys(numbered(10), ""), seconds=4)
    crawl = quick_crawl(Books(start_urls=numbered(10)), web, ledger, per_host_concurrency=1)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(6)

    await ledger.notes.set_control({"paused": written_moment(ledger.now())})
    await asyncio.sleep(10)
    begun, counts = len(web.began), await ledger.queries.counts()
    (host,) = (await ledger.hosts.get(["a.example"])).values()
    await ledger.notes.set_control({"paused": None})

    assert (await running).pages == 10
    assert begun == 2
    assert counts.by_status == {Status.FINISHED: 2, Status.TODO: 8}
    assert host.owner is None, "others may ask it"


@in_virtual_time
async def test_a_crawl_that_had_nothing_to_do_is_resumed_within_seconds(ledger: Ledger):
    later, added = numbered(2)
    await ledger.tasks.add([make_task(later, due=ledger.now() + timedelta(days=1))])
    web = Slowly({added: ""}, seconds=1)
    crawl = quick_crawl(Books(start_urls=[START]), web, ledger)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(40)

    await ledger.notes.set_control({"paused": written_moment(ledger.now())})
    await asyncio.sleep(1)
    await ledger.tasks.add([make_task(added)])
    await ledger.hosts.wake({make_task(added).host: ledger.now()})
    resumed = asyncio.get_running_loop().time()
    await ledger.notes.set_control({"paused": None})
    await asyncio.sleep(9)
    crawl.stop()
    await running

    assert web.began[added] - resumed < 1


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
async def test_while_there_is_no_new_order_the_ledger_is_asked_for_orders_alone(ledger: Ledger):
    await ledger.notes.set_control({"delay": "1s", "fed": "once"})
    web = Slowly({START: ""}, seconds=20)
    crawl = quick_crawl(Books(start_urls=[START]), web, ledger)

    report = await crawl.run()

    asked = crawl.stats.ledger_operations
    assert report.pages == 1
    assert 35 <= asked["notes.control"] <= 45, "twice a second"
    assert asked["tasks.page_each"] <= 30, "once a second for the host whose page is under way"
    assert asked["host_leases.lease"] <= 30, "40 if each look wakes the coordinator"


async def test_an_order_for_no_more_concurrency_is_followed_whatever_the_descriptors(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level("INFO")
    monkeypatch.setattr("crawlcw.crawl.descriptors._OTHERS", 10**12)
    await ledger.notes.set_control({"concurrency": "2"})

    await crawl_of(ledger).run()

    assert "settings from the ledger: concurrency=2" in caplog.messages
