"""Crawls in processes of their own, controlled from another one through the ledger."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crawlcw.engine.workers import this_worker
from crawlcw.ledger_opening import open_ledger
from tests.support import endless_site
from tests.support.commands import invoke
from tests.support.crawl_process import wait_until
from tests.support.docs import REPOSITORY
from tests.support.endless_site import EndlessSite
from tests.support.programs import Program

#: Timeout in seconds of waits for conditions, far above any duration here.
ENOUGH = 120.0
LINKS = 30
SPIDER = """\
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    settings = Settings(concurrency=8, per_host_concurrency=4, delay="250ms", auto_throttle=False)

    def __init__(self, start_url="http://127.0.0.1:9/"):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield from response.follow_all("a")

    def other(self, response):
        yield {"by": "other", "n": response.context["n"]}
"""
FED = """\
from crawlcw import Spider

class Pages(Spider):
    name = "pages"
    start_urls = []
    allowed_hosts = ["127.0.0.1"]

    def parse(self, response):
        yield {"url": response.url}
"""


class Crawl(Program):
    """`crawlcw run pages` in a process of its own."""

    def __init__(self, folder: Path, site: EndlessSite, *options: str) -> None:
        arguments = ["run", "pages", "-a", f"start_url={site.url}", *options]
        super().__init__(
            [sys.executable, "-m", "crawlcw", *arguments],
            folder / "crawl.log",
            folder=folder,
            environment=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )

    def end(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and its output."""
        out, _ = self.process.communicate(timeout=ENOUGH)
        return self.process.returncode, out


@pytest.fixture
def folder(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)
    (tmp_path / "spiders").mkdir()
    (tmp_path / "spiders" / "pages.py").write_text(SPIDER)
    return tmp_path


@pytest.fixture
def site(processes: ExitStack) -> Iterator[EndlessSite]:
    return processes.enter_context(endless_site.running(links=LINKS))


def told(*arguments: str, given: str = "") -> str:
    done = invoke(*arguments, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stats() -> dict[str, Any]:
    return json.loads(told("stats", "pages", "--json"))


def new_urls(site: EndlessSite, number: int) -> str:
    """Return lines: URLs, and every tenth as JSON with a callback."""
    lines = []
    for n in range(number):
        url = f"{site.url}new/{n}"
        more = {"url": url, "callback": "other", "context": {"n": n}}
        lines.append(json.dumps(more) if n % 10 == 0 else url)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("number", "delay"),
    [
        pytest.param(300, "20ms", id="some"),
        pytest.param(9_900, "0s", id="many", marks=pytest.mark.thorough),
    ],
)
def test_a_crawl_is_paused_fed_slowed_and_resumed_and_nothing_is_lost(
    folder: Path, site: EndlessSite, processes: ExitStack, number: int, delay: str
):
    crawl = processes.enter_context(Crawl(folder, site))
    wait_until(lambda: site.pages > 3)

    assert "pages is paused: 1 worker follows" in told("pause", "pages")
    wait_until(lambda: "paused: current requests" in crawl.log)
    wait_until(lambda: stats()["counts"]["processing"] == 0)
    asked = site.pages
    added = json.loads(told("add", "pages", "-", "--json", given=new_urls(site, number)))
    assert added == {"new": number, "existing": 0, "reopened": 0, "refused": {}}
    assert stats()["paused"] is not None
    assert json.loads(told("pause", "pages", "--json")) == {
        "spider": "pages",
        "paused": stats()["paused"],
        "workers": 1,
    }
    assert json.loads(told("hosts", "pages", "--json"))["why"] == "the crawl is paused"
    assert "paused" in told("stats", "pages")
    assert site.pages == asked < LINKS

    # With its own delay, the crawl would take a minute; a delay of 5 min stops it.
    told("set", "pages", f"delay={delay}")
    assert "pages is resumed" in told("resume", "pages")
    wait_until(lambda: site.pages > asked + LINKS)
    told("set", "pages", "delay=5m", "concurrency=2")
    wait_until(lambda: "settings from the ledger: concurrency=2, delay=5m" in crawl.log)
    asked = site.pages
    assert stats()["set"] == {"concurrency": "2", "delay": "5m"}
    assert site.pages <= asked + 8  # requests under way
    told("set", "pages", "delay=0s", "concurrency=50", "per_host_concurrency=0")

    code, _ = crawl.end()
    assert code == 0, crawl.log
    found = stats()
    assert found["counts"]["finished"] == found["total"] == 1 + LINKS + number
    assert found["items"] == number // 10
    assert set(site.hits.values()) == {1}, "each page was requested once"


@pytest.mark.thorough
@pytest.mark.parametrize("processes_of_it", ["2", "0"])
def test_stop_ends_the_crawls_that_run_and_none_that_begins_later(
    folder: Path, site: EndlessSite, processes: ExitStack, processes_of_it: str
):
    options = ["--processes", processes_of_it]
    crawl = processes.enter_context(Crawl(folder, site, *options, "-s", "delay=1s"))
    wait_until(lambda: site.pages > 1)

    began = int(processes_of_it) or 1
    assert told("stop", "pages", "--wait").startswith(f"pages is stopped: {began} worker")
    # No worker is left to disturb the next step.
    assert stats()["workers"] == []
    code, out = crawl.end()

    assert code == 0, crawl.log
    assert "Stopped (by `crawlcw stop`)" in out
    assert stats()["counts"]["processing"] == 0
    assert stats()["workers"] == []
    assert told("stop", "pages") == "no worker of pages is at work\n"
    with Crawl(folder, site, *options, "-s", "delay=0s") as again:
        assert again.end()[0] == 0
    assert stats()["counts"]["finished"] == 1 + LINKS
    assert set(site.hits.values()) <= {1, 2}  # each crawl may request robots.txt


@pytest.mark.thorough
def test_what_is_added_is_begun_while_the_crawl_waits_for_an_answer(
    folder: Path, site: EndlessSite, processes: ExitStack
):
    options = ["-s", "read_timeout=10m", "-s", "timeout=10m"]
    crawl = processes.enter_context(Crawl(folder, site, *options))
    # A host without an answer yet gets one request at a time.
    wait_until(lambda: site.pages > 3)
    told("add", "pages", f"{site.url}held/1", "--priority", "100")
    wait_until(lambda: site.hits["/held/1"] and site.pages == 2 + LINKS)

    told("add", "pages", f"{site.url}new/1")
    wait_until(lambda: site.hits["/new/1"])

    site.release()
    assert crawl.end()[0] == 0


def test_a_spider_without_start_urls_crawls_what_it_is_given(folder: Path, site: EndlessSite):
    spider = folder / "spiders" / "pages.py"
    spider.write_text(FED)
    place = site.url.removeprefix("http://").rstrip("/")
    command = [sys.executable, "-m", "crawlcw", "run", "pages", "-s", f"allow_private={place}"]
    run = partial(subprocess.run, command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})

    nothing = run(capture_output=True, text=True, timeout=ENOUGH)
    told("add", "pages", f"{site.url}new/1")
    one = run(capture_output=True, text=True, timeout=ENOUGH)

    assert nothing.returncode == 3
    assert "no page of pages yet; `crawlcw add pages URL` gives it some" in nothing.stdout
    assert one.returncode == 0
    assert stats()["counts"]["finished"] == 1


def test_what_cannot_be_added_is_counted_by_reason(folder: Path, site: EndlessSite):
    lines = [f"{site.url}a", f"{site.url}a#b", "ftp://127.0.0.1/", "http://other.example/", '"x"']
    given = "\n".join(lines)
    done = invoke("add", "pages", "-", "-a", f"start_url={site.url}", given=given)

    assert done.returncode == 0
    assert done.stdout.startswith("1 added, 1 known already")
    assert "refused-scheme: 2, such as ftp://127.0.0.1/" in done.stderr
    assert "refused-scope: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["add", "pages", "-"], '{"url": "http://127.0.0.1:9/", "cb": 1}', "line 1: a request has"),
        (["add", "pages", "-"], "\n{", "line 2 is not JSON"),
        (["add", "pages", "-"], '{"url": 3}', "line 1 has no text `url`"),
        (
            ["add", "pages", "-"],
            '{"url": "http://127.0.0.1:9/", "headers": {"X-A": "a\\r\\nX-B: b"}}',
            "line 1: Request(headers=...): the value of X-A is not one line of text",
        ),
        (["add", "pages", "http://127.0.0.1:9/", "--callback", "none"], "", "no callback 'none'"),
        (["add", "pages", "-", "--stage", "s"], "", "pages is a spider"),
        (["add", "pages", "missing.txt"], "", "missing.txt"),
        (["add", "nobody", "http://127.0.0.1:9/"], "", "there is no spider 'nobody' here"),
        (["set", "pages", "timeout=3s"], "", "'timeout' takes effect only at the start of a crawl"),
        (["set", "pages", "dely=3s"], "", "'dely' is not a setting"),
        (["set", "pages", "delay=soon"], "", "not a duration"),
        (["set", "pages", "concurrency=0"], "", "concurrency"),
        (["set", "pages", "concurrency=1000000000000"], "", "needs 2,000,000,000,300 file descrip"),
        (["set", "pages", "delay"], "", "write NAME=VALUE"),
        (["set", "pages", "delay=1s", "--reset"], "", "give it alone"),
        (["pause", "nobody"], "", "nothing is recorded"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(folder: Path, arguments: list[str], given: str, said: str):
    told("add", "pages", "http://127.0.0.1:9/first")
    done = invoke(*arguments, given=given)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_settings_are_shown_and_taken_back(folder: Path):
    told("add", "pages", "http://127.0.0.1:9/first")

    assert "no changes" in told("set", "pages")
    changed = told("set", "pages", "delay=2s", "concurrency=5")
    assert "concurrency=5 delay=2s: no worker is at work; crawls that start later follow" in changed
    assert "pages: concurrency=5: " in told("set", "pages", "delay=")
    assert json.loads(told("set", "pages", "--json"))["set"] == {"concurrency": "5"}
    assert "no changes" in told("set", "pages", "--reset")


async def a_worker_elsewhere(url: str) -> None:
    """Add a worker on another machine to the ledger, which does not react."""
    ledger = await open_ledger(url, "pages")
    await ledger.workers.join(
        replace(this_worker(now=ledger.now()), name="w.1", machine="elsewhere")
    )
    await ledger.close()


async def test_a_stop_that_waits_ends_in_time_and_says_who_is_left(folder: Path, ledger_url: str):
    told("add", "pages", "http://127.0.0.1:9/first")
    assert told("stop", "pages", "--wait") == "no worker of pages is at work\n"
    await a_worker_elsewhere(ledger_url)

    late = invoke("stop", "pages", "--wait", "--timeout", "100ms")
    as_json = invoke("stop", "pages", "--wait", "--timeout", "0s", "--json")
    wrong = invoke("stop", "pages", "--wait", "--timeout", "soon")

    assert late.returncode == 75
    assert late.stdout == (
        "1 worker of pages is still at work after 0.1 s: `crawlcw stats pages` lists them\n"
    )
    assert as_json.returncode == 75
    found = json.loads(as_json.stdout)
    assert (found["spider"], found["workers"], found["remaining"]) == ("pages", 1, 1)
    assert wrong.returncode == 2
    assert "--timeout" in wrong.stderr
    assert wrong.stderr.endswith("7d. See `crawlcw stop --help`.\n")


def test_a_use_case_is_no_crawl(folder: Path):
    told("add", "orders", "-", given="o1\n")

    for command in ("pause", "resume", "stop", "set"):
        done = invoke(command, "orders")
        assert done.returncode == 2
        assert "orders is a use case, not a crawl: " in done.stderr
    done = invoke("add", "orders", "-", "--callback", "page", given="o2\n")
    assert "--callback is for the pages of a spider" in done.stderr
