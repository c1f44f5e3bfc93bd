"""`crawlcw stats --watch` and `--by`: the state of a running crawl, from another process."""

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

from crawlcw.cli.commands import stats
from crawlcw.cli.terminal import overview
from crawlcw.dashboard.observer import CrawlState, Observer, average_rate, notable_hosts
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.protocol import Counters, Counts, Dimension, Worker
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.hosts import Host
from crawlcw.model.rates import Point, Span, Vitals
from crawlcw.model.task import Status
from tests.cli.test_cli import PATIENCE, SPIDER, command, environment
from tests.support.commands import invoke
from tests.support.ledgers import (
    START,
    FakeClock,
    PatchedFacet,
    claimed,
    failure,
    make_task,
    make_tasks,
    success,
)
from tests.support.mongod import with_database
from tests.support.slow_site import PAGES

EVIL = "evil\x1b[2J\u202e.com"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MINUTE = timedelta(minutes=1)


def worker(name: str = "w", **vitals: Any) -> Worker:
    return Worker(
        name=name,
        machine="m1",
        pid=42,
        birth="1",
        started=START,
        heartbeat=START,
        vitals=Vitals(**vitals),
    )


def look(**fields: Any) -> CrawlState:
    counts = Counts(by_status={Status.TODO: 70, Status.FAILED: 20, Status.FINISHED: 10})
    usual = CrawlState(
        name="books",
        kind=LedgerKind.SPIDER,
        now=START,
        counts=counts,
        counted_at=START,
        reasons={},
        workers=(),
        average_rate=None,
        hosts=(),
    )
    return replace(usual, **fields)


def drawn(seen: CrawlState, *, height: int = 40, terminal: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=140, _environ={})
    console.print(overview.display(seen, height=height))
    return file.getvalue()


def span(began: float, ended: float, finished: int) -> Span:
    return Span(
        worker="w",
        start=START + began * MINUTE,
        end=START + ended * MINUTE,
        vitals=Vitals(finished=finished),
    )


# --- output


def test_a_crawl_that_is_paused_says_so_in_every_form():
    seen = look(paused="2026-01-01T00:00:00Z")

    assert "paused since 2026-01-01T00:00:00Z" in drawn(seen)
    assert ", paused since 2026-01-01T00:00:00Z" in overview.line(seen)
    assert overview.fields(seen)["paused"] == "2026-01-01T00:00:00Z"
    assert "paused" not in drawn(look()) + overview.line(look())


def test_a_crawl_with_nothing_left_to_do_says_so_in_every_form():
    drained = look(counts=Counts(by_status={Status.FINISHED: 10}))

    assert "drained: nothing is left to do; Ctrl-C ends this display" in drawn(drained)
    assert overview.line(drained).endswith(", drained: nothing is left to do")
    assert overview.fields(drained)["drained"] is True
    for running in (look(), look(counts=Counts(), counted_at=None)):
        assert "drained" not in drawn(running) + overview.line(running)
        assert overview.fields(running)["drained"] is False


def test_the_rate_is_that_of_all_workers_that_are_heard_of_and_gives_the_time_to_go():
    silent = replace(worker("gone", rate=99.0), heartbeat=START - MINUTE)
    seen = look(workers=(worker("a", rate=2.0), worker("b", rate=1.0), silent))

    assert (seen.backlog, seen.rate, seen.eta) == (90, 3.0, timedelta(seconds=30))
    assert look().eta is None
    assert look(counts=Counts()).eta == timedelta(0)
    assert look(counts=Counts(), counted_at=None).eta is None


def test_the_average_counts_idle_times_and_only_the_part_in_question():
    spans = [span(-1, 1, 120), span(9, 10, 60)]

    assert average_rate(spans, start=START) == 120 / 600
    assert average_rate([], start=START) is None


def test_hosts_that_fail_come_before_those_that_rest_and_those_that_are_slow():
    rests = START + MINUTE
    hosts = [
        Host(name="usual.com"),
        Host(name="slow.com", delay=2.0),
        Host(name="slower.com", delay=3.0),
        Host(name="rests.com", not_before=rests, ready_at=rests),
        Host(name="fails.com", failures=3, not_before=rests, ready_at=rests),
    ]

    found = notable_hosts(hosts, now=START)

    assert [each.host.name for each in found] == [
        "fails.com",
        "rests.com",
        "slower.com",
        "slow.com",
    ]
    assert found[0].why == "resting for 60 s: 3 failures"


def test_a_picture_shows_each_worker_and_host_and_nothing_of_them_acts_on_the_terminal():
    hosts = notable_hosts([Host(name=EVIL, failures=2)], now=START)
    evil = replace(worker(EVIL, rate=1.5, processing=7, memory=300 << 20, lag=1.25, finished=9))
    seen = look(workers=(evil,), hosts=hosts, reasons={EVIL: 3}, name=EVIL, error=EVIL)

    for text in (drawn(seen), overview.line(seen) + "\n"):
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
    shown = drawn(seen, terminal=False)
    assert re.search(r"evil\\x1b\[2J\\u202e\.com +1\.5 +7 +300 MiB +1,250 ms +9 +0", shown)
    assert "\x1b" not in json.dumps(overview.fields(seen))


@pytest.mark.parametrize("height", [10, 24, 60])
def test_a_picture_fits_the_terminal_and_says_what_is_left_out(height: int):
    workers = tuple(worker(f"w{n}") for n in range(50))
    hosts = notable_hosts([Host(name=f"h{n}.com", delay=1.0) for n in range(99)], now=START)

    lines = drawn(look(workers=workers, hosts=hosts), height=height).splitlines()

    assert len(lines) <= max(height, 22)
    assert re.search(r"and \d+ more", "\n".join(lines))


async def test_counting_takes_a_twentieth_of_the_time_and_the_rest_is_of_now(tmp_path: Path):
    now = 0.0
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books", clock=FakeClock())
    queries = ledger.queries
    counted = 0

    async def counts() -> Counts:
        nonlocal counted, now
        counted += 1
        now += 3.0
        return await queries.counts()

    ledger.queries = PatchedFacet(queries, counts=counts)
    await ledger.tasks.add(make_tasks(3))
    async with Observer(ledger, "books", clock=lambda: now) as observer:
        assert (await observer.poll()).counts.total == 3
        await ledger.workers.join(replace(this_worker(now=START), name="a"))
        await ledger.workers.beat("a", Counters(), vitals=Vitals(rate=2.0))
        started = START - MINUTE
        for minute in (1, 2):
            vitals = Vitals(finished=60 * minute)
            time = START - MINUTE + minute * timedelta(seconds=20)
            await ledger.rates.record(Point(worker="a", started=started, time=time, vitals=vitals))

        now = 62.0
        second = await observer.poll()
        assert (counted, second.rate) == (1, 2.0)

        now = 64.0
        await observer.poll()
        assert counted == 2
    await ledger.close()


# --- the command


def test_every_is_checked(tmp_path: Path):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    for arguments, said in [
        (("--every", "5s"), "--every needs --watch"),
        (("--watch", "--every", "10ms"), "--every is at least 1s"),
        (("--watch", "--every", "soon"), "--every: "),
        (("--watch", "--all-items"), "--all-items does not go with --by or --watch"),
        (("--by", "host", "--all-items"), "--all-items does not go with --by or --watch"),
        (("--watch",), "there is no ledger at"),
    ]:
        result = invoke("stats", "books", "--ledger", ledger, *arguments)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert said in result.stderr


async def test_items_that_were_not_all_counted_are_called_so(
    mongodb_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch
):
    url = with_database(mongodb_uri, database_name)
    ledger = await MongoLedger.open(url, "books")
    await ledger.tasks.add(make_tasks(9))
    leases = await claimed(ledger)
    await ledger.outcomes.commit([success(ledger, lease, {"n": 1}, {"n": 2}) for lease in leases])
    await ledger.close()
    monkeypatch.setattr(stats, "_SCAN_LIMIT", 4)
    asked = ("stats", "books", "--ledger", url)

    assert "at least 8 (--all-items counts all)" in invoke(*asked).stdout
    found = json.loads(invoke(*asked, "--json").stdout)
    assert (found["items"], found["items_all_counted"]) == (8, False)
    found = json.loads(invoke(*asked, "--json", "--all-items").stdout)
    assert (found["items"], found["items_all_counted"]) == (18, True)


@contextmanager
def crawling(tmp_path: Path, ledger: str) -> Iterator[str]:
    """Run a crawl with blocked pages in a process of its own; yield its site."""
    (tmp_path / "pages.py").write_text(SPIDER)
    site = subprocess.Popen(
        [sys.executable, "-m", "tests.support.slow_site"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert site.stdout is not None
    origin = f"http://127.0.0.1:{int(site.stdout.readline())}"
    run = ["run", "pages.py", "-a", f"start_url={origin}/", "--ledger", ledger]
    crawl = subprocess.Popen(
        command(*run),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    )
    try:
        assert site.stdout.readline().startswith("/page/")
        yield origin
    finally:
        crawl.kill()
        site.kill()
        crawl.communicate()
        site.communicate()


class Terminal:
    """A command on a pseudo-terminal of 40 lines."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self._process = subprocess.Popen(
            command(*arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            # Ctrl-C goes to the foreground processes of a terminal.
            preexec_fn=os.setsid,
            env=environment() | {"TERM": "xterm-256color"} | variables,
        )
        os.close(slave)
        self._master = master
        self.written = ""

    def read_until(self, pattern: str) -> None:
        """Read until the output has the pattern."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, ESCAPE.sub("", self.written)):
            assert time.monotonic() < deadline, self.written[-4000:]
            self._read()

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 1.0)[0]:
            return True
        try:
            some = os.read(self._master, 65_536)
        except OSError:
            return False  # the command has ended
        self.written += some.decode()
        return bool(some)

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(PATIENCE)


@pytest.fixture(params=["sqlite", pytest.param("mongodb", marks=pytest.mark.thorough)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    uri = request.getfixturevalue("mongodb_uri")
    return with_database(uri, request.getfixturevalue("database_name"))


def test_a_crawl_is_watched_from_another_terminal_while_it_runs(tmp_path: Path, ledger: str):
    with crawling(tmp_path, ledger) as origin:
        watch = ["stats", "pages", "--ledger", ledger, "--watch", "--every", "1s"]
        piped = subprocess.Popen(
            command(*watch, "--json"), stdout=subprocess.PIPE, text=True, env=environment()
        )
        terminal = Terminal(*watch)
        terminal.read_until(rf"processing {PAGES}\b")
        terminal.read_until(r"(?m)^ *\S+-\d+-\w+ +\d+\.\d +[1-9]\d* +\d+ MiB +\d+ ms")
        assert piped.stdout is not None
        seen: list[dict[str, Any]] = []
        while not any(each["processing"] for look in seen for each in look["workers"]):
            seen.append(json.loads(piped.stdout.readline()))
        with urlopen(f"{origin}/open") as answer:
            answer.read()
        terminal.read_until(rf"finished {PAGES + 1}\b")

        assert terminal.interrupt() == 0
        while seen[-1]["counts"]["finished"] <= PAGES:
            seen.append(json.loads(piped.stdout.readline()))
        piped.stdout.close()  # the reader closes the pipe
        assert piped.wait(PATIENCE) == 141

    assert "Traceback" not in terminal.written
    assert "interrupted" not in terminal.written
    assert seen[-1]["spider"] == "pages"
    assert {each["total"] for each in seen if each["counts"]["finished"]} == {PAGES + 1}


# --- stats --by


async def crawled(place: str) -> None:
    """Record a few pages, a failed one and one of a hostile host among them."""
    ledger = await open_ledger(place, "books")
    tasks = [make_task(f"https://h{n % 2}.com/{n}", callback=EVIL, depth=n) for n in range(4)]
    await ledger.tasks.add(tasks)
    leases = await claimed(ledger, limit=3)
    done = success(ledger, leases[0], url="https://h0.com/0")
    refused = failure(ledger, leases[1], Reason.REFUSED_ROBOTS)
    await ledger.outcomes.commit([done, refused])
    await ledger.close()


def test_tasks_are_counted_by_what_they_have_in_common(ledger: str):
    asyncio.run(crawled(ledger))
    stats = ["stats", "books", "--ledger", ledger, "--by"]
    found = {
        by: [json.loads(line) for line in invoke(*stats, str(by), "--json").stdout.splitlines()]
        for by in Dimension
    }

    assert sum(each["total"] for each in found[Dimension.HOST]) == 4
    assert [each["depth"] for each in found[Dimension.DEPTH]] == [0, 1, 2, 3]
    assert found[Dimension.REASON] == [
        {"reason": "refused-robots", "open": 0, "finished": 0, "ignored": 1, "total": 1}
    ]
    assert [each["status-code"] for each in found[Dimension.STATUS_CODE]] == [200, None]
    assert [each["callback"] for each in found[Dimension.CALLBACK]] == [EVIL]
    table = invoke(*stats, "callback")
    assert re.search(r"evil\\x1b\[2J\\u202e\.com +2 +1 +1 +4", table.stdout)
    for run in (table, invoke(*stats, "callback", "--json")):
        assert (run.returncode, run.stderr) == (0, "")
        assert "\x1b" not in run.stdout
        assert "\u202e" not in run.stdout


def test_what_cannot_be_counted_is_said_in_one_line(tmp_path: Path):
    place = f"sqlite:///{tmp_path}/ledger.db"
    asyncio.run(crawled(place))
    for arguments, said in [
        (("--by", "colour"), "'colour' is not one of"),
        (("--by", "host", "--watch"), "leave one of them out"),
    ]:
        result = invoke("stats", "books", "--ledger", place, *arguments)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert said in result.stderr
