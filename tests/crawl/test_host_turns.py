"""Delays of requests that no turn is given to: redirects, logins, and pages that are sent late."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlcw.api.attempt import Attempt
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sessions import LoginSession
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.admission import Admission
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.robots import Robots
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, ProxiesAwayError, Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Report
from crawlcw.testing import Replay, ReplayDownloader
from tests.blame.virtual import VirtualClock, run, virtual
from tests.support.attempts import way
from tests.support.frontiers import HOST, Process
from tests.support.ledgers import START

URL = f"http://{HOST}/"
OTHER = "http://other.example/"


class Turns:
    """The turns of a process on a clock that sleeping advances."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.slept: list[float] = []
        self.late = 0.0  #: seconds that each sleep overruns
        self.robots = Robots(
            way(ReplayDownloader({})), Settings(), clock=lambda: 0.0, now=lambda: START
        )
        self.admission = Admission()
        self.admission.robots = self.robots
        self.admission.opening = Opening(
            process.frontier,
            self.robots,
            process.causes,
            max_parallel=1,
            watchdog=Watchdog(process.stats, limit=timedelta(0)),
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.process.now += seconds + self.late


@pytest.fixture
def by_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Process], Turns]:
    def by_clock(process: Process) -> Turns:
        made = Turns(process)
        monkeypatch.setattr("crawlcw.crawl.opening.anyio", SimpleNamespace(sleep=made.sleep))
        return made

    return by_clock


def behind_a_redirect(error: FetchError) -> FetchError:
    error.hop = 2
    return error


@pytest.mark.parametrize(
    ("error", "began", "innocent"),
    [
        (ProxiesAwayError("all rest", wait=5), 40, True),
        (FetchError(Reason.TIMEOUT_CONNECT), 5, True),
        (FetchError(Reason.TIMEOUT_READ), 5, True),
        (FetchError(Reason.TIMEOUT_CONNECT), 40, False),
        (behind_a_redirect(FetchError(Reason.TIMEOUT_CONNECT)), 5, False),
        (FetchError(Reason.HTTP_STATUS), 5, False),
    ],
    ids=["no proxy", "in an outage", "unread in it", "after it", "behind a redirect", "a status"],
)
async def test_a_login_that_fails_in_an_outage_of_proxies_or_of_our_network_is_innocent(
    error: FetchError, began: float, innocent: bool, by_clock: Callable[[Process], Turns]
):
    turns = by_clock(Process(booted=0))
    uplink = turns.process.frontier.uplink
    for name in "abcdef":
        uplink.learned(f"{name}.example", f"http://{name}.example/")
    uplink.unanswered(now=10)
    uplink.answered(now=30)
    turns.process.now = 45
    uplink.answered(now=45)

    assert await turns.admission.is_innocent(URL, error, started_at=began) is innocent


async def test_the_pages_that_redirects_lead_to_must_be_in_scope_and_parts_of_pages_need_not(
    by_clock: Callable[[Process], Turns],
):
    admission = Admission(Scope.of({HOST}, Settings()))
    admission.robots = by_clock(Process()).robots

    async def ask(*, is_document: bool) -> None:
        attempt, turn = Attempt(request=Request(URL)), asyncio.Lock()
        async with admission.part(attempt, OTHER, is_document=is_document, turn=turn):
            pass

    await ask(is_document=False)
    with pytest.raises(FetchError, match="allowed_hosts"):
        await ask(is_document=True)


class Chain(Spider):
    name = "chain"
    allowed_hosts = ("a.example",)
    start_urls = ("http://a.example/1",)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


class Posted(Chain):
    async def start(self) -> AsyncIterator[Request]:
        yield Request("http://a.example/post", method="POST", data={"q": "1"})


class Member(Chain):
    async def login(self, session: LoginSession) -> None:
        await session.fetch("http://a.example/login")


def to(path: str, status: int = 302) -> Replay:
    return Replay(status=status, headers={"location": path})


class Timed(ReplayDownloader):
    """Web whose requests take half a second each; notes when each began, and how many overlap."""

    def __init__(self, clock: VirtualClock, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.clock = clock
        self.sent: dict[str, list[tuple[float, str]]] = {}  #: times and addresses, by host
        self.most: dict[str, int] = {}  #: requests at once, by host
        self._active: Counter[str] = Counter()

    async def fetch(self, request: Request, *, url: str) -> Response:
        host = url.split("/")[2]
        self.sent.setdefault(host, []).append((self.clock.elapsed, url))
        self._active[host] += 1
        self.most[host] = max(self.most.get(host, 0), self._active[host])
        try:
            await asyncio.sleep(0.5)
            return await super().fetch(request, url=url)
        finally:
            self._active[host] -= 1


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def timed(spider: Spider, answers: dict[str, Any], **settings: Any) -> tuple[Report, Timed]:
        """Crawl in virtual time."""
        reports: list[Report] = []
        chosen = Settings(**{"obey_robots": False, "auto_throttle": False, **settings})

        async def crawl() -> None:
            opened = await SqliteLedger.open(
                tmp_path / "ledger.db", spider.name, clock=clock.ledger_now
            )
            try:
                reports.append(await assemble(spider, opened, web, chosen).run())
            finally:
                await opened.close()

        with virtual(monkeypatch) as clock:
            web = Timed(clock, answers)
            run(clock, crawl(), within=timedelta(hours=1))
        return reports[0], web

    return timed


SITE = "http://a.example"
CHAIN = {
    f"{SITE}/1": to("/2"),
    f"{SITE}/2": to("/3"),
    f"{SITE}/3": "the page",
    f"{SITE}/post": to("/3", 303),
    f"{SITE}/login": to("/welcome"),
    f"{SITE}/welcome": "hello",
}


@pytest.mark.parametrize(
    ("spider", "settings", "requests"),
    [(Chain, {"cookies": True}, 3), (Posted, {}, 2), (Member, {}, 5)],
    ids=["cookies", "post", "login"],
)
def test_hops_and_the_first_page_behind_a_login_wait_for_the_delay(
    spider: type[Spider], settings: dict[str, Any], requests: int, timed: Callable[..., Any]
):
    report, web = timed(spider(), CHAIN, delay="30s", **settings)

    assert (report.items, report.failures) == (1, {})
    assert len(sent := [moment for moment, _ in web.sent["a.example"]]) == requests
    assert min(later - earlier for earlier, later in pairwise(sent)) >= 30


HUB = "http://hub.example"
ALIASES = [f"http://h{n}.example/{page}" for n in range(5) for page in range(4)]


class Aliases(Spider):
    """Pages of five hosts that redirect to a sixth one, in place."""

    name = "aliases"
    allowed_hosts = "*"
    start_urls = ALIASES

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


class Forms(Aliases):
    async def start(self) -> AsyncIterator[Request]:
        for url in ALIASES:
            yield Request(url, data={"q": "1"})


class Accounts(Aliases):
    """Five accounts of one site, each with a login."""

    async def start(self) -> AsyncIterator[Request]:
        for number, url in enumerate(ALIASES):
            yield Request(url, session=f"user{number}")

    async def login(self, session: LoginSession) -> None:
        await session.fetch(f"{HUB}/login")


class Repeating(Aliases):
    """A layer that asks for each page twenty times side by side."""

    start_urls = [f"{HUB}/{n}" for n in range(4)]

    async def twenty(self, attempt: Any, request: Request, call_next: Any) -> Response:
        copies = await asyncio.gather(*(call_next(attempt, request) for _ in range(20)))
        return copies[0]  # type: ignore[no-any-return]

    @property
    def layers(self) -> Any:  # type: ignore[override]
        return [self.twenty]


class Unruly(Aliases):
    """Hosts whose robots.txt is that of a host with pages of its own."""

    start_urls = [*(f"http://h{n}.example/" for n in range(5)), *(f"{HUB}/{n}0" for n in range(4))]


RULES = {
    f"http://h{n}.example/robots.txt": Replay(status=301, headers={"location": f"{HUB}/robots.txt"})
    for n in range(5)
}
REDIRECTED = {
    url: Replay(status=302, headers={"location": f"{HUB}{url[17:]}{url[8]}"}) for url in ALIASES
}
AT_THE_HUB = {f"{HUB}/{page}{n}": "a page" for page in range(4) for n in range(5)}


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize(
    ("spider", "settings", "pages"),
    [
        (Aliases, {"cookies": True}, 20),
        (Forms, {}, 20),
        (Accounts, {}, 20),
        (Repeating, {}, 4),
        (Unruly, {"obey_robots": True}, 9),
    ],
    ids=["cookies", "post", "login", "layer", "robots"],
)
def test_every_request_to_a_host_takes_one_of_its_slots(
    spider: type[Spider],
    settings: dict[str, Any],
    pages: int,
    limit: int,
    timed: Callable[..., Any],
):
    web = (
        REDIRECTED
        | AT_THE_HUB
        | {f"{HUB}/login": "hello"}
        | dict.fromkeys([*Repeating.start_urls, *Unruly.start_urls, f"{HUB}/robots.txt"], "")
        | RULES
    )

    report, site = timed(spider(), web, per_host_concurrency=limit, concurrency=16, **settings)

    assert (report.pages, report.failures) == (pages, {})
    assert max(site.most.values()) <= limit


@pytest.mark.parametrize("is_known", [True, False], ids=["own page first", "redirects alone"])
def test_redirects_wait_for_the_end_of_the_rest_of_their_target(
    is_known: bool, timed: Callable[..., Any]
):
    refusal = Replay(status=429, headers={"retry-after": "30"})
    web = REDIRECTED | dict.fromkeys([f"{HUB}/", *AT_THE_HUB], refusal)
    spider = Aliases()
    spider.start_urls = [f"{HUB}/", *ALIASES[:4]] if is_known else ALIASES[:4]

    report, site = timed(spider, web, cookies=True, per_host_concurrency=2, max_retry=1)

    sent = site.sent["hub.example"]
    hops = [moment for moment, url in sent if url != f"{HUB}/"]
    assert (report.pages, len(hops)) == (0, 4)
    assert min(later - earlier for earlier, later in pairwise(hops)) >= 30
    if is_known:
        # Its own page says something of the host, and a redirect from elsewhere does not.
        assert hops[0] - sent[0][0] >= 30


class SlowToConnect:
    """Web that takes 3 s to connect to, once: for its first answer, or behind its first redirect.

    Its pages *end* well, are too large, lead to others, or are behind a login.
    """

    def __init__(self, clock: VirtualClock, *, end: str) -> None:
        self.clock = clock
        self.end = end
        self.sent: list[float] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        redirects = self.end == "redirects"
        if len(self.sent) == redirects:
            await asyncio.sleep(3)
        self.sent.append(self.clock.elapsed)
        await asyncio.sleep(0.1)
        if self.end == "fails":
            raise FetchError(Reason.BODY_TOO_LARGE)
        elapsed = timedelta(seconds=0.1)
        if redirects and not url.endswith("/page"):
            to_page = {"location": f"{url}/page"}
            return Response(url, request=request, status=302, headers=to_page, elapsed=elapsed)
        return Response(url, request=request, status=200, elapsed=elapsed)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("end", "requests"), [("well", 4), ("fails", 4), ("redirects", 8), ("login", 5)]
)
def test_the_delay_counts_from_when_a_request_was_sent(
    end: str, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Pages(Spider):
        name = "pages"
        start_urls = [f"http://a.example/{n}" for n in range(4)]

    class Members(Pages):
        async def login(self, session: LoginSession) -> None:
            await session.fetch("http://a.example/login")

    # With cookies a redirect is followed in place.
    settings = Settings(delay="1s", obey_robots=False, max_retry=1, cookies=True)

    async def crawl(web: SlowToConnect) -> None:
        path = tmp_path / "ledger.db"
        ledger = await SqliteLedger.open(path, "pages", clock=web.clock.ledger_now)
        try:
            spider = Members() if end == "login" else Pages()
            await assemble(spider, ledger, web, settings).run()
        finally:
            await ledger.close()

    with virtual(monkeypatch) as clock:
        web = SlowToConnect(clock, end=end)
        run(clock, crawl(web), within=timedelta(minutes=1))

    assert len(web.sent) == requests
    gaps = [later - earlier for earlier, later in pairwise(web.sent)]
    assert min(gaps) >= 1, gaps
    if end == "well":
        assert max(gaps) < 1.05, "an answer takes 0.1 s"


async def test_the_wait_for_a_turn_is_not_part_of_a_pages_timeout(tmp_path: Path):
    # A form is submitted within one attempt, and the host's delay is longer than that.
    site = "http://a.example"
    web = ReplayDownloader({f"{site}/post": to("/done", 303), f"{site}/done": "done"})
    settings = Settings(obey_robots=False, delay="1.2s", timeout="1s", max_retry=1)
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "chain")
    try:
        report = await assemble(Posted(), ledger, web, settings).run()
    finally:
        await ledger.close()

    assert (report.items, report.failures) == (1, {})
