"""The first worker processes: they load beside their supervisor, and start on its command."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from crawlcw.cli.processes.channel import awaited_go, go
from crawlcw.cli.processes.first_processes import FirstProcess, pair
from tests.support.programs import environment, run_to_end

#: Far longer than any command here.
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
    return run_to_end(
        ["/bin/sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh", *run],
        folder=folder,
        variables=changed,
        within=ENOUGH,
    )


@pytest.mark.quick
@pytest.mark.parametrize("share", [{}, {"max_pages": 25}])
def test_what_comes_after_the_word_to_go_is_left_for_the_loop(share: dict[str, int]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(go(share) + b"stop\n")

        assert awaited_go(theirs.fileno()) == share
        assert theirs.recv(100) == b"stop\n"


@pytest.mark.quick
@pytest.mark.parametrize("sent", [b"", b"2"])
def test_without_a_supervisor_nobody_is_told_to_go(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(sent)
        ours.close()

        assert awaited_go(theirs.fileno()) is None


def printed(folder: Path, script: str, **options: Any) -> str:
    """Return the output of *script*, which starts with the arguments of `crawlcw run`."""
    begin = "import os, sys, threading, time; sys.argv = ['crawlcw', 'run']"
    done = run_to_end(
        [sys.executable, "-c", f"{begin}\n{dedent(script)}"],
        folder=folder,
        within=ENOUGH,
        check=True,
        **options,
    )
    return done.stdout


def test_a_process_that_nobody_takes_is_ended(tmp_path: Path) -> None:
    script = """
        from crawlcw.cli.processes import first_processes
        with first_processes.started(lambda channel: time.sleep(1000), number=2) as first:
            assert [each.returncode for each in first] == [None, None]
            first[0].discard()  # as of a supervisor that needs one only
        print(*((each.returncode, each.ends.channel.fileno()) for each in first))
    """

    assert printed(tmp_path, script) == f"{(-signal.SIGKILL, -1)} {(-signal.SIGKILL, -1)}\n"


def test_it_is_apart_from_the_terminal_and_exits_with_what_its_work_returns(
    tmp_path: Path,
) -> None:
    script = """
        from crawlcw.cli.processes import first_processes

        def work(channel):
            alone = os.getsid(0) == os.getpid()
            more = len(os.listdir("/proc/self/fd")) - before  # the channel
            print("alone", alone, "more", more, "reads", sys.stdin.read(), flush=True)
            print("said", file=sys.stderr, flush=True)
            os.write(channel, os.readlink(f"/proc/self/fd/{channel}").encode())
            return 7

        before = len(os.listdir("/proc/self/fd"))
        with first_processes.started(work, number=3) as all:
            for first in all:
                first.is_taken = True
                channel = first.ends.channel.recv(100).decode()
                _, status = os.waitpid(first.pid, 0)
                ends = first.ends
                print(ends.printed.read(), ends.logged.read(), channel.startswith("socket:"))
                print(first.ends.channel.recv(100), os.waitstatus_to_exitcode(status))
    """
    out = printed(tmp_path, script, input="of the terminal")

    assert out == 3 * "b'alone True more 1 reads \\n' b'said\\n' True\nb'' 7\n"


@pytest.mark.parametrize(
    "so",
    [
        "sys.argv = ['program', 'crawlcw', 'run']",
        "del os.pidfd_open",
        "os.fork = lambda: open('/no/more')",
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",
    ],
)
def test_where_a_process_cannot_be_forked_off_safely_there_is_none(tmp_path: Path, so: str) -> None:
    script = f"""
        from crawlcw.cli.processes import first_processes
        {so}
        with first_processes.started(print, number=1) as first:
            print(first)
    """

    assert printed(tmp_path, script) == "[]\n"


def test_an_id_that_another_process_may_have_by_now_gets_no_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it was sent"))
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        FirstProcess(pid=os.getpid(), ends=ours, returncode=0).send_signal(signal.SIGKILL)


async def test_the_loop_goes_on_while_it_waits_for_the_end_of_a_process() -> None:
    process = subprocess.Popen(["sleep", "20"])
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        first = FirstProcess(pid=process.pid, ends=ours)
        before = set(Path("/proc/self/fd").iterdir())
        waiting = asyncio.create_task(first.wait())
        await asyncio.sleep(0)

        first.send_signal(signal.SIGKILL)

        assert await waiting == first.returncode == -signal.SIGKILL
        assert set(Path("/proc/self/fd").iterdir()) == before
    process.wait()


def test_a_worker_that_is_never_told_to_go_ends_well_and_has_loaded_no_spider(
    tmp_path: Path,
) -> None:
    (tmp_path / "pages.py").write_text(_SPIDER)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        channel = f"--worker-channel={theirs.fileno()}"
        ended = subprocess.run(
            [sys.executable, "-m", "crawlcw", "run", channel, "pages.py"],
            cwd=tmp_path,
            env=environment(),
            pass_fds=(theirs.fileno(),),
            timeout=ENOUGH,
            check=False,
        )

    assert ended.returncode == 0
    assert [each.name for each in tmp_path.iterdir()] == ["pages.py"]


@pytest.mark.thorough
@pytest.mark.representative("mongodb")
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
    script = (
        f"from crawlcw import ledger_opening; ledger_opening.load({url!r})\n"
        "from crawlcw.cli.processes import worker; print(*sys.modules)"
    )
    loaded = printed(tmp_path, script)

    assert {module, "crawlcw.fetch.transport"} <= set(loaded.split())
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

    assert run.returncode == 3  # no page was finished
    assert "limit 500\n" in run.stdout
    assert (tmp_path / "loaded").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("more", "processes"),
    [
        (("--processes", "0"), 1),
        (("--processes", "2"), 3),
        (("--ledger", "sqlite:///:memory:"), 2),
    ],
)
def test_each_process_that_crawls_loads_the_spider_and_so_does_a_supervisor(
    tmp_path: Path, more: tuple[str, ...], processes: int
) -> None:
    run = crawled(tmp_path, *more)

    assert run.returncode == 3
    loaded = (tmp_path / "loaded").read_text().split()
    assert len(set(loaded)) == len(loaded) == processes


def test_where_no_process_can_be_waited_for_by_a_descriptor_the_worker_starts_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.pidfd_open\n")
    path = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"
    run = crawled(tmp_path, PYTHONPATH=path)

    assert run.returncode == 3
    assert (tmp_path / "loaded").read_text().count("\n") == 2
