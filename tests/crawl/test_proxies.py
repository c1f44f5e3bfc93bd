"""Crawls through real proxies: dead and banned ones cost no page an attempt."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crawlcw import FinishReason, Request, Settings, Status
from crawlcw.assembly import run_spider
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_ledger
from tests.support import exit_site
from tests.support.exit_site import QUICK, ExitSite, ExitSpider
from tests.support.proxy_servers import ProxyServer, proxies

pytestmark = pytest.mark.thorough


@pytest.fixture
def site() -> Iterator[ExitSite]:
    with exit_site.served(15) as running:
        yield running


async def tasks(ledger_url: str) -> list[Any]:
    ledger = await open_ledger(ledger_url, "exits")
    try:
        return list(await ledger.queries.find(TaskFilter(), limit=1000))
    finally:
        await ledger.close()


async def test_every_request_goes_through_a_proxy_and_each_has_its_share(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any]
):
    report = await crawl(three)

    assert report.counts[Status.FINISHED] == 15
    assert site.exits.keys() == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    assert min(site.exits.values()) >= 4


class Killer(ExitSpider):
    """Kills a proxy in the middle of the crawl."""

    kill: Callable[[], None] | None = None

    def parse(self, response: Any) -> Any:
        if response.url.endswith("/p/2") and self.kill is not None:
            self.kill()
            self.kill = None
        yield from super().parse(response)


@pytest.mark.representative("sqlite")
async def test_a_proxy_that_dies_and_one_that_is_banned_cost_nobody_an_attempt(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any], ledger_url: str
):
    site.banned = {"127.0.0.3"}
    spider = Killer()
    spider.kill = three[0].die

    report = await crawl(three, spider, proxy_ban_statuses=[403])

    assert report.finish_reason is FinishReason.DRAINED
    assert report.counts[Status.FINISHED] == 15
    assert (report.failures, report.host_failures) == ({}, {})
    assert [record.task.retry for record in await tasks(ledger_url)] == [0] * 15
    # It gets one request, or a few at the same time, and is set aside then.
    assert 1 <= site.exits["127.0.0.3"] <= 4


async def test_the_spider_may_say_which_answers_are_bans(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any]
):
    site.banned = {"127.0.0.2", "127.0.0.3"}

    class Careful(ExitSpider):
        def banned_when(self, response: Any) -> bool:
            return "go away" in response.text

    report = await crawl(three, Careful())

    assert report.counts[Status.FINISHED] == 15
    assert report.failures == {}


@pytest.mark.representative("sqlite")
async def test_a_page_that_is_refused_to_every_proxy_fails_by_itself(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any]
):
    site.broken = {5}

    report = await crawl(three, proxy_ban_statuses="500", max_retry=2)

    assert report.finish_reason is FinishReason.DRAINED
    assert report.counts[Status.FINISHED] == 15 - 3
    assert report.failures == {"http-status": 2}
    # The second attempt begins with all of them.
    assert Counter(each.path for each in site.visits)["/p/5"] == 2 * 3


@pytest.mark.representative("sqlite")
async def test_a_crawl_ends_and_says_why_where_no_proxy_works(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any], ledger_url: str
):
    for each in three:
        each.login = "ann:s3cret"
        each.die()

    report = await crawl(three, host_max_failures=3)

    assert report.finish_reason is FinishReason.PROXIES_FAILED
    assert report.detail.startswith("the proxies (all 3) do not work: the proxy http://***@127.0")
    assert "s3cret" not in report.detail
    assert report.host_failures == {}
    assert report.hosts_given_up == {}
    (waiting,) = await tasks(ledger_url)
    assert (waiting.task.status, waiting.task.retry) == (Status.TODO, 0)
    for each in three:
        await each.revive()
    assert (await crawl(three)).counts[Status.FINISHED] == 15


@pytest.mark.parametrize("patience", [5.0, 0.0], ids=["in the fetcher", "in the ledger"])
async def test_proxies_that_are_away_for_a_while_are_waited_for(
    patience: float,
    site: ExitSite,
    three: list[ProxyServer],
    crawl: Callable[..., Any],
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("crawlcw.fetch.proxies._PATIENCE", patience)
    spider = Killer()
    spider.kill = lambda: [each.die() for each in three] and None

    async def revive() -> None:
        while any(each.is_alive for each in three):
            await asyncio.sleep(0)
        for each in three:
            await each.revive()

    reviving = asyncio.create_task(revive())
    report = await crawl(three, spider, per_host_concurrency=1)
    await reviving

    assert report.counts[Status.FINISHED] == 15
    assert (report.failures, report.host_failures) == ({}, {})
    assert [record.task.retry for record in await tasks(ledger_url)] == [0] * 15


async def test_a_host_that_is_down_is_given_up_and_no_proxy_is_blamed(
    three: list[ProxyServer], ledger_url: str
):
    for each in three:
        each.names = {"gone.test": "127.0.0.1:9"}
    spider = ExitSpider()
    spider.start_urls = ["https://gone.test/"]
    settings = Settings(**QUICK, proxies=[each.url for each in three], host_max_failures=2)

    report = await run_spider(spider, ledger=ledger_url, settings=settings)

    assert report.finish_reason is FinishReason.DRAINED
    assert list(report.hosts_given_up) == ["https://gone.test"]


async def test_a_request_keeps_its_own_proxy_in_the_ledger_and_nobody_is_shown_the_password(
    site: ExitSite, three: list[ProxyServer], ledger_url: str, crawl: Callable[..., Any]
):
    three[2].login = "ann:s3cret"

    class Own(ExitSpider):
        async def start(self) -> Any:
            yield Request(f"{site.url}/p/14", proxy=three[2].url)

    report = await crawl(three[:1], Own())

    assert report.counts[Status.FINISHED] == 1
    assert site.exits == {"127.0.0.4": 1}
    (record,) = await tasks(ledger_url)
    assert record.task.options.proxy == three[2].url
    assert "s3cret" not in repr(record)


async def test_a_layer_chooses_the_proxy_of_one_exchange(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any], ledger_url: str
):
    async def through_the_third(attempt: Any, request: Any, call_next: Any) -> Any:
        await call_next(attempt, Request(request.url, proxy="direct"))
        await call_next(attempt, request)
        return await call_next(attempt, Request(request.url, proxy=three[2].url))

    class Changing(ExitSpider):
        layers = (through_the_third,)

        async def start(self) -> Any:
            yield Request(f"{site.url}/p/14", proxy=three[1].url)

    report = await crawl(three[:1], Changing())

    assert report.counts[Status.FINISHED] == 1
    assert [visit.exit for visit in site.visits] == ["127.0.0.1", "127.0.0.3", "127.0.0.4"]
    (record,) = await tasks(ledger_url)
    assert record.task.options.proxy == three[1].url


def test_the_password_of_a_proxy_is_in_no_text_of_settings_or_requests():
    settings = Settings(proxies="http://ann:s3cret@127.0.0.1:8080")

    assert "s3cret" not in repr(settings) + str(settings.proxies[0]) + repr(settings.proxies[0])
    request = Request("http://example.com/", proxy="socks5://ann:s3cret@127.0.0.1")
    assert "s3cret" not in repr(request) + repr(request.options)


async def test_the_proxy_of_the_environment_is_used_unless_the_settings_say_no(
    site: ExitSite, ledger_url: str, monkeypatch: pytest.MonkeyPatch
):
    names = dict.fromkeys(["shop.test", "other.test"], f"127.0.0.1:{site.port}")
    proxy = ProxyServer("http", "127.0.0.2", names=names)
    spider = ExitSpider()
    spider.start_urls = ["http://shop.test/p/14"]
    with proxies(proxy):
        monkeypatch.setenv("http_proxy", proxy.url)
        report = await run_spider(spider, ledger=ledger_url, settings=Settings(**QUICK))
        spider.start_urls = ["http://other.test/p/13"]
        without = Settings(**QUICK, proxy_env=False, max_retry=1, host_max_failures=1)
        await run_spider(spider, ledger=ledger_url, settings=without)

    assert report.counts[Status.FINISHED] == 1
    assert [each.path for each in site.visits] == ["/p/14"]


BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbad"
GARBAGE = b"no HTTP at all\r\n\r\n"


@pytest.mark.parametrize("says", [BAD_GATEWAY, GARBAGE], ids=["502", "garbage"])
@pytest.mark.parametrize(("bad", "good", "pool"), [(1, 1, 0), (8, 2, 0), (1, 1, 2)])
@pytest.mark.representative("sqlite-1-1-0-502")
@pytest.mark.representative("sqlite-1-1-2-garbage")
async def test_proxies_that_answer_themselves_cost_no_page_an_attempt(
    bad: int, good: int, pool: int, says: bytes, ledger_url: str
):
    """With a pool of sessions another session asks, through its own proxy."""
    servers = [ProxyServer("http", f"127.0.0.{n + 2}") for n in range(bad + good)]
    for each in servers[:bad]:
        each.answers = says
    with exit_site.served(200) as site, proxies(*servers):
        spider = ExitSpider(start_urls=[f"{site.url}/p/0"])
        settings = Settings(**QUICK, proxies=[each.url for each in servers], sessions=pool)
        report = await run_spider(spider, ledger=ledger_url, settings=settings)

    assert report.finish_reason is FinishReason.DRAINED
    assert report.counts[Status.FINISHED] == 200
    assert (report.failures, report.host_failures) == ({}, {})
    assert {record.task.retry for record in await tasks(ledger_url)} == {0}
    # Each proxy has one strike or a few, and rests then.
    assert sum(len(each.heads) for each in servers[:bad]) < 100 * bad
