import contextlib
import csv
import dataclasses
import gzip
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from crawlcw.api.spider import Spider
from crawlcw.cli.main import exit_code
from crawlcw.cli.terminal.live import frame
from crawlcw.cli.terminal.progress import Progress, Rate
from crawlcw.engine.stats import Stats
from crawlcw.engine.workers import this_worker
from crawlcw.errors import (
    LedgerConfigurationError,
    LedgerGoneError,
    LedgerUnavailableError,
    SettingsError,
)
from crawlcw.feeds import escaping
from crawlcw.ledger.protocol import Counters, Counts, Worker
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.rates import Vitals
from crawlcw.model.task import Status
from tests.support import slow_site
from tests.support.commands import invoke
from tests.support.ledgers import START, FakeClock, make_task
from tests.support.mongod import with_database

ROOT = Path(__file__).parents[2]
#: Timeout in seconds of waits for conditions, far above any duration here.
PATIENCE = 60.0

SPIDER = """\
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    settings = Settings(per_host_concurrency=0, read_timeout="60s", timeout="60s")

    def __init__(self, start_url="http://127.0.0.1:9/"):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield from response.follow_all("a", self.parse_page)

    def parse_page(self, response):
        yield {"title": response.css_first("h1").text(), "mark": "\\u202e\\x9b"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CRAWLCW_")]:
        if not name.startswith("CRAWLCW_TEST_"):
            monkeypatch.delenv(name)
    (tmp_path / "spiders").mkdir()
    (tmp_path / "spiders" / "pages.py").write_text(SPIDER)
    return tmp_path


def command(*arguments: str, of_python: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *of_python, "-m", "crawlcw", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def crawlcw(
    *arguments: str, folder: Path | None = None, of_python: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments, of_python=of_python),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )


def stats(name: str = "pages") -> dict[str, object]:
    return json.loads(invoke("stats", name, "--json").stdout)


@pytest.fixture(scope="module")
def demo(
    tmp_path_factory: pytest.TempPathFactory,
) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    """A folder in which `crawlcw demo` ran, and the result of the command."""
    place = tmp_path_factory.mktemp("demo")
    return place, crawlcw("demo", folder=place)


def in_demo(demo, *arguments: str) -> "subprocess.CompletedProcess[str]":
    place, _ = demo
    return invoke(*arguments, "--ledger", f"sqlite:///{place}/.crawlcw/demo.db")


def test_help_lists_the_commands_and_exit_codes_at_once():
    run = crawlcw("--help", of_python=["-X", "importtime"])
    imported = set(re.findall(r"\| +([\w.]+)$", run.stderr, re.MULTILINE))

    assert run.returncode == 0
    commands = ("demo", "run", "stats", "hosts", "export", "retry-failed", "doctor")
    for word in (*commands, "list", "settings"):
        assert re.search(rf"^  {word} ", run.stdout, re.MULTILINE)
    for code in (0, 2, 3, 69, 70, 78, 130, 141):
        assert re.search(rf"^ +{code}  ", run.stdout, re.MULTILINE)
    # Slow modules are imported only by the commands that need them.
    assert "click" in imported
    assert imported.isdisjoint({"aiohttp", "motor", "pymongo", "sqlite3", "rich", "pydantic"})
    assert imported.isdisjoint({"asyncio", "yarl", "selectolax", "crawlcw.assembly"})


def test_a_crawl_loads_only_what_it_needs_and_its_supervisor_nothing_that_crawls(tmp_path):
    (tmp_path / "none.py").write_text(
        "from crawlcw import Spider\n"
        "class Pages(Spider):\n"
        "    name = 'pages'\n"
        "    async def start(self):\n"
        "        return\n"
        "        yield\n"
    )
    run = crawlcw("run", "none.py", "-q", of_python=["-X", "importtime"])
    # The worker writes to the same stderr.
    imported = Counter(re.findall(r"\| +([\w.]+)$", run.stderr, re.MULTILINE))

    assert imported["crawlcw.crawl.crawl"] == imported["crawlcw.assembly"] == 1
    assert imported["aiohttp"] == 1
    others = {"motor", "pymongo", "bson", "playwright", "prometheus_client", "opentelemetry"}
    others |= {"pydantic", "parsel", "pyarrow", "warcio", "fsspec", "python_socks", "rich"}
    assert imported.keys().isdisjoint(others)


def test_stats_and_hosts_load_nothing_of_tracking_and_nothing_that_crawls():
    loaded = "import sys, crawlcw.cli.commands.{}; print(*sys.modules)"
    for command in "stats", "hosts":
        run = subprocess.run(
            [sys.executable, "-c", loaded.format(command)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(),
            check=True,
        )
        modules = set(run.stdout.split())

        assert f"crawlcw.cli.commands.{command}" in modules
        assert modules.isdisjoint({"crawlcw.tracking", "crawlcw.assembly", "aiohttp", "pymongo"})


def test_without_uvloop_a_crawl_is_as_complete(demo, tmp_path: Path):
    (tmp_path / "uvloop.py").write_text("raise ImportError('there is none')\n")
    # With `-m`, the current folder comes before those of PYTHONPATH.
    run = crawlcw("demo", folder=tmp_path)
    ledger = f"sqlite:///{tmp_path}/.crawlcw/demo.db"
    without = invoke("stats", "bookshop", "--json", "--ledger", ledger)
    usual = in_demo(demo, "stats", "bookshop", "--json")

    assert run.returncode == 0, run.stderr
    assert json.loads(without.stdout)["counts"] == json.loads(usual.stdout)["counts"]


@pytest.mark.parametrize(
    "outputs", [["-o", "a.jsonl"], ["-o", "-:csv"], ["-o", "-", "-o", "b.csv"]]
)
def test_items_are_followed_on_stdout_only(demo, outputs: list[str]):
    wrong = in_demo(demo, "export", "bookshop", "--follow", *outputs)

    assert wrong.returncode == 2
    assert "--follow writes JSON Lines to stdout" in wrong.stderr


def test_version():
    assert re.fullmatch(r"crawlcw \d+\.\d+\.\d+\n", crawlcw("--version").stdout)


def test_settings_shows_every_setting():
    shown = invoke("settings").stdout

    assert re.search(r"^concurrency +100  \(fetchers\)\n +fetchers in", shown, re.MULTILINE)
    assert "lease " in shown


@pytest.mark.thorough
def test_demo_runs_to_its_end_and_names_commands_that_work(demo):
    place, run = demo

    assert run.returncode == 0, run.stderr
    assert "Drained: nothing is left to do." in run.stdout
    assert re.search(r"^ items +240 *$", run.stdout, re.MULTILINE)
    named = re.findall(r"(?:^  |`)crawlcw ([^`\n]+)", run.stdout, re.MULTILINE)
    assert len(named) == 6
    # Other tests read the same ledger.
    dry = [re.sub("(^retry-failed.*demo.db$)", r"\1 --dry-run", line) for line in named]
    shown = {line.split()[0]: crawlcw(*line.split(), folder=place) for line in dry}
    assert [each.stderr for each in shown.values() if each.returncode] == []
    assert shown["tasks"].stdout.count("http-status") == 3
    assert len((place / "books.jsonl").read_text().splitlines()) == 240


@pytest.mark.thorough
def test_stats_for_a_program(demo):
    shown = json.loads(in_demo(demo, "stats", "bookshop", "--json").stdout)

    assert shown["spider"] == "bookshop"
    assert list(shown["counts"]) == ["todo", "failed", "processing", "finished", "ignored"]
    assert shown["total"] == sum(shown["counts"].values())
    assert (shown["items"], shown["next_due"]) == (240, None)
    assert shown["reasons"] == {"http-status": 3, "refused-robots": 1}
    assert shown["workers"] == []


def test_stats_for_a_person(demo):
    shown = in_demo(demo, "stats", "bookshop").stdout

    assert re.search(r"^ items +240 *$", shown, re.MULTILINE)
    assert re.search(r"refused-robots \(unwanted, no failure\) +1", shown)


async def test_stats_show_who_is_at_work_and_what_was_not_followed(tmp_path: Path):
    ledger = await SqliteLedger.open(tmp_path / "seen.db", "pages", clock=FakeClock())
    await ledger.tasks.add([make_task()])
    this = this_worker(now=START)
    gone = dataclasses.replace(this, name="gone", birth="1")
    elsewhere = Worker(
        name="b", machine="other", pid=7, birth="1", started=START, heartbeat=START, host="far\x1b"
    )
    for worker in (gone, elsewhere, dataclasses.replace(this, name="a", host="near")):
        await ledger.workers.join(worker)
    counted = {"refused-scope": 5, "$where\x1b": 1000}
    long = "http://b.example/" + "x" * 180
    await ledger.workers.beat(
        "a",
        Counters(
            pages=1200, links_dropped=counted, link_examples={"refused-scope": [long, "\x1b", "c"]}
        ),
        vitals=Vitals(rate=2.5, processing=3, memory=1 << 20, lag=0.5),
    )
    await ledger.workers.beat(
        "gone",
        Counters(
            pages=1,
            links_dropped={"refused-scope": 2, "refused-depth": 7},
            link_examples={"refused-depth": ["http://a.example/21"]},
        ),
    )
    await ledger.close()

    person = invoke("stats", "pages", "--ledger", "sqlite:///seen.db").stdout
    program = invoke("stats", "pages", "--ledger", "sqlite:///seen.db", "--json").stdout

    assert re.search(r"^ workers at work +2 *$", person, re.MULTILINE)
    table = person[person.index("links not followed by reason") :].splitlines()
    assert [line.split() for line in table[2:5]] == [
        ["$where\\x1b", "1,000"],
        ["refused-depth", "7"],
        ["refused-scope", "7"],
    ]
    assert [line for line in table if line.startswith("  ") and ": " in line] == [
        "  refused-depth: http://a.example/21",
        f"  refused-scope: {long}",
        "  refused-scope: \\x1b",
        "  refused-scope: c",
    ]
    shown = json.loads(program)
    began = "2026-01-01T00:00:00Z"
    assert list(shown["links_dropped"].items()) == [
        ("$where\x1b", 1000),
        ("refused-depth", 7),
        ("refused-scope", 7),
    ]
    assert shown["link_examples"] == {
        "refused-depth": ["http://a.example/21"],
        "refused-scope": [long, "\x1b", "c"],
    }
    seen = {"started": began, "heartbeat": began}
    vitals = {"rate": 2.5, "processing": 3, "memory": 1 << 20, "lag": 0.5}
    assert shown["workers"] == [
        {"host": "near", "pid": os.getpid(), "pages": 1200} | seen | vitals,
        {"host": "far\x1b", "pid": 7, "pages": 0} | seen | dict.fromkeys(vitals),
    ]
    assert "\x1b" not in person + program


def test_retry_failed_counts_what_it_would_bring_back(demo):
    dry = in_demo(demo, "retry-failed", "bookshop", "--reason", "http-status", "--dry-run")
    none = in_demo(demo, "retry-failed", "bookshop", "--host", "example.com", "--dry-run")
    recent = in_demo(demo, "retry-failed", "bookshop", "--since", "1h", "--dry-run")
    old = in_demo(demo, "retry-failed", "bookshop", "--since", "1ms", "--dry-run")
    wrong = in_demo(demo, "retry-failed", "bookshop", "--host", "a b")

    assert dry.stdout == "3 tasks would be tried again\n"
    assert none.stdout == "0 tasks would be tried again\n"
    assert recent.stdout == "3 tasks would be tried again\n"
    assert old.stdout == "0 tasks would be tried again\n"
    assert (wrong.returncode, "'a b' is not a host" in wrong.stderr) == (2, True)


def test_retry_failed_brings_failures_back_once(demo, folder: Path):
    place, _ = demo
    shutil.copy(place / ".crawlcw" / "demo.db", folder / "copy.db")
    options = ["bookshop", "--ledger", "sqlite:///copy.db"]

    first = invoke("retry-failed", *options)
    second = invoke("retry-failed", *options)
    after = json.loads(invoke("stats", *options, "--json").stdout)

    assert first.stdout == "3 tasks will be tried again by the next run\n"
    assert second.stdout == "0 tasks will be tried again\n"
    assert (after["counts"]["todo"], after["counts"]["ignored"]) == (3, 1)
    assert after["next_due"] is not None


def test_export_writes_items_as_yielded_and_with_meta(demo, folder: Path):
    plain = in_demo(demo, "export", "bookshop", "-o", "-")
    meta = in_demo(demo, "export", "bookshop", "-o", "out.jsonl", "--with-meta")

    first = json.loads(plain.stdout.splitlines()[0])
    with_meta = json.loads((folder / "out.jsonl").read_text().splitlines()[0])
    assert with_meta.items() >= first.items()
    assert set(with_meta) - set(first) == {"_url", "_fetched_at"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", with_meta["_fetched_at"])
    assert meta.stderr == "240 items in out.jsonl\n"
    assert sorted(p.name for p in folder.iterdir()) == ["out.jsonl", "spiders"]


def test_list_shows_spiders_and_what_cannot_be_loaded(folder: Path):
    (folder / "spiders" / "bad.py").write_text("1 / 0\n")

    run = crawlcw("list")

    assert run.returncode == 0
    assert "pages  spiders/pages.py:Pages" in run.stdout
    assert "cannot be loaded: spiders/bad.py, line 1: ZeroDivisionError" in run.stdout


BAD = "1 / 0\n"
TWO = SPIDER + SPIDER.replace("class Pages", "class More").replace('"pages"', '"more"')
RAISES = SPIDER + "\n    async def opened(self):\n        raise OSError('no luck')\n"

#: Mistyped arguments, the exit code, and the error line.
MISTAKES = [
    (["run", "page"], 2, "there is no spider 'page' in ./spiders; did you mean pages?"),
    (["run", "nowhere.py"], 2, "there is no file nowhere.py"),
    (["run", "bad.py"], 2, "bad.py, line 1: ZeroDivisionError: division by zero"),
    (["run", "two.py"], 2, "choose one, such as two.py:Pages"),
    (["run", "raises.py"], 2, "the spider's opened() raised OSError: no luck"),
    (["run", "pages", "-s", "concurency=5"], 2, "did you mean concurrency?"),
    (["run", "pages", "-s", "lease=soon"], 2, "setting lease: 'soon' is not a duration"),
    (["run", "pages", "-s", "lease"], 2, "-s takes NAME=VALUE, not 'lease'"),
    (["run", "pages", "-a", "colour=red"], 2, "unexpected keyword argument 'colour'"),
    (["run", "pages", "-a", "start_url=gopher://x/"], 2, "is not a URL that crawlcw can fetch"),
    (["run", "pages", "--concurrency", "0"], 2, "Invalid value for '--concurrency'"),
    (["run", "pages", "--claim", "some"], 2, "'some' is not one of 'each', 'batch'"),
    (["run", "pages", "-o", "no/such/folder.jsonl"], 2, "cannot write no/such/folder.jsonl"),
    (["run", "pages", "--ledger", "redis://h/"], 2, "write sqlite:///path, mongodb://"),
    (["run", "pages", "--ledger", "sqlite:///"], 2, "write sqlite:///path, mongodb://"),
    (["run", "pages", "--ledger", "mongodb://u:s3cret@h:x/"], 2, "percent-encoded"),
    (["run", "pages", "--ledger", "mongodb://u:s3cret/2@h/"], 2, "percent-encoded"),
    (["run", "pages", "--ledger", "mongodb://u:s3cret@h/?w=2&a b"], 78, "MongoDB: "),
    (["run", "pages", "--ledger", "sqlite:///bad.py"], 78, "is not an SQLite database"),
    (["run", "pages", "--frobnicate"], 2, "No such option"),
    (["run"], 2, "Missing argument 'SPIDER'"),
    (["walk"], 2, "No such command 'walk'"),
    (["shwo"], 2, "there is no command 'shwo': did you mean show? See `crawlcw --help`."),
    (["stats", "pages"], 2, "there is no ledger at .crawlcw/ledger.db: run a spider first"),
    (["stats", "pages", "--ledger", "sqlite:///empty.db"], 2, "nothing is recorded for a spider"),
    (["hosts", "pages"], 2, "there is no ledger at .crawlcw/ledger.db: run a spider first"),
    (["hosts", "pages", "--ledger", "sqlite:///empty.db"], 2, "nothing is recorded for a spider"),
    (["hosts", "pages", "--limit", "-1"], 2, "Invalid value for '--limit'"),
    (["export", "pages"], 2, "Missing option '-o'"),
    (["export", "pages", "-o", "no/folder.csv"], 2, "cannot write no/folder.csv"),
    (["run", "pages", "-o", "books.xlsx"], 2, "'books.xlsx' has no known format"),
    (["retry-failed", "pages", "--reason", "tiemout"], 2, "there is no reason 'tiemout'"),
    (["retry-failed", "pages", "--reason", "refused-robots"], 2, "refused-robots is not a failure"),
    (["retry-failed", "pages", "--since", "later"], 2, "--since: 'later' is not a duration"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.representative("concurency")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    MISTAKES,
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_mistake_is_one_line_and_its_exit_code(folder: Path, arguments, code, said):
    (folder / "bad.py").write_text(BAD)
    (folder / "two.py").write_text(TWO)
    (folder / "raises.py").write_text(RAISES)
    (folder / "empty.db").touch()

    run = crawlcw(*arguments, *(["--quiet"] if arguments[0] == "run" else []))

    # The last line, because an error in the spider's own code is also logged.
    *before, last = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (code, "")
    assert last.startswith("crawlcw: ")
    assert said in last
    assert "s3cret" not in run.stderr
    assert not before or arguments == ["run", "raises.py"]


def test_a_setting_of_the_project_and_one_of_the_environment_name_their_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "pyproject.toml").write_text("[tool.crawlcw]\ndelay = 'soon'\n")
    project = crawlcw("run", "pages")
    (folder / "pyproject.toml").write_text("[tool.crawlcw]\ndelay = 1\n")
    monkeypatch.setenv("CRAWLCW_LEASE", "late")
    variable = crawlcw("run", "pages")

    assert "(from [tool.crawlcw] in pyproject.toml)" in project.stderr
    assert "setting lease: 'late' is not a duration" in variable.stderr
    assert "(from the environment)" in variable.stderr


def test_the_traceback_of_the_users_file_is_shown_for_debug_only(folder: Path):
    (folder / "bad.py").write_text(BAD)

    assert "Traceback" not in crawlcw("run", "bad.py").stderr
    assert "Traceback" in crawlcw("run", "bad.py", "--log-level", "debug").stderr


@pytest.mark.thorough
def test_a_server_that_is_not_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = taken.getsockname()[1]
        run = crawlcw("run", "pages", "--ledger", f"mongodb://u:s3cret@127.0.0.1:{port}/x")

    assert run.returncode == 69
    assert run.stderr.startswith("crawlcw: the ledger cannot be reached: ")
    assert len(run.stderr.splitlines()) == 1
    assert "s3cret" not in run.stderr


def test_a_password_that_is_wrong(mongodb_uri: str, database_name: str):
    url = with_database(mongodb_uri, database_name).replace("://", "://u:s3cret@")
    run = crawlcw("run", "pages", "--ledger", url)

    assert run.returncode == 78
    assert run.stderr.startswith("crawlcw: MongoDB denies access: Authentication failed")
    assert "s3cret" not in run.stderr


class Site:
    """A running slow site."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.slow_site"],
            stdout=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self._line()}/"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def await_requests(self, number: int) -> None:
        for _ in range(number):
            assert self._line().startswith("/page/")

    def open(self) -> None:
        urllib.request.urlopen(self.url + "open").close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.close()


def start(site: Site, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("run", "pages", "-a", f"start_url={site.url}", *options),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def finish(run: "subprocess.Popen[str]") -> tuple[str, str]:
    return run.communicate(timeout=PATIENCE)


def test_an_unknown_variable_is_warned_of_once_and_ends_no_command(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CRAWLCW_BIN", "/opt/s3cret")
    monkeypatch.setenv("CRAWLCW_LAESE", "1m")

    site.open()
    url = f"start_url={site.url}"
    crawl = crawlcw("run", "pages", "-a", url, "--max-pages", "2", "--processes", "2", "--quiet")
    others = [invoke("stats", "pages"), invoke("doctor", "pages"), invoke("list")]

    for run in (crawl, *others):
        assert run.returncode == 0, run.stderr
        assert (
            run.stderr.count("CRAWLCW_BIN is ignored: `crawlcw settings` lists the settings") == 1
        )
        assert run.stderr.count("CRAWLCW_LAESE is ignored: did you mean CRAWLCW_LEASE?") == 1
        assert "s3cret" not in run.stderr


@pytest.mark.thorough
@pytest.mark.representative("[2]")
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_what_is_under_way_and_the_same_command_goes_on(site, which):
    run = start(site, "--concurrency", "5", "-o", "items.jsonl")
    site.await_requests(5)

    run.send_signal(which)
    assert run.stderr is not None
    line = next(line for line in run.stderr if "stopping; current requests have" in line)
    # The supervisor prints this before its worker gets the signal and releases the other tasks.
    while stats()["counts"]["processing"] > 5:
        pass
    site.open()
    out, _ = finish(run)
    stopped = stats()
    again = crawlcw("run", "pages", "-a", f"start_url={site.url}")

    assert which.name in line
    assert run.returncode == 0
    assert re.search(r"Stopped: \d+ tasks were released\. The same command resumes the crawl", out)
    assert stopped["counts"]["processing"] == 0
    finished = slow_site.PAGES - stopped["counts"]["todo"]
    # Fetchers that had started when the worker got the signal may still send their requests.
    assert 5 <= finished <= 10
    assert len(Path("items.jsonl").read_text().splitlines()) == finished
    assert again.returncode == 0
    assert stats()["items"] == slow_site.PAGES


def test_two_signals_release_at_once_and_exit_130(site):
    run = start(site, "--concurrency", "5")
    site.await_requests(5)

    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    next(line for line in run.stderr if "stopping; current requests have" in line)
    run.send_signal(signal.SIGINT)
    finish(run)
    left = stats()

    assert run.returncode == 130
    assert (left["counts"]["processing"], left["counts"]["todo"]) == (0, slow_site.PAGES)
    assert left["reasons"] == {}


@pytest.mark.thorough
def test_max_pages_ends_early_and_says_so(site):
    site.open()

    run = crawlcw("run", "pages", "-a", f"start_url={site.url}", "--max-pages", "4")

    assert run.returncode == 0
    assert "Stopped at max_pages: " in run.stdout
    assert stats()["counts"]["finished"] == 4


@pytest.mark.thorough
def test_run_on_mongodb_with_batches_and_json_logs(site, mongodb_uri, database_name):
    site.open()
    url = with_database(mongodb_uri, database_name)
    run = crawlcw(
        "run", "pages", "-a", f"start_url={site.url}", "--ledger", url, "--claim", "batch",
        "--log-format", "json", "-o", "items.jsonl",
    )  # fmt: skip
    shown = json.loads(invoke("stats", "pages", "--json", "--ledger", url).stdout)

    assert (run.returncode, run.stdout) == (0, "")
    report = json.loads(run.stderr.splitlines()[-1])
    assert (report["event"], report["finish_reason"]) == ("report", "drained")
    assert report["counts"]["finished"] == slow_site.PAGES + 1
    assert shown["items"] == slow_site.PAGES
    assert len(Path("items.jsonl").read_text().splitlines()) == slow_site.PAGES


def test_a_program_named_by_the_environment_and_quiet(site, monkeypatch, folder):
    site.open()
    monkeypatch.setenv("CRAWLCW_LEDGER", f"sqlite:///{folder}/other.db")

    run = crawlcw("run", "pages", "-a", f"start_url={site.url}", "--quiet")

    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert stats()["items"] == slow_site.PAGES
    assert not (folder / ".crawlcw").exists()


@pytest.mark.thorough
def test_a_fresh_run_begins_anew_where_the_user_agrees(site, folder: Path):
    site.open()
    begun = ["run", "pages", "-a", f"start_url={site.url}", "-q"]
    first = crawlcw(*begun, "--fresh")  # no ledger yet, so no question

    def created() -> str:
        found = json.loads(crawlcw("tasks", "pages", "--key", site.url, "--json").stdout)
        return str(found["create_time"])

    first_created = created()
    refused = crawlcw(*begun, "--fresh")
    went_on = crawlcw(*begun)  # drained at once
    anew = crawlcw(*begun, "--fresh", "--yes")

    assert first.returncode == 0
    assert refused.returncode == 2
    asked = f"Drop {slow_site.PAGES + 1:,} tasks and {slow_site.PAGES:,} items of pages, for good?"
    assert f"{asked} No terminal to confirm on: add --yes" in refused.stderr
    assert went_on.returncode == 0
    assert anew.returncode == 0
    assert stats()["items"] == slow_site.PAGES
    assert created() > first_created


def test_items_on_stdout_are_alone_there(site, folder: Path):
    site.open()

    run = crawlcw("run", "pages", "-a", f"start_url={site.url}", "-o", "-", "-o", "items.csv.gz")

    assert run.returncode == 0
    items = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(items) == slow_site.PAGES
    assert "Drained" in run.stderr
    table = gzip.decompress((folder / "items.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(table, newline="")))
    assert rows == [item | {"mark": "\\u202e\\u009b"} for item in items]


@pytest.mark.thorough
def test_demo_draws_on_a_terminal(folder: Path):
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        command("demo"), stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment() | {"TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)

    shown = b"".join(read_all(ours)).decode()

    assert run.wait(PATIENCE) == 0, shown
    assert re.search(r"todo \d+  processing \d+  failed \d+  finished \d+  ignored \d+", shown)
    assert "pages/min" in shown
    assert "Drained: nothing is left to do." in shown


def read_all(terminal: int) -> Iterator[bytes]:
    # Linux raises EIO when the last process on a terminal has ended.
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 1 << 16):
            yield chunk
    os.close(terminal)


def test_items_are_escaped_for_a_terminal_and_mean_the_same():
    item = {"title": "\u202eé\x9b\x7f\u2028\U000e0001 日本"}
    line = json.dumps(item, ensure_ascii=False) + "\n"

    shown = escaping.visible(line)

    assert shown[:-1].isprintable()
    assert shown.endswith("\n")
    assert "é" in shown
    assert "日本" in shown
    assert json.loads(shown) == item


class Books(Spider):
    name = "books"


class Slow:
    """The parts of a crawl that its progress reads, with a ledger that counts for 3 s."""

    def __init__(self) -> None:
        self.ledger = self.queries = self
        self.stats = Stats()
        self.spider = Books()
        self.idle_reason: IdleReason | None = None
        self.time = 0.0
        self.counted = 0

    async def counts(self) -> Counts:
        self.counted += 1
        self.time += 3
        return Counts(by_status={Status.TODO: 60, Status.FINISHED: 1000 + 10 * self.counted})


async def test_counting_takes_a_twentieth_of_the_time_at_most():
    crawl = Slow()
    progress = Progress(crawl, clock=lambda: crawl.time)

    for second in range(630):
        crawl.time = max(crawl.time, second)
        await progress.poll()

    assert crawl.counted == 10


async def test_a_line_says_why_nothing_moves():
    crawl = Slow()
    progress = Progress(crawl, clock=lambda: crawl.time)
    assert progress.fields()["idle_reason"] is None

    crawl.idle_reason = IdleReason(others_have_tasks=True)

    assert progress.line().endswith("eta -; waiting for other workers")
    assert progress.fields()["idle_reason"] == {"sentence": "waiting for other workers"}
    console = Console(width=100)
    with console.capture() as shown:
        console.print(frame(progress))
    assert "waiting for other workers" in shown.get()


async def test_a_ledger_that_is_away_leaves_the_last_count():
    class Away(Slow):
        async def counts(self) -> Counts:
            if self.counted:
                raise LedgerUnavailableError("away")
            return await super().counts()

    crawl = Away()
    progress = Progress(crawl, clock=lambda: crawl.time)
    await progress.poll()
    crawl.time = 1000
    await progress.poll()

    assert progress.counts[Status.TODO] == 60


def test_rate_looks_at_the_last_minute():
    rate = Rate()
    unknown = rate.per_minute
    for second in range(0, 200, 10):
        rate.add(second * 2 if second < 100 else 200 + (second - 100) * 5, now=second)

    assert unknown == 0
    assert rate.per_minute == 300


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SettingsError("no"), 2, "crawlcw: no\n"),
        (LedgerUnavailableError("gone"), 69, "crawlcw: the ledger cannot be reached: gone\n"),
        (LedgerGoneError("removed"), 69, "crawlcw: removed\n"),
        (LedgerConfigurationError("old\x1b[2J\nserver"), 78, "crawlcw: old\\x1b[2J server\n"),
        (KeyboardInterrupt(), 130, "crawlcw: interrupted\n"),
        (BrokenPipeError(), 141, ""),
        (
            KeyError("x"),
            70,
            "crawlcw: a bug in crawlcw: KeyError: 'x' (--log-level debug shows where)\n",
        ),
    ],
)
def test_every_error_has_its_exit_code_and_its_line(error, code, said, capsys):
    def fail() -> None:
        raise error

    assert exit_code(fail) == code
    assert capsys.readouterr().err == said
