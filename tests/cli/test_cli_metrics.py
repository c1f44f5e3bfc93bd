"""`--metrics-port`: read by the test, and by a real Prometheus beside `crawlcw stats`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import invoke
from tests.support.gated_site import MISSING, PAGES, GatedSite, gated_site
from tests.support.mongod import free_port
from tests.support.programs import environment
from tests.support.prometheus import get, scraping
from tests.support.work_process import Working

#: Timeout in seconds of waits for conditions, far above any duration here.
ENOUGH = 60.0
SPIDER = """\
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    settings = Settings(read_timeout="90s", timeout="90s", concurrency=4, lease="10s")

    def __init__(self, start_url="http://127.0.0.1:9/"):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all("a")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pages.py").write_text(SPIDER)
    return tmp_path


@pytest.fixture
def site() -> Iterator[GatedSite]:
    with gated_site() as site:
        yield site


class Running:
    """`crawlcw run pages.py --metrics-port PORT`."""

    def __init__(self, ended: ExitStack, site: GatedSite, *options: str) -> None:
        self.port = free_port()
        self.log = Path("crawl.log")
        command = [
            sys.executable,
            "-m",
            "crawlcw",
            "run",
            "pages.py",
            "-a",
            f"start_url={site.url}",
        ]
        command += ["--metrics-port", str(self.port), "--log-format", "json", *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
        ended.callback(self._end)

    def _end(self) -> None:
        # Its workers end with it.
        self.process.kill()
        self.process.wait()

    def metrics(self) -> dict[str, float]:
        return scraped(self.port)

    def worker(self, number: int) -> int:
        """Return the last started process of a worker."""
        started = [each for each in self._logged("worker_started") if each["worker"] == number]
        return started[-1]["pid"]

    def reported(self) -> dict[str, object]:
        assert self.process.wait(timeout=ENOUGH) == 0, self.log.read_text()
        (report,) = self._logged("report")
        return report

    def _logged(self, event: str) -> list[dict[str, Any]]:
        whole = [
            line for line in self.log.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]
        return [each for each in map(json.loads, whole) if each.get("event") == event]


def scraped(port: int) -> dict[str, float]:
    """Return the numbers by their names and labels; empty if the port is closed."""
    try:
        status, text = get(f"http://127.0.0.1:{port}/metrics")
    except OSError:
        return {}
    assert status == 200
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENOUGH
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.05)


ALL_BUT_THE_LAST = 'crawlcw_pages_total{outcome="finished"}'


def test_one_process_tells_what_it_does(processes: ExitStack, site: GatedSite):
    crawl = Running(processes, site, "--processes", "0")

    given_up = 'crawlcw_pages_total{outcome="given-up"}'
    until(
        lambda: (
            (found := crawl.metrics()).get(ALL_BUT_THE_LAST) == PAGES + 1
            and found[given_up] == MISSING
        )
    )
    found = crawl.metrics()
    refused = get(f"http://127.0.0.1:{crawl.port}/metrics", Host="evil.example")
    elsewhere = get(f"http://127.0.0.1:{crawl.port}/")
    site.gate.set()

    assert found['crawlcw_requests_in_flight{worker="1"}'] == 1
    assert found['crawlcw_failures_total{reason="http-status"}'] == MISSING
    assert found['crawlcw_info{name="pages"}'] == 1
    assert found['crawlcw_ledger_operations_total{operation="outcomes.commit"}'] > 0
    assert found['crawlcw_worker_resident_memory_bytes{worker="1"}'] > 10 << 20
    assert found["crawlcw_response_bytes_total"] > PAGES * 10
    assert refused[0] == 403
    assert elsewhere[0] == 404
    assert crawl.reported()["pages"] == PAGES + 2


@pytest.mark.thorough
def test_a_real_prometheus_and_stats_tell_the_same_of_two_workers(
    processes: ExitStack, site: GatedSite, ledger_url: str, folder: Path
):
    crawl = Running(processes, site, "--processes", "2", "--ledger", ledger_url)
    prometheus = processes.enter_context(scraping(folder, f"127.0.0.1:{crawl.port}"))

    def counts() -> dict[str, int]:
        told = invoke("stats", "pages", "--json", "--ledger", ledger_url)
        return json.loads(told.stdout)["counts"]

    def agrees() -> bool:
        pages = prometheus.query("crawlcw_pages_total")
        return pages.get("finished") == PAGES + 1 and pages.get("given-up") == MISSING

    until(agrees)
    # Only the last page is under way, so both show the same state.
    until(lambda: prometheus.query("crawlcw_tasks") == counts())
    stats = json.loads(invoke("stats", "pages", "--json", "--ledger", ledger_url).stdout)

    assert stats["counts"] == {
        "todo": 0, "failed": 0, "processing": 1, "finished": PAGES + 1, "ignored": MISSING,
    }  # fmt: skip
    assert prometheus.query("crawlcw_items_total") == {"": stats["items"]}
    assert prometheus.query("crawlcw_failures_total") == stats["reasons"]
    assert prometheus.query("sum(crawlcw_requests_in_flight)") == {"": 1}
    assert prometheus.query("crawlcw_workers") == {"": 2}
    assert prometheus.query("sum(crawlcw_tasks_leased)") == {"": 1}
    # Each worker has a slot of its own, which is known once it has reported, and every page was
    # fetched once.
    until(lambda: set(prometheus.query("crawlcw_requests_in_flight")) == {"1", "2"})
    assert prometheus.query("crawlcw_fetch_duration_seconds_count") == {"": PAGES + MISSING + 1}
    assert prometheus.query("crawlcw_parse_duration_seconds_count") == {"": PAGES + 1}
    assert prometheus.query("up") == {"": 1}
    site.gate.set()
    report = crawl.reported()
    assert (report["pages"], report["counts"]["finished"]) == (PAGES + 2, PAGES + 2)


@pytest.mark.thorough
def test_what_a_crashed_worker_has_counted_stays_counted(processes: ExitStack, site: GatedSite):
    crawl = Running(processes, site, "--processes", "2")
    seen: list[float] = []

    def crashes_and_workers() -> tuple[float, float]:
        found = crawl.metrics()
        seen.append(found.get(ALL_BUT_THE_LAST, 0.0))
        return found.get("crawlcw_worker_crashes_total", 0.0), found.get("crawlcw_workers", 0.0)

    until(lambda: crashes_and_workers() == (0, 2) and seen[-1] == PAGES + 1)
    for crashed, worker in enumerate((1, 2), start=1):
        os.kill(crawl.worker(worker), signal.SIGKILL)
        until(lambda crashes=crashed: crashes_and_workers() == (crashes, 2))
    site.gate.set()
    crawl.reported()

    # A counter never falls: Prometheus would take that for a restart, and add all of it again.
    assert seen == sorted(seen)
    assert seen[-1] == PAGES + 1


def test_a_port_in_use_is_one_sentence(site: GatedSite):
    site.gate.set()

    told = invoke(
        "run", "pages.py", "-a", f"start_url={site.url}", "--metrics-port", str(site.server_port)
    )

    assert told.returncode == 2
    assert told.stderr == (
        f"crawlcw: the metrics: port {site.server_port} of 127.0.0.1 is in use: choose another "
        "port, or stop the server that uses it\n"
    )


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    told = invoke("run", "pages.py", "--metrics-port", "9100")

    assert told.returncode == 2
    assert told.stderr == (
        "crawlcw: metrics need prometheus-client: install it with `pip install "
        "'crawlcw[metrics]'`\n"
    )


USE_CASE = """\
from crawlcw.tracking import UseCase

orders = UseCase("orders", max_retry=1)

@orders.stage
async def charge(execution):
    if "broken" in execution.data:
        raise ValueError("broken")
"""


def test_a_worker_on_a_use_case_tells_what_it_does(processes: ExitStack, folder: Path):
    file, url, port = folder / "orders.py", f"sqlite:///{folder}/ledger.db", free_port()
    file.write_text(USE_CASE)
    given = '"a"\n"b"\n{"key": "c", "broken": true}\n'
    invoke("add", "orders", "-", "--format", "jsonl", "--ledger", url, given=given)
    worker = Working(file, url, "--metrics-port", port, log=folder / "log")
    processes.enter_context(worker)

    done = {
        'crawlcw_tasks{status="ignored"}': 1,
        'crawlcw_tasks{status="finished"}': 2,
        # Counted after the answer of the ledger, so a moment later.
        'crawlcw_pages_total{outcome="finished"}': 2,
        'crawlcw_failures_total{reason="task-error"}': 1,
        'crawlcw_requests_in_flight{worker="1"}': 0,
    }
    until(lambda: done.items() <= scraped(port).items())
    numbers = scraped(port)
    worker.send(signal.SIGTERM)

    assert numbers['crawlcw_info{name="orders"}'] == 1
    assert numbers["crawlcw_claims_total"] == 3
    assert numbers["crawlcw_workers"] == 1
    assert numbers["crawlcw_worker_cpu_seconds_total"] > 0
    # It fetches nothing, and a worker that waits for tasks is no fault.
    assert not any(re.match("crawlcw_(fetch|items|idle)", name) for name in numbers)
    assert worker.end()[0] == 0, worker.log
    assert scraped(port) == {}
