"""Dispense tasks to external workers, which crawlcw knows only by name.

There is no background work: each call claims, renews or releases tasks of one worker. An external
worker is not on the list of workers, and no process checks whether it lives. If it does not touch a
task in time, the lease expires. The task then returns to the pool and counts as lost, as after any
expired lease.
"""

import asyncio
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from crawlcw.errors import LeaseLostError, LedgerError, LedgerUnavailableError, Reason, UsageError
from crawlcw.ledger.choosing import batches
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import WAITING, Lease, Payload, Record, Status, Task, key_id
from crawlcw.model.transitions import Settlement, ended_since, is_quarantined, lease_of
from crawlcw.tracking import keys as names
from crawlcw.tracking.adding import NewTask
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.endings import (
    Ending,
    EndReport,
    Fail,
    Finish,
    Refusal,
    Release,
    Settlements,
    check_ending,
    has_lease,
    holder_name,
    refusal_of,
    request_holder_name,
)
from crawlcw.tracking.session import commit_outcomes
from crawlcw.tracking.tasks import MILLISECOND
from crawlcw.tracking.tracker import Tracker

#: Seconds between two reads of the use case's settings.
_POLICY_INTERVAL_S = 15.0
#: Number of tasks that one write claims or changes, and of tasks that a read adds while some leases
#: have a grace period.
_BATCH_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One task for a worker."""

    key: str
    stage: str
    data: Mapping[str, Any]
    context: Mapping[str, Any]  #: the context from the previous stage
    fence: int  #: number of this claim, larger than that of any earlier claim
    attempt: int  #: number of this attempt at the stage; the first is 1
    expires_at: datetime  #: end of the lease, unless the worker touches the task


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """Changes that `rebuild` made."""

    added: int = 0
    reopened: int = 0
    prioritised: int = 0  #: tasks with a new priority
    withdrawn: int = 0


class Dispenser:
    """Hands out the tasks of a tracker to workers that ask by name.

        dispenser = Dispenser(tracker)
        for task in await dispenser.assign("w1", 20):
            await dispenser.finish("w1", [task.key])

    Guaranteed, over any number of dispensers on one ledger:

    - At any time at most one worker has the lease of a task.
    - A task finishes once.
    - A worker has at most as many leases as its last limit, if it makes one request at a time.
    - No task is lost.
    """

    def __init__(self, tracker: Tracker, *, ttl: timedelta | None = None) -> None:
        """*ttl* is the duration of leases, by default the policy's lease."""
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._ttl = ttl
        # The nonce distinguishes the claims of several dispensers.
        self._nonce = secrets.token_hex(6)
        self._policy_read_at = time.monotonic()
        self._claim_lock = asyncio.Lock()
        self._settlements = Settlements(tracker.session, tracker.use_case)
        self._commits: Coalescer[Settlement, LedgerError | None] = Coalescer(
            partial(commit_outcomes, tracker.ledger)
        )

    @property
    def ttl(self) -> timedelta:
        """Duration of a worker's leases, after each `assign` or `touch`."""
        return self._ttl or self._tracker.policy.lease

    async def assign(
        self,
        worker: str,
        limit: int,
        *,
        stages: Collection[str] | None = None,
        request: str | None = None,
    ) -> list[Assignment]:
        """Return at most *limit* tasks for *worker*, first its own unfinished tasks.

        The leases of the unfinished tasks are renewed for `ttl`.

        - If they are fewer than *limit*, waiting tasks are added by priority, only of *stages* if
          given.
        - If they are more, the most recently claimed tasks are released; of tasks claimed together,
          those with the lowest priority.

        Two concurrent requests of one worker may each get up to the limit. Then some tasks may be
        in neither result, or in both: `check` shows them, and the next `assign` corrects them.

        *request*, a token that the worker chooses, separates the tasks of this request from the
        worker's other tasks. If the worker repeats the request, it gets the tasks of the request
        that it still leases. It gets new tasks only if it leases none of the earlier ones. Raises
        `UsageError`.
        """
        worker_holder = holder_name(worker)
        task_holder = worker_holder if request is None else request_holder_name(worker, request)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise UsageError(f"a limit must be a whole number of at least 0, not {limit!r}")
        if stages is not None:
            stages = self._tracker.use_case.stored_stages(names.stage(entry) for entry in stages)
        await self._follow_policy()
        expires_at = self._ledger.now() + self.ttl
        held_leases = await self._ledger.leases.leases_of(task_holder)
        kept_leases = await self._trim(held_leases, limit) if request is None else held_leases
        leases = await self._begin_quarantined(await self._renew(kept_leases))
        if request is None or not leases:
            new_leases = await self._claim(task_holder, limit - len(leases), stages)
            leases += await self._begin_quarantined(new_leases)
        assignments = [await self._assignment(lease, expires_at) for lease in leases]
        return [entry for entry in assignments if entry is not None]

    async def check(self, worker: str, keys: Collection[str]) -> frozenset[str]:
        """Return which of the *keys* the worker still leases: `finish` would accept these now."""
        held_leases = await self._ledger.leases.leases_of(holder_name(worker))
        return frozenset(lease.task.url for lease in held_leases) & frozenset(keys)

    async def touch(self, worker: str, keys: Collection[str] | None = None) -> int:
        """Renew all leases of the worker, or only of *keys*, for `ttl`; return their number."""
        return len(await self.renew(worker, keys))

    async def renew(self, worker: str, keys: Collection[str] | None = None) -> frozenset[str]:
        """Renew like `touch`; return the keys of the tasks that the worker still leases."""
        await self._follow_policy()
        held_leases = await self._ledger.leases.leases_of(holder_name(worker))
        wanted_keys = None if keys is None else frozenset(keys)
        chosen_leases = [
            lease for lease in held_leases if wanted_keys is None or lease.task.url in wanted_keys
        ]
        return frozenset(lease.task.url for lease in await self._renew(chosen_leases))

    async def finish(
        self,
        worker: str,
        keys: Iterable[str],
        results: Mapping[str, Any] | None = None,
        *,
        fences: Mapping[str, int] | None = None,
    ) -> EndReport:
        """Finish tasks, each with its result; tasks of a chain go to their next stage.

        *fences* as for `end`.
        """
        result_by_key = results or {}
        return await self.end(
            worker, {key: Finish(result=result_by_key.get(key)) for key in keys}, fences=fences
        )

    async def fail(
        self,
        worker: str,
        keys: Iterable[str],
        error: str,
        *,
        may_retry: bool = True,
        fences: Mapping[str, int] | None = None,
    ) -> EndReport:
        """Fail an attempt of each task; if *may_retry* is false, it is the task's last attempt.

        *fences* as for `end`.
        """
        ending = Fail(error=error, may_retry=may_retry)
        return await self.end(worker, dict.fromkeys(keys, ending), fences=fences)

    async def end(
        self,
        worker: str,
        endings: Mapping[str, Ending],
        *,
        fences: Mapping[str, int] | None = None,
    ) -> EndReport:
        """End tasks, each with its ending; return which endings are accepted.

        The dispenser accepts:

        - endings of tasks that the worker leases
        - repeated endings that were recorded the first time
        - the release of a task that the worker no longer leases

        A late ending, after the task went to another worker, is refused and writes nothing.
        *fences* (key -> `Assignment.fence`) say which claims the worker ends. A repeated
        ending without a fence counts for a later claim by the same worker, if there is one. Raises
        `UsageError`.
        """
        worker_holder = holder_name(worker)
        for ending in endings.values():
            check_ending(ending)
        fences = fences or {}
        records = await self._records(list(endings))
        lease_by_key, unleased_keys = {}, []
        for key in endings:
            record = records[key]
            if record is not None and has_lease(worker_holder, record.task, fences.get(key)):
                lease_by_key[key] = lease_of(record.task)
            else:
                unleased_keys.append(key)
        released_keys = {key for key in lease_by_key if isinstance(endings[key], Release)}
        await self._release([lease_by_key[key] for key in released_keys])
        refusal_by_key = await self._commit(
            [
                (lease, endings[key])
                for key, lease in lease_by_key.items()
                if key not in released_keys
            ],
            worker_holder,
        )
        lost_keys = [
            key for key, refusal in refusal_by_key.items() if refusal is Refusal.NOT_LEASED
        ]
        records |= await self._records(lost_keys)
        for key in (*unleased_keys, *lost_keys):
            refusal = refusal_of(worker_holder, records[key], endings[key], fences.get(key))
            refusal_by_key.pop(key, None)
            if refusal is not None:
                refusal_by_key[key] = refusal
        return EndReport(
            accepted=frozenset(endings) - frozenset(refusal_by_key), refused=refusal_by_key
        )

    async def rebuild(self, mapping: Mapping[str, int]) -> RebuildReport:
        """Replace the pool of waiting tasks by the keys of a mapping, with their priorities.

        - Unknown keys are added.
        - Waiting tasks get their priority.
        - Waiting tasks that are not in the mapping are withdrawn (ignored, not deleted).
        - Withdrawn tasks in the mapping are reopened.
        - Assigned, finished and given-up tasks do not change.

        A call may be repeated, and run beside other calls: each task follows the last call that
        changed it. Tasks that are added after the call's start do not change.
        """
        ledger = self._ledger
        started_at = ledger.now() + MILLISECOND
        priorities = {names.key(key): names.priority(priority) for key, priority in mapping.items()}
        added = reopened = prioritised = 0
        for keys in batches(priorities, _BATCH_SIZE):
            new_tasks = [NewTask(key, priority=priorities[key]) for key in keys]
            added += (await self._tracker.add_many(new_tasks)).new
            priority_by_id = {key_id(key): priorities[key] for key in keys}
            withdrawn_filter = TaskFilter(
                statuses=(Status.IGNORED,),
                reason=Reason.WITHDRAWN,
                changed_before=started_at,
                ids=list(priority_by_id),
            )
            reopened += await ledger.admin.reopen(withdrawn_filter)
            prioritised += await ledger.admin.prioritise(priority_by_id)
        pool_ids = {key_id(key) for key in priorities}
        withdrawn_count = await self._withdraw_others(pool_ids, started_at)
        self._tracker.tasks_due.set()
        return RebuildReport(
            added=added, reopened=reopened, prioritised=prioritised, withdrawn=withdrawn_count
        )

    async def _withdraw_others(self, pool_ids: set[bytes], started_at: datetime) -> int:
        waiting_filter = TaskFilter(statuses=WAITING, changed_before=started_at)
        records = self._ledger.queries.walk(waiting_filter)
        withdrawn_ids = [
            record.task.id async for record in records if record.task.id not in pool_ids
        ]
        count = 0
        for ids in batches(withdrawn_ids, _BATCH_SIZE):
            batch_filter = replace(waiting_filter, ids=ids)
            count += await self._ledger.admin.withdraw(batch_filter, reason=Reason.WITHDRAWN)
        return count

    async def _commit(
        self, endings: Collection[tuple[Lease, Ending]], worker_holder: str
    ) -> dict[str, Refusal]:
        """Record endings of *worker_holder*; return the keys of refused endings, and the reasons.

        One write may also record endings of other holders.
        """
        if not endings:
            return {}
        settlements = []
        for lease, ending in endings:
            assert lease.task.due is not None
            settlements.append(
                await self._settlements.of(
                    lease, ending, worker=worker_holder, started_at=lease.task.due
                )
            )
        errors = await asyncio.gather(*(self._commits(outcome) for outcome in settlements))
        self._tracker.tasks_due.set()
        refusal_by_key = {}
        for settlement, error in zip(settlements, errors, strict=True):
            await self._settlements.drop_replaced(settlement, is_recorded=error is None)
            if error is not None:
                is_lost = isinstance(error, LeaseLostError)
                key = settlement.lease.task.url
                refusal_by_key[key] = Refusal.NOT_LEASED if is_lost else Refusal.NOT_STORABLE
        return refusal_by_key

    async def _follow_policy(self) -> None:
        """Read the settings from time to time, because other processes may change them."""
        now = time.monotonic()
        if now - self._policy_read_at > _POLICY_INTERVAL_S:
            self._policy_read_at = now
            await self._tracker.session.refresh()

    async def _renew(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew leases for `ttl`; return the leases that still hold."""
        if not leases:
            return []
        lost_ids = await self._ledger.leases.renew(leases, lease=self.ttl)
        return [lease for lease in leases if lease.task.id not in lost_ids]

    async def _release(self, leases: Sequence[Lease]) -> None:
        """Release tasks unchanged."""
        if leases:
            await self._ledger.outcomes.release(leases)
            self._tracker.tasks_due.set()

    async def _claim(
        self, task_holder: str, limit: int, stages: Collection[str] | None
    ) -> list[Lease]:
        """Claim due tasks for a holder by priority, of *stages* if given, at most *limit*.

        Only one call runs at a time, because concurrent calls would read the same tasks, and each
        task can be claimed only once.
        """
        token_prefix = f"{task_holder}:{self._nonce}"
        leases: list[Lease] = []
        async with self._claim_lock:
            # Continue after missed tasks, because other workers were faster and there may be more
            # tasks.
            while page := await self._due_tasks(min(limit - len(leases), _BATCH_SIZE), stages):
                claimed = await self._ledger.leases.claim(
                    page,
                    worker=token_prefix,
                    lease=self.ttl,
                    max_lost=self._tracker.policy.max_lost,
                )
                # The result may contain a claim of an earlier request whose reply was lost.
                leases += [
                    lease for lease in claimed.leases if lease.token.startswith(f"{token_prefix}:")
                ]
        return leases

    async def _begin_quarantined(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases that still hold; record that the work on quarantined tasks begins."""
        valid_leases = []
        for lease in leases:
            has_begun = not is_quarantined(lease.task) or lease.task.quarantine_fence == lease.fence
            if has_begun or await self._ledger.leases.begin(lease):
                valid_leases.append(lease)
        return valid_leases

    async def _due_tasks(self, limit: int, stages: Collection[str] | None) -> list[Task]:
        """Return due tasks, except tasks whose holders could not reach the ledger."""
        if limit < 1:
            return []
        grace_start = self._tracker.session.retry.grace_start(self._ledger.now())
        scan_limit = limit if grace_start is None else limit + _BATCH_SIZE
        page = await self._ledger.tasks.page(limit=scan_limit, hosts=stages)
        return [task for task in page if not ended_since(task, grace_start)][:limit]

    async def _trim(self, leases: Sequence[Lease], limit: int) -> Sequence[Lease]:
        """Return the leases within the limit, and release all others."""
        # If a lease is read again, its `due` is the time of its claim.
        ordered_leases = sorted(
            leases, key=lambda lease: (lease.task.due, -lease.task.priority, lease.task.id)
        )
        await self._release(ordered_leases[limit:])
        return ordered_leases[:limit]

    async def _records(self, keys: Sequence[str]) -> dict[str, Record | None]:
        ids = [key_id(names.key(key)) for key in keys]
        records = await asyncio.gather(*(self._tracker.records(task_id) for task_id in ids))
        return dict(zip(keys, records, strict=True))

    async def _assignment(self, lease: Lease, expires_at: datetime) -> Assignment | None:
        task = lease.task
        payload = task.carried or Payload()
        try:
            data = await self._tracker.session.load_value(payload.data)
            context = await self._tracker.session.load_value(task.context)
        except LedgerUnavailableError:
            raise
        except LedgerError:
            # The task ended after its lease was read, and its data was replaced.
            return None
        return Assignment(
            key=task.url,
            stage=self._tracker.use_case.resolve_stage(task.callback),
            data=data,
            context=context or {},
            fence=lease.fence,
            attempt=task.retry + 1,
            expires_at=expires_at,
        )
