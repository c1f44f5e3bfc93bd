"""Crawls by several worker processes, on a real site: crashed, stopped and killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crawlcw.model.task import Status
from tests.crawl.test_kill import asked, assert_complete, assert_nothing_held
from tests.support import docs, needed, terminals
from tests.support.crawl_process import Store, wait_until
from tests.support.docs import Site
from tests.support.mongod import with_database
from tests.support.programs import Program, children_of, environment

pytestmark = pytest.mark.thorough

#: Timeout in seconds of waits for conditions, far above any duration here.
ENOUGH = 90.0

SPIDER = """\
import os, sys, time
from crawlcw import Settings
from tests.support.docs import DocsSpider

class Docs(DocsSpider):
    name = "docs"
    settings = Settings(per_host_concurrency=0, concurrency=20, lease="10m")

    def __init__(self, start_url="http://127.0.0.1:9/"):
        super().__init__(start_urls=[start_url])
"""

#: The code after this runs in all workers but the first.
NOT_THE_FIRST = """
    async def opened(self):
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
"""


class Supervised(Program):
    """`crawlcw run docs.py --processes N`, in a folder of its own."""

    def __init__(self, folder: Path, *options: str, **popen: Any) -> None:
        log = folder / "crawl.log"
        log.write_bytes(b"")
        self.command = [sys.executable, "-m", "crawlcw", "run", "docs.py", *options]
        super().__init__(self.command, log, folder=folder, environment=environment(), **popen)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Log records: whole lines, all JSON except for errors that end a process."""
        *lines, _ = self.log.split("\n")
        return [json.loads(line) for line in lines if not line.startswith("crawlcw: ")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("event") == name]

    @property
    def pids(self) -> list[int]:
        """Return the workers' process ids, in the order of their starts."""
        return [record["pid"] for record in self.events("worker_started")]

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return the exit code and the joint report, if any."""
        self.output, _ = self.process.communicate(timeout=ENOUGH)
        reports = self.events("report")
        assert len(reports) <= 1
        return self.process.returncode, reports[0] if reports else {}


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # A dead process without a parent may not have been reaped yet.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def start(processes: ExitStack, store: Store, tmp_path: Path) -> Callable[..., Supervised]:
    run = processes.enter_context

    def start(
        site: Site, *options: str, processes: int = 2, spider: str = "", store: Store = store
    ) -> Supervised:
        (tmp_path / "docs.py").write_text(SPIDER + spider)
        return run(
            Supervised(
                tmp_path,
                *("--processes", str(processes), "--ledger", store.url, "--log-format", "json"),
                *("-a", f"start_url={site.start}"),
                *options,
            )
        )

    return start


def at_work(crawl: Supervised, store: Store) -> Callable[[], bool]:
    return lambda: len(crawl.pids) > 1 and all(store.held_by(pid) for pid in crawl.pids)


def finished(store: Store) -> int:
    return sum(row.status == Status.FINISHED for row in store.rows())


def test_two_workers_crawl_everything_once_and_their_supervisor_sums_it_up(
    serve, start, store, tmp_path
):
    expected = docs.walked("postgresql")
    site = serve(latency=1000)

    crawl = start(site, "-o", "items.jsonl")
    wait_until(at_work(crawl, store))
    site.heal()
    code, report = crawl.end()

    assert_complete(store)
    assert site.hits() == Counter(expected.found | expected.refused)
    assert (code, report["finish_reason"], crawl.output) == (0, "drained", "")
    assert report["pages"] == len(expected.found)
    assert report["items"] == len(expected.pages)
    assert report["counts"]["finished"] == len(expected.found)
    assert report["links_dropped"]["refused-scope"] > 0
    assert len((tmp_path / "items.jsonl").read_text().splitlines()) == len(expected.pages)
    assert len(crawl.pids) == 2


@pytest.mark.parametrize("where", ["mongodb", "sqlite"])
def test_a_worker_that_is_killed_is_started_again_and_each_page_recorded_once(
    where, serve, start, store, request
):
    if where == "mongodb":
        uri = request.getfixturevalue("mongodb_uri")
        store = Store(with_database(uri, request.getfixturevalue("database_name")))
    expected = docs.walked("postgresql")
    site = serve(latency=1000)
    crawl = start(site, store=store)
    wait_until(at_work(crawl, store))
    killed, other = crawl.pids

    # The supervisor releases the tasks of a dead worker at once: read them before.
    os.kill(killed, signal.SIGSTOP)
    held = {row.path for row in store.held_by(killed)}
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not store.held_by(killed))
    site.heal()
    wait_until(lambda: len(crawl.pids) == 3)
    code, report = crawl.end()

    assert held
    assert_complete(store)
    assert (code, report["finish_reason"]) == (0, "drained")
    assert {path for path, times in site.hits().items() if times > 1} <= held
    (crash,) = crawl.events("worker_crashed")
    assert "signal 9, Killed; it is started again in 1.0 s" in crash["message"]
    # Pages of the dead worker count up to its last state, sent twice a second.
    assert len(expected.found) / 2 < report["pages"] <= len(expected.found)
    assert not is_running(other)


@pytest.mark.parametrize("to", ["the supervisor", "each process"])
def test_sigterm_lets_all_workers_finish_what_is_under_way(to, serve, start, store):
    site = serve(latency=200)
    crawl = start(site, "-s", "grace=20s")
    wait_until(asked(site, for_pages=100))
    wait_until(at_work(crawl, store))

    # Like systemd: to each process of the service.
    for pid in crawl.pids if to == "each process" else []:
        os.kill(pid, signal.SIGTERM)
    crawl.send(signal.SIGTERM)
    code, report = crawl.end()

    rows = store.rows()
    assert (code, report["finish_reason"]) == (0, "stopped")
    assert_nothing_held(rows)
    assert {(row.retry, row.lost) for row in rows} == {(0, 0)}
    assert any(row.status == Status.TODO for row in rows)
    assert {row.path for row in rows if row.status == Status.FINISHED} == site.hits().keys()
    assert report["pages"] == finished(store)
    assert len(crawl.pids) == 2


def test_the_third_sigint_kills_workers_that_do_not_end(serve, start, tmp_path):
    hangs = """
    async def closed(self, report):
        open(f"closed-{os.getpid()}", "w").close()
        time.sleep(1000)
"""
    crawl = start(serve(latency=200), spider=hangs)
    wait_until(lambda: len(crawl.pids) == 2)

    crawl.send(signal.SIGINT)
    wait_until(lambda: len(list(tmp_path.glob("closed-*"))) == 2)
    crawl.send(signal.SIGINT)
    wait_until(lambda: crawl.events("stop_now"))
    crawl.send(signal.SIGINT)
    code, report = crawl.end()

    assert (code, report) == (130, {})
    wait_until(lambda: not any(map(is_running, crawl.pids)))


@pytest.mark.representative("running")
@pytest.mark.parametrize("freezes", [False, True], ids=["running", "frozen"])
def test_when_the_supervisor_is_killed_its_workers_end_softly(freezes, serve, start, store):
    prints = """
    def parse(self, response):
        print(response.url)
        yield from super().parse(response)
"""
    site = serve(latency=200)
    crawl = start(site, "-s", "grace=20s", spider=prints)
    wait_until(asked(site, for_pages=100))
    wait_until(at_work(crawl, store))

    if freezes:
        # What its workers have sent since is not read: their connection is reset.
        crawl.send(signal.SIGSTOP)
        wait_until(asked(site, for_pages=site.hits().total() + 300))
    crawl.send(signal.SIGKILL)
    code, _ = crawl.end()
    wait_until(lambda: not any(map(is_running, crawl.pids)))

    rows = store.rows()
    assert code == -signal.SIGKILL
    assert_nothing_held(rows)
    # The workers released their tasks, and no page failed because of the closed output.
    assert {(row.retry, row.lost) for row in rows} == {(0, 0)}
    assert any(row.status == Status.TODO for row in rows)
    assert {row.path for row in rows if row.status == Status.FINISHED} == site.hits().keys()


def test_a_worker_that_ends_with_a_mistake_is_not_started_again(serve, start, store):
    raises = NOT_THE_FIRST + "            raise OSError('no luck')\n"
    crawl = start(serve(), spider=raises)
    code, report = crawl.end()

    assert_complete(store)
    assert (code, report["finish_reason"]) == (2, "drained")
    assert crawl.log.count("crawlcw: the spider's opened() raised OSError: no luck\n") == 1
    assert len(crawl.pids) == 2


def test_by_default_one_worker_does_it_and_without_processes_this_process(
    serve, processes, store, tmp_path
):
    says = "\n    async def opened(self):\n        print(os.getpid(), sys.stdin.readline())\n"
    (tmp_path / "docs.py").write_text(SPIDER + says)
    site, pids = serve(), []
    for options in ([], ["--processes", "0"]):
        crawl = processes.enter_context(
            Supervised(
                tmp_path,
                *("--ledger", store.url, "-a", f"start_url={site.start}", "--log-format", "json"),
                *("--max-pages", "1", *options),
                stdin=subprocess.PIPE,
            )
        )
        crawl.process.stdin.write("from stdin\n")
        crawl.process.stdin.flush()
        assert crawl.end()[0] == 0
        pid, said = (
            crawl.output.split(maxsplit=1) if " " in crawl.output.strip() else (crawl.output, "")
        )
        pids.append((int(pid) == crawl.pid, said.strip()))
        assert crawl.pids == [], "a crawl with one process logs no pid of a worker"

    assert pids == [(False, ""), (True, "from stdin")]


def test_what_spiders_print_is_on_stdout_in_whole_lines(serve, start):
    prints = """
    def parse(self, response):
        print('{"pages": 1000000}')
        print("é" + "x" * 20_000)
        print("\\ud800", flush=True)
        os.write(1, b"\\xff\\n")
        sys.stderr.write('{"long": "' + "y" * 20_000 + '"}\\n')
        yield from super().parse(response)
"""
    expected = docs.walked("postgresql")
    crawl = start(serve(), spider=prints)
    code, report = crawl.end()

    assert (code, report["pages"]) == (0, len(expected.found))
    assert Counter(crawl.output.splitlines()) == {
        '{"pages": 1000000}': len(expected.found),
        "é" + "x" * 20_000: len(expected.found),
        "\\ud800": len(expected.found),
        "\\xff": len(expected.found),
    }
    assert sum("long" in record for record in crawl.records) == len(expected.found)


@pytest.mark.parametrize(
    ("options", "most", "workers"),
    [
        (["--max-pages", "11"], 11, 3),
        (["-s", "max_pages=2"], 2, 2),
        (["-s", "max_pages=2", "--max-pages", "7"], 7, 3),
        (["--max-items", "7"], 7, 3),
    ],
)
def test_a_limit_of_pages_or_items_is_that_of_all_workers_together(
    options, most, workers, serve, start, store
):
    crawl = start(serve(), *options, processes=3)
    code, report = crawl.end()

    reason = "max-items" if "--max-items" in options else "max-pages"
    assert (code, report["finish_reason"]) == (0, reason)
    assert report["pages"] == finished(store) == most
    assert len(crawl.pids) == workers
    assert_nothing_held(store.rows())


def test_ctrl_c_on_a_terminal_reaches_each_worker_once(serve, processes, store, tmp_path):
    (tmp_path / "docs.py").write_text(SPIDER)
    site = serve(latency=200)
    crawl, ours = terminals.started(
        [
            *(sys.executable, "-m", "crawlcw", "run", "docs.py", "--processes", "2"),
            *("--ledger", store.url, "-a", f"start_url={site.start}"),
        ],
        environment() | {"TERM": "xterm", "COLUMNS": "100"},
        folder=tmp_path,
    )
    processes.callback(crawl.wait)
    processes.callback(crawl.kill)
    wait_until(asked(site, for_pages=100))

    os.write(ours, b"\x03")
    shown = b"".join(terminals.chunks(ours)).decode()

    assert crawl.wait(ENOUGH) == 0
    assert shown.count("stopping; current requests have") == 1
    assert "again:" not in shown
    assert "pages/min  items" in shown
    assert "Stopped: " in shown
    assert_nothing_held(store.rows())


@dataclass(frozen=True, slots=True)
class Shell:
    """A terminal with a shell that has job control."""

    pid: int
    terminal: int

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())


@pytest.fixture
def shell(processes: ExitStack, tmp_path: Path) -> Shell:
    bash, ours = terminals.started(
        [needed.program("bash"), "--norc", "--noprofile", "-i"],
        environment() | {"TERM": "xterm", "HISTFILE": ""},
        folder=tmp_path,
    )
    processes.callback(bash.wait)
    processes.callback(bash.kill)
    # A terminal without a reader blocks its writers.
    threading.Thread(target=lambda: list(terminals.chunks(ours)), daemon=True).start()
    return Shell(bash.pid, ours)


def begun_on(shell: Shell, site: Site, store: Store, folder: Path) -> list[int]:
    """Crawl by two workers in the foreground; return the ids, the supervisor's first."""
    (folder / "docs.py").write_text(SPIDER)
    line = f"{sys.executable} -m crawlcw run docs.py --processes 2 --ledger {store.url}"
    shell.type(f"{line} -s grace=20s -a start_url={site.start}\n")
    wait_until(asked(site, for_pages=100))
    found = children_of(shell.pid)
    assert len(found) == 3
    wait_until(lambda: all(store.held_by(pid) for pid in found[1:]))
    return found


def stopped(pids: Sequence[int]) -> bool:
    """Return whether all of them are stopped, neither running nor ended."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in pids]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


@pytest.mark.representative("ctrl_z")
def test_ctrl_z_stops_all_workers_and_in_the_foreground_they_go_on(
    shell, processes, store, tmp_path
):
    (tmp_path / "site").mkdir()
    star = docs.star(tmp_path / "site", leaves=400)
    site = processes.enter_context(docs.served(star, latency=1000))
    pids = begun_on(shell, site, store, tmp_path)

    shell.type("\x1a")
    wait_until(lambda: stopped(pids))
    before = site.hits()
    shell.type("fg; echo $? > ended; mv ended code\n")
    wait_until(lambda: site.hits() != before)
    site.heal()
    wait_until((tmp_path / "code").exists)

    assert (tmp_path / "code").read_text() == "0\n"
    rows = store.rows()
    assert {row.path for row in rows} == {f"/{file.name}" for file in star.iterdir()}
    assert {(row.status, row.items) for row in rows} == {(Status.FINISHED, 1)}
    assert_nothing_held(rows)
    assert {(row.retry, row.lost) for row in rows} == {(0, 0)}
    assert set(site.hits().values()) == {1}
