"""`crawlcw work` as a process: stopped softly, stopped at once, and frozen past its lease."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest

from crawlcw.model.task import Status
from crawlcw.tracking import NewTask, SyncTracker
from tests.support.crawl_process import Store, wait_until
from tests.support.work_process import Working, tasks_of

USE_CASE = """\
import asyncio, os
from pathlib import Path
from crawlcw.tracking import UseCase

orders = UseCase("orders", max_retry=3, lease=os.environ.get("LEASE", "60s"))

@orders.stage
async def charge(execution):
    with Path(os.environ["BEGUN"]).open("a") as begun:
        begun.write(f"{execution.key}\\n")
    await asyncio.sleep(execution.data["seconds"])
    return os.getpid()
"""
HANGING = """\
import asyncio, os, time
from pathlib import Path
from crawlcw.tracking import UseCase

orders = UseCase("orders", lease="60s")

@orders.stage
def charge(execution):
    Path(os.environ["BEGUN"]).write_text(execution.key)
    time.sleep(600)
"""
DEAF = """\
import asyncio, os, time
from pathlib import Path
from crawlcw.tracking import UseCase

orders = UseCase("orders", lease="60s")

@orders.stage
async def charge(execution):
    Path(os.environ["BEGUN"]).write_text(execution.key)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            time.sleep(0.05)  # so that it leaves the processor to others
"""
STOPPED_AT_ONCE = 130

Start = Callable[..., Working]


@pytest.fixture
def begun(tmp_path: Path) -> Callable[[], list[str]]:
    """Return the keys of the tasks that have begun."""
    path = tmp_path / "begun"
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def start(ledger_url: str, tmp_path: Path, processes: ExitStack) -> Start:
    """Start a worker."""
    (tmp_path / "orders.py").write_text(USE_CASE)

    def start(*options: object, **environment: str) -> Working:
        environment["BEGUN"] = str(tmp_path / "begun")
        return processes.enter_context(
            Working(
                tmp_path / "orders.py",
                ledger_url,
                *options,
                log=tmp_path / "log",
                environment=environment,
            )
        )

    return start


def add(url: str, number: int, *, seconds: float) -> None:
    with SyncTracker.open(url, "orders") as tracker:
        tracker.add_many([NewTask(f"order-{n}", {"seconds": seconds}) for n in range(number)])


def assert_nothing_is_held_or_spent(url: str) -> None:
    rows = Store(url, "orders").rows()
    assert {row.lock for row in rows} == {None}
    assert Status.PROCESSING not in {row.status for row in rows}
    assert {(row.retry, row.lost) for row in rows} == {(0, 0)}


def test_one_signal_lets_what_is_under_way_finish_and_releases_the_rest(
    ledger_url: str, start: Start, begun: Callable[[], list[str]]
):
    add(ledger_url, 20, seconds=0.5)
    worker = start("--concurrency", 4)
    wait_until(lambda: len(begun()) == 4)
    worker.send(SIGTERM)
    code, said = worker.end()

    assert code == 0, worker.log
    done = len(begun())
    assert 4 <= done < 20
    assert said.startswith(f"stopped: {done} done, 0 failed attempts, 4 released here"), said
    assert_nothing_is_held_or_spent(ledger_url)
    tasks = tasks_of(ledger_url, "orders")
    finished = [key for key, task in tasks.items() if task.status is Status.FINISHED]
    assert sorted(finished) == sorted(begun())
    # Released tasks are due at once.
    assert start("--drain", "--concurrency", 20).end()[0] == 0
    assert sorted(begun()) == sorted(tasks)


def stopped_in_the_middle(
    ledger_url: str, start: Start, begun: Callable[[], list[str]], *, grace: str
) -> Working:
    """Return a worker that was told to stop while it works on three long tasks."""
    add(ledger_url, 3, seconds=600)
    worker = start("--grace", grace)
    wait_until(lambda: len(begun()) == 3)
    worker.send(SIGTERM)
    return worker


def test_what_is_not_finished_within_the_grace_is_released(
    ledger_url: str, start: Start, begun: Callable[[], list[str]]
):
    worker = stopped_in_the_middle(ledger_url, start, begun, grace="50ms")
    code, said = worker.end()

    assert code == 0, worker.log
    assert said.startswith("stopped: 0 done, 0 failed attempts, 3 released here"), said
    assert_nothing_is_held_or_spent(ledger_url)


def test_a_second_signal_releases_everything_at_once(
    ledger_url: str, start: Start, begun: Callable[[], list[str]]
):
    worker = stopped_in_the_middle(ledger_url, start, begun, grace="1h")
    wait_until(lambda: "stopping; current requests have" in worker.log)
    worker.send(SIGTERM)
    code, said = worker.end()

    assert code == STOPPED_AT_ONCE, worker.log
    assert said.startswith("stopped-at-once: 0 done"), said
    assert_nothing_is_held_or_spent(ledger_url)


def test_a_worker_whose_thread_hangs_ends_when_it_is_stopped(
    ledger_url: str, start: Start, begun: Callable[[], list[str]], tmp_path: Path
):
    add(ledger_url, 1, seconds=0)
    (tmp_path / "orders.py").write_text(HANGING)
    worker = start("--grace", "50ms")
    wait_until(begun)
    worker.send(SIGTERM)
    code, said = worker.end()

    assert code == 0, worker.log
    assert said.startswith("stopped: 0 done, 0 failed attempts, 1 released here"), said
    assert "your code still runs: thread" in worker.log
    assert_nothing_is_held_or_spent(ledger_url)


@pytest.mark.thorough  # it waits for the time limit of the end
def test_a_second_signal_ends_a_worker_whose_handler_goes_on_although_it_is_cancelled(
    ledger_url: str, start: Start, begun: Callable[[], list[str]], tmp_path: Path
):
    (tmp_path / "orders.py").write_text(DEAF)
    add(ledger_url, 1, seconds=0)
    worker = start("--grace", "50ms")
    wait_until(begun)
    worker.send(SIGTERM)
    wait_until(lambda: "stopping; current requests have" in worker.log)
    worker.send(SIGTERM)
    code, _ = worker.end()

    assert code == STOPPED_AT_ONCE, worker.log
    assert "your code still runs: " in worker.log
    assert_nothing_is_held_or_spent(ledger_url)


def test_what_a_frozen_worker_still_sends_is_refused(
    ledger_url: str, start: Start, begun: Callable[[], list[str]]
):
    add(ledger_url, 1, seconds=1)
    store = Store(ledger_url, "orders")
    frozen = start(LEASE="1s")
    wait_until(begun)

    def is_frozen() -> bool:
        frozen.send(SIGSTOP)
        if store.is_writable():
            return True
        frozen.send(SIGCONT)  # frozen, it would keep the locks of its transaction
        return False

    wait_until(is_frozen)
    assert len(store.held_by(frozen.pid)) == 1
    other = start("--drain", LEASE="1s")
    code, _ = other.end()
    frozen.send(SIGCONT)
    wait_until(
        lambda: "other workers claimed them" in frozen.log or "dropped the result" in frozen.log
    )
    frozen.send(SIGTERM)

    assert code == 0, other.log
    assert frozen.end()[0] == 0, frozen.log
    task = tasks_of(ledger_url, "orders")["order-0"]
    assert task.results == {"charge": other.pid}
    assert (task.status, task.lost) == (Status.FINISHED, 0)
    assert [(each.event, each.fence) for each in task.trace] == [("finish", 2)]
