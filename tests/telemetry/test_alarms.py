"""Alarms to the spider and the log: idle crawls and high failure rates."""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Settings, StopCrawl
from crawlcw.assembly import assemble
from crawlcw.engine.stats import Stats
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import FinishReason
from crawlcw.model.idle_reason import IdleReason
from crawlcw.telemetry import alarms
from crawlcw.telemetry.alarms import Alarms
from crawlcw.testing import Replay
from tests.crawl.test_crawl import HOME, Books, Web, links
from tests.support.ledgers import START, FakeClock


class Told(Books):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    async def on_idle(self, reason: IdleReason) -> None:
        self.heard.append(reason)

    def on_failure_rate(self, rate: float) -> None:
        self.heard.append(rate)


class FakeCrawl:
    """Alarms over the numbers of a crawl that does not run; the test sets them."""

    def __init__(self, spider: Books, **settings: Any) -> None:
        self.clock = FakeClock()
        self.stats = Stats()
        self.idle_reason: IdleReason | None = None
        self.wishes: list[str] = []
        self.alarms = Alarms(
            spider,
            Settings(**settings),
            self.stats,
            idle_reason=lambda: self.idle_reason,
            stop=self.wishes.append,
            clock=lambda: self.clock().timestamp(),
        )

    async def after(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        await self.alarms.check()


async def test_the_spider_is_told_why_nothing_moves(caplog: pytest.LogCaptureFixture):
    spider = Told()
    crawl = FakeCrawl(spider, idle_after="1m")
    crawl.idle_reason = IdleReason(hosts=2, ends_at=START, cause="429, Retry-After")

    for seconds in (0, 59, 1, 60):
        await crawl.after(seconds)

    assert spider.heard == [crawl.idle_reason]
    (record,) = caplog.records
    assert record.getMessage().startswith("no progress for 60 s: 2 hosts rest")
    assert (record.event, record.seconds) == ("idle", 60)
    assert record.idle_reason["hosts_resting"] == 2


async def test_a_crawl_that_waits_for_new_pages_raises_no_alarm():
    spider = Told()
    crawl = FakeCrawl(spider, idle_after="1m")
    crawl.idle_reason = IdleReason(new_pages=True)

    for seconds in (0, 61, 61):
        await crawl.after(seconds)

    assert spider.heard == []


async def rates(share: float | None, *looks: tuple[int, int]) -> list[Any]:
    """Return the failure rate that the spider hears after each look.

    A look is a pair: the attempts so far, and how many of them failed.
    """
    told, spider = [], Told()
    crawl = FakeCrawl(spider, failure_alarm=share)
    for attempts, failed in looks:
        spider.heard.clear()
        crawl.stats.pages = attempts - failed
        crawl.stats.failures[Reason.CONNECT] = failed
        await crawl.after(1)
        told.append(spider.heard[0] if spider.heard else None)
    return told


async def test_a_rate_is_that_of_the_last_hundred_attempts_at_least():
    assert await rates(0.5, (60, 60), (99, 99), (100, 99)) == [None, None, 0.99]
    # A thousand good attempts are too old to count.
    assert await rates(0.5, (1_000, 0), (1_050, 50), (1_101, 100)) == [None, None, 100 / 101]


async def test_the_spider_is_told_how_much_fails(caplog: pytest.LogCaptureFixture):
    spider = Told()
    crawl = FakeCrawl(spider, failure_alarm="20%")
    crawl.stats.pages = 70
    crawl.stats.failures[Reason.CONNECT] = 30
    # Unwanted pages do not count as failures.
    crawl.stats.failures[Reason.REFUSED_ROBOTS] = 1_000

    await crawl.after(1)
    await crawl.after(1)

    assert spider.heard == [0.3]
    assert [record.event for record in caplog.records] == ["failure_rate"]


async def test_what_a_hook_raises_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture):
    class Broken(Books):
        def on_failure_rate(self, rate: float) -> None:
            raise OSError("the pager is away")

    crawl = FakeCrawl(Broken(), failure_alarm=0.5)
    crawl.stats.failures[Reason.CONNECT] = 100

    await crawl.after(1)

    assert crawl.wishes == []
    assert caplog.records[-1].getMessage() == (
        "the spider's on_failure_rate() raised OSError: the pager is away"
    )
    assert caplog.records[-1].levelno == logging.WARNING


async def test_a_crawl_of_which_most_fails_is_ended_by_its_spider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(alarms, "_CHECK_INTERVAL_S", 0.01)

    class Careful(Books):
        def on_failure_rate(self, rate: float) -> None:
            raise StopCrawl(f"{rate:.0%} failed")

    gone = {f"{HOME}{n}": FetchError(Reason.PROTOCOL, "gone") for n in range(150)}
    web = Web({HOME: Replay(body=links(*gone, "/held")), f"{HOME}held": Replay()})
    web.held = {f"{HOME}held"}
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books")
    settings = Settings(failure_alarm="50%", max_retry=1, concurrency=8, grace=timedelta(0))

    report = await assemble(Careful(), ledger, web, settings).run()
    await ledger.close()

    assert report.finish_reason is FinishReason.STOPPED_BY_SPIDER
    assert report.detail.endswith("failed")
