"""Whole crawls of the hostile server by the real command, with their report, log and tasks."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crawlcw.errors import Reason
from crawlcw.model.task import Status
from tests.hostile.catalogue import Outcome
from tests.support.programs import children_of, environment

#: Far longer than any of these crawls.
_ENOUGH = 900.0
_SPIDER = '''
import asyncio
import time
from pathlib import Path

from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    start_urls = [{url!r}]
    # Short backoffs; all else is what it is by default.
    settings = Settings(
        backoff_base="100ms", backoff_max="1s", host_backoff_base="100ms", host_backoff_max="200ms"
    )
    lag = 0.0

    async def opened(self):
        self.watch = asyncio.create_task(self.measured())

    async def measured(self):
        """Measure how long the loop's thread computes while others wait for their turn.

        By its own time and not the clock's: on a busy machine it waits for its turn as well.
        """
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            self.lag = max(self.lag, time.thread_time() - before)

    async def closed(self, report):
        self.watch.cancel()
        Path("lag").write_text(str(self.lag))

    def parse(self, response):
        title = response.css_first("title")
        yield {{"title": title and title.text()[:100], "poison": b"POISON" in response.body}}
        yield from response.follow_all("a[href]")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One task as it ended."""

    outcome: Outcome
    attempts: int  #: failed ones
    elapsed: float | None  #: seconds from the request to the end of its answer
    ended: float  #: seconds since the first task was added
    title: str | None
    poison: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawled:
    """A crawl that has ended."""

    code: int
    report: dict[str, Any]
    seconds: float
    lag: float  #: the longest of the event loop, in seconds
    peak: int  #: MiB of the largest of its processes
    tasks: dict[str, Seen]  #: by path
    log: str


def crawled(folder: Path, url: str, *settings: str) -> Crawled:
    """Crawl from *url* by `crawlcw run --concurrency 24` until it ends by itself."""
    folder.mkdir()
    (folder / "pages.py").write_text(_SPIDER.format(url=url))
    command = [sys.executable, "-m", "crawlcw", "run", "pages.py", "--concurrency", "24"]
    command += ["--ledger", "sqlite:///ledger.db", "--log-format", "json"]
    command += [f"-s{setting}" for setting in settings]
    began = time.monotonic()
    peak = 0
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            while process.poll() is None:
                assert time.monotonic() - began < _ENOUGH, "the crawl does not end by itself"
                for pid in (process.pid, *children_of(process.pid)):
                    peak = max(peak, _peak_of(pid))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        finally:
            if process.poll() is None:
                for pid in (*children_of(process.pid), process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - began
    text = (folder / "log").read_text(errors="replace")
    reports = [json.loads(line) for line in text.splitlines() if '"event": "report"' in line]
    assert reports, text[-2000:]
    return Crawled(
        code=process.returncode,
        report=reports[-1],
        seconds=seconds,
        lag=float((folder / "lag").read_text()),
        peak=peak // 1024,
        tasks=_tasks(folder / "ledger.db"),
        log=text,
    )


def _peak_of(pid: int) -> int:
    """Return the peak memory of a process in KiB; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1])
    return 0


def _tasks(path: Path) -> dict[str, Seen]:
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        rows = database.execute('SELECT * FROM "pages"').fetchall()
        found = database.execute('SELECT task_id, item FROM "pages.items"')
        items = {each["task_id"]: json.loads(each["item"]) for each in found}
    first = min(row["create_time"] for row in rows)
    return {
        "/" + row["url"].split("/", 3)[3]: _seen(row, items.get(row["id"], {}), first)
        for row in rows
    }


def _seen(row: sqlite3.Row, item: dict[str, Any], first: int) -> Seen:
    answer = json.loads(row["response"] or "{}")
    return Seen(
        outcome=Outcome(
            Status(row["status"]), row["reason"] and Reason(row["reason"]), answer.get("truncated")
        ),
        attempts=row["retry"],
        elapsed=answer.get("elapsed"),
        ended=(row["update_time"] - first) / 1000,
        title=item.get("title"),
        poison=bool(item.get("poison")),
    )
