"""Workers: number of held tasks, order of work, times of looks, and kinds of handlers."""

import asyncio
import inspect
import os
import selectors
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import anyio
import pytest

from crawlcw.errors import Reason, UnwantedError, UsageError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Status
from crawlcw.tracking import NewTask, Policy, Tracker, UseCase, Worker

ENOUGH = 20.0


@pytest.fixture
async def tracker(ledger_url: str) -> AsyncIterator[Tracker]:
    async with Tracker.open(ledger_url, "orders", lease=30, backoff_base=0, max_retry=2) as tracker:
        yield tracker


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """Run a worker within the block, and stop it softly at the end."""
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(working, ENOUGH)


def draining(tracker: Tracker, function: Callable[..., Any], **options: Any) -> Worker:
    return Worker(tracker, {"todo": function}, drain=True, **options)


async def test_it_never_holds_more_than_it_has_under_way_and_prefetches(tracker: Tracker):
    await tracker.add_many([f"order-{n}" for n in range(60)])
    held, under_way = [], [0]

    async def charge(execution):
        under_way[0] += 1
        await asyncio.sleep(0)
        held.append((len(tracker.session.held), under_way[0]))
        under_way[0] -= 1

    report = await draining(tracker, charge, concurrency=4, prefetch=3).run()

    assert (report.finish_reason, report.done, report.failed) == ("drained", 60, 0)
    # Held tasks include finished ones that are not yet written.
    assert max(number for number, _ in held) <= 4 + 3
    assert max(number for _, number in held) == 4


async def test_a_slow_handler_hoards_nothing(tracker: Tracker, ledger_url: str):
    await tracker.add_many([f"order-{n}" for n in range(10)])
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(execution):
        begun.set()
        await go_on.wait()

    async def quick(execution):
        pass

    async with (
        Tracker.open(ledger_url, "orders") as other,
        at_work(Worker(tracker, {"todo": slow}, concurrency=1, prefetch=0)),
    ):
        await begun.wait()
        async with at_work(Worker(other, {"todo": quick})):
            with anyio.fail_after(ENOUGH):
                while (await other.counts())[Status.FINISHED] < 9:
                    await asyncio.sleep(0.01)
            held = len(tracker.session.held)
            go_on.set()

    assert held == 1
    assert (await tracker.counts()).by_status == {Status.FINISHED: 10}


async def test_a_failed_task_goes_to_the_tail(tracker: Tracker):
    for key in ("first", "second", "third"):
        await tracker.add(key)
        await asyncio.sleep(0.002)  # tasks are ordered by milliseconds
    order = []

    async def charge(execution):
        order.append((execution.key, execution.attempt))
        if order == [("first", 1)]:
            raise ValueError("not now")

    await draining(tracker, charge, concurrency=1, prefetch=0).run()

    assert order == [("first", 1), ("second", 1), ("third", 1), ("first", 2)]


async def test_the_last_attempt_makes_it_dead_and_it_is_never_run_again(tracker: Tracker):
    await tracker.add("order-1")
    attempts = []

    async def charge(execution):
        attempts.append(execution.attempt)
        raise ValueError("never")

    first = await draining(tracker, charge).run()
    again = await Worker(tracker, drain=True).run()

    assert attempts == [1, 2]
    assert (first.failed, again.failed, again.done) == (2, 0, 0)
    task = await tracker.get("order-1")
    assert (task.status, task.reason, task.retry) == (Status.IGNORED, Reason.TASK_ERROR, 2)


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Event that is set when a worker without due tasks rests; only a wake-up ends the rest."""
    event = asyncio.Event()
    # A patch, because a worker does not announce that it is about to rest.
    rest = Worker._rest

    async def rest_long(worker: Worker, horizon: datetime | None) -> None:
        worker._idle = 3600.0
        event.set()
        await rest(worker, horizon)

    monkeypatch.setattr(Worker, "_rest", rest_long)
    return event


async def test_what_is_added_in_its_process_wakes_it(tmp_path: Path, resting: asyncio.Event):
    begun = asyncio.Event()

    async def charge(execution):
        begun.set()

    # On SQLite, which sends no notices of writes of the same process.
    async with (
        Tracker.open(f"sqlite:///{tmp_path}/ledger.db", "orders") as tracker,
        at_work(Worker(tracker, {"todo": charge})),
    ):
        await resting.wait()
        await tracker.add("order-1")
        await asyncio.wait_for(begun.wait(), ENOUGH)


async def test_what_others_add_wakes_it(tracker: Tracker, ledger_url: str, resting: asyncio.Event):
    begun = asyncio.Event()

    async def charge(execution):
        begun.set()

    async with (
        Tracker.open(ledger_url, "orders") as other,
        at_work(Worker(tracker, {"todo": charge})),
    ):
        await resting.wait()
        await other.add("order-1")
        await asyncio.wait_for(begun.wait(), ENOUGH)


async def test_it_rests_until_the_next_task_is_due(tracker: Tracker, resting: asyncio.Event):
    begun = asyncio.Event()

    async def charge(execution):
        begun.set()

    await tracker.add("order-1", delay=timedelta(seconds=0.2))
    async with at_work(Worker(tracker, {"todo": charge})):
        await resting.wait()
        await asyncio.wait_for(begun.wait(), ENOUGH)


class Jumping(selectors.DefaultSelector):
    """Selector that jumps to the next timer if no call of the ledger is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0
        self.open_questions = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.open_questions:
            return super().select(0.01)
        self.jumped += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: Jumping) -> None:
        super().__init__(selector)
        self._jumping = selector

    def time(self) -> float:
        return super().time() + self._jumping.jumped


class Asked:
    """A ledger, or one of its facets, that counts its calls."""

    def __init__(self, asked: Any, selector: Jumping, questions: Counter[str]) -> None:
        self._asked = asked
        self._selector = selector
        self.questions = questions

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._asked, name)
        # Wrap a facet; return other values, such as the ledger's kind, unchanged.
        if type(found).__module__.startswith("crawlcw.ledger.") and not isinstance(found, Enum):
            return Asked(found, self._selector, self.questions)
        if not inspect.iscoroutinefunction(found):
            return found

        async def ask(*args: Any, **kwargs: Any) -> Any:
            self.questions[name] += 1
            self._selector.open_questions += 1
            try:
                return await found(*args, **kwargs)
            finally:
                self._selector.open_questions -= 1

        return ask


WRITES = {"beat", "renew"}


def test_it_asks_at_most_twenty_questions_in_an_idle_minute(tmp_path: Path):
    selector = Jumping()

    async def charge(execution):
        pass

    async def minute() -> Counter[str]:
        real = await SqliteLedger.open(tmp_path / "ledger.db", "orders", kind=LedgerKind.USE_CASE)
        ledger = Asked(real, selector, Counter())
        tracker = Tracker(ledger, UseCase("orders"), Policy(), give_up=timedelta(seconds=9))
        await tracker.add("order-1")
        async with at_work(Worker(tracker, {"todo": charge})):
            # Count from its last task on, when the pauses are shortest.
            while not ledger.questions["commit"]:
                await asyncio.sleep(0)
            ledger.questions.clear()
            await asyncio.sleep(60)
            asked = ledger.questions.copy()
        await tracker.close()
        return asked

    with asyncio.Runner(loop_factory=lambda: JumpingLoop(selector)) as runner:
        asked = runner.run(minute())

    # Count reads only.
    assert asked["horizon"] > 5
    assert sum(n for name, n in asked.items() if name not in WRITES) <= 20


async def test_a_function_is_a_handler_in_a_thread(tracker: Tracker):
    await tracker.add("order-1", {"amount": 3})
    here = threading.get_ident()

    def charge(execution):
        execution.data["paid"] = execution.data["amount"]
        execution.checkpoint()
        return threading.get_ident() != here

    await draining(tracker, charge).run()

    task = await tracker.get("order-1")
    assert task.results == {"todo": True}
    assert task.data == {"amount": 3, "paid": 3}


def measured(key: str, data: dict[str, Any], context: dict[str, Any]) -> Any:
    """Handle a task in a process, in the way that its data names."""
    match data.get("what"):
        case "dies":
            os._exit(9)
        case "fails":
            raise ValueError("what a process says")
        case "is unwanted":
            raise UnwantedError("it is corrupt")
    return {"pid": os.getpid(), "key": key}


async def test_a_handler_may_run_in_a_process_and_its_death_costs_an_attempt_alone(ledger_url: str):
    orders = UseCase("orders", max_retry=2, backoff_base=0)
    orders.handle("measure", measured, process=True)
    async with Tracker.open(ledger_url, orders) as tracker:
        whats = ("is well", "dies", "fails", "is unwanted")
        await tracker.add_many(NewTask(what, {"what": what}) for what in whats)
        report = await Worker(tracker, concurrency=2, drain=True).run()
        tasks = {what: await tracker.get(what) for what in whats}

    assert report.finish_reason == "drained"
    well = tasks["is well"]
    assert well.results["measure"]["key"] == "is well"
    assert well.results["measure"]["pid"] != os.getpid()
    ends = {what: (task.status, task.reason, task.retry, task.lost) for what, task in tasks.items()}
    assert ends == {
        "is well": (Status.FINISHED, None, 0, 0),
        "dies": (Status.IGNORED, Reason.TASK_ERROR, 2, 0),
        "fails": (Status.IGNORED, Reason.TASK_ERROR, 2, 0),
        "is unwanted": (Status.IGNORED, Reason.UNWANTED, 0, 0),
    }
    assert [error.message for error in tasks["is unwanted"].errors] == ["it is corrupt"]
    assert "what a process says" in tasks["fails"].errors[0].message
    assert "BrokenWorkerProcess" in tasks["dies"].errors[0].message


async def test_however_often_workers_are_restarted_a_task_has_its_attempts_and_no_more(
    ledger_url: str,
):
    attempts: Counter[str] = Counter()
    worker: Worker | None = None

    async def charge(execution):
        attempts[execution.key] += 1
        if attempts.total() % 7 == 0:
            worker.stop()
        raise ValueError("never")

    orders = UseCase("orders", max_retry=4, backoff_base=0)
    orders.handle("charge", charge)
    keys = [f"order-{n}" for n in range(15)]
    reasons = []
    while "drained" not in reasons:
        async with Tracker.open(ledger_url, orders) as tracker:
            await tracker.add_many(keys)
            worker = Worker(tracker, concurrency=3, drain=True)
            reasons.append((await worker.run()).finish_reason)
            retries = [task.retry async for task in tracker.walk()]

    assert len(reasons) > 5
    assert attempts == dict.fromkeys(keys, 4)
    assert retries == [4] * len(keys)


async def test_it_is_stopped_at_once_while_it_asks_the_ledger(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    asking = asyncio.Event()

    async def charge(execution):
        pass

    async def page(**_: Any) -> Any:
        asking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(tracker.ledger.tasks, "page", page)
    worker = draining(tracker, charge)
    working = asyncio.create_task(worker.run())
    await asking.wait()
    worker.stop_now()

    assert (await asyncio.wait_for(working, ENOUGH)).finish_reason == "stopped-at-once"


async def test_a_worker_without_a_handler_is_refused(tracker: Tracker):
    with pytest.raises(UsageError, match="the use case orders has no handler"):
        Worker(tracker)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"prefetch": -1}, {"prefetch": 51}])
async def test_limits_that_make_no_sense_are_refused(tracker: Tracker, options: dict[str, int]):
    with pytest.raises(UsageError, match=next(iter(options))):
        draining(tracker, measured, **options)


async def cancel_awaiting() -> None:
    cancel_own_task()
    await asyncio.sleep(ENOUGH)


async def cancel_and_return() -> None:
    cancel_own_task()


async def cancel_and_raise() -> None:
    cancel_own_task()
    raise ValueError("no")


async def cancel_by_a_helper() -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().call_soon(me.cancel)
    await asyncio.sleep(ENOUGH)


def cancel_own_task() -> None:
    me = asyncio.current_task()
    assert me is not None
    me.cancel()


@pytest.mark.parametrize(
    ("cancel", "said"),
    [
        (cancel_awaiting, "CancelledError"),
        (cancel_and_return, "CancelledError"),
        (cancel_and_raise, "ValueError: no"),
        (cancel_by_a_helper, "CancelledError"),
    ],
)
async def test_a_handler_that_cancels_its_own_task_spends_an_attempt(
    tracker: Tracker, cancel: Callable[[], Awaitable[None]], said: str
):
    await tracker.add_many(["bad", *(f"order-{n}" for n in range(5))])

    async def charge(execution):
        if execution.key == "bad":
            await cancel()

    report = await draining(tracker, charge, concurrency=2).run()

    assert (report.finish_reason, report.done, report.failed) == ("drained", 5, 2)
    task = await tracker.get("bad")
    assert (task.status, task.reason, task.retry) == (Status.IGNORED, Reason.TASK_ERROR, 2)
    assert [each.message.rstrip(": ") for each in task.errors] == [said] * 2


async def test_a_handler_that_cancels_its_own_task_and_goes_on_is_done(tracker: Tracker):
    await tracker.add_many(["order-1", "order-2"])

    async def charge(execution):
        try:
            await cancel_awaiting()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    report = await draining(tracker, charge, concurrency=1).run()

    assert (report.done, report.failed) == (2, 0)
