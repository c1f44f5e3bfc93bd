"""A crawl ends within the grace, whatever its spider leaves or ignores, and loses nothing."""

import asyncio
import json
import random
import select
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from crawlcw.model.task import Status
from tests.blame.code_site import Command, Site
from tests.blame.test_user_code import records
from tests.cli.test_supervisor import is_running
from tests.support.crawl_process import wait_until
from tests.support.programs import children_of

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

PAGES = 6
#: An event leaves an empty file. Whatever hangs hangs for an hour, far longer than any test.
SPIDER = """
import asyncio, os, threading, time
from pathlib import Path
from crawlcw import Downloader, Settings, Spider

def reach(event):
    Path(event).touch()

async def hang(deaf=False):
    end = time.monotonic() + 3600
    while time.monotonic() < end:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if not deaf:
                raise

class Hanging:
    def __init__(self, default):
        self.fetch = default.fetch

    async def close(self):
        reach("close")
        await hang()

class Pages(Spider):
    name = "{name}"
    start_urls = ["{url}"]
    settings = Settings(grace="1s", callback_timeout="0s", concurrency=2, obey_robots=False)
    left = hangs = ""
    deaf = False

    def __init__(self, left="", hangs="", deaf=""):
        super().__init__(left=left, hangs=hangs, deaf=bool(deaf))
        reach("init")

    def downloader(self, default):
        return Hanging(default) if self.left == "close" else default

    async def at(self, event):
        reach(event)
        if self.hangs == event:
            await hang(self.deaf)

    async def opened(self):
        if self.left == "thread":
            threading.Thread(target=self.work).start()
        elif self.left == "executor":
            asyncio.get_running_loop().run_in_executor(None, self.work)
        elif self.left == "task":
            self.task = asyncio.create_task(hang(deaf=True))
        await self.at("opened")

    def work(self):
        time.sleep(3600)

    async def start(self):
        async for request in super().start():
            yield request
        await self.at("start")

    async def parse(self, response):
        yield {{"url": response.url, "text": "x" * 20_000}}
        await self.at("parse")
        for request in response.follow_all("a"):
            yield request

    async def closed(self, report):
        await self.at("closed")
        if self.left == "closed":
            await hang()

reach("import")
reach(f"pid-{{os.getpid()}}")
"""
LEFT = {
    "thread": "thread Thread-",
    "executor": ", Pages.work (spider.py:",
    "task": "hang (spider.py:",
    "closed": "cancelled closed(), because it did not end within the grace period",
    "close": "of the spider's downloader raised: TimeoutError",
}


@dataclass
class Crawl:
    """A crawl of the site in a folder, as often as it is run."""

    folder: Path
    site: Site
    ledger: str
    name: str = "pages"

    def run(self, *options: object, processes: int = 1, **arguments: object) -> Command:
        self.folder.mkdir(exist_ok=True)
        code = SPIDER.format(url=self.site.url, name=self.name)
        (self.folder / "spider.py").write_text(code)
        assigned = [f"-a{name}={value}" for name, value in arguments.items()]
        named = ["--processes", processes, "--ledger", self.ledger, "--log-format", "json"]
        return Command(self.folder, "run", "spider.py", *named, *assigned, *options)

    def has_reached(self, event: str) -> bool:
        return (self.folder / event).exists()

    def has_come_to(self, event: str | int, command: Command) -> bool:
        """Return whether the crawl, or the site, has come to one of the `EVENTS`."""
        if event == "export":
            return bool(select.select([command.process.stdout], [], [], 0)[0])
        if isinstance(event, int):
            return self.site.hits.total() >= event
        return self.has_reached(event)

    def items(self, output: str = "items.jsonl") -> list[str]:
        lines = (self.folder / output).read_text().splitlines()
        return sorted(json.loads(line)["url"] for line in lines)

    @property
    def urls(self) -> list[str]:
        return sorted([self.site.url, *(f"{self.site.url}{n}" for n in range(PAGES))])


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(PAGES) as site:
        yield site


@pytest.fixture
def crawl(site: Site, tmp_path: Path) -> Crawl:
    return Crawl(tmp_path / "crawl", site, f"sqlite:///{tmp_path}/ledger.db")


@pytest.mark.representative("1-executor")
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("processes", [0, 1, 2])
def test_what_a_spider_leaves_keeps_no_crawl_that_is_drained(
    crawl: Crawl, processes: int, left: str
):
    with crawl.run("-o", "items.jsonl", processes=processes, left=left) as command:
        code, report = command.end(within=60)

    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert crawl.items() == crawl.urls
    assert LEFT[left] in command.log
    # The end of the event loop waits as well, and is none of the user's code.
    said = [record["message"] for record in command.records("still_running")]
    assert not any("shutdown" in message for message in said), said
    assert command.records("worker_crashed") == []


@pytest.mark.representative("1-parse-deaf-1")
@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("deaf", ["", "deaf"], ids=["waits", "deaf"])
@pytest.mark.parametrize("phase", ["opened", "start", "parse", "closed"])
@pytest.mark.parametrize("processes", [0, 1, 2])
def test_one_signal_ends_a_crawl_in_each_phase_and_the_second_at_once(
    crawl: Crawl, processes: int, phase: str, deaf: str, signals: int
):
    options = () if signals == 1 else ("-s", "grace=1h")
    with crawl.run("-o", "items.jsonl", *options, processes=processes, hangs=phase, deaf=deaf) as c:
        wait_until(lambda: crawl.has_reached(phase))
        for event in ("stop", "stop_now")[:signals]:
            c.send(signal.SIGINT)
            wait_until(lambda event=event: c.records(event))
        code, report = c.end(within=60)

    ends = [("stopped", 0) if signals == 1 else ("stopped-at-once", 130)]
    if phase == "closed":
        ends.append(("drained", 0))  # it may be, before its `closed` is stopped
    assert (report["finish_reason"], code) in ends, c.log
    assert crawl.has_reached("items.jsonl") == (code == 0)
    assert c.records("worker_crashed") == []


@pytest.mark.parametrize("deaf", ["", "deaf"], ids=["waits", "deaf"])
@pytest.mark.parametrize("phase", ["opened", "start", "parse", "closed"])
def test_no_worker_outlives_its_supervisor(crawl: Crawl, phase: str, deaf: str):
    with crawl.run(processes=2, hangs=phase, deaf=deaf) as command:
        wait_until(lambda: crawl.has_reached(phase))
        workers = children_of(command.pid)
        command.kill()
        wait_until(lambda: not any(map(is_running, workers)))

    assert len(workers) == 2


#: In the order of a crawl; a number is that of the answers of the site.
EVENTS = ("import", "init", "opened", "start", 1, 2, 4, 6, "closed", "export")
KINDS = ("SIGINT", "SIGINT SIGINT", "SIGTERM", "SIGKILL")
SEED = 20_261_129


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a crawl gets its signals, and what its spider has left."""

    event: str | int
    delay: float  #: seconds from the event to the first signal
    kind: str
    left: str
    processes: int


def moments(number: int) -> list[Moment]:
    """Return *number* moments of a crawl: each event, each kind of signal, each leftover."""
    chance = random.Random(SEED)
    left = [name for name in LEFT if name != "close"]
    combinations = list(product(KINDS, left))
    chance.shuffle(combinations)
    return [
        Moment(
            event=EVENTS[n % len(EVENTS)],
            delay=chance.uniform(0, 0.3) if n >= len(EVENTS) else 0.0,
            kind=combinations[n % len(combinations)][0],
            left=combinations[n % len(combinations)][1],
            processes=(1, 1, 2, 0)[n // len(EVENTS) % 4],
        )
        for n in range(number)
    ]


def seconds_to_the_end(crawl: Crawl, moment: Moment) -> float:
    """End a crawl at a moment; return the seconds from the signal to the end of each process."""
    with crawl.run("-o", "-", processes=moment.processes, left=moment.left) as command:
        wait_until(lambda: crawl.has_come_to(moment.event, command), within=60)
        time.sleep(moment.delay)
        processes = {command.pid, *children_of(command.pid)}
        sent = time.monotonic()
        first, *others = (signal.Signals[name] for name in moment.kind.split())
        command.send(first)
        for second in others:
            with suppress(AssertionError):  # it has no handler yet, or no longer
                wait_until(lambda: command.records("stop") or not command.is_running(), within=2)
            command.send(second)
        code, _ = command.end(within=60)
        processes |= {int(path.name[4:]) for path in crawl.folder.glob("pid-*")}
        wait_until(lambda: not any(map(is_running, processes)), within=60)
        ended = time.monotonic()
        assert command.records("worker_crashed") == [], command.log
    codes = {"SIGKILL": {-signal.SIGKILL}, "SIGTERM": {0, -signal.SIGTERM}}
    assert code in codes.get(moment.kind, {0, 130}), (moment, command.log)
    return ended - sent


def assert_nothing_is_lost(crawl: Crawl) -> None:
    """Crawl the rest: each page is finished once, and no stop has cost an attempt."""
    with crawl.run("-o", "items.jsonl") as command:
        code, report = command.end(within=60)
    assert (code, report.get("finish_reason")) == (0, "drained"), command.log
    assert crawl.items() == crawl.urls
    rows = asyncio.run(records(crawl.ledger, crawl.site, name=crawl.name)).values()
    assert {(row.task.status, row.task.retry) for row in rows} == {(Status.FINISHED, 0)}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [2, 60])
@pytest.mark.parametrize("ledger_url", ["sqlite", "postgres"], indirect=True)
def test_a_crawl_that_is_ended_at_any_moment_ends_in_time_and_loses_nothing(
    ledger_url: str, tmp_path: Path, number: int
):
    def end_at(numbered: tuple[int, Moment]) -> float:
        index, moment = numbered
        place = f"{ledger_url}-{index}" if ledger_url.startswith("sqlite") else ledger_url
        with Site(PAGES) as site:
            crawl = Crawl(tmp_path / f"{index}", site, place, name=f"pages{index}")
            seconds = seconds_to_the_end(crawl, moment)
            assert_nothing_is_lost(crawl)
        return seconds

    chosen = moments(60) if number == 60 else moments(60)[3::13][:number]
    print(f"seed {SEED}")
    with ThreadPoolExecutor(4) as pool:
        seconds = list(pool.map(end_at, enumerate(chosen)))

    for kind in KINDS:
        times = [t for t, moment in zip(seconds, chosen, strict=True) if moment.kind == kind]
        if times:
            print(f"{len(times)} times {kind}: ended after {max(times):.1f} s at most")
