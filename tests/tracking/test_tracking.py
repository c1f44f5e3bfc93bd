"""Tracked tasks: from the addition to each of their ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone

import anyio
import pytest

from crawlcw.errors import (
    LeaseLostError,
    LedgerError,
    Reason,
    SettingsError,
    TaskFinishedError,
    TaskIgnoredError,
    TaskLockedError,
    TaskNotDueError,
    TaskNotFoundError,
    UsageError,
)
from crawlcw.ledger.port import Part
from crawlcw.model.task import BlobRef, Status, key_id
from crawlcw.tracking import NewTask, SyncTracker, Tracker, UseCase
from crawlcw.tracking.sync_calls import SyncCalls

LEASE = timedelta(seconds=30)
ENOUGH = 20.0


@pytest.fixture
async def tracker(ledger_url: str) -> AsyncIterator[Tracker]:
    async with Tracker.open(ledger_url, "orders", lease=LEASE, backoff_base=0) as tracker:
        yield tracker


async def expire(tracker: Tracker, key: str) -> None:
    """Let the lease on a task run out, as if its holder had died."""
    lease = next(each for each in tracker.session.leases.all() if each.task.url == key)
    tracker.session.leases.end([lease])  # no more renewals
    await tracker.ledger.workers.leave(tracker.session.worker)


async def test_a_good_end_finishes_and_keeps_the_data(tracker: Tracker):
    assert await tracker.add("order-1", {"amount": 3}, priority=5)

    async with tracker.start("order-1") as execution:
        during = await tracker.get("order-1")
        execution.data["receipt"] = "r-1"
        execution.result = {"charged": True}

    assert during.status is Status.PROCESSING
    assert during.holder == tracker.session.worker
    task = await tracker.get("order-1")
    assert task.status is Status.FINISHED
    assert task.data == {"amount": 3, "receipt": "r-1"}
    assert task.results == {"todo": {"charged": True}}
    assert task.priority == 5
    assert task.holder is None
    assert task.due is None
    assert [each.event for each in task.trace] == ["finish"]


async def test_adding_a_task_again_changes_nothing_even_if_it_is_finished(tracker: Tracker):
    await tracker.add("order-1", {"amount": 3})
    async with tracker.start("order-1"):
        pass
    before = await tracker.get("order-1")

    assert not await tracker.add("order-1", {"amount": 4}, priority=9)

    assert await tracker.get("order-1") == before


async def test_an_exception_costs_an_attempt_and_discards_the_data(tracker: Tracker):
    await tracker.add("order-1", {"amount": 3})

    with pytest.raises(ZeroDivisionError):
        async with tracker.start("order-1") as execution:
            execution.data["amount"] = 1 / 0

    with pytest.raises(ZeroDivisionError):
        async with tracker.start("order-1") as execution:
            execution.data["amount"] = 4
            raise ZeroDivisionError

    task = await tracker.get("order-1")
    assert task.status is Status.FAILED
    assert task.reason is Reason.TASK_ERROR
    assert task.retry == 2
    assert task.data == {"amount": 3}
    first = task.errors[0]
    assert first.message == "ZeroDivisionError: division by zero"
    assert first.traceback is not None
    assert "execution.data" in first.traceback
    assert "crawlcw/tracking" not in first.traceback.replace(__file__, "")
    assert [each.event for each in task.trace] == ["fail", "fail"]


async def test_after_the_last_attempt_a_task_is_ignored_and_stays_so(tracker: Tracker):
    await tracker.configure(max_retry=2)
    await tracker.add("order-1")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            async with tracker.start("order-1"):
                raise ValueError("no")

    with pytest.raises(TaskIgnoredError, match="task-error") as raised:
        async with tracker.start("order-1"):
            pytest.fail("it was started")

    assert raised.value.reason is Reason.TASK_ERROR
    task = await tracker.get("order-1")
    assert (task.status, task.retry, len(task.errors)) == (Status.IGNORED, 2, 2)


async def test_a_cancelled_execution_is_released_unspent(tracker: Tracker):
    await tracker.add("order-1", {"amount": 3})
    started = asyncio.Event()

    async def work() -> None:
        async with tracker.start("order-1") as execution:
            execution.data["amount"] = 4
            started.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await started.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    task = await tracker.get("order-1")
    assert (task.status, task.retry, task.lost) == (Status.TODO, 0, 0)
    assert task.holder is None
    assert task.data == {"amount": 3}


async def test_a_start_that_is_cancelled_on_its_way_leaves_no_lock(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
):
    await tracker.add("order-1")
    claim = tracker.ledger.leases.claim
    claiming, on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments, **options):
        claiming.set()
        await on.wait()
        return await claim(*arguments, **options)

    monkeypatch.setattr(tracker.ledger.leases, "claim", slow)

    async def work() -> None:
        async with tracker.start("order-1"):
            pytest.fail("it was cancelled before")

    working = asyncio.create_task(work())
    await claiming.wait()
    working.cancel()
    on.set()
    with pytest.raises(asyncio.CancelledError):
        await working

    task = await tracker.get("order-1")
    assert (task.status, task.retry, task.lost) == (Status.TODO, 0, 0)
    record = await tracker.ledger.tasks.get(key_id("order-1"))
    assert record is not None
    assert record.task.fence == 1  # it was claimed and released


async def test_a_miss_says_why(tracker: Tracker, ledger_url: str):
    with pytest.raises(TaskNotFoundError, match="'order-0' does not exist"):
        async with tracker.start("order-0"):
            pass
    await tracker.add("order-1")
    async with Tracker.open(ledger_url, "orders") as other, tracker.start("order-1"):
        with pytest.raises(TaskLockedError) as locked:
            async with other.start("order-1"):
                pass
        assert locked.value.holder == tracker.session.worker
        assert locked.value.expires > tracker.ledger.now()
    with pytest.raises(TaskFinishedError):
        async with tracker.start("order-1"):
            pass
    await tracker.add("order-2", delay=timedelta(hours=1))
    with pytest.raises(TaskNotDueError) as waits:
        async with tracker.start("order-2"):
            pass
    assert timedelta(minutes=59) < waits.value.due - tracker.ledger.now() <= timedelta(hours=1)


async def test_a_checkpoint_is_kept_whatever_comes(tracker: Tracker):
    await tracker.add("order-1", {"step": 0})

    with pytest.raises(ValueError, match="later"):
        async with tracker.start("order-1") as execution:
            execution.data["step"] = 1
            await execution.checkpoint()
            execution.data["step"] = 2
            raise ValueError("later")

    assert (await tracker.get("order-1")).data == {"step": 1}


async def test_what_was_taken_over_is_neither_saved_nor_finished(tracker: Tracker, ledger_url: str):
    await tracker.add("order-1", {"by": "nobody"})
    async with Tracker.open(ledger_url, "orders") as other:
        with pytest.raises(LeaseLostError):
            async with tracker.start("order-1") as execution:
                await expire(tracker, "order-1")
                async with other.start("order-1") as second:
                    assert second.fence == execution.fence + 1
                    execution.data["by"] = "the first"
                    with pytest.raises(LeaseLostError):
                        await execution.checkpoint()
                    second.data["by"] = "the second"
                assert execution.has_ended
                raise LeaseLostError("as the checkpoint said")

    task = await tracker.get("order-1")
    assert task.status is Status.FINISHED
    assert task.data == {"by": "the second"}
    assert (task.trace[-1].fence, task.lost) == (2, 0)


async def test_a_lost_lease_stops_the_block(tracker: Tracker):
    await tracker.add("order-1")

    with pytest.raises(LeaseLostError):
        async with tracker.start("order-1"):
            tracker.session.leases.lose([key_id("order-1")])
            await asyncio.Event().wait()


async def test_a_stage_ends_in_one_write_with_the_next(tracker: Tracker):
    await tracker.add("video-1", {"name": "v"}, stage="download")
    with pytest.raises(ValueError, match="once"):
        async with tracker.start("video-1"):
            raise ValueError("once")

    async with tracker.start("video-1") as execution:
        assert (execution.stage, execution.attempt) == ("download", 2)
        execution.result = {"bytes": 7}
        await execution.advance("transcode", context={"path": "/v"})

    between = await tracker.get("video-1")
    assert (between.status, between.stage, between.retry) == (Status.TODO, "transcode", 0)
    async with tracker.start("video-1") as execution:
        assert (execution.stage, execution.attempt) == ("transcode", 1)
        assert execution.context == {"path": "/v"}
        assert execution.results == {"download": {"bytes": 7}}
        execution.result = "done"
    task = await tracker.get("video-1")
    assert task.status is Status.FINISHED
    assert task.results == {"download": {"bytes": 7}, "transcode": "done"}
    assert [each.event for each in task.trace] == ["fail", "advance", "finish"]
    assert [each.stage for each in task.trace] == ["download", "download", "transcode"]


async def test_a_delayed_stage_is_not_due_yet(tracker: Tracker):
    await tracker.add("video-1", stage="download")
    async with tracker.start("video-1") as execution:
        await execution.advance("transcode", delay=timedelta(hours=1))

    with pytest.raises(TaskNotDueError):
        async with tracker.start("video-1"):
            pass


async def test_in_a_chain_the_end_of_a_stage_is_the_beginning_of_the_next(ledger_url: str):
    videos = UseCase("videos", chain=["download", "transcode", "publish"])
    async with Tracker.open(ledger_url, videos) as tracker:
        await tracker.add("v")
        stages = []
        for _ in videos.chain:
            async with tracker.start("v") as execution:
                stages.append(execution.stage)

        assert stages == ["download", "transcode", "publish"]
        assert (await tracker.get("v")).status is Status.FINISHED


async def test_an_execution_may_be_ignored_failed_for_good_or_given_back(tracker: Tracker):
    for key in ("corrupt", "hopeless", "later"):
        await tracker.add(key)

    async with tracker.start("corrupt") as execution:
        await execution.ignore("its header is \x1b[31m broken")
    async with tracker.start("hopeless") as execution:
        await execution.fail("the account is closed", may_retry=False)
    async with tracker.start("later") as execution:
        await execution.release()

    corrupt, hopeless, later = [await tracker.get(key) for key in ("corrupt", "hopeless", "later")]
    assert (corrupt.status, corrupt.reason) == (Status.IGNORED, Reason.UNWANTED)
    assert "\x1b" not in corrupt.errors[0].message
    assert (hopeless.status, hopeless.reason) == (Status.IGNORED, Reason.TASK_ERROR)
    assert hopeless.retry == 1
    assert (later.status, later.retry) == (Status.TODO, 0)
    assert await tracker.retry(all=True) == 1  # the unwanted task is no failure
    assert (await tracker.get("hopeless")).status is Status.TODO


async def test_an_execution_ends_once(tracker: Tracker):
    await tracker.add("order-1")

    async with tracker.start("order-1") as execution:
        await execution.finish()
        with pytest.raises(UsageError, match="has already ended"):
            await execution.checkpoint()
        with pytest.raises(UsageError, match="has already ended"):
            await execution.advance("next")

    assert (await tracker.get("order-1")).status is Status.FINISHED


async def test_large_values_are_kept_beside_the_task(tracker: Tracker):
    await tracker.configure(inline_limit="1KiB")
    large = "x" * 300_000
    await tracker.add("order-1", {"page": large}, stage="one")

    async with tracker.start("order-1") as execution:
        assert execution.data == {"page": large}
        execution.data["more"] = large
        await execution.checkpoint()
        execution.result = large
        await execution.advance("two", context={"page": large})

    record = await tracker.ledger.tasks.get(key_id("order-1"))
    assert record is not None
    assert record.task.carried is not None
    assert isinstance(record.task.carried.data, BlobRef)
    assert isinstance(record.task.context, BlobRef)
    assert isinstance(record.task.carried.results["one"], BlobRef)
    task = await tracker.get("order-1")
    assert task.data == {"page": large, "more": large}
    async with tracker.start("order-1") as execution:
        assert execution.context == {"page": large}
        assert execution.results == {"one": large}
    # Results that no later stage reads are dropped; the first page's context is kept.
    assert (await tracker.get("order-1")).data == {"page": large, "more": large}


@pytest.mark.parametrize("inline_limit", ["1KiB", "1MiB"])
async def test_a_time_without_a_zone_stays_one_wherever_it_is_kept(
    tracker: Tracker, inline_limit: str
):
    await tracker.configure(inline_limit=inline_limit)
    at = datetime(2026, 7, 4, 14, 30)  # noqa: DTZ001  # tested on purpose
    given = {"at": at, "instant": at.replace(tzinfo=UTC), "rest": "x" * 2048}
    await tracker.add("order-1", given, stage="one")

    async with tracker.start("order-1") as execution:
        assert execution.data == given
        execution.result = given
        await execution.advance("two", context=given)

    async with tracker.start("order-1") as execution:
        assert execution.context == given
        assert execution.results == {"one": given}


async def test_trackers_never_share_task_ids(ledger_url: str):
    async with (
        Tracker.open(ledger_url, "orders") as orders,
        Tracker.open(ledger_url, "refunds") as refunds,
    ):
        await orders.add("1", {"kind": "order"})
        await refunds.add("1", {"kind": "refund"})

        assert (await orders.get("1")).data == {"kind": "order"}
        assert (await refunds.get("1")).data == {"kind": "refund"}
        assert (await refunds.counts()).total == 1


async def test_what_is_configured_holds_for_all_and_stays(tracker: Tracker, ledger_url: str):
    await tracker.configure(max_retry=7, backoff_base="3s")

    async with Tracker.open(ledger_url, "orders") as other:
        assert other.policy.max_retry == 7
        assert other.policy.backoff_base == timedelta(seconds=3)
        assert other.policy.lease == LEASE
        await other.configure(max_retry=1)
        await tracker.session.refresh()
        assert tracker.policy.max_retry == 1


async def test_a_setting_that_does_not_exist_is_named(tracker: Tracker, ledger_url: str):
    with pytest.raises(SettingsError, match="'max_retries': did you mean max_retry"):
        await tracker.configure(max_retries=1)
    with pytest.raises(SettingsError, match="lease"):
        await Tracker.open(ledger_url, "orders", lease="soon")


@pytest.mark.parametrize("key", ["", "x" * 1025, 7, "\ud800", None])
async def test_what_cannot_be_a_key_is_refused(tracker: Tracker, key: object):
    with pytest.raises(UsageError, match="key"):
        await tracker.add(key)  # type: ignore[arg-type]

    assert not (await tracker.counts()).total


async def test_hostile_keys_and_data_come_back_as_they_were(tracker: Tracker):
    key = "$where: \x00 ' OR 1=1 -- \x1b[2J\n"
    data = {"$set": {"a.b": "$$NOW"}, "": [None, True, b"\x00", 1.5], "ключ": "значение"}
    await tracker.add(key, data)

    async with tracker.start(key) as execution:
        assert execution.data == data

    assert (await tracker.get(key)).data == data
    assert (await tracker.find()).tasks[0].key == key


async def test_a_second_pass_takes_up_what_is_finished(tracker: Tracker):
    for n in range(3):
        await tracker.add(f"v{n}", {"n": n})
    for n in range(2):
        async with tracker.start(f"v{n}") as execution:
            execution.result = n

    assert await tracker.reopen("thumbnail", all=True) == 2
    assert await tracker.reopen("thumbnail", all=True) == 0  # the tasks are no longer finished

    async with tracker.start("v0") as execution:
        assert (execution.stage, execution.results) == ("thumbnail", {"todo": 0})
    assert (await tracker.get("v2")).stage == "todo"


async def test_reset_begins_anew_and_ignore_withdraws(tracker: Tracker):
    await tracker.add_many(["a", "b", "c"])
    async with tracker.start("a") as execution:
        execution.result = 1
    assert await tracker.ignore("b", "a") == 1  # a is done already
    async with tracker.start("c"):
        assert await tracker.reset("a", "b", "c") == 2  # c is held
        assert await tracker.ignore("c") == 0

    a, b = await tracker.get("a"), await tracker.get("b")
    assert (a.status, a.results) == (Status.TODO, {})
    assert b.status is Status.TODO
    assert b.reason is None


async def test_what_a_source_has_yielded_does_not_wait_for_more(tracker: Tracker):
    class GoneError(Exception):
        pass

    async def orders() -> AsyncIterator[str]:
        yield "order-1"
        await tracker.tasks_due.wait()
        assert (await tracker.get("order-1")).status is Status.TODO
        yield "order-2"
        raise GoneError

    with anyio.fail_after(30), pytest.raises(GoneError):
        await tracker.add_many(orders())

    assert (await tracker.get("order-2")).status is Status.TODO


async def test_purge_leaves_what_is_held(tracker: Tracker):
    await tracker.add_many(["a", "b"])
    async with tracker.start("a"):
        with pytest.raises(UsageError, match="force"):
            await tracker.purge(status=Status.PROCESSING)
        assert await tracker.purge(all=True) == 1
    assert (await tracker.counts()).total == 1
    assert await tracker.purge(all=True, force=True) == 1


async def test_questions_are_answered_in_one_order_over_all_statuses(tracker: Tracker):
    await tracker.add_many(NewTask(f"t{n}", {"n": n}) for n in range(25))
    for n in range(5):
        async with tracker.start(f"t{n}") as execution:
            if n % 2:
                await execution.fail("odd", may_retry=False)

    seen = [task async for task in tracker.walk(limit=4)]

    assert len(seen) == 25
    assert len({task.key for task in seen}) == 25
    assert [t.update_time for t in seen] == sorted((t.update_time for t in seen), reverse=True)
    assert {task.key for task in seen[:5]} == {f"t{n}" for n in range(5)}
    failed = await tracker.find(reason=Reason.TASK_ERROR)
    assert {task.key for task in failed.tasks} == {"t1", "t3"}
    assert failed.next_cursor is None
    assert await tracker.reasons() == {"task-error": 2}
    month_ago = tracker.ledger.now() - timedelta(days=30)
    recent = await tracker.find(status=Status.IGNORED, changed_since=month_ago)
    assert len(recent.tasks) == 2
    assert not (await tracker.find(status=Status.IGNORED, changed_before=month_ago)).tasks
    with pytest.raises(UsageError, match="cursor"):
        await tracker.find(cursor="not one of ours")


async def test_a_decorated_function_works_on_the_task_of_its_key(tracker: Tracker):
    @tracker.task
    async def charge(execution):
        execution.data["charged"] = True
        return execution.data["amount"] * 2

    await tracker.add("order-1", {"amount": 3})

    assert await charge("order-1") == 6

    task = await tracker.get("order-1")
    assert task.data == {"amount": 3, "charged": True}
    assert task.results == {"charge": 6}


async def test_a_result_that_comes_after_the_end_is_not_lost_without_a_word(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
):
    @tracker.task
    async def charge(execution):
        await execution.advance("send")
        return 5

    await tracker.add("order\n1")

    assert await charge("order\n1") is None

    assert (await tracker.get("order\n1")).results == {}
    (told,) = [each for each in caplog.records if getattr(each, "event", "") == "result_late"]
    assert told.getMessage().startswith(
        "stage charge returned a result after task order\\n1 had ended"
    )


async def test_closing_gives_back_what_is_held(tracker: Tracker, ledger_url: str):
    await tracker.add("order-1")
    other = await Tracker.open(ledger_url, "orders")
    with pytest.raises(LeaseLostError):
        async with other.start("order-1"):
            await other.session.close()
            await anyio.lowlevel.checkpoint()
    await other.close()

    task = await tracker.get("order-1")
    assert (task.status, task.retry, task.lost) == (Status.TODO, 0, 0)
    assert await tracker.ledger.workers.all() == []


def test_a_script_needs_no_await(ledger_url: str):
    with SyncTracker.open(ledger_url, "orders", backoff_base=0) as tracker:
        assert tracker.add("order-1", {"amount": 3})
        assert tracker.add_many(["order-2", NewTask("order-3", {"amount": 1})]).new == 2

        with tracker.start("order-1") as execution:
            execution.data["step"] = 1
            execution.checkpoint()
            execution.result = "paid"
        with pytest.raises(ValueError, match="no"), tracker.start("order-2"):
            raise ValueError("no")
        with pytest.raises(KeyboardInterrupt), tracker.start("order-3"):
            raise KeyboardInterrupt

        paid = tracker.get("order-1")
        assert (paid.status, paid.data, paid.results) == (
            Status.FINISHED,
            {"amount": 3, "step": 1},
            {"todo": "paid"},
        )
        assert tracker.get("order-2").status is Status.FAILED
        assert (tracker.get("order-3").status, tracker.get("order-3").holder) == (
            Status.TODO,
            None,
        )
        with pytest.raises(TaskFinishedError), tracker.start("order-1"):
            pass
        assert tracker.counts().total == 3
        assert len(tracker.find(status=Status.FAILED).tasks) == 1


async def test_threads_use_a_tracker_by_its_sync(tracker: Tracker):
    await tracker.add("order-1")

    def work() -> None:
        with tracker.sync.start("order-1") as execution:
            execution.result = threading.get_ident()

    await anyio.to_thread.run_sync(work)

    assert (await tracker.get("order-1")).results["todo"] != threading.get_ident()
    with pytest.raises(UsageError, match="in a coroutine, use the tracker itself"):
        tracker.sync.add("order-2")


class InAThread:
    """A thread inside a block of `start`, which it leaves after `ends_with`."""

    def __init__(self, sync: SyncCalls) -> None:
        self._sync = sync
        self._entered, self._go_on = threading.Event(), threading.Event()
        self.raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        assert self._entered.wait(ENOUGH)

    def _work(self) -> None:
        try:
            with self._sync.start("order-1") as execution:
                execution.data["half"] = True
                self._entered.set()
                assert self._go_on.wait(ENOUGH)
        except BaseException as error:
            self.raised.append(error)

    def ends_with(self) -> str:
        self._go_on.set()
        self._thread.join(ENOUGH)
        return "; ".join(f"{type(each).__name__}: {each}" for each in self.raised)


CLOSED = "LedgerError: the tracker was closed, and the work on task 'order-1' with it"


async def test_a_thread_that_is_not_done_when_the_tracker_is_closed_gives_its_task_back(
    tracker: Tracker, ledger_url: str
):
    await tracker.add("order-1", {"amount": 3})
    async with Tracker.open(ledger_url, "orders") as other:
        thread = await anyio.to_thread.run_sync(InAThread, other.sync)

    task = await tracker.get("order-1")
    assert (task.status, task.retry, task.lost) == (Status.TODO, 0, 0)
    assert task.data == {"amount": 3}
    assert await anyio.to_thread.run_sync(thread.ends_with) == CLOSED
    assert await tracker.get("order-1") == task
    with pytest.raises(LedgerError, match="the tracker was closed"):
        await anyio.to_thread.run_sync(other.sync.get, "order-1")


def test_a_thread_that_is_not_done_when_a_script_ends_gives_its_task_back(ledger_url: str):
    with SyncTracker.open(ledger_url, "orders") as tracker:
        tracker.add("order-1")
        thread = InAThread(tracker)

    assert thread.ends_with() == CLOSED
    with SyncTracker.open(ledger_url, "orders") as tracker:
        task = tracker.get("order-1")
        assert (task.status, task.retry, task.lost) == (Status.TODO, 0, 0)


async def test_a_thread_whose_lease_is_lost_in_the_middle_has_not_finished(tracker: Tracker):
    await tracker.add("order-1")
    thread = await anyio.to_thread.run_sync(InAThread, tracker.sync)
    # As after a late renewal; no other worker has the task yet.
    tracker.session.leases.lose([key_id("order-1")])
    said = await anyio.to_thread.run_sync(thread.ends_with)

    assert said.startswith("LeaseLostError"), said
    assert (await tracker.get("order-1")).status is Status.PROCESSING


async def test_a_use_case_is_no_spider(tracker: Tracker, ledger_url: str):
    from crawlcw import LedgerConfigurationError, open_ledger

    with pytest.raises(LedgerConfigurationError, match="use case"):
        await open_ledger(ledger_url, "orders")
    spider = await open_ledger(ledger_url, "books")
    await spider.close()
    with pytest.raises(LedgerConfigurationError, match="spider"):
        await Tracker.open(ledger_url, "books")


async def test_an_empty_list_of_keys_changes_nothing(tracker: Tracker):
    await tracker.add_many(["a", "b"])
    async with tracker.start("a"):
        pass
    none: list[str] = []

    for change in (tracker.retry, tracker.ignore, tracker.reset, tracker.purge):
        with pytest.raises(UsageError, match="all=True"):
            await change(*none)
    with pytest.raises(UsageError, match="all=True"):
        await tracker.reopen("again", *none)
    with pytest.raises(UsageError, match="either keys or all=True"):
        await tracker.purge("a", all=True)

    assert (await tracker.counts()).by_status == {Status.TODO: 1, Status.FINISHED: 1}
    assert await tracker.ignore(all=True) == 1
    assert await tracker.reset(all=True) == 2
    assert await tracker.purge(status="todo") == 2


async def test_a_stage_has_the_tasks_that_were_added_without_one(tracker: Tracker, ledger_url: str):
    await tracker.add_many(["1", "2", "3"])  # as a script that does not know the stages
    videos = UseCase("orders", chain=["download", "publish"])
    async with Tracker.open(ledger_url, videos) as downloads:
        await downloads.add_many(["4", "5"])
        await downloads.add("6", stage="publish")

        page = await downloads.find(stage="download", limit=3)
        rest = await downloads.find(stage="download", limit=3, cursor=page.next_cursor)

        assert {task.stage for task in (*page.tasks, *rest.tasks)} == {"download"}
        assert sorted(task.key for task in (*page.tasks, *rest.tasks)) == ["1", "2", "3", "4", "5"]
        assert rest.next_cursor is None
        assert (await downloads.get("1")).stage == "download"
        for key in ("1", "4"):
            async with downloads.start(key) as execution:
                await execution.fail("no", may_retry=False)
        assert await downloads.retry(stage="publish") == 0
        assert await downloads.retry(stage="download") == 2
        assert await downloads.ignore(stage="download") == 5


@pytest.mark.parametrize(
    "asked",
    [
        {"status": "done"},
        {"status": 20},
        {"status": ["finished", None]},
        {"reason": "junk"},
        {"stage": {"$gt": ""}},
        {"stage": ""},
        {"changed_since": datetime(2020, 1, 1)},  # noqa: DTZ001  # refused on purpose
        {"changed_before": timedelta(days=1)},
        {"changed_since": datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))},
        {"limit": 2**70},
        {"limit": True},
        {"limit": "5"},
        {"cursor": 5},
    ],
    ids=str,
)
async def test_a_question_that_makes_no_sense_is_refused(
    tracker: Tracker, asked: dict[str, object]
):
    name = next(iter(asked))

    with pytest.raises(UsageError, match=name):
        await tracker.find(**asked)  # type: ignore[arg-type]


async def test_a_status_and_a_reason_may_be_named(tracker: Tracker):
    await tracker.add_many(["a", "b"])
    async with tracker.start("a") as execution:
        await execution.fail("no", may_retry=False)

    found = await tracker.find(status="ignored", reason="task-error")

    assert [task.key for task in found.tasks] == ["a"]
    async with tracker.start("a", from_status="ignored"):
        pass
    assert await tracker.reopen("again", from_status=["finished", Status.IGNORED]) == 1


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
async def test_adding_a_known_task_leaves_no_large_value_behind(tracker: Tracker):
    await tracker.configure(inline_limit="1KiB")
    large = {"v": "x" * 2000}
    many = [NewTask("one", large | {"n": n}, context=large) for n in range(3)]

    await asyncio.gather(tracker.add("one", large), tracker.add_many(many))
    await tracker.add("one", large)
    await tracker.add_many(["two", NewTask("two", large), NewTask("three", large)])
    with pytest.raises(UsageError):
        await tracker.add_many([NewTask("four", large), NewTask("")])

    left = tracker.ledger.inspection.examine(Part.BLOBS)
    assert [each async for each in left] == []
    assert (await tracker.get("one")).data["v"] == (await tracker.get("three")).data["v"]
    assert (await tracker.get("two")).data == {}
