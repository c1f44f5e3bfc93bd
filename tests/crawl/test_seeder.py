"""Start requests: recognition of unchanged ones, and of a crawl deeper than the last."""

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yarl

from crawlcw import FetchError, Request, Response, Settings, Spider, StopCrawl
from crawlcw.assembly import assemble
from crawlcw.cli.loading import find, make
from crawlcw.crawl import seeder
from crawlcw.crawl.seeder import RunStart, fingerprint
from crawlcw.engine.workers import this_worker
from crawlcw.fetch.addresses import START, AddressGuard, PublicNames
from crawlcw.ledger.protocol import Counters
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.proxies import parse
from crawlcw.testing import ReplayDownloader
from tests.support.docs import REPOSITORY
from tests.support.ledgers import FakeClock, claimed_one, make_task, success


class Plain(Spider):
    name = "plain"
    start_urls = ["http://a.example/"]
    kinds = {"x", "y"}

    def parse(self, response):
        yield {"n": 1}


def test_the_same_spider_has_the_same_fingerprint_in_every_process(tmp_path: Path):
    # Not this module: to import it and its tests takes twice as long as the rest.
    kinds = "\n".join(map(inspect.getsource, [Plain, OtherStart]))
    (tmp_path / "spiders.py").write_text(f"from crawlcw import Request, Spider\n{kinds}")
    code = (
        "from spiders import *; from crawlcw.crawl.seeder import fingerprint; "
        "print(*map(fingerprint, [Plain(region='x'), OtherStart()]))"
    )

    def told(hashing: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": hashing, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    first = told("1")
    assert "None" not in first
    assert told("2") == first


class OtherPages(Plain):
    start_urls = ["http://a.example/", "http://a.example/2"]


class OtherKinds(Plain):
    kinds = {"x", "z"}


class OtherStart(Plain):
    async def start(self):
        yield Request("http://a.example/")


class YetAnother(Plain):
    async def start(self):
        yield Request("http://a.example/other")


def test_spiders_that_start_with_something_else_have_other_fingerprints():
    spiders = [
        Plain(),
        Plain(region="north"),
        Plain(region="south"),
        Plain(start_urls=["http://b.example/"]),
        OtherPages(),
        OtherKinds(),
        OtherStart(),
        YetAnother(),
    ]
    for name in ("c", "d"):
        spiders += [Plain(), Plain()]
        spiders[-2].start_urls = {f"http://{name}.example/": 1}.keys()
        vars(spiders[-1])["category"] = name

    fingerprints = [fingerprint(spider) for spider in spiders]

    assert None not in fingerprints
    assert len(set(fingerprints)) == len(spiders)


SPIDER = """
from pathlib import Path

from crawlcw import Request, Spider
from crawlcw.cli.loading import find, make

WORDS = Path({words!r}).read_text().split()


class Words(Spider):
    name = "words"

    async def start(self):
        for word in WORDS:
            yield Request(f"http://a.example/{{word}}")

    def parse(self, response):
        yield {{"n": 1}}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("words.py", "\n# a comment"), ("words.txt", " c")],
    ids=["its source", "a file that its module reads"],
)
def test_a_change_of_a_file_that_a_spider_comes_from_changes_its_fingerprint(
    tmp_path: Path, name: str, text: str
):
    (tmp_path / "words.txt").write_text("a b")
    (tmp_path / "words.py").write_text(SPIDER.format(words=str(tmp_path / "words.txt")))
    spider = f"{tmp_path}/words.py"
    before = fingerprint(make(find(spider), ()))
    moved = tmp_path / "moved.py"
    moved.write_text((tmp_path / "words.py").read_text())
    assert before == fingerprint(make(find(spider), ())) == fingerprint(make(find(str(moved)), ()))

    with (tmp_path / name).open("a") as file:
        file.write(text)

    after = fingerprint(make(find(spider), ()))
    assert None not in (before, after)
    assert after != before


# Crawls


class Started(Spider):
    """Starts with two pages, unless it is told to stop between them."""

    name = "started"
    hosts = ("a.example", "a.example")
    halt = asyncio.Event()

    async def start(self) -> AsyncIterator[Request]:
        for number, host in enumerate(self.hosts):
            if number and self.halt.is_set():
                raise StopCrawl("enough")
            yield Request(f"http://{host}/{number}")

    def parse(self, response: Response) -> Any:
        yield from response.follow_all("a")


class TwoHosts(Started):
    hosts = ("a.example", "b.example")


async def crawled(ledger: SqliteLedger, spider: Spider, **settings: Any) -> list[str]:
    """Crawl; return the pages that were asked for."""
    pages = {
        "0": "<a href=/deeper><a href=//b.example/linked>",
        "deeper": "<a href=/deepest>",
        "deepest": "<a href=//b.example/deepest>",
    }
    web = ReplayDownloader({f"http://a.example/{page}": text for page, text in pages.items()})
    await assemble(spider, ledger, web, Settings(obey_robots=False, max_retry=1, **settings)).run()
    return sorted(url.removeprefix("http://") for url in web.requested_urls)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.mark.parametrize("option", ["dont_filter", "each_run"])
async def test_unfiltered_start_requests_and_those_of_each_run_are_asked_for_in_each_run(
    file: Path, option: str
):
    class Again(Started):
        async def start(self) -> AsyncIterator[Request]:
            yield Request("http://a.example/0", **{option: True})

    ledger = await SqliteLedger.open(file, "started")
    runs = [await crawled(ledger, Again()) for _ in range(2)]
    await ledger.close()

    assert ["a.example/0" in asked for asked in runs] == [True, True]


@pytest.mark.parametrize(("again", "starts"), [(False, 2), (True, 3)])
async def test_start_runs_again_for_other_arguments_or_where_it_is_to(
    file: Path, caplog: pytest.LogCaptureFixture, again: bool, starts: int
):
    started: list[str] = []

    class Noted(Started):
        start_again = again

        async def start(self) -> AsyncIterator[Request]:
            started.append(self.name)
            yield Request("http://a.example/deepest")

    ledger = await SqliteLedger.open(file, "started")
    for spider in (Noted(), Noted(), Noted(region="north")):
        await crawled(ledger, spider)
    state = await ledger.notes.state()
    await ledger.close()

    assert len(started) == starts
    assert "start_origins" not in state, "no secret is for them alone"
    assert "could not write" not in caplog.text


async def test_a_secret_goes_to_an_origin_of_an_earlier_start_before_this_one_names_it(file: Path):
    late, go, is_first = "http://b.example/late", asyncio.Event(), True

    class Keys(ReplayDownloader):
        async def fetch(self, request: Request, *, url: str) -> Response:
            sent[url] = dict(request.headers).get("X-Key")
            return await super().fetch(request, url=url)

    class Interrupted(Started):
        allowed_hosts = ("b.example",)

        async def start(self) -> AsyncIterator[Request]:
            await go.wait()
            yield Request("http://b.example/")
            if is_first:
                await asyncio.Event().wait()

        def parse(self, response: Response) -> Any:
            if is_first:
                raise StopCrawl("before the end of start")
            go.set()

    sent: dict[str, str | None] = {}
    web = Keys({"http://b.example/": "", late: ""})
    settings = Settings(obey_robots=False, headers={"X-Key": "secret"})
    ledger = await SqliteLedger.open(file, "started")
    go.set()
    await assemble(Interrupted(), ledger, web, settings).run()
    go.clear()
    is_first = False
    await ledger.tasks.add([make_task(late)])
    await ledger.hosts.wake({"b.example": ledger.now()})
    async with asyncio.timeout(30):
        await assemble(Interrupted(), ledger, web, settings).run()
    await ledger.close()

    assert sent[late] == "secret"


async def test_a_password_of_start_is_asked_for_by_each_crawl(file: Path):
    class Keys(ReplayDownloader):
        async def fetch(self, request: Request, *, url: str) -> Response:
            sent.append((url, "Authorization" in dict(request.headers)))
            return await super().fetch(request, url=url)

    class Member(Started):
        def __init__(self) -> None:
            super().__init__()
            self.started = asyncio.Event()

        async def start(self) -> AsyncIterator[Request]:
            yield Request("http://me:secret@a.example/0")
            self.started.set()

        async def after_start(self, attempt: Any, request: Request, call_next: Any) -> Response:
            await self.started.wait()  # earlier pages go without the password
            return await call_next(attempt, request)  # type: ignore[no-any-return]

        @property
        def layers(self) -> Any:  # type: ignore[override]
            return [self.after_start]

    sent: list[tuple[str, bool]] = []
    answers = {f"http://a.example/{n}": f"<a href=/{n + 1}>" for n in range(3)}
    ledger = await SqliteLedger.open(file, "started")
    for depth in (1, 2):
        settings = Settings(obey_robots=False, max_depth=depth)
        await assemble(Member(), ledger, Keys(answers), settings).run()
    await ledger.close()

    assert sent == [(f"http://a.example/{n}", True) for n in range(3)]


async def test_hosts_of_start_are_followed_to_by_the_next_crawl_which_is_deeper(
    file: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="crawlcw")
    ledger = await SqliteLedger.open(file, "started")
    for depth in (1, 1, 3):
        asked = await crawled(ledger, TwoHosts(), max_depth=depth)
    await ledger.close()

    assert "b.example/deepest" in asked
    assert [text for text in caplog.messages if "too deep" in text] == [
        "now following 1 links that were too deep before (max_depth)"
    ]


async def test_addresses_of_start_are_let_through_beside_any_number_of_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(seeder, "MOST_START_NAMES", 3)
    ledger, proxy = await SqliteLedger.open(file, "spider"), parse("http://proxy.example:80")
    addresses = [f"http://10.0.0.{n}:8124/" for n in range(1, 6)]

    class Intranet(Spider):
        name = "spider"

        async def start(self) -> AsyncIterator[Request]:
            for n, address in enumerate(addresses):
                yield Request(f"http://name{n}.example/")
                yield Request(address)

    await crawled(ledger, Intranet())
    guard = AddressGuard(public_names=PublicNames(ledger.notes, has_own_start=True))
    for address in addresses:
        await guard.admit(yarl.URL(address), proxy)
    with pytest.raises(FetchError):
        await guard.admit(yarl.URL("http://10.0.0.9:8124/"), proxy)

    names = [key for key in await ledger.notes.state() if key.startswith(f"{START}name")]
    await ledger.close()
    assert len(names) == 3


async def test_a_run_lasts_until_nothing_is_left_for_it(file: Path):
    async def number(after: timedelta = timedelta(seconds=1)) -> int:
        clock.advance(seconds=after.total_seconds())
        run = RunStart(ledger, lease=timedelta(minutes=1))
        await run.find(await ledger.notes.state())
        runs.append(run)
        return run.number

    clock, runs = FakeClock(), list[RunStart]()
    ledger = await SqliteLedger.open(file, "started", clock=clock)
    worker = this_worker(now=clock())
    await ledger.tasks.add([make_task()])

    assert [await number(), await number()] == [1, 1], "the first was killed"
    await runs[-1].end()
    assert await number() == 2, "though a task came after its end"
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
    assert await number() == 3, "the last was killed before it noted its end"
    await ledger.workers.join(worker)
    assert await number() == 3, "another worker has begun it"
    clock.advance(seconds=180)
    await ledger.workers.beat(worker.name, Counters())
    assert await number() == 3, "and is still at work"
    assert await number(after=timedelta(minutes=3)) == 4, "it is heard of no more"
    await ledger.close()


async def test_a_worker_that_finds_the_run_of_its_supervisor_over_begins_no_other(file: Path):
    async def ended(since: datetime | None) -> int:
        clock.advance(seconds=1)
        run = RunStart(ledger, lease=timedelta(minutes=1))
        run.earliest_end = since
        await run.find(await ledger.notes.state())
        await run.end()
        return run.number

    clock = FakeClock()
    ledger = await SqliteLedger.open(file, "started", clock=clock)
    await ledger.tasks.add([make_task()])
    await RunStart(ledger, lease=timedelta(minutes=1)).find({})
    clock.advance(seconds=1)
    second = clock()

    assert [await ended(second), await ended(second)] == [1, 1], "it goes on with the first one's"
    assert await ended(clock() + timedelta(seconds=1)) == 2
    await ledger.close()


@pytest.mark.parametrize("allowed", [None, ("a.example",)])
async def test_links_to_a_host_of_start_are_followed_unless_hosts_are_named(
    file: Path, allowed: tuple[str, ...] | None
):
    spider = TwoHosts()
    spider.allowed_hosts = allowed
    ledger = await SqliteLedger.open(file, "started")
    asked = await crawled(ledger, spider)
    await ledger.close()

    assert ("b.example/linked" in asked) == (allowed is None)
