"""The first worker's process loads while its supervisor does, and begins when it is told to."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crawlcw.cli.processes import first_process
from crawlcw.cli.processes.channel import Go
from tests.blame.crawl_command import environment

#: Far more than anything here takes.
ENOUGH = 60

_SPIDER = """
import os, resource
from crawlcw import Spider

with open("loaded", "a") as file:
    print(os.getpid(), file=file)

class Pages(Spider):
    name = "pages"

    async def start(self):
        print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return
        yield
"""


def crawled(folder: Path, *options: str, **changed: str) -> "subprocess.CompletedProcess[str]":
    (folder / "pages.py").write_text(_SPIDER)
    run = [sys.executable, "-m", "crawlcw", "run", "pages.py", "-q", *options]
    return subprocess.run(
        ["/bin/sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh", *run],
        cwd=folder,
        env=environment() | changed,
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        check=False,
    )


@pytest.mark.quick
@pytest.mark.parametrize("pages", [None, 25])
def test_what_comes_after_the_word_to_go_is_left_for_the_loop(pages: int | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(Go(max_pages=pages).line() + b"stop\n")

        assert Go.awaited(theirs.fileno()) == Go(max_pages=pages)
        assert theirs.recv(100) == b"stop\n"


@pytest.mark.quick
@pytest.mark.parametrize("sent", [b"", b"go 2"])
def test_without_a_supervisor_nobody_is_told_to_go(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(sent)
        ours.close()

        assert Go.awaited(theirs.fileno()) is None


@pytest.mark.quick
def test_a_process_that_nobody_takes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [sys.executable, "-c", "input()"]
    monkeypatch.setattr(sys, "argv", ["crawlcw", "run"])
    monkeypatch.setattr(first_process, "own_command", lambda *_: waiting)
    monkeypatch.setattr(first_process, "own_environment", lambda: dict(os.environ))

    with first_process.started() as first:
        assert first is not None

    assert first.process.returncode == -signal.SIGKILL
    assert first.channel.fileno() == -1


@pytest.mark.quick
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["pages", "--processes", "0"],
        ["pages", "--processes=0"],
        ["--worker-channel=3", "pages"],
        ["--suspects-channel=3", "pages"],
        ["pages", "--ledger", "sqlite:///:memory:"],
    ],
)
def test_where_no_worker_is_of_use_yet_none_is_started(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crawlcw", "run", *arguments])

    with first_process.started() as first:
        assert first is None


def test_a_worker_that_is_never_told_to_go_ends_well_and_has_loaded_no_spider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pages.py").write_text(_SPIDER)
    run = [sys.executable, "-m", "crawlcw", "run", "pages.py"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["crawlcw", "run"])
    monkeypatch.setattr(first_process, "own_command", lambda option: [*run, option])
    monkeypatch.setattr(first_process, "own_environment", environment)

    with first_process.started() as first:
        first.channel.close()
        code = first.process.wait(ENOUGH)

    assert code == 0
    assert [each.name for each in tmp_path.iterdir()] == ["pages.py"]


@pytest.mark.parametrize(
    ("url", "module"),
    [
        ("sqlite:///none.db", "crawlcw.ledger.sqlite.ledger"),
        ("mongodb://127.0.0.1:9/none", "crawlcw.ledger.mongo.ledger"),
    ],
)
def test_before_it_is_told_to_go_a_worker_loads_its_ledger_and_opens_nothing(
    tmp_path: Path, url: str, module: str
) -> None:
    script = f"import sys; from crawlcw.cli.processes import worker; worker.load({url!r})"
    loaded = subprocess.run(
        [sys.executable, "-c", f"{script}; print(*sys.modules)"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        check=True,
    )

    assert {module, "crawlcw.downloader.aiohttp"} <= set(loaded.stdout.split())
    assert list(tmp_path.iterdir()) == []


def test_a_crawl_that_cannot_begin_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("no database, but some text of more than a few bytes")
    run = crawled(tmp_path, "--ledger", "sqlite:///ledger.db")

    assert run.returncode == 78
    assert run.stderr.count("\n") == 1


def test_a_worker_that_was_started_ahead_may_open_as_many_files_as_it_needs(
    tmp_path: Path,
) -> None:
    run = crawled(tmp_path, "--concurrency", "100")

    assert run.returncode == 3  # nothing was finished
    assert "limit 500\n" in run.stdout
    assert (tmp_path / "loaded").read_text().count("\n") == 2


def test_where_no_process_can_be_waited_for_by_a_descriptor_the_worker_starts_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.pidfd_open\n")
    path = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"
    run = crawled(tmp_path, PYTHONPATH=path)

    assert run.returncode == 3
    assert (tmp_path / "loaded").read_text().count("\n") == 2
