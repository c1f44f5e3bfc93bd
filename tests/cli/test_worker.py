"""A worker, with a test as its supervisor at the other end of its channel."""

import asyncio
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Settings, Spider
from crawlcw.cli.processes import worker
from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.cli.processes.worker import Lifeline, last_word
from crawlcw.model.counters import FinishReason
from tests.blame.virtual import run, virtual

MINUTE = timedelta(minutes=1)


class Drained(Spider):
    name = "drained"

    def __init__(self, seconds: float = 1) -> None:
        self.seconds = seconds

    async def start(self):
        await asyncio.sleep(self.seconds)
        return
        yield


class Waiting(Spider):
    name = "waiting"

    async def start(self):
        await asyncio.Event().wait()
        yield


class Unneeded:
    """Stands for the `Lifeline` of a worker whose loop is never blocked."""

    patience: timedelta | None = None

    def hold(self, _: object, *, patience: timedelta) -> None:
        self.patience = patience


@dataclass(kw_only=True)
class Worker:
    """`worker.crawl` in virtual time."""

    folder: Path
    clock: Any
    channel: socket.socket  #: the supervisor's end
    theirs: int
    seconds: float = 0.0  #: from the start to the end
    lifeline: Unneeded = field(default_factory=Unneeded)
    _received: bytearray = field(default_factory=bytearray)
    replaced: list[int] = field(default_factory=list)  #: descriptors replaced by another file

    def crawl(
        self, spider: Spider, *, measured: bool = False, reads_after: float | None = 0.0
    ) -> int:
        """Return the exit code. The supervisor reads from *reads_after* seconds on; None: never."""

        async def crawled() -> int:
            async with asyncio.TaskGroup() as group:
                if reads_after is not None:
                    group.create_task(self._read(reads_after))
                code = await worker.crawl(
                    spider,
                    f"sqlite:///{self.folder}/ledger.db",
                    settings=Settings(grace="7s"),
                    channel=self.theirs,
                    lifeline=self.lifeline,
                    began=datetime.now(UTC),
                    measured=measured,
                )
                self.seconds = self.clock.elapsed
                return code

        with pytest.MonkeyPatch.context() as patch:
            # Else the output of pytest would be lost.
            patch.setattr(os, "dup2", lambda _, number: self.replaced.append(number))
            return run(self.clock, crawled(), within=2 * MINUTE, has_sockets=True)

    async def _read(self, after: float) -> None:
        self.channel.setblocking(False)
        await asyncio.sleep(after)
        while data := await asyncio.get_running_loop().sock_recv(self.channel, 1 << 20):
            self._received.extend(data)

    def states(self) -> list[WorkerState]:
        return [WorkerState.of(json.loads(line)) for line in self._received.splitlines()]


@pytest.fixture
def crawler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worker]:
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
    with virtual(monkeypatch) as clock, closing(ours):
        made = Worker(folder=tmp_path, clock=clock, channel=ours, theirs=theirs.detach())
        yield made


@pytest.mark.parametrize("measured", [False, True])
def test_a_worker_tells_its_state_often_before_its_first_page_and_its_reason_at_the_end(
    crawler: Worker, measured: bool
):
    code = crawler.crawl(Drained(), measured=measured)

    *states, last = crawler.states()
    assert code == 0
    assert len(states) > 10
    assert {state.finish_reason for state in states} == {None}
    assert last.finish_reason == FinishReason.DRAINED
    assert (last.measures is not None) == measured
    assert crawler.lifeline.patience == timedelta(seconds=7)


@pytest.mark.parametrize(("order", "code"), [("stopped", 0), ("stopped-at-once", 130)])
def test_a_worker_follows_its_orders(crawler: Worker, order: str, code: int):
    crawler.channel.sendall(order.encode() + b"\n")

    assert crawler.crawl(Waiting()) == code
    *_, last = crawler.states()
    assert last.finish_reason == order


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_a_worker_stops_softly_after_its_supervisor(crawler: Worker, reads: bool):
    class Supervised(Waiting):
        async def start(self):
            await asyncio.sleep(1)
            if reads:
                crawler.channel.recv(1 << 20)
            # With unread states the connection is reset.
            crawler.channel.close()
            await asyncio.Event().wait()
            yield

    assert crawler.crawl(Supervised(), reads_after=None) == 0
    assert crawler.replaced == [1, 2]


@pytest.mark.parametrize(
    ("code", "said"), [(0, exit_line(0)), (2, exit_line(2)), (130, exit_line(130)), (70, b"")]
)
def test_an_orderly_end_is_told_and_an_internal_error_is_not(code: int, said: bytes):
    ours, theirs = socket.socketpair()
    with ours:

        def command() -> int:
            theirs.close()
            return code

        assert last_word(theirs.fileno(), command) == code
        is_told, _, _ = select.select([ours], [], [], 0)
        assert (ours.recv(100) if is_told else b"") == said


class Abandoned:
    """A crawl that can be abandoned."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True

    def stuck_in(self) -> str:
        return self.where


@dataclass
class Exits:
    """Stands for `os._exit`: ends the thread that calls it."""

    code: int | None = None
    came: threading.Event = field(default_factory=threading.Event)

    def __call__(self, code: int) -> None:
        # A timer calls it as well, later.
        if threading.current_thread().name == "supervisor":
            self.code = code
            self.came.set()
            raise RuntimeError


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Exits:
    exits = Exits()
    monkeypatch.setattr(os, "_exit", exits)
    return exits


def test_a_worker_that_has_not_begun_exits_after_its_supervisor(
    exits: Exits, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_BEGINS_WITHIN", 0.0)
    ours, theirs = socket.socketpair()
    with theirs:
        Lifeline(theirs.fileno())
        ours.close()

        assert exits.came.wait(20)
    assert exits.code == 130


@pytest.mark.parametrize(
    ("where", "told"),
    [("", "the event loop is blocked:"), ("parse of a", "the event loop is blocked (parse of a):")],
)
async def test_a_worker_with_a_blocked_loop_releases_its_tasks_after_its_supervisor(
    exits: Exits,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
    told: str,
):
    monkeypatch.setattr(worker, "_BEGINS_WITHIN", 1000.0)
    monkeypatch.setattr(worker, "_ANSWERS_WITHIN", 0.0)
    ours, theirs = socket.socketpair()
    crawl = Abandoned(where)
    with theirs:
        Lifeline(theirs.fileno()).hold(crawl, patience=timedelta(0))
        ours.close()

        assert exits.came.wait(20)
    assert (exits.code, crawl.is_abandoned) == (130, True)
    assert told in caplog.text


class Loop:
    """A loop that answers twice and then ends."""

    def __init__(self) -> None:
        self.asked = 0

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.asked += 1
        if self.asked > 2:
            raise RuntimeError
        call()


def test_a_worker_whose_loop_answers_ends_by_itself_after_its_supervisor(
    exits: Exits, monkeypatch: pytest.MonkeyPatch
):
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(worker, "_STATE_EVERY", 0.0)
    ours, theirs = socket.socketpair()
    with theirs:
        Lifeline(theirs.fileno()).hold(Abandoned(""), patience=timedelta(minutes=1))
        (waiting,) = [each for each in threading.enumerate() if each.name == "supervisor"]
        ours.close()
        waiting.join(20)

    assert not waiting.is_alive()
    assert (loop.asked, exits.code) == (3, None)


class Library:
    """Stands for the C library."""

    def __init__(self) -> None:
        self.called: list[tuple[int, signal.Signals]] = []

    def prctl(self, option: int, which: signal.Signals) -> None:
        self.called.append((option, which))


def test_a_worker_prints_into_a_pipe_without_a_reader_and_is_continued_when_its_parent_dies(
    monkeypatch: pytest.MonkeyPatch,
):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(sys, "platform", "linux")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    reading, writing = os.pipe()
    os.close(reading)
    before = os.dup(1)
    os.dup2(writing, 1)
    try:
        worker.prepare()
        print("é" * 100_000)
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(writing)

    # PR_SET_PDEATHSIG of prctl(2).
    assert library.called == [(1, signal.SIGCONT)]
