"""Change or delete many tasks at once, without a lease of the tasks.

A bulk change runs in batches, so that other writers wait only for the end of one batch. The ledger
reads a batch of tasks, and then changes each task only if the task still passes the filter. So a
bulk change skips a task that another process has claimed after the ledger read the task.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.choosing import batches, edit_of, walk, where_of, with_end
from crawlcw.ledger.examination import HOST_STATE, TASK_STATE
from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.notes import Notes
from crawlcw.ledger.port import (
    OR,
    Among,
    AtMost,
    Edit,
    LedgerTables,
    Not,
    Path,
    Store,
    Unchanged,
    Where,
    Within,
    Write,
)
from crawlcw.ledger.queries import counted
from crawlcw.ledger.values import Count, TaskFilter
from crawlcw.model import transitions
from crawlcw.model.task import WAITING, ChangedTask, Task
from crawlcw.model.transitions import (
    ADMIT,
    REOPEN,
    REOPENED_CHANGED,
    RETRY,
    REVISIT,
    WITHDRAW,
    BulkChange,
)

#: Number of tasks that one command or transaction changes; other writers wait until its end.
BATCH = 2_000
_WAITING = Among([int(status) for status in WAITING])


class Admin:
    """Changes or deletes many tasks at once, without a lease of the tasks."""

    def __init__(self, store: Store, hosts: Hosts) -> None:
        self._store = store
        self._hosts = hosts
        #: Names of hosts that `admit_to_depth` must still wake for the tasks that it reopened.
        self._admitted_hosts: set[str] = set()
        #: Whether `revisit_due` must still wake the hosts of pages that became due.
        self._unwoken = False

    async def retry_failed(self, selection: TaskFilter) -> int:
        """Set failed tasks to `todo` and due now, and reset their attempts; return their number.

        `retry_failed` changes the tasks in *selection* that failed or were ignored after a failure,
        but not tasks that were ignored as refused or out of scope. Leased tasks never change.
        `retry_failed` calls `Hosts.wake_all`.
        """
        return await self._change(RETRY, _failures(selection))

    async def count_failed(self, selection: TaskFilter) -> Count:
        """Return how many tasks `retry_failed` would change, or a lower bound of this number."""
        return await counted(self._store, _failures(selection))

    async def withdraw(self, selection: TaskFilter, *, reason: Reason) -> int:
        """Ignore tasks that are neither done nor leased; return their number.

        A task whose lease has expired counts as not leased. `withdraw` raises the task's fence by
        one, so that the ledger refuses a late write of the last lease holder.
        """
        return await self._change(WITHDRAW, [selection], {"reason": str(reason)})

    async def reopen(
        self, selection: TaskFilter, *, stage: str | None = None, deletes_results: bool = False
    ) -> int:
        """Set tasks without a lease to `todo`, due now, with no attempts; return their number.

        A task whose lease has expired counts as not leased. If *stage* is given, tracked tasks move
        to this stage. If *deletes_results* is true, `reopen` deletes the results of tracked tasks.
        A spider's pages keep their callbacks and hosts. `reopen` calls `Hosts.wake_all`. `reopen`
        raises each task's fence by one, so that earlier reads and claims no longer match. `reopen`
        skips tasks whose status changed at or after `selection.changed_before`, or after the call,
        so it may be repeated.
        """
        extra_fields: dict[str, Any] = {}
        if self._store.kind.tracked:
            extra_fields = {} if stage is None else {"host": stage, "callback": stage}
            extra_fields |= {"results": None} if deletes_results else {}
        return await self._change(REOPEN, [selection], extra_fields)

    async def revisit(self, selection: TaskFilter) -> int:
        """Set finished or ignored pages to `todo`, due now; return their number.

        A page keeps the record of its last visit. A page keeps its items until its next visit has
        ended. `revisit` treats fences, hosts and later changes of tasks as `reopen` does.
        """
        return await self._change(REVISIT, [selection])

    async def revisit_due(self) -> int:
        """Set to `todo` all pages whose next visit is due; return the number of these pages.

        `revisit_due` takes one index seek if no page is due, and may be repeated after an error.
        """
        now = self._store.now()
        due_tests = {
            "status": Among(tuple(map(int, REVISIT.from_statuses))),
            "revisit": AtMost(now),
        }
        changed_count = 0
        # Each read returns pages that this loop has not changed yet, because a changed page no
        # longer matches `due_tests`.
        while ids := await self._store.reading(_to_revisit, due_tests):
            # Set `_unwoken` before the write. If the reply to the write is lost, the next call no
            # longer finds the changed pages, but must still wake their hosts.
            self._unwoken = REVISIT.wakes_hosts
            changed_count += await self._store.writing(
                _change_all, ids, due_tests, edit_of(REVISIT, now)
            )
        if self._unwoken:
            await self._hosts.wake_all()
            self._unwoken = False
        return changed_count

    async def _change(
        self,
        change: BulkChange,
        choices: Iterable[TaskFilter],
        extra_fields: Mapping[str, Any] | None = None,
    ) -> int:
        """Apply *change* and *extra_fields* to the tasks that pass one of the filters *choices*."""
        now = self._store.now()
        total = 0
        for selection, part in product(choices, change.parts):
            part_selection = with_end(selection.applicable(part, now=now), now)
            where, edit = (
                where_of(part_selection, self._store.kind),
                edit_of(part, now, extra_fields),
            )
            async for ids in walk(self._store.reading, where, batch_size=BATCH, ids=selection.ids):
                total += await self._store.writing(_change_all, ids, where, edit)
        if change.wakes_hosts and not self._store.kind.tracked:
            await self._hosts.wake_all()
        return total

    async def prioritise(self, priorities: Mapping[bytes, int]) -> int:
        """Set the priority of waiting tasks; return the number of changed tasks."""
        # A late write must not change tasks that a worker claimed after the start of this call.
        waiting_tests = {"status": _WAITING, "update_time": AtMost(self._store.now())}
        writes = (
            Write(
                task_id,
                {**waiting_tests, "priority": Not(priority)},
                Edit(set={"priority": priority}),
            )
            for task_id, priority in priorities.items()
        )
        total = 0
        for batch in batches(writes, BATCH):
            total += await self._store.writing(_write, batch)
        return total

    async def purge(self, selection: TaskFilter) -> int:
        """Delete tasks with their data; return the number of deleted tasks.

        `purge` also deletes leased tasks if *selection* names their status. If `selection.due_by`
        is set, `purge` deletes a leased task only if its lease has expired by that time.
        """
        # First delete the note `seeds` (start requests). Otherwise, after a crash, the ledger would
        # say that it has start requests which it no longer has.
        await Notes(self._store).set_state({"seeds": None})
        # Delete leftovers of an earlier `purge` that got no reply.
        await self._store.writing(_delete, [], {})
        where = where_of(with_end(selection, self._store.now()), self._store.kind)
        total = 0
        async for ids in walk(self._store.reading, where, batch_size=BATCH, ids=selection.ids):
            total += await self._store.writing(_delete, ids, where)
        # Change the note `fed` last, because running crawls watch it. Until this note changes, a
        # running crawl skips links to tasks that it added earlier, even if they are deleted now.
        await Notes(self._store).set_control({"fed": secrets.token_hex(8)})
        return total

    async def drop(self) -> None:
        """Delete all data of this ledger: tasks, items, hosts, workers and notes.

        The caller must close the ledger afterwards. Running workers of the ledger lose their work.
        A caller may repeat `drop` after an error.
        """
        await self._store.drop()

    async def mend(self, document: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
        """Set fields if the stored task or host still equals *document*; return whether it did.

        *change* has fields of `TASK_STATE` or `HOST_STATE`; None removes a field.
        """
        return await self._store.writing(_mend, document, change)

    async def admit_to_depth(self, max_depth: int | None) -> int:
        """Set `refused-depth` tasks to `todo`, due now; return the number of these tasks.

        Only tasks whose depth is at most *max_depth* change; None means all tasks. `Hosts.wake`
        wakes the hosts of these tasks. A caller may repeat the change, which runs in batches.
        """
        now = self._store.now()
        ignored = TaskFilter(statuses=ADMIT.from_statuses, reason=ADMIT.from_reason)
        where = where_of(with_end(ignored, now), self._store.kind)
        if max_depth is not None:
            where["depth"] = AtMost(max_depth)
        total = 0
        async for ids in walk(self._store.reading, where, batch_size=BATCH):
            # Store the hosts first; if the reply is lost, the next call wakes these hosts.
            self._admitted_hosts |= await self._store.reading(_hosts_of, ids, where)
            total += await self._store.writing(_change_all, ids, where, edit_of(ADMIT, now))
            await self._wake_admitted(now)
        await self._wake_admitted(now)
        return total

    async def _wake_admitted(self, now: datetime) -> None:
        if self._admitted_hosts:
            await self._hosts.wake(dict.fromkeys(self._admitted_hosts, now))
            self._admitted_hosts.clear()


class Reopening:
    """The operations of `protocol.Tasks` that reopen done tasks."""

    def __init__(self, store: Store) -> None:
        self._port = store

    async def admit_nearer(self, tasks: Sequence[Task]) -> int:
        """See `protocol.Tasks.admit_nearer`."""
        now = self._port.now()
        tests = {
            "status": Among([int(status) for status in ADMIT.from_statuses]),
            "reason": str(ADMIT.from_reason),
            # A late write must not change tasks that got an outcome after the start of this call.
            "update_time": AtMost(now),
        }
        writes = [
            Write(
                task.id,
                {**tests, "depth": Within(task.depth + 1, None)},
                edit_of(ADMIT, now, {"depth": task.depth, "parent": task.parent}),
            )
            for task in tasks
        ]
        return await self._port.writing(_write, writes)

    async def reopen_changed(self, tasks: Sequence[ChangedTask]) -> int:
        """See `protocol.Tasks.reopen_changed`."""
        edit = edit_of(REOPEN, self._port.now())
        status_tests = [
            {"status": int(status), **({"reason": Among(sorted(reasons))} if reasons else {})}
            for status, reasons in REOPENED_CHANGED.items()
        ]
        writes = [
            Write(task.id, {"update_time": Within(None, task.changed), OR: status_tests}, edit)
            for task in tasks
        ]
        return await self._port.writing(_write, writes)


def _failures(selection: TaskFilter) -> Iterator[TaskFilter]:
    """Yield one filter for each task status from which `retry-failed` tries tasks again."""
    for status in RETRY.from_statuses:
        failed = selection.with_statuses([status])
        retried = [reason for reason in Reason if transitions.retries(status, reason)]
        # If all reasons can be retried, leave out the filter by reason. Then tasks without a
        # reason, and tasks with a reason of a newer crawlcw, match too.
        if len(retried) < len(Reason):
            selected_reasons = Reason if failed.reasons is None else failed.reasons
            failed = replace(
                failed, reasons=[reason for reason in retried if reason in selected_reasons]
            )
        yield failed


async def _change_all(tables: LedgerTables, ids: Sequence[bytes], where: Where, edit: Edit) -> int:
    return await tables.tasks.change_all(ids, where, edit)


async def _write(tables: LedgerTables, writes: Sequence[Write]) -> int:
    return await tables.tasks.change(writes)


async def _delete(tables: LedgerTables, ids: Sequence[bytes], where: Where) -> int:
    return await tables.tasks.delete_all(ids, where)


async def _mend(
    tables: LedgerTables, document: Mapping[str, Any], change: Mapping[str, Any]
) -> bool:
    is_task = "url" in document
    as_found = {n: Unchanged(document.get(n)) for n in (TASK_STATE if is_task else HOST_STATE)}
    write = Write(document["_id"], as_found, Edit(set=change))
    return await (tables.tasks if is_task else tables.hosts).change([write]) == 1


async def _to_revisit(tables: LedgerTables, due: Where) -> list[bytes]:
    tasks = await tables.tasks.scan(due, by=Path.REVISIT, limit=BATCH, fields=("_id",))
    return [task["_id"] for task in tasks]


async def _hosts_of(tables: LedgerTables, ids: Sequence[bytes], where: Where) -> set[str]:
    tasks = await tables.tasks.read(ids, ("host",), where)
    return {task["host"] for task in tasks.values()}
