"""Detection of dead processes on this machine, with real processes and kills."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crawlcw.engine import workers
from crawlcw.engine.workers import is_dead, is_gone, this_worker
from crawlcw.ledger.protocol import Worker

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Prints its identity, and then waits until its input ends.
CHILD = """
import dataclasses, sys
from datetime import UTC, datetime
from crawlcw.engine.workers import this_worker
w = this_worker(now=datetime.now(UTC))
print(w.name, w.machine, w.pid, w.birth, flush=True)
sys.stdin.read()
"""


class Child:
    """Another process that runs this code."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        name, machine, pid, birth = self.process.stdout.readline().split()
        self.worker = Worker(
            name=name, machine=machine, pid=int(pid), birth=birth, started=NOW, heartbeat=NOW
        )


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.process.kill()
    child.process.communicate()


def test_this_process_is_alive():
    worker = this_worker(now=NOW)

    assert not is_dead(worker)
    assert (worker.pid, worker.started) == (os.getpid(), NOW)


def test_no_two_workers_have_one_name():
    assert this_worker(now=NOW).name != this_worker(now=NOW).name


def test_a_process_that_was_killed_is_dead(child: Child):
    child.process.kill()
    child.process.wait()

    assert is_dead(child.worker)


def test_a_zombie_is_dead(child: Child):
    child.process.kill()
    # Wait for the end without reaping: the process stays in the process table.
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)

    assert is_dead(child.worker)


def test_another_process_with_its_pid_is_not_mistaken_for_it():
    reused = dataclasses.replace(this_worker(now=NOW), birth="1")

    assert is_dead(reused)


def test_a_process_of_another_machine_is_never_known_to_be_dead(child: Child):
    child.process.kill()
    child.process.wait()

    assert not is_dead(dataclasses.replace(child.worker, machine="another"))


def test_the_name_of_a_process_may_hold_anything(tmp_path: pytest.TempPathFactory):
    """`/proc/<pid>/stat` has the name in the middle, unquoted."""
    code = "import ctypes, sys\nctypes.CDLL(None).prctl(15, b'a) Z 1 (b', 0, 0, 0)\n" + CHILD
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name, machine, pid, birth = process.stdout.readline().split()
    worker = Worker(
        name=name, machine=machine, pid=int(pid), birth=birth, started=NOW, heartbeat=NOW
    )

    assert not is_dead(worker)

    process.kill()
    process.communicate()
    assert is_dead(worker)


def test_a_worker_of_any_machine_is_counted_out_after_a_day_of_silence():
    me = this_worker(now=NOW - timedelta(days=9))
    worker = dataclasses.replace(me, machine="another", heartbeat=NOW)

    assert not is_gone(worker, now=NOW + timedelta(days=1))
    assert is_gone(worker, now=NOW + timedelta(days=1, seconds=1))


@pytest.mark.parametrize("other", ["boot", "container"])
def test_two_machines_of_one_name_and_two_containers_are_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
):
    boot, container = (tmp_path / "proc" / each for each in ("sys/kernel/random", "self/ns"))
    for folder in (boot, container):
        folder.mkdir(parents=True)
    (boot / "boot_id").write_text("a")
    (container / "pid").symlink_to("pid:[1]")
    monkeypatch.setattr(workers, "Path", lambda path: tmp_path / path.removeprefix("/"))
    one = dataclasses.replace(this_worker(now=NOW), birth="1")
    assert is_dead(one)

    if other == "boot":
        (boot / "boot_id").write_text("b")
    else:
        (container / "pid").unlink()
        (container / "pid").symlink_to("pid:[2]")

    assert not is_dead(one)


@pytest.fixture
def without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without /proc, such as one with macOS."""
    monkeypatch.setattr(workers, "Path", lambda path: tmp_path / path.removeprefix("/"))
    monkeypatch.setattr(workers, "_STATM", tmp_path / "statm")


@pytest.mark.usefixtures("without_proc")
def test_without_proc_a_process_is_dead_where_its_number_is_free(monkeypatch: pytest.MonkeyPatch):
    def others(_pid: int, _signal: int) -> None:
        raise PermissionError

    me = this_worker(now=NOW)
    process = subprocess.Popen(["true"])
    process.wait()

    assert not is_dead(me)
    assert is_dead(dataclasses.replace(me, pid=process.pid))
    monkeypatch.setattr("os.kill", others)
    assert not is_dead(me), "the process of another user"
