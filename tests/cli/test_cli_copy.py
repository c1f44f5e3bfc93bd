"""`crawlcw copy`: from one ledger to another, and its refusals."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from crawlcw.cli.commands import copy as copy_command
from crawlcw.engine.workers import this_worker
from crawlcw.ledger.copying import UNFINISHED
from crawlcw.ledger_opening import open_ledger
from tests.support.commands import invoke
from tests.support.ledgers import claimed, make_tasks, success
from tests.support.mongod import with_database

NAME = "books"


@pytest.fixture
def mongodb(mongodb_uri: str, database_name: str) -> str:
    return with_database(mongodb_uri, database_name)


def sqlite(folder: Path, name: str) -> str:
    return f"sqlite:///{folder}/{name}.db"


@pytest.fixture
def crawled(tmp_path: Path) -> str:
    """A ledger with twenty pages, twelve of them finished."""
    url = sqlite(tmp_path, "crawled")

    async def fill() -> None:
        ledger = await open_ledger(url, NAME)
        await ledger.tasks.add(make_tasks(20))
        await ledger.hosts.wake({"example.com": ledger.now()})
        leases = await claimed(ledger, limit=12)
        outcomes = [success(ledger, lease, {"n": n}) for n, lease in enumerate(leases)]
        await ledger.outcomes.commit(outcomes)
        await ledger.close()

    asyncio.run(fill())
    return url


def export(url: str, folder: Path) -> bytes:
    place = folder / "items.jsonl"
    done = invoke("export", NAME, "--ledger", url, "-o", str(place), "--with-meta")
    assert done.returncode == 0, done.stderr
    return place.read_bytes()


def test_a_copy_holds_the_same_and_the_doctor_finds_nothing(
    crawled: str, mongodb: str, tmp_path: Path
):
    back = sqlite(tmp_path, "back")
    for source, target in ((crawled, mongodb), (mongodb, back)):
        done = invoke("copy", NAME, "--from", source, "--to", target)
        assert (done.returncode, done.stdout) == (
            0,
            "20 tasks of books with 12 items and 1 host were copied and verified\n",
        )

    for url in (mongodb, back):
        assert export(url, tmp_path) == export(crawled, tmp_path)
        assert invoke("doctor", NAME, "--ledger", url).returncode == 0


def test_a_program_is_told_how_much_was_copied_and_dropped(crawled: str, tmp_path: Path):
    there = sqlite(tmp_path, "there")

    copied = invoke("copy", NAME, "--from", crawled, "--to", there, "--json")
    dropped = invoke("drop", NAME, "--yes", "--ledger", there, "--json")

    assert json.loads(copied.stdout) == {"name": NAME, "tasks": 20, "items": 12, "hosts": 1}
    assert json.loads(dropped.stdout) == {"name": NAME, "tasks": 20}


def test_nothing_is_written_over(crawled: str, tmp_path: Path):
    target = sqlite(tmp_path, "other")
    assert invoke("copy", NAME, "--from", crawled, "--to", target).returncode == 0

    again = invoke("copy", NAME, "--from", crawled, "--to", target)

    assert again.returncode == 2
    assert "the target ledger already has tasks of books: `crawlcw drop books" in again.stderr


def test_what_an_interrupted_copy_has_left_is_taken_away(
    crawled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = sqlite(tmp_path, "other")

    async def interrupted(_source: object, ledger: object, **_: object) -> None:
        await ledger.notes.set_state({UNFINISHED: True})  # type: ignore[attr-defined]
        await ledger.tasks.add(make_tasks(3, priority=9))  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copy_command, "copy", interrupted)
        assert invoke("copy", NAME, "--from", crawled, "--to", target).returncode == 130
    run = invoke("copy", NAME, "--from", target, "--to", sqlite(tmp_path, "third"))
    assert run.returncode == 2
    assert "is itself an interrupted copy" in run.stderr

    assert invoke("copy", NAME, "--from", crawled, "--to", target).returncode == 0

    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        assert db.execute("SELECT count(*) FROM books WHERE priority = 9").fetchone() == (0,)
    db.close()


def test_what_is_worked_on_is_not_copied(crawled: str, tmp_path: Path):
    async def join() -> None:
        ledger = await open_ledger(crawled, NAME)
        await ledger.workers.join(this_worker(now=ledger.now()))
        await ledger.close()

    asyncio.run(join())

    done = invoke("copy", NAME, "--from", crawled, "--to", sqlite(tmp_path, "other"))

    assert done.returncode == 2
    assert "1 worker of books is at work" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "sqlite:///no.db", "--to", "sqlite:///other.db"], "no.db"),
        (["--from", "sqlite:///a.db", "--to", "sqlite:///a.db"], "name the same ledger"),
        (["--from", "a.db", "--to", "sqlite:///b.db"], "write sqlite:///path, mongodb://"),
        (["--from", "sqlite:///a.db"], "Missing option '--to'"),
    ],
)
def test_wrong_input_is_told(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    done = invoke("copy", NAME, *arguments)

    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir()), "no file is created"
