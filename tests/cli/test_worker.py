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
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Settings, Spider
from crawlcw.cli.processes import worker
from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.cli.processes.worker import Supervision
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


@dataclass(kw_only=True)
class Worker:
    """`worker.crawl` in virtual time."""

    folder: Path
    clock: Any
    channel: socket.socket  #: the supervisor's end
    theirs: socket.socket
    seconds: float = 0.0  #: from the start to the end
    _received: bytearray = field(default_factory=bytearray)
    discards: int = 0  #: how often its output was discarded

    def crawl(
        self, spider: Spider, *, measured: bool = False, reads_after: float | None = 0.0
    ) -> int:
        """Return the exit code. The supervisor reads from *reads_after* seconds on; None: never."""

        async def crawled() -> int:
            supervision = self.supervision()
            async with asyncio.TaskGroup() as group:
                if reads_after is not None:
                    group.create_task(self._read(reads_after))
                code = await worker.crawl(
                    spider,
                    f"sqlite:///{self.folder}/ledger.db",
                    settings=Settings(grace="7s"),
                    supervision=supervision,
                    started_at=datetime.now(UTC),
                    measured=measured,
                )
                self.seconds = self.clock.elapsed
                self.theirs.shutdown(socket.SHUT_WR)
                return code

        return run(self.clock, crawled(), within=2 * MINUTE, has_sockets=True)

    def discard_output(self) -> None:
        self.discards += 1

    def supervision(self) -> Supervision:
        return Supervision(os.dup(self.theirs.fileno()))

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
    with virtual(monkeypatch) as clock, closing(ours), closing(theirs):
        made = Worker(folder=tmp_path, clock=clock, channel=ours, theirs=theirs)
        # Else the output of pytest would be lost.
        monkeypatch.setattr(worker, "_discard_output", made.discard_output)
        yield made
        ours.close()
        for thread in threading.enumerate():
            if thread.name == "supervisor":
                thread.join()


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


@pytest.mark.parametrize(("order", "code"), [("stopped", 0), ("stopped-at-once", 130)])
def test_a_worker_follows_its_orders(crawler: Worker, order: str, code: int):
    crawler.channel.sendall(order.encode() + b" 7\n")

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
    assert crawler.discards == 1


@pytest.mark.parametrize(
    ("code", "said"), [(0, exit_line(0)), (2, exit_line(2)), (130, exit_line(130)), (70, b"")]
)
def test_an_orderly_end_is_told_and_an_internal_error_is_not(
    crawler: Worker, code: int, said: bytes
):
    assert crawler.supervision().send_exit_code(lambda: code) == code
    is_told, _, _ = select.select([crawler.channel], [], [], 0)
    assert (crawler.channel.recv(100) if is_told else b"") == said


class Library:
    """Stands for the C library."""

    def __init__(self) -> None:
        self.called: list[tuple[int, signal.Signals]] = []

    def prctl(self, option: int, signal_number: signal.Signals) -> None:
        self.called.append((option, signal_number))


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
