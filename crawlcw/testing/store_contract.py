"""Test the ledgers of a custom store against their contract.

    class TestMine(StoreContract):
        def store(self):
            return Mine

        def url(self):
            return "mine://127.0.0.1/tests"

The tests use the ledger of a spider named `contract` at the URL that `url` returns, and each test
deletes the spider's data. Leases that expire in a test last 20 ms; all others last 60 s.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from crawlcw.errors import LedgerKindError, Reason, UnknownNameError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model import transitions, urls
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Lease, Status, Task, task_id
from crawlcw.model.transitions import Failed, Outcome, Succeeded
from crawlcw.model.values import ItemFields
from crawlcw.testing.contracts import contract_test

_NAME = "contract"
_LEASE, _SHORT_LEASE = timedelta(seconds=60), timedelta(milliseconds=20)
_MAX_LOST = 3
_START = datetime(2026, 1, 1, tzinfo=UTC)
_WORKERS, _TASKS = 4, 60
_POLICY = RetryPolicy()
_ONCE = RetryPolicy(max_retry=1)
#: Keys and values that look like a query language, and values of each type that few stores have;
#: each store must keep them unchanged.
_HOSTILE = {
    "$set": {"a.b": None},
    "": [b"\x00\xff", "'; DROP TABLE tasks --"],
    "n\x00": "\U0001f600",
    "typed": [Decimal("1.10"), date(2026, 1, 2), datetime(2026, 1, 2)],  # noqa: DTZ001  # no zone
}
#: A text that is larger than most limits of a column or an index.
_LARGE = "x" * (2 << 20)


class StoreContract:
    """Base class of the tests of a store; derive from it, and define `store` and `url`."""

    def store(self) -> Any:
        """Return the class of the store, which the entry point names."""
        raise NotImplementedError("return the class of the store")

    def url(self) -> str:
        """Return the URL of a ledger for tests."""
        raise NotImplementedError("return the URL of a ledger for tests")

    @contract_test
    async def test_a_stored_task_is_unchanged(self, ledger: Ledger) -> None:
        """A task keeps every field as first stored, even text such as SQL or control codes."""
        task = replace(_task(1), context=_HOSTILE, headers=(("A", "1"), ("A", "2")), body=b"\x00")
        added = await ledger.tasks.add([task])
        assert (added.new, added.existing, added.rejected) == (1, 0, ())
        added = await ledger.tasks.add([replace(task, priority=9), _task(3), _task(3)])
        assert (added.new, added.existing) == (1, 2)
        record = await ledger.tasks.get(task.id)
        assert record is not None, "`get` returns the task"
        assert record.task == task
        assert await ledger.tasks.get(_task(2).id) is None

    @contract_test
    async def test_tasks_come_by_priority_and_then_by_time(self, ledger: Ledger) -> None:
        """`page` returns due tasks by highest priority, then by the earliest due time."""
        now = ledger.now()
        tasks = [
            replace(_task(number), priority=priority, due=now + timedelta(seconds=seconds))
            for number, priority, seconds in ((1, 0, -1), (2, 5, -1), (3, 0, -9), (4, 9, 60))
        ]
        await ledger.tasks.add(tasks)
        page = await ledger.tasks.page(limit=10)
        assert _numbers(page) == [2, 3, 1], "task 4 is not due yet"
        assert _numbers(await ledger.tasks.page(limit=1)) == [2]
        assert await ledger.tasks.page(limit=10, hosts=["other.example"]) == []

    @contract_test
    async def test_each_task_is_leased_to_one_worker(self, ledger: Ledger) -> None:
        """If workers claim the same tasks at the same time, each task goes to one worker."""
        await ledger.tasks.add([_task(number) for number in range(_TASKS)])
        async with AsyncExitStack() as clients:
            ledgers = [await ledger.reconnected() for _ in range(_WORKERS)]
            for client in ledgers:
                clients.push_async_callback(client.close)
            workers = enumerate(ledgers)
            shares = await asyncio.gather(*(_claim_all(client, f"w{n}") for n, client in workers))
        leases = [lease for share in shares for lease in share]
        assert sorted(_numbers([lease.task for lease in leases])) == list(range(_TASKS))
        assert {lease.fence for lease in leases} == {1}

    @contract_test
    async def test_an_outcome_and_its_items_are_one_write(self, ledger: Ledger) -> None:
        """`commit` records the status, the items and their classes, and ends the task's lease."""
        lease = await _leased(ledger)
        book = ItemFields(_HOSTILE, item_class="Book")
        items = ({"title": "A", "large": _LARGE}, dict(_HOSTILE), book)
        committed = await _commit(ledger, lease, Succeeded(items=items))
        assert (committed.lost, committed.rejected) == ((), ())
        record = await ledger.tasks.get(lease.task.id)
        assert record is not None
        assert (record.task.status, record.task.lock, record.items) == (
            Status.FINISHED,
            None,
            items,
        )
        rows = [row async for row in ledger.queries.items()]
        assert [dict(row.item) for row in rows] == list(items)
        assert [row.item_class for row in rows] == [None, None, "Book"]
        assert (await ledger.queries.counts()).by_status == {Status.FINISHED: 1}

    @contract_test
    async def test_a_repeated_outcome_is_recorded_once(self, ledger: Ledger) -> None:
        """If the caller repeats a commit after a lost reply, the outcome is recorded once."""
        lease = await _leased(ledger)
        outcome = Succeeded(items=({"n": 1},))
        assert (await _commit(ledger, lease, outcome)).lost == ()
        assert (await _commit(ledger, lease, outcome)).lost == ()
        assert [row.item async for row in ledger.queries.items()] == [{"n": 1}]

    @contract_test
    async def test_a_late_outcome_writes_nothing(self, ledger: Ledger) -> None:
        """After another worker claims a task, the ledger refuses the first worker's outcome."""
        late_lease = await _leased(ledger, worker="a", duration=_SHORT_LEASE)
        lease = await _leased_again(ledger, worker="b")
        assert lease.fence == late_lease.fence + 1
        committed = await _commit(ledger, late_lease, Succeeded(items=({"n": "late"},)))
        assert committed.lost == (late_lease,)
        assert await ledger.leases.renew([late_lease, lease], lease=_LEASE) == {lease.task.id}
        assert await ledger.outcomes.release([late_lease]) == 0
        assert (await _commit(ledger, lease, Succeeded(items=({"n": 1},)))).lost == ()
        assert [row.item async for row in ledger.queries.items()] == [{"n": 1}]

    @contract_test
    async def test_a_lease_is_renewed_and_released(self, ledger: Ledger) -> None:
        """A renewed lease lasts longer. `release` makes the task due, and counts no attempt."""
        lease = await _leased(ledger)
        assert await ledger.leases.renew([lease], lease=2 * _LEASE) == set()
        assert await ledger.tasks.page(limit=1) == [], "a leased task is not due"
        due = await ledger.queries.next_due()
        assert due is not None, "`next_due` is the end of the lease"
        assert due > lease.expires
        assert await ledger.outcomes.release([lease]) == 1
        (task,) = await ledger.tasks.page(limit=2)
        assert (task.status, task.retry, task.due) == (Status.TODO, 0, lease.task.due)

    @contract_test
    async def test_a_failed_task_is_due_later_and_then_ignored(self, ledger: Ledger) -> None:
        """A failure is retried by its policy; `retry_failed` reopens an ignored task."""
        lease = await _leased(ledger)
        await _commit(ledger, lease, Failed(reason=Reason.CONNECT, message="no\x1b route"))
        record = await ledger.tasks.get(lease.task.id)
        assert record is not None
        assert (record.task.status, record.task.retry) == (Status.FAILED, 1)
        assert await ledger.tasks.page(limit=1) == [], "it is due after its delay"
        assert len(record.errors) == 1
        await ledger.tasks.add([_task(2)])
        (page,) = await ledger.tasks.page(limit=1)
        claimed = await _claim(ledger, [page], worker="w")
        await _commit(ledger, claimed[0], Failed(reason=Reason.TLS), policy=_ONCE)
        assert await ledger.queries.reasons() == {Reason.CONNECT: 1, Reason.TLS: 1}
        assert await ledger.admin.retry_failed(TaskFilter()) == 2
        assert sorted(_numbers(await ledger.tasks.page(limit=9))) == [1, 2]

    @contract_test
    async def test_a_host_has_one_owner(self, ledger: Ledger) -> None:
        """Only one worker can lease a host; another worker can lease it after the release."""
        await ledger.hosts.wake({"site.example": ledger.now()})
        (lease,) = await ledger.host_leases.lease(worker="a", limit=9, lease=_LEASE)
        assert await ledger.host_leases.lease(worker="b", limit=9, lease=_LEASE) == []
        assert await ledger.host_leases.renew([lease], lease=_LEASE) == set()
        # A host that is released without a `ready_at` cannot be leased before a call of `wake`.
        assert await ledger.host_leases.release([(lease, lease.host)]) == set()
        await ledger.hosts.wake({"site.example": ledger.now()})
        (next_lease,) = await ledger.host_leases.lease(worker="b", limit=9, lease=_LEASE)
        assert next_lease.epoch == lease.epoch + 1
        assert await ledger.host_leases.renew([lease], lease=_LEASE) == {"site.example"}

    @contract_test
    async def test_values_outside_their_tasks_are_kept(self, ledger: Ledger) -> None:
        """A blob is stored, read and deleted."""
        blob = await ledger.blobs.put(_task(1).id, {"text": _LARGE})
        assert await ledger.blobs.read(blob) == {"text": _LARGE}
        await ledger.blobs.drop([blob])

    @contract_test
    async def test_the_clock_is_aware_and_does_not_run_back(self, ledger: Ledger) -> None:
        """`now` is in UTC and in milliseconds."""
        times = [ledger.now() for _ in range(100)]
        assert times == sorted(times)
        assert {time.utcoffset() for time in times} == {timedelta()}
        assert {time.microsecond % 1000 for time in times} == {0}

    @contract_test
    async def test_another_loop_uses_its_own_connection(self, ledger: Ledger) -> None:
        """`reconnected` gives a ledger for another thread with its own event loop."""
        await ledger.tasks.add([_task(1)])

        async def count() -> int:
            client = await ledger.reconnected()
            try:
                return (await client.queries.counts()).total
            finally:
                await client.close()

        assert await asyncio.to_thread(asyncio.run, count()) == 1

    @contract_test
    async def test_names_are_listed_and_discarded(self, ledger: Ledger) -> None:
        """A read creates no ledger; a spider's ledger cannot be opened as that of a use case."""
        store, url = self.store(), self.url()
        await ledger.tasks.add([_task(1)])
        assert _NAME in await store.recorded_names(url)
        missing = store.open(url, f"{_NAME}-missing", kind=None, create=False)
        await _assert_raises(UnknownNameError, missing)
        kind = LedgerKind.USE_CASE
        await _assert_raises(LedgerKindError, store.open(url, _NAME, kind=kind, create=True))
        reader = await store.open_existing(url, _NAME)
        assert (await reader.queries.counts()).total == 1
        await reader.close()
        await store.discard(url, _NAME)
        assert _NAME not in await store.recorded_names(url)

    async def _run(self, check: Callable[[Ledger], Awaitable[None]]) -> None:
        store, url = self.store(), self.url()
        await (await store.open(url, _NAME, kind=None, create=True)).close()
        await store.discard(url, _NAME)
        ledger = await store.open(url, _NAME, kind=LedgerKind.SPIDER, create=True)
        try:
            await check(ledger)
        finally:
            await ledger.close()


def _task(number: int) -> Task:
    location = urls.locate(f"http://site.example/{number}")
    return Task(
        id=task_id(location),
        url=location.url,
        host=location.host,
        due=_START,
        update_time=_START,
        create_time=_START,
    )


def _numbers(tasks: list[Task]) -> list[int]:
    return [int(task.url.rpartition("/")[2]) for task in tasks]


async def _claim(
    ledger: Ledger, tasks: list[Task], *, worker: str, duration: timedelta = _LEASE
) -> list[Lease]:
    claimed = await ledger.leases.claim(tasks, worker=worker, lease=duration, max_lost=_MAX_LOST)
    return list(claimed.leases)


async def _claim_all(ledger: Ledger, worker: str) -> list[Lease]:
    leases: list[Lease] = []
    while tasks := await ledger.tasks.page(limit=ledger.leases.batch_size):
        leases += await _claim(ledger, tasks, worker=worker)
    return leases


async def _leased(ledger: Ledger, *, worker: str = "w", duration: timedelta = _LEASE) -> Lease:
    """Add a task, and return its lease."""
    await ledger.tasks.add([_task(1)])
    tasks = await ledger.tasks.page(limit=1)
    (lease,) = await _claim(ledger, tasks, worker=worker, duration=duration)
    return lease


async def _leased_again(ledger: Ledger, *, worker: str) -> Lease:
    """Wait until the lease of the only task has expired, and return another worker's lease."""
    while True:
        leases = await _claim_all(ledger, worker)
        if leases:
            return leases[0]
        await asyncio.sleep(_SHORT_LEASE.total_seconds())


async def _commit(
    ledger: Ledger, lease: Lease, outcome: Outcome, *, policy: RetryPolicy = _POLICY
) -> Any:
    settlement = transitions.settle(lease, outcome, now=ledger.now(), policy=policy, chance=0.5)
    return await ledger.outcomes.commit([settlement])


async def _assert_raises(kind: type[Exception], opening: Awaitable[Ledger]) -> None:
    try:
        ledger = await opening
    except kind:
        return
    await ledger.close()
    raise AssertionError(f"the ledger opens, but it must raise {kind.__name__}")
