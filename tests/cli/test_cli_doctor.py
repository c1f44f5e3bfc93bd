"""`crawlcw doctor`: its output and its exit codes."""

import gc
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawlcw import Spider, run_spider
from crawlcw.ledger.mongo import inspection
from crawlcw.ledger.sqlite import connection
from crawlcw.testing import ReplayDownloader
from tests.cli.test_cli import folder  # noqa: F401  # a fixture
from tests.support.commands import invoke
from tests.support.mongod import with_database

START_URL = "https://tea.example/"
EVIL = "https://tea.example/\x1b[2J\u202e"


class Teas(Spider):
    name = "teas"
    start_urls = [START_URL]

    def parse(self, response):
        yield from response.follow_all("a", self.parse)
        yield {"url": response.url}


async def crawl(ledger_url: str) -> None:
    pages = ReplayDownloader(
        {
            START_URL: '<a href="/1">1</a><a href="/2">2</a><a href="/3">3</a>',
            **{f"{START_URL}{n}": "<h1>tea</h1>" for n in (1, 2)},
        }
    )
    report = await run_spider(Teas(), ledger=ledger_url, downloader=pages)
    assert report.drained


async def changed(place: Path, *statements: tuple[Any, ...]) -> str:
    """Return the URL of a ledger that was changed by hand after a crawl."""
    url = f"sqlite:///{place}/damaged_ledger.db"
    await crawl(url)
    with closing(sqlite3.connect(place / "damaged_ledger.db")) as db, db:
        for statement in statements:
            db.execute(*statement)
    db.close()
    return url


async def test_a_ledger_after_a_crawl_is_clean(ledger_url: str):
    await crawl(ledger_url)

    run = invoke("doctor", "teas", "--ledger", ledger_url)

    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0] == "teas: checked 4 tasks, 1 host, 0 workers at work"
    assert lines[-1] == "clean: no violation"
    assert "VIOLATION" not in run.stdout


@pytest.fixture
async def damaged_ledger(tmp_path: Path) -> str:
    """A ledger with an orphaned lock, and a URL that would clear the terminal."""
    return await changed(
        tmp_path,
        ("UPDATE teas SET lock = 'x:1' WHERE url LIKE '%/1'",),
        ("UPDATE teas SET settled = 9, url = ? WHERE status = 70", (EVIL,)),
    )


def test_what_is_found_is_told_with_what_to_do(damaged_ledger: str):
    run = invoke("doctor", "teas", "--ledger", damaged_ledger)

    assert (run.returncode, run.stderr) == (1, "")
    assert all(line.isprintable() for line in run.stdout.splitlines())
    assert "VIOLATION field-left (1): a task has a lock, a `due` or a reason" in run.stdout
    assert "https://tea.example/1: finished, lock 'x:1', lock_time None, due None" in run.stdout
    assert "    what to do: --repair removes the field" in run.stdout
    assert "VIOLATION fence-behind (1)" in run.stdout
    assert run.stdout.splitlines()[-1] == "2 violations"


def test_what_was_mended_is_told_and_what_is_left_is_exit_code_1(damaged_ledger: str):
    run = invoke("doctor", "teas", "--ledger", damaged_ledger, "--repair")
    after = invoke("doctor", "teas", "--ledger", damaged_ledger)

    assert run.returncode == 1
    assert "VIOLATION field-left (1, 1 repaired)" in run.stdout
    assert run.stdout.splitlines()[-1] == "1 violation; 1 repaired"
    assert after.returncode == 1
    assert "field-left" not in after.stdout


def test_a_program_gets_one_object(damaged_ledger: str):
    run = invoke("doctor", "teas", "--ledger", damaged_ledger, "--json", "--repair")

    assert run.returncode == 1
    assert run.stdout.isascii()
    shown = json.loads(run.stdout)
    assert (shown["spider"], shown["clean"]) == ("teas", False)
    assert shown["examined"] == {"tasks": 4, "hosts": 1, "workers": 0}
    assert shown["facts"]["journal mode"] == "wal"
    findings = {finding["kind"]: finding for finding in shown["findings"]}
    lock = findings["field-left"]
    assert (lock["severity"], lock["count"], lock["repaired"]) == ("violation", 1, 1)
    assert lock["examples"][0]["url"] == "https://tea.example/1"
    assert len(lock["examples"][0]["task"]) == 32
    evil = findings["fence-behind"]["examples"][0]
    assert evil["url"] == r"https://tea.example/\x1b[2J\u202e"
    assert (lock["meaning"], lock["todo"]) != ("", "")


async def test_when_all_is_mended_it_exits_with_0(tmp_path: Path):
    url = await changed(tmp_path, ("UPDATE teas SET lock = 'x:1' WHERE status = 50",))

    run = invoke("doctor", "teas", "--ledger", url, "--repair", "--examples", "1")

    assert run.returncode == 0
    assert "    and 2 more" in run.stdout
    assert run.stdout.splitlines()[-1] == "clean: no violation; 3 repaired"


async def test_there_is_nothing_of_a_spider_that_never_ran(ledger_url: str):
    await crawl(ledger_url)

    run = invoke("doctor", "teass", "--ledger", ledger_url)

    assert run.returncode == 2
    said = "nothing is recorded for a spider or use case named 'teass' in this ledger: "
    assert f"{said}did you mean teas? --ledger names another ledger" in run.stderr
    assert run.stdout == ""


def test_a_file_that_does_not_exist_is_not_made(tmp_path: Path):
    run = invoke("doctor", "teas", "--ledger", f"sqlite:///{tmp_path}/none.db")

    assert run.returncode == 2
    assert not (tmp_path / "none.db").exists()


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect garbage after a test, while its warnings are still ignored."""
    yield
    gc.collect()


#: If its monitor is ended, PyMongo leaves a connecting socket to the garbage collector.
may_lose_a_socket = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@may_lose_a_socket
@pytest.mark.usefixtures("collected")
def test_a_server_that_is_not_there_is_exit_code_69(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inspection, "CONNECT_TIMEOUT", 0.2)

    run = invoke("doctor", "teas", "--ledger", "mongodb://127.0.0.1:9/x")

    assert run.returncode == 69
    assert run.stderr.startswith("crawlcw: the ledger cannot be reached:")


async def test_a_ledger_that_takes_writes_is_ready(ledger_url: str):
    await crawl(ledger_url)

    run = invoke("doctor", "teas", "--ready", "--ledger", ledger_url)
    as_json = invoke("doctor", "teas", "--ready", "--json", "--ledger", ledger_url)

    assert (run.returncode, run.stdout, run.stderr) == (0, "ready\n", "")
    assert json.loads(as_json.stdout) == {"ready": True}


async def test_a_ledger_that_is_busy_for_too_long_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "_BUSY_TIMEOUT", 0.05)
    url = f"sqlite:///{tmp_path}/ledger.db"
    await crawl(url)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("BEGIN IMMEDIATE")

        run = invoke("doctor", "teas", "--ready", "--ledger", url)

    assert run.returncode == 69
    assert run.stdout == ""


@may_lose_a_socket
@pytest.mark.usefixtures("collected")
def test_a_ledger_that_is_not_there_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inspection, "CONNECT_TIMEOUT", 0.2)
    away = "mongodb://127.0.0.1:9/crawl"

    assert invoke("doctor", "teas", "--ready", "--ledger", away).returncode == 69
    none = invoke("doctor", "teas", "--ready", "--ledger", f"sqlite:///{tmp_path}/none.db")
    assert (none.returncode, none.stdout) == (2, "")
    both = invoke("doctor", "teas", "--ready", "--repair", "--ledger", away)
    assert both.stderr == "crawlcw: --ready repairs nothing: give it without --repair\n"


def test_on_mongodb_nothing_need_be_recorded_yet(mongodb_uri: str, database_name: str):
    url = with_database(mongodb_uri, database_name)

    assert invoke("doctor", "teas", "--ready", "--ledger", url).stdout == "ready\n"
    with pymongo.MongoClient(mongodb_uri) as client:
        assert client[database_name].list_collection_names() == []
