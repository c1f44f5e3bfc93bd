"""Decisions of a supervisor about its workers, in virtual time; the workers are scripts."""

import asyncio
import io
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import uvloop

from crawlcw import Settings, Spider
from crawlcw.cli.processes import supervisor
from crawlcw.cli.processes.channel import WorkerState, exit_line
from crawlcw.cli.processes.supervisor import Supervisor
from crawlcw.cli.processes.worker_process import WorkerProcess
from crawlcw.cli.showing import Output
from crawlcw.engine.workers import this_worker
from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Counters, EarlyEnd, FinishReason, Report
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.retry import RetryPolicy
from crawlcw.telemetry.metrics import Measures
from tests.blame.virtual import VirtualClock, run, virtual
from tests.support.ledgers import PatchedFacet, claimed_one, failure, make_task
from tests.support.scripted_workers import Script, ScriptedWorker, Starts


class Pages(Spider):
    name = "pages"


Prepare = Callable[[Ledger], Awaitable[None]]


async def nothing(_: Ledger) -> None:
    pass


@dataclass(kw_only=True)
class Crawl:
    """A supervisor with scripts as workers, and its end."""

    clock: VirtualClock
    folder: Path
    patch: pytest.MonkeyPatch
    log: pytest.LogCaptureFixture
    workers: list[ScriptedWorker] = field(default_factory=list)
    report: Report | None = None
    ledger: Ledger = field(init=False)
    began: float = field(init=False)
    ended: float = field(init=False)

    def run(
        self,
        *scripts: Script | OSError,
        orders: Sequence[tuple[float, Callable[[Supervisor], None]]] = (),
        processes: int = 1,
        prepare: Prepare = nothing,
        **settings: object,
    ) -> int:
        """Run them, give *orders* at their times, and return the exit code.

        *prepare* is called with the open ledger before.
        """
        self.workers = Starts(self.patch, *scripts).workers
        given = Settings(**settings)
        return run(
            self.clock,
            self._run(given, orders, processes, prepare),
            within=timedelta(hours=1),
            has_sockets=True,
        )

    async def _run(
        self,
        settings: Settings,
        orders: Sequence[tuple[float, Callable[[Supervisor], None]]],
        processes: int,
        prepare: Prepare,
    ) -> int:
        path = self.folder / "ledger.db"
        ledger = await SqliteLedger.open(path, Pages.name, clock=self.clock.ledger_now)
        try:
            self.ledger = ledger
            await prepare(ledger)
            supervisor = Supervisor(
                Pages(),
                ledger,
                settings,
                processes=processes,
            )
            self.began = self.clock.now
            loop, failures = asyncio.get_running_loop(), []
            loop.set_exception_handler(lambda _, context: failures.append(context))
            for seconds, order in orders:
                loop.call_later(seconds, order, supervisor)
            code = await supervisor.run()
            assert failures == []
            self.ended = self.clock.now
            self.report = await supervisor.report()
        finally:
            await ledger.close()
        return code

    @property
    def starts(self) -> list[int]:
        """Return the times of the workers' starts, in seconds since the first."""
        first, *others = [worker.started for worker in self.workers]
        return [0, *(round(each - first) for each in others)]

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
    return worker.ends(0, await worker.order(), pages=1)


async def drains(worker):
    return worker.ends(0, FinishReason.DRAINED, pages=1)


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
        await worker.order()
        return 1

    assert crawl.run(crashes, orders=[(1, Supervisor.stop)]) == 70
    assert crawl.events == ["worker_crashed"]


@pytest.mark.parametrize(
    ("control", "code"),
    [
        ({"stopped": "2026-01-01T00:00:01Z"}, 70),
        # Of an earlier crawl.
        ({"stopped": "2025-12-31T00:00:00Z"}, 0),
        ({"stopped": "2026-01-01T00:00:01Z", "concurrency": "many"}, 0),
    ],
    ids=["stop", "old", "wrong"],
)
def test_an_order_in_the_ledger_that_a_crashed_worker_has_not_read_is_followed(
    crawl, control, code
):
    async def crashes_after(worker):
        worker.says()
        await crawl.ledger.notes.set_control(control)
        return 1

    assert crawl.run(crashes_after, drains) == code
    assert crawl.events == ["worker_crashed"]
    assert len(crawl.workers) == (1 if code else 2)


async def crashes(_):
    return 1


async def crashes_after_a_page(worker):
    worker.says(pages=1)
    return 1


async def crashes_after_giving_a_page_up(worker):
    worker.send(WorkerState(counters=Counters(failures={Reason.CRASHED_WORKER: 1})).line())
    return 1


def test_the_fifth_crash_without_progress_is_the_last(crawl):
    code = crawl.run(*[crashes] * 5)

    assert code == 70
    assert crawl.starts == [0, 1, 3, 7, 15]
    assert crawl.events[-1] == "worker_down"
    assert crawl.report is None


@pytest.mark.parametrize("progresses", [crashes_after_a_page, crashes_after_giving_a_page_up])
def test_a_worker_that_has_progressed_is_started_again_after_the_shortest_wait(crawl, progresses):
    code = crawl.run(crashes, crashes, *[progresses] * 5, drains)

    assert code == 0
    assert crawl.starts == [0, 1, 3, 4, 5, 6, 7, 8]


def test_a_crash_on_a_quarantined_page_counts_against_the_page(crawl):
    async def crashes_alone(_):
        ledger, now = crawl.ledger, crawl.ledger.now()
        dead = replace(this_worker(now=now), name=str(now.timestamp()), pid=1 << 30)
        await ledger.workers.join(dead)
        task = make_task(f"http://a.example/{dead.name}")
        await ledger.tasks.add([task])
        page = [each for each in await ledger.tasks.page(limit=9) if each.id == task.id]
        hour = timedelta(hours=1)
        claimed = await ledger.leases.claim(page, worker=dead.name, lease=hour, max_lost=9)
        assert await ledger.leases.begin(claimed.leases[0])
        return -signal.SIGKILL

    code = crawl.run(crashes, *[crashes_alone] * 5, drains)

    assert code == 0
    assert crawl.starts == [0, 1, 2, 3, 4, 5, 6]


def test_a_worker_after_a_crash_has_the_rest_of_the_limit(crawl):
    limits = []

    def after(pages: int) -> Script:
        async def crashed(worker):
            limits.append(worker.share)
            worker.says(pages=pages)
            return 1

        return crashed

    code = crawl.run(after(3), after(4), max_pages=7)

    assert code == 0
    assert limits == [{"max_pages": 7}, {"max_pages": 4}]
    assert crawl.report.finish_reason == FinishReason.MAX_PAGES
    assert crawl.report.pages == 7


@pytest.mark.parametrize("reason", [FinishReason.STOPPED_BY_SPIDER, FinishReason.PROXIES_FAILED])
def test_a_reason_that_ends_one_worker_ends_all(crawl, reason):
    ending = EarlyEnd(reason=reason, detail="enough")

    async def ends(worker):
        worker.says(pages=2, ending=ending)
        await worker.order()
        worker.says(pages=2, ending=ending, finish_reason=reason)
        worker.send(exit_line(0))
        return 0

    code = crawl.run(obedient, ends, processes=2)

    assert code == 0
    assert (crawl.report.finish_reason, crawl.report.detail) == (reason, "enough")
    assert crawl.report.pages == 3


def said_every(seconds: float, *, for_seconds: float) -> Script:
    """A worker that is silent for *seconds* between its states, and does not stop earlier."""

    async def slow(worker):
        for _ in range(round(for_seconds / seconds)):
            worker.says()
            await asyncio.sleep(seconds)
        return worker.ends(0, FinishReason.DRAINED, pages=1)

    return slow


@pytest.mark.parametrize(
    ("callback_timeout", "longest"), [("2s", 6), ("5s", 15), ("60s", 75), ("0s", None)]
)
def test_a_worker_is_killed_after_a_silence_longer_than_any_callback(
    crawl, callback_timeout, longest
):
    silent = said_every(100, for_seconds=100)
    code = crawl.run(silent, drains, callback_timeout=callback_timeout)

    assert code == 0
    signals = [time for time, _ in crawl.signals(0)]
    # The supervisor looks twice a second.
    assert signals == [] if longest is None else longest <= signals[0] <= longest + 1


def test_a_worker_that_is_blocked_after_the_grace_is_killed(crawl):
    async def blocks_later(worker):
        for _ in range(20):
            worker.says()
            await asyncio.sleep(0.5)
        await asyncio.Event().wait()

    code = crawl.run(blocks_later, orders=[(5, Supervisor.stop)], grace="2s")

    assert code == 0
    ((time, which),) = crawl.signals(0)
    assert (18 <= time <= 19, which) == (True, signal.SIGKILL)


@pytest.mark.parametrize(
    ("state", "order", "after", "code"),
    [
        (None, Supervisor.stop, 16, 0),
        (None, Supervisor.stop_now, 9, 130),
        # A crawl that was drained before the order is drained.
        (FinishReason.DRAINED, Supervisor.stop, 8, 0),
        (FinishReason.DRAINED, Supervisor.stop_now, 8, 0),
    ],
)
def test_a_worker_that_is_silent_at_its_start_or_end_is_killed_after_a_stop(
    crawl, state, order, after, code
):
    async def silent(worker):
        if state is not None:
            worker.says(finish_reason=state)
        await asyncio.Event().wait()

    assert crawl.run(silent, orders=[(1, order)], grace="7s", callback_timeout="1s") == code
    ((time, which),) = crawl.signals(0)
    assert (after <= time <= after + 1, which) == (True, signal.SIGKILL)


def test_a_worker_that_does_not_end_after_its_last_state_is_killed_and_has_not_crashed(crawl):
    async def stays(worker):
        worker.says(pages=1, finish_reason=FinishReason.DRAINED)
        await asyncio.Event().wait()

    assert crawl.run(stays, grace="7s", callback_timeout="0s") == 0
    ((time, which),) = crawl.signals(0)
    assert (15 <= time <= 16, which) == (True, signal.SIGKILL)
    assert (crawl.report.finish_reason, crawl.events) == (FinishReason.DRAINED, ["worker_silent"])


async def away(ledger):
    async def next_due():
        raise LedgerUnavailableError("away")

    ledger.queries = PatchedFacet(ledger.queries, next_due=next_due)


@pytest.mark.parametrize(
    ("order", "minutes"), [(None, 10), (Supervisor.stop, 1), (Supervisor.stop_now, 0)]
)
def test_a_report_waits_for_the_ledger_as_long_as_a_crawl_does_and_after_a_stop_less(
    crawl, order, minutes
):
    orders = [] if order is None else [(1, order)]
    script = drains if order is None else obedient

    with pytest.raises(LedgerUnavailableError):
        crawl.run(script, orders=orders, prepare=away, grace="1m")

    assert 60 * minutes - 6 <= crawl.clock.now - crawl.ended <= 60 * minutes + 1


def test_a_report_has_the_pages_that_failed_before(crawl):
    async def fail_a_page(ledger):
        await ledger.tasks.add([make_task()])
        lease = await claimed_one(ledger)
        once = RetryPolicy(max_retry=1)
        await ledger.outcomes.commit([failure(ledger, lease, policy=once)])

    crawl.run(drains, prepare=fail_a_page)

    assert crawl.report.failed_before == 1


def test_a_report_of_several_reasons_has_the_detail_of_the_one_that_counts(crawl):
    def ends(reason: FinishReason) -> Script:
        async def script(worker):
            ending = EarlyEnd(reason=reason, detail=f"because of {reason}")
            worker.says(ending=ending, finish_reason=reason)
            worker.send(exit_line(0))
            return 0

        return script

    crawl.run(ends(FinishReason.STOPPED_BY_SPIDER), ends(FinishReason.LOGIN_FAILED), processes=2)

    assert crawl.report.finish_reason == FinishReason.LOGIN_FAILED
    assert crawl.report.detail == "because of login-failed"


def test_kill_ends_the_workers_that_do_not_end(crawl):
    code = crawl.run(blocked, orders=[(1, Supervisor.stop), (2, Supervisor.kill)], grace="1h")

    assert code == 0
    assert crawl.signals(0) == [(2, signal.SIGKILL)]


def test_suspended_workers_are_stopped_with_their_children_until_they_are_resumed(crawl):
    sent = []
    crawl.patch.setattr(os, "killpg", lambda group, which: sent.append((group, which)))
    signals = [
        (at, partial(Supervisor.signal_groups, signal_number=which))
        for at, which in ((1, signal.SIGSTOP), (2, signal.SIGCONT))
    ]
    orders = [*signals, (3, Supervisor.stop)]
    crawl.run(obedient, drains, orders=orders, processes=2)

    group = crawl.workers[0].pid
    assert sent == [(group, signal.SIGSTOP), (group, signal.SIGCONT)]


def test_a_crawl_stands_still_when_its_workers_that_have_not_ended_do(crawl):
    resting = IdleReason(hosts=1, ends_at=datetime(2026, 1, 1, tzinfo=UTC), cause="429")

    async def rests(worker):
        worker.says(idle_reason=resting)
        return worker.ends(0, await worker.order())

    async def drains_in_a_while(worker):
        worker.says()
        await asyncio.sleep(2)
        worker.says(finish_reason=FinishReason.DRAINED)
        return worker.ends(0, await worker.order())

    found = []

    def look(supervisor: Supervisor) -> None:
        found.append((supervisor.idle_reason, supervisor.measured().is_idle))

    crawl.run(
        rests, drains_in_a_while, processes=2, orders=[(1, look), (3, look), (4, Supervisor.stop)]
    )

    assert found == [(None, False), (resting, True)]


def test_measures_are_of_all_workers_and_gauges_of_the_running_ones(crawl):
    first, second = Measures(gauges={"in_flight": 1}), Measures(gauges={"in_flight": 2})

    async def drains_with(worker):
        worker.says(measures=first)
        return await drains(worker)

    async def runs(worker):
        worker.says(measures=second)
        return worker.ends(0, await worker.order())

    found = []
    crawl.run(
        *(drains_with, runs, obedient),
        processes=3,
        orders=[(1, lambda supervisor: found.append(supervisor.measured())), (2, Supervisor.stop)],
    )

    (measured,) = found
    assert measured.running == {"2": second, "3": Measures()}
    assert measured.all == [second]


def test_an_order_that_comes_too_late_loses_no_last_line_of_a_worker(crawl):
    worker, is_started = WorkerProcess(), asyncio.Event()

    async def ends_meanwhile(process):
        await is_started.wait()
        process.ends(0, FinishReason.DRAINED, pages=1)
        process.close()
        worker.send_order(FinishReason.STOPPED, grace=timedelta(seconds=1))
        return 0

    async def ended() -> None:
        await worker.start(share={}, started_at=datetime.now(UTC))
        is_started.set()
        assert await worker.wait() == 0
        worker.close()

    Starts(crawl.patch, ends_meanwhile)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ended())

    assert (worker.exit_code, worker.state.finish_reason) == (0, FinishReason.DRAINED)


def test_the_last_lines_of_a_worker_may_come_after_its_end(crawl):
    async def is_read_late(worker):
        def say():
            worker.ends(0, FinishReason.DRAINED, pages=1)
            worker.close()

        worker.leaves_open = True
        asyncio.get_running_loop().call_later(1, say)
        return 0

    assert crawl.run(is_read_late) == 0
    assert crawl.report.pages == 1


async def prints(worker):
    worker.stdout.write("é\n".encode() + b"\xff")
    return await drains(worker)


def test_the_output_of_a_worker_is_printed_at_once(crawl):
    shown = io.BytesIO()
    crawl.patch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="utf-8"))

    assert crawl.run(prints) == 0
    assert shown.getvalue() == "é\n\\xff\n".encode()


class Counting(Spider):
    name = "counting"
    seen = 0

    def parse(self, response):
        self.seen += 1


async def is_ended_before_its_first_state(worker):
    await worker.order()
    return -signal.SIGTERM


async def stops_at_once(worker):
    worker.says(pages=1)
    await worker.order()
    return worker.ends(130, await worker.order(), pages=1)


@pytest.mark.parametrize(
    ("script", "signals", "code", "told", "has_report", "is_exported"),
    [
        (drains, 0, 0, "drained", True, True),
        (obedient, 1, 0, "stopped", True, True),
        (stops_at_once, 2, 130, "stopped-at-once", True, False),
        (is_ended_before_its_first_state, 1, 0, "stopped", False, False),
    ],
)
def test_after_a_crawl_its_items_are_exported_unless_it_was_stopped_at_once(
    crawl, script, signals, code, told, has_report, is_exported
):
    exported, posted = [], []

    async def export(ledger):
        exported.append(ledger)

    async def post(_, fields, **__):
        posted.append((fields["finish_reason"], fields["exit_code"], "pages" in fields))

    crawl.patch.setattr("crawlcw.telemetry.webhook.post", post)
    Starts(crawl.patch, script)

    async def crawled() -> int:
        for second in range(signals):
            asyncio.get_running_loop().call_later(1 + second, signal.raise_signal, signal.SIGINT)
        return await supervisor.crawl(
            Counting(),
            f"sqlite:///{crawl.folder}/ledger.db",
            settings=Settings(webhook="http://127.0.0.1:9/"),
            output=Output(quiet=True),
            processes=1,
            first=None,
            afterwards=export,
        )

    assert run(crawl.clock, crawled(), within=timedelta(hours=1), has_sockets=True) == code
    assert len(exported) == is_exported
    assert posted == [(told, code, has_report)]
    assert [each.name for each in crawl.folder.iterdir()] == ["ledger.db"], "it is closed"
    assert "state_in_attributes" in crawl.events
