"""A crawl ends within the grace, whatever its spider leaves or ignores, and loses nothing."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.blame.code_site import Command, Site
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
"""
LEFT = {
    "thread": "thread Thread-",
    "executor": ", Pages.work (spider.py:",
    "task": "hang (spider.py:",
    "closed": "closed() did not end within the grace",
    "close": "downloader raised when it was closed: TimeoutError",
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
        for event in self.folder.glob("[a-z]*[a-z]"):
            event.unlink()
        code = SPIDER.format(url=self.site.url, name=self.name)
        (self.folder / "spider.py").write_text(code)
        assigned = [f"-a{name}={value}" for name, value in arguments.items()]
        named = ["--processes", processes, "--ledger", self.ledger, "--log-format", "json"]
        return Command(self.folder, "run", "spider.py", *named, *assigned, *options)

    def has_reached(self, event: str) -> bool:
        return (self.folder / event).exists()

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


def wait_for_the_end(command: Command, workers: list[int]) -> None:
    command.end(within=60)
    wait_until(lambda: not any(map(is_running, workers)), within=60)


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

    reason, ends_with = [("stopped", 0), ("stopped-at-once", 130)][signals - 1]
    # A crawl may be drained before its `closed` is stopped.
    expected = {reason, "drained"} if phase == "closed" else {reason}
    assert (code, report["finish_reason"] in expected) == (ends_with, True), c.log
    assert crawl.has_reached("items.jsonl") == (signals == 1)
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
