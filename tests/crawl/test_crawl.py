"""Whole crawls in one process: answers from memory, a ledger in a file, no network."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from inspect import Signature, signature
from pathlib import Path
from typing import Any

import anyio
import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sessions import LoginSession
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble, run_spider
from crawlcw.crawl.crawl import Crawl
from crawlcw.engine import batching
from crawlcw.errors import (
    FetchError,
    LedgerUnavailableError,
    ParseRefusedError,
    Reason,
    SpiderError,
    StopCrawl,
)
from crawlcw.ledger.protocol import Added, Committed, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import FinishReason, Report
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.task import Record, Status, Task
from crawlcw.model.transitions import Settlement, deferred_lease
from crawlcw.testing import Replay, ReplayDownloader
from tests.blame.virtual import run, virtual
from tests.support.ledgers import LEASE, PatchedLedger, claimed_one, make_task, success
from tests.support.ledgers import claimed as claimed_all

HOME = "http://a.example/"
ROBOTS = "http://a.example/robots.txt"


def links(*addresses: str) -> str:
    return "".join(f'<a href="{address}">{address}</a>' for address in addresses)


def to(location: str, *, status: int = 302) -> Replay:
    return Replay(status=status, headers={"Location": location})


def down(status: int = 503, **headers: str) -> Replay:
    return Replay(status=status, headers=headers)


class Books(Spider):
    """Records every page and follows every link."""

    name = "books"
    start_urls = [HOME]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.given_up: list[tuple[str, Reason]] = []
        self.closed_with: list[Report] = []
        self.times_opened = 0

    async def opened(self) -> None:
        self.times_opened += 1

    async def closed(self, report: Report) -> None:
        self.closed_with.append(report)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}
        yield from response.follow_all("a")

    def on_error(self, request: Request, error: FetchError) -> Any:
        self.given_up.append((request.url, error.reason))


class Web(ReplayDownloader):
    """Downloader that keeps the requests and holds back the answers of *held* until `go` is set."""

    def __init__(self, answers: dict[str, Any], *, held: Sequence[str] = ()) -> None:
        super().__init__(answers)
        self.sent: list[Request] = []
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.held = set(held)
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled: list[str] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        if not url.endswith("/robots.txt"):
            self.sent.append(request)
        host = url.split("/")[2]
        for name in (host, "all"):
            self.under_way[name] += 1
            self.most[name] = max(self.most[name], self.under_way[name])
        try:
            if url in self.held:
                self.reached.set()
                await self.go.wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(url)
            raise
        finally:
            for name in (host, "all"):
                self.under_way[name] -= 1
        return await super().fetch(request, url=url)

    @property
    def pages(self) -> list[str]:
        """Return the requested URLs, without robots.txt."""
        return [url for url in self.requested_urls if not url.endswith("/robots.txt")]


class Slowly(ReplayDownloader):
    """Downloader that takes some *seconds* for each page, and logs the time of each request."""

    def __init__(
        self, answers: dict[str, Any], *, seconds: float, those: dict[str, float] | None = None
    ) -> None:
        super().__init__(answers)
        self.seconds = seconds
        self.those = those or {}  #: the seconds of other pages
        self.began: dict[str, float] = {}

    async def fetch(self, request: Request, *, url: str) -> Response:
        if not url.endswith("/robots.txt"):
            self.began[url] = asyncio.get_running_loop().time()
            await asyncio.sleep(self.those.get(url, self.seconds))
        return await super().fetch(request, url=url)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def ledger(path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(path, "books")
    yield ledger
    await ledger.close()


def crawl_of(spider: Spider, web: ReplayDownloader, ledger: SqliteLedger, **settings: Any) -> Crawl:
    quick = {"concurrency": 8, "backoff_base": 0, "host_backoff_base": 0.001}
    return assemble(spider, ledger, web, Settings(**quick | settings))


async def crawled(
    spider: Spider, web: ReplayDownloader, ledger: SqliteLedger, **settings: Any
) -> Report:
    return await crawl_of(spider, web, ledger, **settings).run()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test wait for no real second; its ledger has the virtual time as well."""

    def running(path: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
        with virtual(monkeypatch) as clock:

            async def opened() -> None:
                ledger = await SqliteLedger.open(path, "books", clock=clock.ledger_now)
                try:
                    await test(ledger=ledger, **given)
                finally:
                    await ledger.close()

            run(clock, opened(), within=timedelta(hours=1))

    others = [each for each in signature(test).parameters.values() if each.name != "ledger"]
    own = [*signature(running).parameters.values()][:2]
    update_wrapper(running, test)
    running.__signature__ = Signature([*others, *own])  # type: ignore[attr-defined]  # for pytest
    return running


async def record(ledger: SqliteLedger, url: str) -> Record:
    found = await ledger.tasks.get(make_task(url).id)
    assert found is not None, f"{url} is not in the ledger"
    return found


async def items(ledger: SqliteLedger) -> list[dict[str, Any]]:
    return [row.item async for row in ledger.queries.items()]


async def urls_of_items(ledger: SqliteLedger) -> list[str]:
    return sorted(item["url"] for item in await items(ledger))


def numbered(number: int) -> list[str]:
    return [f"http://a.example/{n}" for n in range(number)]


def site(number: int) -> dict[str, Any]:
    """A home page with links to *number* others, which link to one another."""
    pages = numbered(number)
    return {HOME: links(*pages)} | {
        url: links("/", *pages[n : n + 3], f"#{n}") for n, url in enumerate(pages)
    }


# The whole site, once


async def test_a_site_is_crawled_completely_and_each_page_once(ledger: SqliteLedger):
    answers = site(50)
    web = Web(answers)
    spider = Books()

    report = await crawled(spider, web, ledger)

    assert sorted(web.pages) == sorted(answers)
    assert await urls_of_items(ledger) == sorted(answers)
    assert (report.finish_reason, report.drained) == ("drained", True)
    assert (report.pages, report.items, report.released, report.leases_lost) == (51, 51, 0, 0)
    assert report.counts.by_status == {Status.FINISHED: 51}
    assert (report.failures, report.links_dropped) == ({}, {})


async def test_a_second_run_fetches_nothing(ledger: SqliteLedger):
    await crawled(Books(), Web(site(5)), ledger)
    web = Web(site(5))

    report = await crawled(Books(), web, ledger)

    assert web.requested_urls == []
    assert (report.finish_reason, report.pages) == ("drained", 0)
    assert report.counts.by_status == {Status.FINISHED: 6}


async def test_run_spider_does_it_all_in_one_call(path: Path):
    report = await run_spider(
        Books(), ledger=f"sqlite:///{path}", downloader=ReplayDownloader(site(3))
    )

    assert report.pages == 4
    assert list(path.parent.iterdir()) == [path], "the ledger is closed"


async def test_what_is_recorded_of_a_page(ledger: SqliteLedger):
    answer = Replay(
        headers={"Content-Type": "text/html;\x1b", "ETag": '"x\x1b"', "Last-Modified": "\x1bnow"},
        body=links("/1"),
        elapsed=timedelta(seconds=1.5),
    )

    await crawled(Books(), Web({HOME: answer, f"{HOME}1": Replay(body="end")}), ledger)

    home = await record(ledger, HOME)
    assert home.response is not None
    assert (home.response.status, home.response.final_url) == (200, HOME)
    assert (home.response.bytes, home.response.elapsed) == (len(links("/1")), 1.5)
    named = (home.response.content_type, home.response.etag, home.response.last_modified)
    # No control characters of a server reach a terminal.
    assert named == (r"text/html;\x1b", r'"x\x1b"', r"\x1bnow")
    assert (home.task.due, home.task.lock, home.task.fence, home.task.settled) == (None, None, 1, 1)
    child = await record(ledger, f"{HOME}1")
    assert (child.task.depth, child.task.parent) == (1, home.task.id)
    assert child.response is not None
    named = (child.response.content_type, child.response.etag, child.response.last_modified)
    assert named == (None, None, None)


@pytest.mark.parametrize(
    ("answers", "is_slow"),
    [
        ({HOME: Replay(elapsed=timedelta(seconds=9))}, True),
        # With a session a redirect is followed in place: the second host is the slow one.
        (
            {
                HOME: to("http://b.example/"),
                "http://b.example/": Replay(elapsed=timedelta(seconds=9)),
            },
            False,
        ),
    ],
    ids=["page", "behind-a-redirect"],
)
async def test_a_host_that_answers_slowly_is_asked_less_often(
    answers: dict[str, Any], is_slow: bool, ledger: SqliteLedger
):
    spider = Books()
    spider.allowed_hosts = ("a.example", "b.example")

    await crawled(spider, Web(answers), ledger, cookies=True, obey_robots=False)

    host = (await ledger.hosts.get(["a.example"]))["a.example"]
    assert (host.delay > 0) is is_slow


async def test_no_more_is_under_way_than_allowed(ledger: SqliteLedger):
    """HOSTILE 1.17."""
    hosts = [f"http://{name}.example/" for name in "abcd"]
    answers = {host: links(*(f"/{n}" for n in range(15))) for host in hosts}
    answers |= {f"{host}{n}": "" for host in hosts for n in range(15)}
    web = Web(answers)

    await crawled(Books(start_urls=hosts), web, ledger, concurrency=5, per_host_concurrency=2)

    assert len(set(web.pages)) == 64
    assert web.most["all"] <= 5 + len(hosts), "one for each fetcher, and robots.txt of each host"
    assert all(web.most[f"{name}.example"] <= 2 for name in "abcd")


@in_virtual_time
async def test_pages_that_are_throttled_among_others_cost_these_nothing(ledger: SqliteLedger):
    """HOSTILE 2.17: the host neither rests nor is slowed down."""
    busy = [f"{HOME}busy{n}" for n in range(5)]
    answers: dict[str, Any] = {HOME: links(*itertools.chain(*zip(busy, numbered(5), strict=True)))}
    answers |= dict.fromkeys(numbered(5), "a page") | dict.fromkeys(busy, down(429))
    web = Web(answers)

    report = await crawled(Books(), web, ledger, host_backoff_base=0.2, per_host_concurrency=2)

    asked = Counter(web.pages)
    assert {asked[url] for url in busy} == {1 + 3}, "a free one and three attempts"
    last = max(web.pages.index(url) for url in numbered(5))
    assert Counter(url for url in web.pages[:last] if url in busy).most_common(1)[0][1] == 1
    assert report.host_failures == {}
    (host,) = (await ledger.hosts.get(["a.example"])).values()
    assert host.delay == 0.0


@pytest.mark.parametrize("second", ["a page", "an error page"])
async def test_a_host_is_asked_for_the_next_page_while_the_last_one_is_worked_on(
    ledger: SqliteLedger, second: str
):
    """The limit counts requests, and a callback is no request."""

    class Slow(Books):
        start_urls = [f"{HOME}1", f"{HOME}2", f"{HOME}3"]

        async def parse(self, response: Response) -> AsyncIterator[Any]:
            await self.until_all_were_asked_for()
            yield {"url": response.url}

        async def on_error(self, request: Request, error: FetchError) -> None:
            await self.until_all_were_asked_for()

        async def until_all_were_asked_for(self) -> None:
            async with asyncio.timeout(5):
                while len(web.sent) < 3:
                    await asyncio.sleep(0)

    answer = "a page" if second == "a page" else down(404)
    web = Web({f"{HOME}1": "a page", f"{HOME}2": answer, f"{HOME}3": "a page"})
    report = await crawled(Slow(), web, ledger, per_host_concurrency=1)

    assert report.failures == ({} if second == "a page" else {"http-status": 1})
    assert report.pages == (3 if second == "a page" else 2)
    assert web.most["a.example"] == 1


async def test_a_page_that_is_open_in_a_browser_keeps_its_place_at_its_host(ledger: SqliteLedger):
    class Rendered(Web):
        async def fetch(self, request: Request, *, url: str) -> Response:
            response = await super().fetch(request, url=url)
            response.page = object()
            return response

    class Slow(Books):
        start_urls = [f"{HOME}1", f"{HOME}2"]

        async def parse(self, response: Response) -> AsyncIterator[Any]:
            asked = len(web.sent)
            for _ in range(100):
                await asyncio.sleep(0)
            yield {"more": len(web.sent) - asked}

    web = Rendered({f"{HOME}1": "a page", f"{HOME}2": "a page"})
    await crawled(Slow(), web, ledger, per_host_concurrency=1)

    assert await items(ledger) == [{"more": 0}, {"more": 0}]


# Failures of pages


async def test_a_missing_page_is_given_up_at_once(ledger: SqliteLedger):
    web = Web({HOME: links("/gone", "/there"), f"{HOME}there": ""})
    spider = Books()

    report = await crawled(spider, web, ledger)

    gone = await record(ledger, f"{HOME}gone")
    assert (gone.task.status, gone.task.reason) == (Status.IGNORED, Reason.HTTP_STATUS)
    assert gone.response is not None
    assert gone.response.status == 404
    assert [error.message for error in gone.errors] == ["HTTP 404"]
    assert web.pages.count(f"{HOME}gone") == 1
    assert spider.given_up == [(f"{HOME}gone", Reason.HTTP_STATUS)]
    assert (report.failures, report.failed_before) == ({"http-status": 1}, 1)
    assert report.counts.by_status == {Status.FINISHED: 2, Status.IGNORED: 1}


@pytest.mark.thorough
@pytest.mark.representative("failure0")
@pytest.mark.parametrize(
    "failure", [down(503), down(500), FetchError(Reason.TIMEOUT_READ, "nothing")]
)
async def test_a_page_that_fails_first_is_tried_again(ledger: SqliteLedger, failure: Any):
    web = Web({HOME: [failure, failure, "there"]})
    spider = Books()

    report = await crawled(spider, web, ledger, backoff_base="10ms")

    home = await record(ledger, HOME)
    assert (home.task.status, home.task.retry, home.task.reason) == (Status.FINISHED, 2, None)
    assert [error.attempt for error in home.errors] == [1, 2], "the errors are kept"
    assert web.pages == [HOME] * 3
    assert spider.given_up == []
    assert (report.pages, sum(report.failures.values())) == (1, 2)


@pytest.mark.thorough
@pytest.mark.representative("[3]")
@pytest.mark.parametrize("most", [1, 3])
@in_virtual_time
async def test_a_page_that_fails_for_ever_is_tried_as_often_as_allowed(
    ledger: SqliteLedger, most: int
):
    web = Web({HOME: down()})
    spider = Books()

    await crawled(spider, web, ledger, max_retry=most, backoff_base="10ms")

    home = await record(ledger, HOME)
    assert (home.task.status, home.task.retry) == (Status.IGNORED, most)
    assert [error.attempt for error in home.errors] == list(range(1, most + 1))
    assert web.pages == [HOME] * most
    assert spider.given_up == [(HOME, Reason.HTTP_STATUS)], "told once, at the end"


@in_virtual_time
async def test_a_request_may_ask_for_attempts_of_its_own(ledger: SqliteLedger):
    class Patient(Books):
        async def start(self):
            yield Request(HOME, max_retry=2)

    web = Web({HOME: down()})

    await crawled(Patient(), web, ledger, max_retry=1, backoff_base="10ms")

    assert web.pages == [HOME] * 2


async def test_failures_are_brought_back_and_then_succeed(ledger: SqliteLedger):
    await crawled(Books(), Web({HOME: down()}), ledger, max_retry=1)

    assert await ledger.admin.retry_failed(TaskFilter()) == 1
    report = await crawled(Books(), Web({HOME: "there"}), ledger, max_retry=1)

    assert report.counts.by_status == {Status.FINISHED: 1}


HOST_FAILURES = [
    down(429),
    down(429, **{"Retry-After": "0"}),
    down(503, **{"Retry-After": "nonsense"}),
    FetchError(Reason.CONNECT, "refused"),
    FetchError(Reason.DNS_TEMPORARY, "try again"),
    FetchError(Reason.TIMEOUT_CONNECT, "10 s"),
    FetchError(Reason.TLS, "self-signed"),
]


@pytest.mark.parametrize("failure", HOST_FAILURES)
@in_virtual_time
async def test_a_failure_of_the_host_costs_no_page_an_attempt(ledger: SqliteLedger, failure: Any):
    web = Web({HOME: [failure] * 4 + ["there"]})

    report = await crawled(Books(), web, ledger, max_retry=1, auto_throttle=False)

    home = await record(ledger, HOME)
    assert (home.task.status, home.task.retry, home.errors) == (Status.FINISHED, 0, ())
    assert web.pages == [HOME] * 5
    (host,) = [host async for host in ledger.hosts.all()]
    assert (host.failures, host.finished) == (0, 1)
    assert report.failures == {}


@pytest.mark.thorough
@pytest.mark.representative("failure0")
@pytest.mark.parametrize("failure", HOST_FAILURES)
async def test_a_host_that_fails_and_fails_is_given_up_with_all_its_tasks(
    ledger: SqliteLedger, failure: Any
):
    up = {"http://b.example/": links("/1"), "http://b.example/1": ""}
    web = Web(up | dict.fromkeys(numbered(21), failure))
    spider = Books(start_urls=[*numbered(21), *up])

    # After an answered robots.txt, a name without an address would get an hour's grace.
    settings = {"host_max_failures": 3, "auto_throttle": False, "obey_robots": False}
    report = await crawled(spider, web, ledger, **settings)

    assert report.counts.by_status == {Status.IGNORED: 21, Status.FINISHED: 2}
    assert await ledger.queries.reasons() == {"host-unreachable": 21}
    home = await record(ledger, "http://a.example/1")
    assert (home.task.retry, home.task.lost, home.task.reason) == (0, 0, Reason.HOST_UNREACHABLE)
    assert set(web.pages) > set(up)
    again = Web(dict.fromkeys(numbered(21), ""))
    assert await ledger.admin.retry_failed(TaskFilter(reason=Reason.HOST_UNREACHABLE)) == 21
    report = await crawled(spider, again, ledger)
    assert report.counts.by_status == {Status.FINISHED: 23}


async def test_on_error_is_called_for_each_page_of_a_host_that_is_given_up(ledger: SqliteLedger):
    class Told(Books):
        def on_error(self, request: Request, error: FetchError) -> Iterator[Any]:
            super().on_error(request, error)
            yield {"lost": request.url}
            yield Request(request.url.replace("a.example", "b.example"))

    pages = numbered(40)
    spares = {url.replace("a.example", "b.example"): "" for url in pages}
    web = Web(spares | dict.fromkeys(pages, FetchError(Reason.CONNECT, "refused")))
    spider = Told(start_urls=[*pages, "http://b.example/1"])

    report = await crawled(spider, web, ledger, host_max_failures=2, obey_robots=False)

    assert sorted(spider.given_up) == sorted((url, Reason.HOST_UNREACHABLE) for url in pages)
    assert report.counts.by_status == {Status.IGNORED: 40, Status.FINISHED: 40}
    assert (report.given_up, report.items) == (40, 80)
    assert await ledger.queries.reasons() == {"host-unreachable": 40}
    one = await record(ledger, pages[7])
    assert (one.task.retry, list(one.items)) == (0, [{"lost": pages[7]}])
    assert report.hosts_given_up == {"http://a.example": "host-unreachable"}
    assert 2 <= sum(url in pages for url in web.pages) <= 2 + 8, "no requests after that"


@in_virtual_time
async def test_a_name_that_does_not_exist_is_given_up_sooner(ledger: SqliteLedger):
    web = Web({HOME: FetchError(Reason.DNS_NXDOMAIN, "no such host")})

    # An answered robots.txt would show that the name has an address.
    await crawled(Books(), web, ledger, obey_robots=False)

    assert web.pages == [HOME] * 2
    assert await ledger.queries.reasons() == {"dns-nxdomain": 1}


async def test_links_to_a_host_that_was_given_up_are_ignored_without_asking(ledger: SqliteLedger):
    dead = "http://b.example/"
    refused = FetchError(Reason.CONNECT, "refused")
    web = Web({HOME: links(dead), f"{HOME}later": links(f"{dead}more"), dead: refused})
    settings = {"host_max_failures": 1}
    await crawled(Books(start_urls=[HOME, dead]), web, ledger, **settings)
    asked = web.pages.count(dead)

    await crawled(Books(start_urls=[f"{HOME}later", dead]), web, ledger, **settings)

    assert web.pages.count(dead) == asked
    assert f"{dead}more" not in web.pages
    assert await ledger.queries.reasons() == {"host-unreachable": 2}


async def test_a_server_that_names_a_time_is_asked_no_earlier(ledger: SqliteLedger):
    # The home page is requested again as a probe: perhaps only the other page is unavailable.
    home = [links("/busy", "/1"), down(503, **{"Retry-After": "1"})]
    web = Web({HOME: home, f"{HOME}busy": down(503, **{"Retry-After": "1000"})})
    spider = Books()
    crawl = crawl_of(spider, web, ledger, concurrency=1)

    async def stop_after_the_answer() -> None:
        while crawl.stats.host_failures.total() == 0:
            await asyncio.sleep(0)
        crawl.stop()

    report, _ = await asyncio.gather(crawl.run(), stop_after_the_answer())

    busy = await record(ledger, f"{HOME}busy")
    assert (busy.task.status, busy.task.retry, report.finish_reason) == (Status.TODO, 0, "stopped")
    assert web.pages == [HOME, f"{HOME}busy", HOME]
    (host,) = [host async for host in ledger.hosts.all()]
    assert host.not_before is not None
    assert host.ready_at is not None
    assert host.not_before - ledger.now() >= timedelta(seconds=900)
    assert host.ready_at >= host.not_before


@in_virtual_time
async def test_pages_of_a_session_do_not_wait_for_the_login_of_another_one(ledger: SqliteLedger):
    """Those that wait for a login would hold all fetchers, and all slots of their host."""

    class Two(Books):
        async def start(self) -> AsyncIterator[Request]:
            for number in range(9):
                yield Request(f"{HOME}slow/{number}", session="slow", priority=1)
            yield Request(f"{HOME}quick", session="quick")

        async def login(self, session: LoginSession) -> None:
            await asyncio.sleep(90 if session.name == "slow" else 0)

        def login_when(self, response: Response) -> bool:
            return False

        def parse(self, response: Response) -> None:
            ended[response.url.removeprefix(HOME)] = (ledger.now() - began).total_seconds()

    began, ended = ledger.now(), dict[str, float]()
    pages = ["quick", *(f"slow/{number}" for number in range(9))]
    web = Web({HOME + page: "" for page in pages})

    await crawled(Two(), web, ledger, concurrency=2, per_host_concurrency=0)

    assert ended.keys() == {*pages}
    assert ended["quick"] < 10
    assert all(90 <= ended[page] < 100 for page in pages[1:])


async def test_a_body_of_another_length_than_promised_is_tried_again(ledger: SqliteLedger):
    web = Web({HOME: [FetchError(Reason.PAYLOAD_TRUNCATED, "half"), "whole"]})

    report = await crawled(Books(), web, ledger)

    assert report.failures == {"payload-truncated": 1}
    assert report.pages == 1


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a downloader may not do this"),
        # A downloader reports an unknown exception like this.
        FetchError(Reason.INTERNAL, "a downloader may not do this"),
        caused(FetchError(Reason.INTERNAL), RuntimeError("a downloader may not do this")),
    ],
    ids=["raised", "told", "told with its cause"],
)
@in_virtual_time
async def test_an_error_of_crawlcw_itself_ends_no_page(error: Exception, ledger: SqliteLedger):
    web = Web(site(3) | {f"{HOME}1": error})

    report = await crawled(Books(), web, ledger)

    broken = await record(ledger, f"{HOME}1")
    assert (broken.task.status, broken.task.reason, broken.task.retry) == (Status.TODO, None, 0)
    assert broken.errors == ()
    assert report.pages == 3
    assert (report.finish_reason, report.failures) == (FinishReason.INTERNAL_ERROR, {})
    assert report.internal_errors >= 3
    assert "keeps 1 page unfinished" in report.detail
    assert "a downloader may not do this" in report.detail
    assert report.host_failures == {}


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (
            "DEBUG",
            [
                ("DEBUG", f"finish {HOME} (200, 19 bytes, 1,500 ms, parse)"),
                ("DEBUG", f"fail {HOME}0: disconnected hung up (parse)"),
                ("DEBUG", f"fail {HOME}0: disconnected (parse)"),
                ("INFO", f"give up {HOME}0: http-status HTTP 404 (404, 4 bytes, 0 ms, parse)"),
            ],
        ),
        ("INFO", [("INFO", f"give up {HOME}0: http-status HTTP 404")]),
    ],
)
async def test_the_log_has_final_failures_and_in_detail_each_outcome(
    level: str, told: list[tuple[str, str]], ledger: SqliteLedger, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(level, "crawlcw.crawl.outcomes")
    home = Replay(body=links("/0"), elapsed=timedelta(seconds=1.5))
    failures = [FetchError(Reason.DISCONNECTED, why) for why in ("hung up", "")]
    answers = {HOME: home, f"{HOME}0": [*failures, Replay(status=404, body="gone")]}

    await crawled(Books(), Web(answers), ledger)

    logged = [each for each in caplog.records if each.name == "crawlcw.crawl.outcomes"]
    assert [(each.levelname, each.getMessage()) for each in logged] == told
    assert vars(logged[-1])["reason"] == "http-status"


# Failures of the spider's own code


class Fragile(Books):
    def parse(self, response: Response) -> Iterator[Any]:
        yield from super().parse(response)
        if response.url.endswith("/1"):
            self.find_the_title(response)

    def find_the_title(self, response: Response) -> None:
        raise KeyError("title")


async def test_a_callback_that_raises_costs_its_own_page_only(ledger: SqliteLedger):
    web = Web(site(4))
    spider = Fragile()

    report = await crawled(spider, web, ledger, max_retry=2)

    broken = await record(ledger, f"{HOME}1")
    assert (broken.task.status, broken.task.reason) == (Status.IGNORED, Reason.PARSE_ERROR)
    assert [error.message for error in broken.errors] == ["KeyError: 'title'"], "fetched once"
    traceback = broken.errors[0].traceback
    assert traceback is not None
    assert "find_the_title" in traceback
    assert "crawlcw/crawl/callbacks.py" not in traceback
    assert broken.items == (), "no items of a failed page"
    assert (report.pages, report.failures) == (4, {"parse-error": 1})
    assert spider.given_up == [(f"{HOME}1", Reason.PARSE_ERROR)]
    assert web.pages.count(f"{HOME}1") == 1


async def test_a_callback_that_has_read_a_page_is_not_broken(ledger: SqliteLedger):
    class Mostly(Books):
        start_urls = [HOME, *(f"{HOME}{n}" for n in range(30))]

        def parse(self, response: Response) -> None:
            if response.url != HOME:
                raise KeyError("title")

    web = Web(dict.fromkeys(Mostly.start_urls, ""))
    report = await crawled(Mostly(), web, ledger, concurrency=1)

    assert (report.finish_reason, report.failures) == (FinishReason.DRAINED, {"parse-error": 30})


async def test_an_error_of_a_callback_is_logged_once_and_no_more_than_100_of_them(
    ledger: SqliteLedger, caplog: pytest.LogCaptureFixture
):
    class Mostly(Books):
        start_urls = [HOME, *(f"{HOME}{n}" for n in range(120))]

        def parse(self, response: Response) -> None:
            if response.url != HOME:
                number = max(10, int(response.url.removeprefix(HOME)))
                raise type(f"Error{number}", (Exception,), {})("why")

    await crawled(Mostly(), Web(dict.fromkeys(Mostly.start_urls, "")), ledger, concurrency=1)

    told = [
        each.message for each in caplog.records if getattr(each, "event", None) == "callback_failed"
    ]
    assert len(told) == len(set(told)) == 100
    assert len([each for each in told if "Error10:" in each]) == 1
    assert "Error10: why at " in told[0]


@pytest.mark.parametrize("role", ["callback", "errback"])
async def test_a_callback_that_was_renamed_costs_no_page_and_its_old_name_may_stay(
    role: str, ledger: SqliteLedger
):
    class Before(Books):
        def parse(self, response: Response) -> Iterator[Any]:
            yield Request(f"{HOME}1", **{role: self.parse_bok}) if response.url == HOME else {}

        def parse_bok(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url}

    class Renamed(Books):
        def parse_book(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url}

    class Mapped(Renamed):
        parse_bok = Renamed.parse_book

    web = Web({HOME: "", f"{HOME}1": ""})
    await crawled(Before(), web, ledger, max_pages=1)

    report = await crawled(Renamed(), web, ledger)

    assert (report.finish_reason, report.pages) == (FinishReason.CALLBACK_BROKEN, 0)
    assert report.detail == (
        "Renamed has no callback 'parse_bok', but a page in the ledger needs it: if you renamed "
        "it, keep the old name in the class: `parse_bok = parse_new`"
    )
    assert [request.url for request in web.sent] == [HOME]
    task = (await record(ledger, f"{HOME}1")).task
    assert (task.status, task.retry) == (Status.TODO, 0)
    report = await crawled(Mapped(), web, ledger)
    assert (report.finish_reason, report.items) == (FinishReason.DRAINED, 1)


async def test_an_error_callback_is_called_once_and_may_yield(ledger: SqliteLedger):
    class Forgiving(Books):
        def parse(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url}
            if response.url == HOME:
                yield Request(f"{HOME}1", errback=self.mirror, context={"n": 1})

        def mirror(self, request: Request, error: FetchError) -> Iterator[Any]:
            self.given_up.append((request.url, error.reason))
            yield {"url": request.url, "status": error.status, "n": request.context["n"]}  # type: ignore[index]  # it was given
            yield Request(f"{HOME}mirror")

    spider = Forgiving()

    await crawled(spider, Web({HOME: "", f"{HOME}1": down(), f"{HOME}mirror": ""}), ledger)

    failed = await record(ledger, f"{HOME}1")
    assert failed.task.status is Status.IGNORED
    assert failed.items == ({"url": f"{HOME}1", "status": 503, "n": 1},)
    assert (await record(ledger, f"{HOME}mirror")).task.status is Status.FINISHED
    assert spider.given_up == [(f"{HOME}1", Reason.HTTP_STATUS)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no hope"), "ValueError: no hope at "),
        # A selector raises it, on the page of the error.
        (ParseRefusedError("too deep"), "too deep on "),
        (ParseRefusedError(""), "parse-killed on "),
    ],
    ids=["its own", "of the parser", "without a word"],
)
async def test_an_error_callback_that_raises_changes_nothing(
    error: Exception, told: str, ledger: SqliteLedger, caplog: pytest.LogCaptureFixture
):
    class Hopeless(Books):
        def on_error(self, request: Request, _: FetchError) -> None:
            raise error

    report = await crawled(Hopeless(), Web({}), ledger)

    assert report.counts.by_status == {Status.IGNORED: 1}
    assert (await record(ledger, HOME)).task.reason is Reason.HTTP_STATUS
    assert f"on_error raised {told}" in caplog.text
    (logged,) = [each for each in caplog.records if getattr(each, "traceback", None) is not None]
    assert ("no hope" in vars(logged)["traceback"]) is ("no hope" in told)


# Redirects


@pytest.mark.parametrize(
    "home",
    [links("/old"), links("/old", "/new"), links("/new", "/old"), links("/old", "/older", "/new")],
)
@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_redirected_page_is_recorded_once_under_its_real_address(
    ledger: SqliteLedger, home: str, concurrency: int
):
    answers = {
        HOME: home,
        f"{HOME}old": to("/new"),
        f"{HOME}older": to("/old"),
        f"{HOME}new": "the page",
    }

    report = await crawled(Books(), Web(answers), ledger, concurrency=concurrency)

    alias, target = await record(ledger, f"{HOME}old"), await record(ledger, f"{HOME}new")
    assert (alias.task.status, alias.items) == (Status.FINISHED, ())
    assert alias.response is not None
    assert alias.response.final_url == f"{HOME}new"
    assert (target.task.status, target.items) == (Status.FINISHED, ({"url": f"{HOME}new"},))
    assert await urls_of_items(ledger) == [HOME, f"{HOME}new"]
    assert (report.pages, report.drained) == (2, True)


async def test_the_page_behind_a_redirect_keeps_what_the_spider_passed_along(
    ledger: SqliteLedger,
):
    class Staged(Books):
        def parse(self, response: Response) -> Iterator[Any]:
            yield Request(f"{HOME}old", self.parse_book, context={"n": 7})

        def parse_book(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url, "n": response.context["n"]}

    await crawled(Staged(), Web({HOME: "", f"{HOME}old": to("/new"), f"{HOME}new": ""}), ledger)

    assert await items(ledger) == [{"url": f"{HOME}new", "n": 7}]


async def test_a_redirect_to_another_spelling_of_itself_is_one_task(ledger: SqliteLedger):
    spelled = f"{HOME}x?b=1&a=2"
    web = Web({HOME: links("/x?a=2&b=1"), f"{HOME}x?a=2&b=1": to(spelled), spelled: ""})

    report = await crawled(Books(), web, ledger)

    assert report.counts.by_status == {Status.FINISHED: 2}
    assert await urls_of_items(ledger) == [HOME, spelled]


async def test_a_redirect_out_of_scope_is_not_followed(ledger: SqliteLedger):
    web = Web({HOME: to("http://b.example/"), "http://b.example/": "elsewhere"})

    report = await crawled(Books(), web, ledger)

    assert web.pages == [HOME]
    assert (await record(ledger, HOME)).task.reason is Reason.REFUSED_SCOPE
    assert report.counts.total == 1


async def test_a_redirect_to_what_robots_txt_disallows_is_not_followed(ledger: SqliteLedger):
    web = Web(
        {
            ROBOTS: Replay(body="User-agent: *\nDisallow: /private/"),
            HOME: to("/private/page"),
            f"{HOME}private/page": "secret",
        }
    )

    await crawled(Books(), web, ledger)

    home = await record(ledger, HOME)
    assert (home.task.status, home.task.reason) == (Status.IGNORED, Reason.REFUSED_ROBOTS)
    assert web.pages == [HOME]


B = "http://b.example/"
SECRET = {"Authorization": "Basic c2VjcmV0", "Accept-Language": "de"}


class Careful(Books):
    """Sends a secret to its first host; both hosts are its own."""

    allowed_hosts = ("a.example", "b.example")

    async def start(self) -> AsyncIterator[Request]:
        yield Request(HOME, headers=SECRET, context={"n": 7})

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "n": response.context["n"]}


async def test_what_a_redirect_to_another_host_leads_to_is_a_task_of_that_host(
    ledger: SqliteLedger,
):
    web = Web({HOME: to(f"{B}old"), f"{B}old": to("/new"), f"{B}new": "the page"})

    report = await crawled(Careful(), web, ledger)

    alias, target = await record(ledger, HOME), await record(ledger, f"{B}new")
    assert (alias.task.status, alias.items) == (Status.FINISHED, ())
    assert alias.response is not None
    assert alias.response.status == 302
    # The page of a start URL has the depth 0 on any host.
    assert (target.task.depth, target.task.status) == (0, Status.FINISHED)
    assert await items(ledger) == [{"url": f"{B}new", "n": 7}]
    assert (report.pages, report.drained) == (1, True)
    sent = {request.url: dict(request.headers) for request in web.sent}
    harmless = {"Accept-Language": "de"}
    assert sent == {HOME: SECRET, f"{B}old": harmless, f"{B}new": harmless}


async def test_a_redirect_on_a_host_with_a_delay_waits_for_its_turn(ledger: SqliteLedger):
    web = Web({HOME: to("/new"), f"{HOME}new": "the page"})

    await crawled(Careful(), web, ledger, delay="10ms")

    assert await items(ledger) == [{"url": f"{HOME}new", "n": 7}]
    assert (await record(ledger, f"{HOME}new")).task.depth == 0
    assert [dict(request.headers) for request in web.sent] == [SECRET] * 2


async def test_with_cookies_a_redirect_leads_through_another_host_and_back(ledger: SqliteLedger):
    web = Web({HOME: [to(B), "the page"], B: to(HOME)})

    await crawled(Careful(), web, ledger, cookies=True)

    assert await items(ledger) == [{"url": HOME, "n": 7}]


async def test_a_redirect_within_a_host_is_no_link_further(ledger: SqliteLedger):
    web = Web({HOME: links("/old"), f"{HOME}old": to("/new"), f"{HOME}new": links("/far")})

    await crawled(Books(), web, ledger, max_depth=1)

    assert await urls_of_items(ledger) == [HOME, f"{HOME}new"]
    assert (await record(ledger, f"{HOME}far")).task.reason is Reason.REFUSED_DEPTH


# Pages that are not fetched


async def test_what_robots_txt_disallows_is_never_requested(ledger: SqliteLedger):
    web = Web(
        {
            ROBOTS: Replay(body="User-agent: *\nDisallow: /private/"),
            HOME: links("/private/1", "/private/2", "/open"),
            f"{HOME}open": "",
        }
    )
    spider = Books()

    report = await crawled(spider, web, ledger)

    assert sorted(web.requested_urls) == [HOME, f"{HOME}open", ROBOTS]
    private = await record(ledger, f"{HOME}private/1")
    assert (private.task.status, private.task.reason) == (Status.IGNORED, Reason.REFUSED_ROBOTS)
    assert private.task.retry == 0, "unwanted, not failed"
    assert (f"{HOME}private/1", Reason.REFUSED_ROBOTS) in spider.given_up
    assert (await ledger.admin.count_failed(TaskFilter())).number == 0
    assert report.counts.by_status == {Status.FINISHED: 2, Status.IGNORED: 2}


async def test_robots_txt_is_asked_for_first_and_once(ledger: SqliteLedger):
    web = Web(site(20))

    await crawled(Books(), web, ledger)

    assert web.requested_urls[0] == ROBOTS
    assert web.requested_urls.count(ROBOTS) == 1


async def test_while_robots_txt_is_not_to_be_had_no_page_is_requested(ledger: SqliteLedger):
    web = Web(site(1) | {ROBOTS: down()})

    await crawled(Books(), web, ledger, host_max_failures=3)

    assert web.requested_urls == [ROBOTS] * 3
    assert (await record(ledger, HOME)).task.reason is Reason.HOST_UNREACHABLE


@pytest.mark.parametrize(
    "reason", [Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT, Reason.DNS_NXDOMAIN]
)
async def test_a_robots_txt_that_is_moved_out_of_reach_says_nothing_of_its_own_host(
    reason: Reason, ledger: SqliteLedger
):
    """RFC 9309, section 2.3.1.4: it is unreachable, and the host is asked again later."""
    moved = Replay(status=302, headers={"Location": "http://b.example/r.txt"})
    web = Web(site(1) | {ROBOTS: moved, "http://b.example/r.txt": FetchError(reason)})

    await crawled(Books(), web, ledger, host_max_failures=3)

    assert web.requested_urls == [ROBOTS, "http://b.example/r.txt"] * 3
    assert (await record(ledger, HOME)).task.reason is Reason.HOST_UNREACHABLE


async def test_robots_txt_can_be_left_alone(ledger: SqliteLedger):
    web = Web({ROBOTS: Replay(body="User-agent: *\nDisallow: /"), HOME: ""})

    await crawled(Books(), web, ledger, obey_robots=False)

    assert web.requested_urls == [HOME]
    assert (await ledger.hosts.get(["a.example"]))["a.example"].robots is None


async def test_links_to_other_hosts_are_counted_and_not_followed(ledger: SqliteLedger):
    web = Web({HOME: links("http://b.example/", "http://www.a.example/", "mailto:x@y.example")})

    report = await crawled(Books(), web, ledger, max_retry=1)

    assert "http://b.example/" not in web.requested_urls
    assert "http://www.a.example/" in web.requested_urls, "below an allowed host"
    assert report.links_dropped == {"refused-scope": 1, "refused-scheme": 1}
    assert report.link_examples == {
        "refused-scope": ["http://b.example/"],
        "refused-scheme": ["mailto:x@y.example"],
    }


@pytest.mark.parametrize("allowed", [None, ["www.a.example"]])
@pytest.mark.parametrize("session", ["", "ada"])
async def test_a_start_url_may_redirect_to_its_name_without_www(
    ledger: SqliteLedger, session: str, allowed: list[str] | None
):
    www = "http://www.a.example/"
    spider = Books(start_urls=[www])
    spider.default_session, spider.allowed_hosts = session, allowed
    found = links("/1", "http://blog.a.example/", f"{www}2")
    web = Web({
        www: to(HOME), HOME: to("https://a.example/home"), "https://a.example/home": found,
        f"{www}2": links("http://a.example/3"), "https://a.example/1": to("/4"),
        "https://a.example/4": "",
    })  # fmt: skip

    report = await crawled(spider, web, ledger)

    assert sorted(page for page in web.pages if "https" in page or "2" in page) == sorted(
        ["https://a.example/home", "https://a.example/1", "https://a.example/4", f"{www}2"]
    )
    # The page on `www.` is no start URL, so its link to the name alone is another host's.
    assert report.links_dropped == {"refused-scope": 2}
    assert report.failures == {}


async def test_a_start_url_that_redirects_to_another_host_names_the_setting(ledger: SqliteLedger):
    spider = Books(start_urls=["http://www.a.example/", "http://www.b.example/1"])
    web = Web({"http://www.a.example/": to(B), "http://www.b.example/1": links("/2"),
               "http://www.b.example/2": to(B)})  # fmt: skip

    await crawled(spider, web, ledger)

    for url in ("http://www.a.example/", "http://www.b.example/2"):
        assert [error.message for error in (await record(ledger, url)).errors] == [
            "b.example is not in allowed_hosts: add it there to crawl its pages"
        ]


async def test_every_host_is_followed_where_the_spider_says_so(ledger: SqliteLedger):
    class Anywhere(Books):
        allowed_hosts = ("*",)

    web = Web({HOME: links("http://b.example/"), "http://b.example/": ""})

    assert (await crawled(Anywhere(), web, ledger)).pages == 2


async def test_of_a_host_that_is_not_its_own_a_crawl_takes_so_many_pages_and_no_more(
    ledger: SqliteLedger,
):
    trap = {f"{B}{n}": links(*(f"/{n + m}" for m in range(1, 5))) for n in range(1, 90)}
    web = Web(site(12) | {HOME: links(f"{B}1", "/1"), f"{HOME}1": ""} | trap)
    spider = Books()
    spider.allowed_hosts = "*"

    report = await crawled(spider, web, ledger, max_pages_per_host=10, concurrency=1)

    asked = Counter(url.split("/")[2] for url in web.pages)
    assert asked["b.example"] == 10
    assert (await ledger.queries.reasons())["max-pages-per-host"] == report.over_full > 0
    assert report.drained
    more = await crawled(spider, web, ledger, max_pages_per_host=20, concurrency=1)
    assert more.counts[Status.FINISHED] == report.counts[Status.FINISHED]
    await ledger.admin.retry_failed(TaskFilter(reason=Reason.HOST_FULL))
    await crawled(spider, web, ledger, max_pages_per_host=20, concurrency=1)
    asked = Counter(url.split("/")[2] for url in web.pages)
    assert asked["b.example"] == 20


@pytest.mark.parametrize("is_start", [False, True], ids=["linked host", "start host"])
@in_virtual_time
async def test_the_pages_of_a_host_are_limited_while_start_runs(
    ledger: SqliteLedger, is_start: bool
):
    class Late(Books):
        allowed_hosts = ("*",)

        async def start(self) -> AsyncIterator[Request]:
            yield Request(HOME)
            await asyncio.sleep(40)
            if is_start:
                yield Request(f"{B}1")

    chain = {f"{B}{n}": links(f"{B}{n + 1}") for n in range(1, 30)} | {f"{B}30": ""}
    web = Slowly({HOME: links(f"{B}1")} | chain, seconds=1)
    running = asyncio.create_task(crawled(Late(), web, ledger, max_pages_per_host=10))
    await asyncio.sleep(35)

    assert len(web.began) == 1 + 10

    assert (await running).pages == 1 + (30 if is_start else 10)


@pytest.mark.thorough
@in_virtual_time
async def test_other_pages_of_a_host_do_not_wait_for_the_end_of_its_first_one(
    ledger: SqliteLedger,
):
    film, *others = numbered(4)
    web = Slowly(dict.fromkeys([film, *others], ""), seconds=1, those={film: 150})
    long = {"timeout": "1h", "read_timeout": "1h", "per_host_concurrency": 8}

    report = await crawled(Books(start_urls=[film, *others]), web, ledger, **long)

    assert report.pages == 4
    assert max(web.began.values()) - web.began[film] < 100


@pytest.mark.thorough
@in_virtual_time
async def test_a_quarantined_page_keeps_others_waiting_for_moments_alone(ledger: SqliteLedger):
    slow, doubtful = "http://slow.example/", "http://doubtful.example/"
    quick = [f"http://quick.example/{n}" for n in range(30)]
    await ledger.tasks.add([make_task(doubtful)])
    for _ in range(2):
        await claimed_all(ledger)
        await asyncio.sleep(LEASE.total_seconds() + 1)
    later = ledger.now() + timedelta(seconds=20)
    await ledger.outcomes.release(
        [deferred_lease(each, due=later) for each in await claimed_all(ledger)]
    )
    chain = {url: links(after) for url, after in itertools.pairwise([*quick, HOME])}
    web = Slowly({slow: "", doubtful: "", HOME: ""} | chain, seconds=1, those={slow: 100})
    long = {"timeout": "1h", "read_timeout": "1h"}
    spider = Books(start_urls=[slow, quick[0], HOME])

    report = await crawled(spider, web, ledger, **long)

    assert report.pages == 33
    assert web.began[quick[-1]] - web.began[slow] < 60
    assert web.began[doubtful] - web.began[slow] >= 100, "alone"


@pytest.mark.parametrize("slots", [1, 2])
@in_virtual_time
async def test_a_quarantined_page_gets_a_slot_for_its_own_request_while_others_wait(
    ledger: SqliteLedger, slots: int
):
    class Asking(Books):
        async def parse(self, response: Response) -> Any:
            yield {"answer": (await self.fetch(Request(f"{HOME}answer"))).text}

    doubtful, *others = numbered(4)
    await ledger.tasks.add([make_task(doubtful)])
    for _ in range(2):
        await claimed_all(ledger)
        await asyncio.sleep(LEASE.total_seconds() + 1)
    web = Web(dict.fromkeys([doubtful, *others, f"{HOME}answer"], ""))
    started_at = asyncio.get_running_loop().time()

    report = await crawled(Asking(start_urls=others), web, ledger, per_host_concurrency=slots)

    assert (report.pages, report.items) == (4, 4)
    assert len(web.sent) == 8, "no request is repeated"
    assert asyncio.get_running_loop().time() - started_at < 10


async def test_links_are_followed_no_deeper_than_allowed(ledger: SqliteLedger):
    chain = {url: links(f"/{n + 1}") for n, url in enumerate(numbered(6))}
    web = Web({HOME: links("/0")} | chain)

    report = await crawled(Books(), web, ledger, max_depth=2)

    assert web.pages == [HOME, f"{HOME}0", f"{HOME}1"]
    assert report.links_dropped == {"refused-depth": 1}


async def test_links_that_lay_too_deep_are_followed_under_a_higher_limit(ledger: SqliteLedger):
    chain = {url: links(f"/{n + 1}") for n, url in enumerate(numbered(6))}
    web = Web({HOME: links("/0")} | chain)
    await crawled(Books(), web, ledger, max_depth=2)
    kept = await record(ledger, f"{HOME}2")
    assert (kept.task.status, kept.task.depth) == (Status.IGNORED, 3)
    await crawled(Books(), web, ledger, max_depth=1)
    assert len(web.pages) == 3

    report = await crawled(Books(), web, ledger, max_depth=4)

    assert web.pages == [HOME, *numbered(4)]
    assert report.links_dropped == {"refused-depth": 1}
    await crawled(Books(), web, ledger)
    # The chain has no page after the last one.
    assert web.pages[:7] == [HOME, *numbered(6)]
    assert await ledger.queries.reasons() == {"http-status": 1}


@pytest.mark.parametrize("way", ["link", "redirect", "seed"])
async def test_a_link_that_lay_too_deep_is_followed_when_a_shorter_way_is_found(
    ledger: SqliteLedger, way: str
):
    pages = {HOME: links("/0"), f"{HOME}0": links("/1"), f"{HOME}1": links("/deep")}
    ways = {f"{HOME}alias": to(f"{HOME}deep"), B: links(f"{HOME}deep")}
    web = Web(pages | ways | {f"{HOME}deep": ""})
    await crawled(Books(), web, ledger, max_depth=2)
    assert (await record(ledger, f"{HOME}deep")).task.status is Status.IGNORED
    start, found = {
        "link": (B, 1),
        "redirect": (f"{HOME}alias", 0),
        "seed": (f"{HOME}deep", 0),
    }[way]
    spider = Books(start_urls=[start])
    spider.allowed_hosts = "*"

    report = await crawled(spider, web, ledger, max_depth=2)

    deep = (await record(ledger, f"{HOME}deep")).task
    assert (deep.status, deep.depth) == (Status.FINISHED, found)
    assert report.drained


async def test_hosts_that_lead_to_one_another_for_ever_end_after_the_redirects_allowed(
    ledger: SqliteLedger,
):
    web = Web({f"http://{n}.b.example/": to(f"http://{n + 1}.b.example/") for n in range(99)})
    spider = Books(start_urls=["http://0.b.example/"])
    spider.allowed_hosts = ("b.example",)

    report = await crawled(spider, web, ledger, max_redirects=4)

    assert web.pages == [f"http://{n}.b.example/" for n in range(5)]
    assert await ledger.queries.reasons() == {"redirect-limit": 1}
    assert (await record(ledger, "http://4.b.example/")).task.hops == 4
    assert report.drained


async def test_exactly_as_many_pages_are_finished_as_asked_for(ledger: SqliteLedger):
    web = Web(site(60) | {url: down(404) for url in numbered(60)[::3]})

    report = await crawled(Books(), web, ledger, max_pages=17)

    assert (report.finish_reason, report.pages, report.drained) == ("max-pages", 17, False)
    assert report.counts[Status.FINISHED] == 17
    assert report.counts[Status.PROCESSING] == 0
    assert report.counts[Status.TODO] > 0, "the next run does the rest"


@pytest.mark.parametrize(("each", "recorded"), [(1, 17), (3, 18)])
async def test_as_many_items_are_recorded_as_asked_for_and_the_rest_of_the_last_page(
    each: int, recorded: int, ledger: SqliteLedger
):
    class Several(Books):
        def parse(self, response: Response) -> Iterator[Any]:
            yield from ({"n": number} for number in range(each))
            yield from response.follow_all("a")

    report = await crawled(Several(), Web(site(60)), ledger, max_items=17, concurrency=1)

    assert (report.finish_reason, report.items, report.drained) == ("max-items", recorded, False)
    assert len(await items(ledger)) == recorded
    assert report.counts[Status.PROCESSING] == 0
    assert report.counts[Status.TODO] > 0, "the next run does the rest"


async def test_a_site_smaller_than_the_number_of_pages_asked_for_is_drained(
    ledger: SqliteLedger,
):
    report = await crawled(Books(), Web(site(3)), ledger, max_pages=4)

    assert report.pages == 4
    report = await crawled(Books(), Web(site(3)), ledger, max_pages=4)
    assert (report.finish_reason, report.pages) == ("drained", 0)


# Options of a request


async def test_higher_priorities_go_first(ledger: SqliteLedger):
    class Ordered(Books):
        async def start(self) -> AsyncIterator[Request]:
            for priority in (0, 5, -5, 100):
                yield Request(f"{HOME}{priority}", priority=priority)

    web = Web({f"{HOME}{n}": "" for n in (0, 5, -5, 100)})

    await crawled(Ordered(), web, ledger, concurrency=1)

    assert web.pages == [f"{HOME}{n}" for n in (100, 5, 0, -5)]


CONTEXT = {
    "text": "ü",
    "number": 7,
    "share": 0.5,
    "nothing": None,
    "when": datetime(2026, 1, 1, tzinfo=UTC),
    "raw": b"\x00\xff",
    "nested": {"$set": [1, {"a.b": True}]},
}


async def test_what_a_spider_passes_along_arrives_as_it_was(ledger: SqliteLedger):
    seen: list[Any] = []

    class Passing(Books):
        def parse(self, response: Response) -> Iterator[Any]:
            yield Request(f"{HOME}1", self.parse_book, context=CONTEXT)

        async def parse_book(self, response: Response) -> None:
            seen.append(response.context)

    await crawled(Passing(), Web({HOME: "", f"{HOME}1": ""}), ledger)

    assert seen == [CONTEXT]


async def test_a_request_is_sent_as_it_was_asked_for(ledger: SqliteLedger):
    class Posting(Books):
        async def start(self) -> AsyncIterator[Request]:
            yield Request(f"{HOME}api", json={"page": 1}, headers={"X-Key": "k"})
            yield Request(f"{HOME}api", json={"page": 2})
            yield Request(f"{HOME}api", json={"page": 2})
            yield Request(f"{HOME}api", data={"q": "x"}, method="PUT")

    web = Web({f"{HOME}api": "{}"})

    await crawled(Posting(), web, ledger, concurrency=1)

    assert sorted((request.method, request.body) for request in web.sent) == [
        ("POST", b'{"page": 1}'),
        ("POST", b'{"page": 2}'),
        ("PUT", b"q=x"),
    ]
    first = next(request for request in web.sent if request.body == b'{"page": 1}')
    assert first.headers == (("X-Key", "k"), ("Content-Type", "application/json"))


async def test_unfiltered_requests_are_each_fetched(ledger: SqliteLedger):
    class Polling(Books):
        async def start(self) -> AsyncIterator[Request]:
            for _ in range(2):
                yield Request(HOME, dont_filter=True)

        def parse(self, response: Response) -> Iterator[Any]:
            yield {"n": response.context.get("n", 0)}
            if not response.context:
                for n in (1, 2):
                    yield Request(HOME, dont_filter=True, context={"n": n})

    web = Web({HOME: ""})

    await crawled(Polling(), web, ledger)

    assert web.pages == [HOME] * 6
    assert sorted(item["n"] for item in await items(ledger)) == [0, 0, 1, 1, 2, 2]


async def test_seeds_may_come_slowly_and_be_no_urls_at_all(
    ledger: SqliteLedger, caplog: pytest.LogCaptureFixture
):
    web = Web({HOME: "", "http://b.example/": ""}, held=())

    class Slow(Books):
        start_urls = ()

        async def start(self) -> AsyncIterator[Request]:
            yield Request("mailto:me@a.example")
            for url in (HOME, "http://b.example/"):
                await asyncio.sleep(0.1)  # a slow source
                yield Request(url)

    report = await crawled(Slow(), web, ledger)

    assert sorted(web.pages) == [HOME, "http://b.example/"]
    assert report.drained
    assert "no URL to start from: refused-scheme" in caplog.text


async def test_what_another_process_added_and_did_not_announce_is_found_while_start_waits(
    ledger: SqliteLedger,
):
    left = "http://b.example/"
    await ledger.tasks.add([make_task(left)])  # and was killed

    class Following(Books):
        allowed_hosts = ("a.example", "b.example")
        parsed = asyncio.Event()

        async def start(self) -> AsyncIterator[Request]:
            yield Request(HOME)
            await self.parsed.wait()

        def parse(self, response: Response) -> Iterator[Any]:
            if response.url == left:
                self.parsed.set()
            yield from ()

    with anyio.fail_after(30):
        report = await crawled(Following(), Web({HOME: "", left: ""}), ledger)

    assert (report.pages, report.drained) == (2, True)


async def test_a_crawl_that_waits_for_start_alone_says_so(ledger: SqliteLedger):
    class Waiting(Books):
        go_on = asyncio.Event()

        async def start(self) -> AsyncIterator[Request]:
            yield Request(HOME)
            await self.go_on.wait()

    crawl = crawl_of(Waiting(), Web({HOME: ""}), ledger)

    async def look() -> None:
        while crawl.idle_reason != IdleReason(start=True):
            await asyncio.sleep(0.05)
        Waiting.go_on.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            assert (await crawl.run()).drained


async def test_a_crawl_that_ends_writes_the_seeds_that_it_has_read(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batching, "_MAX_GATHER_S", 1000.0)
    home = make_task(HOME)  # as an earlier crawl has left it
    await ledger.tasks.add([home])
    await ledger.hosts.wake({home.host: home.due})
    last = "http://a.example/last"

    class Endless(Books):
        read = asyncio.Event()

        async def start(self) -> AsyncIterator[Request]:
            yield Request(last)  # from a queue that hands it out only once
            self.read.set()
            await asyncio.Event().wait()

        async def parse(self, response: Response) -> AsyncIterator[Any]:
            await self.read.wait()
            raise StopCrawl("enough")
            yield

    report = await crawled(Endless(), Web({HOME: ""}), ledger)

    assert (report.finish_reason, report.detail) == (FinishReason.STOPPED_BY_SPIDER, "enough")
    assert last in [record.task.url for record in await ledger.queries.find(TaskFilter(), limit=9)]


# When pages are begun


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_links_are_begun_at_once_at_hosts_that_are_asked_already_and_at_others(
    ledger: SqliteLedger,
):
    slow, linking, same, other = (
        "http://a.example/slow",
        "http://b.example/",
        "http://a.example/same",
        "http://c.example/",
    )
    web = Slowly(
        {slow: "", linking: links(same, other), same: "", other: ""}, seconds=5, those={slow: 20}
    )

    class Three(Books):
        start_urls = [slow, linking]
        allowed_hosts = ("a.example", "b.example", "c.example")

    report = await crawled(Three(), web, ledger, per_host_concurrency=0)

    assert report.pages == 4
    ended = web.began[linking] + 5
    assert web.began[same] - ended < 0.2
    assert web.began[other] - ended < 0.5
    assert now() - web.began[slow] - 20 < 0.2, "it ends with its last page"


@pytest.mark.parametrize("pages", [None, 3])
@in_virtual_time
async def test_a_crawl_ends_with_its_last_page(ledger: SqliteLedger, pages: int | None):
    urls = numbered(9)
    web = Slowly(dict.fromkeys(urls, ""), seconds=5)

    report = await crawled(Books(start_urls=urls), web, ledger, max_pages=pages)

    assert report.pages == (pages or 9)
    assert now() - max(web.began.values()) - 5 < 0.2


@in_virtual_time
async def test_a_crawl_that_waits_until_tomorrow_finds_what_others_add_and_may_be_stopped(
    ledger: SqliteLedger,
):
    later, added = "http://a.example/later", "http://b.example/"
    await ledger.tasks.add([make_task(later, due=ledger.now() + timedelta(days=1))])
    web = Slowly({added: ""}, seconds=5)
    crawl = crawl_of(Books(start_urls=["http://a.example/"]), web, ledger)
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(150)

    began = now()
    await ledger.tasks.add([make_task(added)])
    await ledger.hosts.wake({make_task(added).host: ledger.now()})
    await asyncio.sleep(20)
    assert web.began[added] - began < 10
    stopped = now()
    crawl.stop()

    assert (await running).finish_reason == "stopped"
    assert now() - stopped < 0.2


# Start and end of the spider


async def test_a_spider_may_be_opened_and_closed_by_plain_functions(ledger: SqliteLedger):
    class Plain(Books):
        def opened(self) -> None:  # type: ignore[override]  # as spiders of Scrapy have them
            self.called = ["opened"]

        def closed(self, reason: Report) -> None:  # type: ignore[override]  # likewise
            self.called.append(reason.finish_reason)

    spider = Plain()

    report = await crawled(spider, Web(site(2)), ledger)

    assert report.drained
    assert spider.called == ["opened", "drained"]


def raising(name: str, *, asynchronous: Callable[..., Any]) -> Books:
    return type("Broken", (Books,), {name: asynchronous})()  # type: ignore[no-any-return]  # a class made by hand


async def _raises(self: Spider, *arguments: object) -> None:
    raise ValueError("no\x1bway")


async def _starts_and_raises(self: Spider) -> AsyncIterator[Request]:
    for url in numbered(600):
        yield Request(url)
    raise ValueError("no\x1bway")


@pytest.mark.parametrize(
    ("name", "method", "fetches"),
    [("opened", _raises, False), ("start", _starts_and_raises, True), ("closed", _raises, True)],
)
async def test_what_the_spiders_own_code_raises_ends_the_crawl_with_one_clear_error(
    ledger: SqliteLedger, name: str, method: Callable[..., Any], fetches: bool
):
    web = Web(dict.fromkeys([HOME, *numbered(600)], ""))

    with pytest.raises(SpiderError) as caught:
        await crawled(raising(name, asynchronous=method), web, ledger)

    assert str(caught.value) == rf"the spider's {name}() raised ValueError: no\x1bway"
    assert isinstance(caught.value.__cause__, ValueError)
    assert (await ledger.queries.counts())[Status.PROCESSING] == 0
    assert await ledger.workers.all() == []
    assert bool((await ledger.queries.counts()).total) == fetches


async def test_a_spider_that_cannot_run_is_refused_before_anything_is_done(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    with pytest.raises(SpiderError, match="start_urls is a single text"):
        await run_spider(Books(start_urls=HOME), ledger=url, downloader=Web({}))

    assert list(tmp_path.iterdir()) == []


# Stopping


class Slow(PatchedLedger):
    """Ledger whose commits wait for the test."""

    patched = ("outcomes.commit",)

    def begin_log(self) -> None:
        self.writing = asyncio.Event()
        self.go = asyncio.Event()

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        self.writing.set()
        await self.go.wait()
        return await self.real.outcomes.commit(settlements)


async def begun(ledger: SqliteLedger, **settings: Any) -> tuple[Web, Crawl, asyncio.Task[Report]]:
    """Start a crawl of 30 pages, which the site holds back by now."""
    web = Web(site(30), held=numbered(30))
    crawl = crawl_of(Books(), web, ledger, concurrency=4, **settings)
    running = asyncio.create_task(crawl.run())
    await web.reached.wait()
    return web, crawl, running


async def test_stopping_lets_what_is_under_way_finish_and_gives_back_the_rest(
    ledger: SqliteLedger,
):
    web = Web(site(30), held=numbered(30))
    spider = Books()
    crawl = crawl_of(spider, web, ledger, concurrency=4, grace="1h")
    running = asyncio.create_task(crawl.run())
    await web.reached.wait()

    crawl.stop()
    web.go.set()
    report = await running

    assert report.finish_reason == "stopped"
    assert web.cancelled == []
    assert report.counts[Status.PROCESSING] == 0
    assert report.counts[Status.FINISHED] == len(web.pages) <= 5
    assert report.counts[Status.TODO] == 31 - len(web.pages)
    assert spider.closed_with == [report]


async def test_stopping_gives_back_at_once_what_is_not_begun_with(ledger: SqliteLedger):
    web, crawl, running = await begun(ledger, per_host_concurrency=2, grace="1h")

    crawl.stop()
    async with asyncio.timeout(10):
        while (await ledger.queries.counts())[Status.PROCESSING] > web.under_way["all"]:
            await asyncio.sleep(0)

    assert not running.done(), "others can take the tasks while this process finishes its pages"
    web.go.set()
    await running


async def test_stopping_waits_until_what_was_fetched_is_written(path: Path):
    ledger = await Slow.open(path, "books")
    crawl = crawl_of(Books(), Web({HOME: ""}), ledger)
    running = asyncio.create_task(crawl.run())
    await ledger.writing.wait()

    crawl.stop()
    await asyncio.wait({running}, timeout=0.2)
    assert not running.done()
    ledger.go.set()
    report = await running

    assert report.counts.by_status == {Status.FINISHED: 1}
    await ledger.close()


async def test_after_the_grace_everything_is_given_back(ledger: SqliteLedger):
    web, crawl, running = await begun(ledger, grace="20ms")

    crawl.stop()
    report = await running

    assert report.finish_reason == "stopped"
    assert 1 <= len(web.cancelled) <= 4
    assert report.released >= len(web.cancelled)
    assert report.counts.by_status == {Status.FINISHED: 1, Status.TODO: 30}
    for url in web.cancelled:
        task = (await record(ledger, url)).task
        assert (task.retry, task.lost, task.lock) == (0, 0, None), "a stop costs a page no attempt"
    assert await ledger.workers.all() == []


async def test_stopping_at_once_does_not_wait_for_the_spider_to_be_opened(ledger: SqliteLedger):
    class Waiting(Books):
        async def opened(self) -> None:
            entered.set()
            await asyncio.Event().wait()

    entered, spider = asyncio.Event(), Waiting()
    crawl = crawl_of(spider, Web({}), ledger)
    running = asyncio.create_task(crawl.run())
    await entered.wait()

    crawl.stop()
    crawl.stop_now()
    report = await running

    assert report.finish_reason == FinishReason.STOPPED_AT_ONCE
    assert report.counts is not None
    assert (report.counts.total, spider.closed_with) == (0, [])


async def test_stopping_at_once_waits_for_nothing(ledger: SqliteLedger):
    _, crawl, running = await begun(ledger, grace="1h")

    crawl.stop()
    crawl.stop_now()
    report = await running

    assert report.finish_reason == "stopped-at-once"
    assert report.counts.by_status == {Status.FINISHED: 1, Status.TODO: 30}


@pytest.mark.parametrize(("at_once", "least", "most"), [(False, 50, 60), (True, 0, 5)])
@in_virtual_time
async def test_a_stop_bounds_the_wait_for_an_unavailable_ledger(
    ledger: SqliteLedger, at_once: bool, least: float, most: float
):
    async def away(limit_by_host: Mapping[str, int]) -> list[Task]:
        raise LedgerUnavailableError("away")

    ledger.tasks.page_each = away  # type: ignore[method-assign]  # as Away does, in virtual time
    crawl = crawl_of(Books(), Web({HOME: ""}), ledger, ledger_give_up="30m", grace="80s")
    running = asyncio.create_task(crawl.run())
    await asyncio.sleep(20)
    loop = asyncio.get_running_loop()
    began = loop.time()

    (crawl.stop_now if at_once else crawl.stop)()
    with pytest.raises(LedgerUnavailableError, match="away"):
        await running

    assert least <= loop.time() - began <= most


async def test_a_crawl_that_was_stopped_is_completed_by_the_next(ledger: SqliteLedger):
    _, crawl, running = await begun(ledger)
    crawl.stop_now()
    await running

    await crawled(Books(), Web(site(30)), ledger)

    assert await urls_of_items(ledger) == sorted(site(30))


@pytest.mark.parametrize(("stopped", "runs"), [(True, 1), (False, 2)])
async def test_a_run_ends_with_a_crawl_that_is_drained(
    ledger: SqliteLedger, stopped: bool, runs: int
):
    if stopped:
        _, crawl, running = await begun(ledger)
        crawl.stop_now()
        await running
    else:
        await crawled(Books(), Web(site(3)), ledger)
    await ledger.tasks.add([make_task(f"{HOME}added")])

    await crawled(Books(), Web(site(30)), ledger)

    assert (await ledger.notes.state())["run"]["number"] == runs


async def test_a_crawl_that_is_cancelled_gives_everything_back(ledger: SqliteLedger):
    _, _, running = await begun(ledger)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await ledger.queries.counts()).by_status == {Status.FINISHED: 1, Status.TODO: 30}
    assert await ledger.workers.all() == []


async def test_a_crawl_whose_loop_stands_still_gives_its_pages_back_from_another_thread(
    ledger: SqliteLedger,
):
    _, crawl, running = await begun(ledger)

    async def abandon() -> Report:
        another = await ledger.reconnected()
        try:
            return await crawl.abandon(another, at_once=True)
        finally:
            await another.close()

    report = await asyncio.to_thread(asyncio.run, abandon())

    assert report.finish_reason is FinishReason.STOPPED_AT_ONCE
    assert (await ledger.queries.counts()).by_status == {Status.FINISHED: 1, Status.TODO: 30}
    assert await ledger.workers.all() == []
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# Leases


async def later(path: Path, *, by: timedelta) -> SqliteLedger:
    """Another client of the ledger, for which all leases have run out."""
    return await SqliteLedger.open(path, "books", clock=lambda: datetime.now(UTC) + by)


async def test_a_lost_lease_stops_its_page_and_drops_its_result(ledger: SqliteLedger, path: Path):
    web = Web({HOME: "", f"{HOME}other": ""}, held=[HOME])
    crawl = crawl_of(Books(), web, ledger, lease="1s")
    running = asyncio.create_task(crawl.run())
    await web.reached.wait()
    thief = await later(path, by=timedelta(hours=1))

    stolen = await claimed_one(thief, worker="thief")
    async with asyncio.timeout(15):  # sooner than the page ends by its own timeout
        while not web.cancelled:
            await asyncio.sleep(0)
    await thief.outcomes.commit([success(thief, stolen, {"url": "the thief's"})])
    report = await running

    await thief.close()
    assert web.cancelled == [HOME]
    assert (report.leases_lost, report.pages, report.items) == (1, 0, 0)
    assert await urls_of_items(ledger) == ["the thief's"]


async def test_leases_are_renewed_for_as_long_as_a_page_takes(ledger: SqliteLedger):
    web = Web({HOME: ""}, held=[HOME])
    running = asyncio.create_task(crawl_of(Books(), web, ledger, lease="1s").run())
    await web.reached.wait()
    first = await ledger.queries.next_due()

    while await ledger.queries.next_due() == first:
        await asyncio.sleep(0)
    web.go.set()
    report = await running

    assert (report.pages, report.leases_lost) == (1, 0)


# An unavailable ledger, and the order of writes


class Away(PatchedLedger):
    """Ledger that fails some calls of one operation."""

    patched = (
        "tasks.page_each",
        "tasks.add",
        "leases.claim",
        "outcomes.commit",
        "queries.next_due",
        "queries.counts",
        "queries.reasons",
    )
    fails = ""
    calls = 0.0

    def _answer(self, operation: str) -> None:
        if operation == self.fails and self.calls > 0:
            self.calls -= 1
            raise LedgerUnavailableError(f"{operation} was not answered")

    async def page_each(self, limit_by_host: Mapping[str, int]) -> list[Task]:
        self._answer("page_each")
        return await self.real.tasks.page_each(limit_by_host)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        self._answer("claim")
        return await self.real.leases.claim(*arguments, **options)

    async def add(self, tasks: Sequence[Task]) -> Added:
        self._answer("add")
        return await self.real.tasks.add(tasks)

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        self._answer("commit")
        return await self.real.outcomes.commit(settlements)

    async def next_due(self, **options: Any) -> datetime | None:
        self._answer("next_due")
        return await self.real.queries.next_due(**options)

    async def counts(self) -> Any:
        self._answer("counts")
        return await self.real.queries.counts()

    async def reasons(self) -> dict[str, int]:
        self._answer("reasons")
        return await self.real.queries.reasons()


OPERATIONS = ["page_each", "claim", "add", "commit", "next_due", "counts"]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_ledger_that_is_away_for_a_while_is_waited_for(path: Path, operation: str):
    ledger = await Away.open(path, "books")
    ledger.fails, ledger.calls = operation, 1

    report = await crawled(Books(), Web(site(5)), ledger)

    assert ledger.calls == 0
    assert report.counts.by_status == {Status.FINISHED: 6}
    assert await urls_of_items(ledger) == sorted(site(5))
    await ledger.close()


@pytest.mark.thorough
@pytest.mark.representative("commit")
@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each != "counts"])
async def test_a_ledger_that_stays_away_ends_the_crawl(path: Path, operation: str):
    ledger = await Away.open(path, "books")
    ledger.fails, ledger.calls = operation, float("inf")

    with pytest.raises(LedgerUnavailableError, match=f"{operation} was not answered"):
        await crawled(Books(), Web(site(5)), ledger, ledger_give_up="50ms")

    ledger.fails = ""
    assert (await ledger.queries.counts())[Status.PROCESSING] == 0, "what could be given back was"
    await crawled(Books(), Web(site(5)), ledger)
    assert await urls_of_items(ledger) == sorted(site(5))
    await ledger.close()


class Journal(PatchedLedger):
    """Ledger that logs the order of its writes."""

    patched = ("tasks.add", "outcomes.commit")

    def begin_log(self) -> None:
        self.entries: list[tuple[str, bytes]] = []

    async def add(self, tasks: Sequence[Task]) -> Added:
        added = await self.real.tasks.add(tasks)
        self.entries += [("added", task.id) for task in tasks]
        return added

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        self.entries += [("commit", settlement.lease.task.id) for settlement in settlements]
        return await self.real.outcomes.commit(settlements)


async def test_the_links_of_a_page_are_in_the_ledger_before_the_page_is_committed(path: Path):
    ledger = await Journal.open(path, "books")
    answers = {url: links(f"/{n}/a", f"/{n}/b") for n, url in enumerate(numbered(20))}
    leaves = {f"{url}/{name}": "" for url in numbered(20) for name in "ab"}

    await crawled(Books(), Web({HOME: links(*numbered(20))} | answers | leaves), ledger)

    when = {entry: n for n, entry in reversed(list(enumerate(ledger.entries)))}
    for url in leaves:
        link, page = make_task(url).id, make_task(url.rpartition("/")[0]).id
        assert when["added", link] < when["commit", page]
    await ledger.close()


@pytest.mark.parametrize(("thing", "what"), [({"n": 1}, "a dict"), (HOME, "a str"), (None, "None")])
async def test_a_start_that_yields_no_request_is_told_so(
    ledger: SqliteLedger, thing: Any, what: str
):
    class Wrong(Books):
        async def start(self):
            yield thing

    with pytest.raises(SpiderError) as caught:
        await crawled(Wrong(), Web({}), ledger)

    assert f"start() yielded {what}: write `yield Request(url)`" in str(caught.value)
