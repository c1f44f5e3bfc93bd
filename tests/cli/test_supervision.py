"""Decisions of a supervisor about its workers, in virtual time; the workers are scripts."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from crawlcw import Settings, Spider
from crawlcw.cli.processes.supervisor import Supervisor
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import FinishReason, Report
from tests.blame.virtual import VirtualClock, run, virtual
from tests.support.scripted_workers import START_TAKES, Script, ScriptedWorker, Starts


class Pages(Spider):
    name = "pages"


@dataclass(kw_only=True)
class Crawl:
    """A supervisor with scripts as workers, and its end."""

    clock: VirtualClock
    folder: Path
    patch: pytest.MonkeyPatch
    log: pytest.LogCaptureFixture
    workers: list[ScriptedWorker] = field(default_factory=list)
    report: Report | None = None
    began: float = field(init=False)

    def run(
        self,
        *scripts: Script | OSError,
        orders: Sequence[tuple[float, Callable[[Supervisor], None]]] = (),
        processes: int = 1,
        **settings: object,
    ) -> int:
        """Run them, give *orders* at their times, and return the exit code."""
        starts = Starts(*scripts)
        self.workers = starts.workers
        self.patch.setattr(asyncio, "create_subprocess_exec", starts)
        given = Settings(**settings)
        return run(
            self.clock,
            self._run(given, orders, processes),
            within=timedelta(hours=1),
            has_sockets=True,
        )

    async def _run(
        self,
        settings: Settings,
        orders: Sequence[tuple[float, Callable[[Supervisor], None]]],
        processes: int,
    ) -> int:
        path = self.folder / "ledger.db"
        ledger = await SqliteLedger.open(path, Pages.name, clock=self.clock.ledger_now)
        try:
            supervisor = Supervisor(Pages(), ledger, settings, processes=processes)
            self.began = self.clock.now
            for seconds, order in orders:
                asyncio.get_running_loop().call_later(seconds, order, supervisor)
            code = await supervisor.run()
            self.report = await supervisor.report()
        finally:
            await ledger.close()
        return code

    def signals(self, number: int) -> list[tuple[int, signal.Signals]]:
        """Return the signals to a worker, with the seconds since the start."""
        return [(int(time - self.began), which) for time, which in self.workers[number].signals]

    @property
    def events(self) -> list[str]:
        return [record.event for record in self.log.records if hasattr(record, "event")]


@pytest.fixture
def crawl(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sys, "argv", ["crawlcw", "run", "pages.py"])
    with virtual(monkeypatch) as clock:
        yield Crawl(clock=clock, folder=tmp_path, patch=monkeypatch, log=caplog)


async def blocked(worker):
    worker.says()
    await asyncio.Event().wait()


async def obedient(worker):
    worker.says(pages=1)
    while (order := await worker.received()).isdecimal():
        pass
    return worker.ends(0, FinishReason(order), pages=1)


@pytest.mark.parametrize("more", [(), (50,)], ids=["once", "again"])
def test_a_second_order_to_stop_gives_a_blocked_worker_no_more_time(crawl, more):
    orders = [(seconds, Supervisor.stop) for seconds in (10, *more)]
    code = crawl.run(blocked, orders=orders, grace="60s", callback_timeout="0s")

    assert code == 0
    assert crawl.signals(0) == [(70, signal.SIGKILL)]


async def killed(worker):
    worker.says()
    return -signal.SIGKILL


NO_MORE_FILES = OSError("Too many open files")


@pytest.mark.parametrize("start", [killed, NO_MORE_FILES], ids=["dies", "fails"])
def test_a_stop_after_a_crash_ends_the_crawl_as_a_stop_in_the_wait_for_a_new_worker(crawl, start):
    # The supervisor asks the ledger for the tasks of dead workers when the order comes.
    crawl.patch.setattr("tests.blame.virtual._LEDGER_LATENCY", 1.0)
    code = crawl.run(start, orders=[(0.5, Supervisor.stop)])

    assert code == 0
    assert ("worker_crashed" in crawl.events) == (start is killed)


def test_a_worker_that_crashes_after_the_order_to_stop_has_crashed(crawl):
    async def crashes(worker):
        worker.says()
        while (await worker.received()).isdecimal():
            pass
        return 1

    assert crawl.run(crashes, orders=[(1, Supervisor.stop)]) == 70
    assert crawl.events == ["worker_crashed"]


def test_a_worker_that_cannot_be_started_after_the_order_to_stop_has_not_crashed(crawl):
    code = crawl.run(NO_MORE_FILES, orders=[(START_TAKES / 2, Supervisor.stop)])

    assert code == 0
    assert crawl.events == ["worker_not_started"]
