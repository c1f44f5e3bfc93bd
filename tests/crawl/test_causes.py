"""Whole crawls of webs that fail, in virtual time: the failures that count, and their delays."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest

from crawlcw import (
    FetchError,
    FinishReason,
    Reason,
    Request,
    Response,
    Settings,
    Spider,
    StopCrawl,
)
from crawlcw.api.attempt import Attempt, Layer, Next, Purpose, replaced
from crawlcw.assembly import assemble
from crawlcw.engine.watchdog import Watchdog
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.clock import StallLog
from crawlcw.model.counters import Report
from crawlcw.model.proxies import Proxy
from crawlcw.model.task import Status
from tests.blame.virtual import VirtualClock, run, virtual

pytestmark = pytest.mark.quick

#: The seconds to the end of a request, and its status, the target of its redirect, or its failure.
Answer = tuple[float, int | str | Reason | FetchError]
WELL: Answer = (0.1, 200)
REFUSED: Answer = (0.1, Reason.CONNECT)
SILENT: Answer = (3, Reason.TIMEOUT_CONNECT)


class Pages(Spider):
    """Asks for the URLs of its list; a number in it is the time to wait for, in seconds."""

    name = "pages"
    allowed_hosts = ("*",)

    def __init__(self, clock: VirtualClock, urls: "Sequence[str | Request | float]") -> None:
        self.clock = clock
        self.urls = urls

    async def start(self) -> AsyncIterator[Request]:
        for url in self.urls:
            if isinstance(url, float | int):
                await asyncio.sleep(url - self.clock.elapsed)
            else:
                yield Request(url) if isinstance(url, str) else url

    def parse(self, response: Response) -> None:
        pass


class Web:
    """The downloader of a web whose *answers* are those of a function; it logs its requests."""

    report: Report
    statuses: dict[Status, int]

    def __init__(self, clock: VirtualClock, answers: "Answers") -> None:
        self.clock = clock
        self.answers = answers
        self.began = clock.now
        self.asked: list[tuple[float, str]] = []

    def times(self, part: str) -> list[float]:
        """Return when the URLs with this *part* were asked for."""
        return [time for time, url in self.asked if part in url]

    async def fetch(self, request: Request, *, url: str) -> Response:
        began = self.clock.elapsed
        self.asked.append((began, url))
        seconds, end = self.answers(self, url)
        await asyncio.sleep(seconds)
        if isinstance(end, FetchError):
            raise end
        if isinstance(end, Reason):
            error = FetchError(end)
            error.port_closed = end is Reason.CONNECT
            raise error
        status, headers = (302, {"location": end}) if isinstance(end, str) else (end, {})
        elapsed = timedelta(seconds=self.clock.elapsed - began)
        return Response(url, request=request, status=status, headers=headers, elapsed=elapsed)

    async def close(self) -> None:
        pass


Answers = Callable[[Web, str], Answer]
#: Takes a web's URLs, its answers, and settings.
Crawled = Callable[..., Web]


@pytest.fixture
def crawled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crawled:
    async def crawl(web: Web, spider: Spider, prepare: Any, settings: Any) -> None:
        ledger = await SqliteLedger.open(tmp_path / "l.db", "pages", clock=web.clock.ledger_now)
        try:
            await prepare(ledger)
            web.report = await assemble(spider, ledger, web, settings).run()
            counts = await ledger.queries.counts()
            web.statuses = {status: count for status, count in counts.by_status.items() if count}
        finally:
            await ledger.close()

    async def nothing(_: SqliteLedger) -> None:
        pass

    def crawled(
        urls: Sequence[str | Request | float],
        answers: Answers,
        *,
        prepare: Callable[[SqliteLedger], Awaitable[None]] = nothing,
        layers: Sequence[Layer] = (),
        **given: Any,
    ) -> Web:
        with virtual(monkeypatch) as clock, monkeypatch.context() as patch:

            async def watched(watchdog: Watchdog) -> Watchdog:
                # Without its thread, which is in real time.
                watchdog._clock, watchdog.stalls = clock.monotonic, StallLog(now=clock.now)
                watchdog._tick()
                return watchdog

            patch.setattr(Watchdog, "__aenter__", watched)
            web = Web(clock, answers)
            settings = Settings(**{"obey_robots": False, "auto_throttle": False} | given)
            spider = Pages(clock, urls)
            spider.layers = layers
            run(clock, crawl(web, spider, prepare, settings), within=timedelta(hours=2))
            return web

    return crawled


def pages(hosts: str, number: int) -> list[str]:
    return [f"http://{host}.example/{page}" for host in hosts for page in range(number)]


# --- our own uplink


def test_a_host_whose_redirects_lead_to_dead_hosts_shows_that_the_network_is_there(
    crawled: Crawled,
):
    """Else the crawl would wait for an hour for the hosts that have gone."""

    def answers(web: Web, url: str) -> Answer:
        if "//moved." in url:
            return 0.1, "http://dead.example/"
        return REFUSED if "//dead." in url else WELL if web.clock.elapsed < 3 else SILENT

    urls = [*pages("abc", 5), *(f"http://moved.example/{n}" for n in range(20))]
    # With cookies a redirect is followed in place.
    given = {"cookies": True, "delay": "1s", "max_retry": 1, "host_max_failures": 1}
    web = crawled(urls, answers, **given)

    assert {*web.report.hosts_given_up} == {f"http://{host}.example" for host in "abc"}
    assert web.clock.elapsed < 60


def checked(*probes: Answer, late: float = 0.1) -> Answers:
    """Return the answers of a web in which `/silent` is silent at first, and others answer.

    `/late` answers after *late* seconds at first. The known good pages that are asked for again
    have the answers of the *probes* in turn.
    """
    left = iter(probes)

    def answers(web: Web, url: str) -> Answer:
        is_first = len(web.times(url)) == 1
        if "/silent" in url:
            return SILENT if is_first else WELL
        if not is_first:
            return next(left, WELL)
        return (late, 200) if "/late" in url else WELL

    return answers


def probed(web: Web) -> list[tuple[float, str]]:
    """Return the requests for pages that were asked for before, with their times."""
    asked = Counter[str]()
    again = []
    for time, url in web.asked:
        asked[url] += 1
        if asked[url] > 1 and "/silent" not in url:
            again.append((time, url))
    return again


URLS = [*pages("abc", 4), "http://e.example/late", 0.5, "http://d.example/silent"]


@pytest.mark.parametrize("second", [WELL, SILENT], ids=["answered", "not answered"])
def test_a_page_keeps_the_delay_from_a_probe_of_its_host(second: Answer, crawled: Crawled):
    """A page that is refused once has its host asked for the good page `/0`."""

    def answers(web: Web, url: str) -> Answer:
        if "/2" in url:
            return REFUSED if len(web.times(url)) == 1 else WELL
        return WELL if len(web.times(url)) == 1 else second

    web = crawled(pages("a", 5), answers, delay="20s")

    times = web.times("//a.")
    assert any("/2" not in url for _, url in probed(web))
    assert all(later - earlier >= 20 for earlier, later in pairwise(times)), web.asked


def test_probes_are_spread_over_the_good_pages_of_a_host(crawled: Crawled):
    """Without that the latest good page is asked for ten times."""

    def answers(web: Web, url: str) -> Answer:
        return (0.1, 429) if "/busy" in url else WELL

    urls = [*pages("a", 8), 5, *(f"http://a.example/busy{n}" for n in range(12))]
    web = crawled(urls, answers, max_retry=2)

    requests = Counter(url for _, url in web.asked if "/busy" not in url)
    assert requests.total() > 12
    assert max(requests.values()) - min(requests.values()) <= 1
    assert web.statuses == {Status.FINISHED: 8, Status.IGNORED: 12}
    assert not web.report.hosts_given_up


def test_a_check_of_the_network_ends_with_the_answer_of_any_page(crawled: Crawled):
    """A good page that hangs would delay the next check, and all pages with that."""
    web = crawled(
        [*URLS, 6.5, "http://f.example/silent"],
        checked((30, Reason.TIMEOUT_READ), late=3.7),
        delay="10s",
    )

    assert [round(time) for time, _ in probed(web)] == [4, 10]


def test_a_crawl_that_is_stopped_during_a_check_of_the_network_ends_with_that(crawled: Crawled):
    async def stop(attempt: Attempt, request: Request, call_next: Next) -> Response:
        if "/stop" in request.url:
            await asyncio.sleep(4)
            raise StopCrawl
        return await call_next(attempt, request)

    urls = [*pages("abc", 4), 0.5, "http://d.example/silent", "http://e.example/stop"]
    web = crawled(urls, checked(*[SILENT] * 9), layers=[stop], grace="1h")

    assert [round(time) for time, _ in probed(web)][-1] == 4
    assert web.report.finish_reason is FinishReason.STOPPED_BY_SPIDER
    assert web.clock.elapsed < 8
    assert web.statuses == {Status.FINISHED: 12, Status.TODO: 2}
    assert web.report.internal_errors == 0


@pytest.mark.thorough
def test_a_network_that_does_not_come_back_within_an_hour_is_there(crawled: Crawled):
    web = crawled(
        pages("abc", 9),
        lambda web, _: WELL if web.clock.elapsed < 3 else REFUSED,
        delay="1s",
        host_max_failures=1,
    )

    assert {*web.report.hosts_given_up} == {f"http://{host}.example" for host in "abc"}
    assert 3600 < web.clock.elapsed < 3700


def test_hosts_are_not_opened_while_the_network_is_away(crawled: Crawled):
    """They would be asked for their robots.txt again and again, for that failure does not count."""

    def answers(web: Web, _: str) -> Answer:
        return REFUSED if 7 < web.clock.elapsed < 20 else WELL

    new = [f"http://new{n}.example/" for n in range(20)]
    web = crawled([*pages("abc", 9), 8, *new], answers, obey_robots=True, delay="1s", concurrency=4)

    assert web.statuses == {Status.FINISHED: 47}
    # Before the first of them has failed.
    assert len([time for time in web.times("//new") if time < 20]) <= 2 * 8


# --- hosts


def test_a_page_whose_host_did_not_answer_lets_two_others_go_first(crawled: Crawled):
    """Although its priority is higher."""
    urls = [Request("http://a.example/first", priority=9), *pages("a", 7)]
    web = crawled(urls, lambda web, _: SILENT if len(web.asked) == 1 else WELL, delay="10s")

    order = [url.rpartition("/")[2] for _, url in web.asked]
    assert order[0] == "first"
    assert 3 <= order.index("first", 1) < 7


@pytest.mark.parametrize(
    ("statuses", "requests", "ended"),
    [("429", 1, Status.IGNORED), ("403,429", 4, Status.FINISHED)],
)
def test_a_throttle_status_is_tried_again_and_slows_the_host_as_429_does(
    statuses: str, requests: int, ended: Status, crawled: Crawled
):
    def answers(web: Web, url: str) -> Answer:
        return 0.1, 403 if len(web.asked) < 4 else 200

    web = crawled(pages("a", 1), answers, throttle_statuses=statuses, auto_throttle=True)

    assert web.statuses == {ended: 1}
    waits = [later - earlier for earlier, later in pairwise(web.times("/0"))]
    assert (len(waits), min(waits, default=10) >= 10) == (requests - 1, True)
    assert web.report.host_failures == ({} if requests == 1 else {"http-status": 3})


def test_what_waits_for_an_origin_that_is_given_up_takes_no_turn_from_the_hosts_other_one(
    crawled: Crawled,
):
    urls = [f"https://a.example/{n}" for n in range(9)]
    web = crawled(
        [*urls, "http://a.example/"],
        lambda _, url: REFUSED if "https" in url else WELL,
        delay="1s",
        host_max_failures=1,
    )

    (asked, url), (other, _) = web.asked
    assert url in urls
    assert other - asked < 2


# --- opening


class OneFails:
    """Layer that has each second probe, and the first, fail through the proxy `one`."""

    wire = True

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self.proxies = cycle(proxies)

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        response = await call_next(attempt, request)
        if attempt.purpose is not Purpose.PROBE:
            return response
        proxy = next(self.proxies)
        if proxy.host == "one":
            error = FetchError(Reason.DISCONNECTED)
            error.proxy = proxy
            raise error
        return replaced(response, proxy=proxy)


def test_a_proxy_that_fails_probes_has_the_strikes_and_the_host_has_none(
    crawled: Crawled, caplog: pytest.LogCaptureFixture
):
    proxies = ["http://one:1", "http://two:1"]
    web = crawled(
        pages("a", 30),
        lambda web, url: (
            (0.1, 429)
            if url[-2:] in ("/5", "10", "15", "20") and len(web.times(url)) == 1
            else WELL
        ),
        layers=[OneFails(ProxyPool(Settings(proxies=proxies)).proxies)],
        proxies=proxies,
        per_host_concurrency=1,
    )

    assert web.report.host_failures == {}
    assert web.statuses == {Status.FINISHED: 30}
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("proxy_failed") == 1


class Raising:
    """Layer that raises an error at the first requests of a purpose."""

    wire = True

    def __init__(self, error: Exception, purpose: Purpose, *, times: int = 1_000) -> None:
        self.error = error
        self.purpose = purpose
        self.times = times

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        if attempt.purpose is self.purpose and self.times:
            self.times -= 1
            raise self.error
        return await call_next(attempt, request)


@pytest.mark.parametrize(
    ("purpose", "urls", "answers"),
    [
        (Purpose.ROBOTS, pages("a", 9), lambda *_: WELL),
        (Purpose.PROBE, pages("a", 9), lambda _, url: REFUSED if "/2" in url else WELL),
        (Purpose.PROBE, URLS, checked()),
    ],
    ids=["robots.txt", "probe of a host", "check of the network"],
)
def test_a_layer_may_end_the_crawl_at_a_request_of_the_crawls_own(
    purpose: Purpose, urls: list[str | float], answers: Answers, crawled: Crawled
):
    layer = Raising(StopCrawl("enough"), purpose)
    web = crawled(urls, answers, layers=[layer], obey_robots=purpose is Purpose.ROBOTS)

    report = web.report
    assert (report.finish_reason, report.detail) == (FinishReason.STOPPED_BY_SPIDER, "enough")
    assert (report.given_up, report.hosts_given_up) == (0, {})


# --- robots.txt


@pytest.mark.parametrize(
    ("urls", "host"),
    [
        (["http://a.example/0", "https://a.example/0", "https://a.example/1"], "//a."),
        (["http://to-b.example/"], "//b."),
    ],
    ids=["of the other scheme", "behind a redirect"],
)
def test_a_robots_txt_takes_a_turn_of_its_host(
    urls: list[str | float], host: str, crawled: Crawled
):
    def answers(_: Web, url: str) -> Answer:
        return (0.1, "http://b.example/1") if url == "http://to-b.example/" else WELL

    # With cookies a redirect is followed in place.
    web = crawled(urls, answers, obey_robots=True, cookies=True, delay="2s")

    assert web.report.failures == {}
    assert Counter(url for _, url in web.asked).most_common(1)[0][1] == 1
    assert min(later - at for at, later in pairwise(web.times(host))) > 1.99
