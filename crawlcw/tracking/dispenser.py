"""Dispense tasks to external workers, which crawlcw knows only by name.

Each call of a dispenser claims, renews or releases the tasks of one worker. A dispenser does
nothing between two calls. An external worker is not on the ledger's list of workers, and no process
checks whether it lives. If the worker does not renew a lease in time, the lease expires, and
another worker can get the task.
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

#: Seconds between two reads of the settings that the ledger has for the use case.
_POLICY_INTERVAL_S = 15.0
#: The number of tasks in one write. After an outage, a read of due tasks also gets this number of
#: further tasks, because `_due_tasks` then skips tasks.
_BATCH_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A task that the dispenser has assigned to an external worker."""

    key: str
    stage: str
    data: Mapping[str, Any]
    context: Mapping[str, Any]  #: context from the previous stage
    fence: int  #: number of the claim, which grows with each claim of the task
    attempt: int  #: number of the attempt at the stage, from 1
    expires_at: datetime  #: end of the lease, unless the worker renews the lease


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """The numbers of tasks that `rebuild` has changed."""

    added: int = 0
    reopened: int = 0
    prioritised: int = 0  #: tasks that got another priority
    withdrawn: int = 0


class Dispenser:
    """Assigns the tasks of a tracker to external workers, which are known by name.

        dispenser = Dispenser(tracker)
        for task in await dispenser.assign("w1", 20):
            await dispenser.finish("w1", [task.key])

    The guarantees hold for any number of dispensers on one ledger:

    - At any time at most one worker has the lease of a task.
    - A task finishes once.
    - A worker that makes one request at a time has at most *limit* leases after `assign`.
    - No task is lost.
    """

    def __init__(self, tracker: Tracker, *, ttl: timedelta | None = None) -> None:
        """*ttl* is the duration of leases, by default the setting `lease` of the use case."""
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._ttl = ttl
        # This random text in each lease token distinguishes this dispenser from other dispensers.
        self._nonce = secrets.token_hex(6)
        self._policy_read_at = time.monotonic()
        self._claim_lock = asyncio.Lock()
        self._settlements = Settlements(tracker.session, tracker.use_case)
        self._commits: Coalescer[Settlement, LedgerError | None] = Coalescer(
            partial(commit_outcomes, tracker.ledger)
        )

    @property
    def ttl(self) -> timedelta:
        """The time after which a lease expires, counted from its claim or its last renewal."""
        return self._ttl or self._tracker.policy.lease

    async def assign(
        self,
        worker: str,
        limit: int,
        *,
        stages: Collection[str] | None = None,
        request: str | None = None,
    ) -> list[Assignment]:
        """Return at most *limit* tasks for *worker*, first the worker's unfinished tasks.

        The leases of the unfinished tasks are renewed for `ttl`.

        - If the worker has fewer than *limit* unfinished tasks, it also gets waiting tasks, by
          priority. If *stages* is given, these are only tasks of *stages*.
        - If the worker has more than *limit* unfinished tasks, the most recently claimed tasks are
          released. Among tasks that were claimed together, lower priorities are released first.

        If one worker makes concurrent requests, each request may get up to *limit* tasks. The
        results of these requests may then have some tasks twice, and lack other leased tasks.
        `check` shows the tasks that the worker leases, and the next `assign` corrects the leases.

        *request* is a text that the worker chooses, so that it can repeat a request. A repeated
        request gets those tasks of the first request whose leases have not ended. If the worker
        leases no task of the first request, it gets new tasks. Raises `UsageError`.
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
        """Return the subset of *keys* whose tasks the worker still leases."""
        held_leases = await self._ledger.leases.leases_of(holder_name(worker))
        return frozenset(lease.task.url for lease in held_leases) & frozenset(keys)

    async def touch(self, worker: str, keys: Collection[str] | None = None) -> int:
        """Renew all leases of *worker*, or the leases of *keys*; return how many were renewed."""
        return len(await self.renew(worker, keys))

    async def renew(self, worker: str, keys: Collection[str] | None = None) -> frozenset[str]:
        """Renew leases as `touch` does; return the keys of the tasks that are still leased."""
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
        """Store *results*; finish each task, or queue the task for the next stage of its chain.

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
        """Record that an attempt of each task failed; if *may_retry* is false, give up the tasks.

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
        """End each task as its value in *endings* says; return which endings are accepted.

        The dispenser accepts three kinds of endings:

        - an ending of a task that the worker leases
        - an ending that the worker repeats, although the ledger has already recorded it
        - the release of a task that the worker no longer leases

        The dispenser refuses an ending if another worker has claimed the task meanwhile. *fences*
        maps a task's key to the `Assignment.fence` of the claim that ends. Without a fence, the
        dispenser ends the worker's current claim of the task, even if the worker meant an earlier
        claim. Raises `UsageError`.
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
        """Replace the pool of waiting tasks by *mapping*, which maps task keys to priorities.

        - Unknown keys are added as new tasks.
        - Waiting tasks in *mapping* get the given priority.
        - Waiting tasks that are not in *mapping* are withdrawn (ignored, not deleted).
        - Withdrawn tasks in *mapping* are reopened.
        - Assigned, finished and given-up tasks do not change.

        If several calls of `rebuild` run at the same time, each task keeps the change that was
        written last. A call does not change tasks that are added after the call's start.
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
        """Record endings of the tasks of a worker; return the refused endings by key.

        One write to the ledger may contain the endings of several workers.
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
        """Read the use case's settings every 15 s, because other processes may change them."""
        now = time.monotonic()
        if now - self._policy_read_at > _POLICY_INTERVAL_S:
            self._policy_read_at = now
            await self._tracker.session.refresh()

    async def _renew(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew leases for `ttl`; return the leases that the worker has not lost."""
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
        """Claim at most *limit* due tasks by priority; None as *stages* means all stages.

        Only one call runs at a time, because concurrent calls would read the same tasks and then
        compete for the tasks.
        """
        token_prefix = f"{task_holder}:{self._nonce}"
        leases: list[Lease] = []
        async with self._claim_lock:
            # Repeat the claim if other workers were faster and have claimed some of the tasks.
            while page := await self._due_tasks(min(limit - len(leases), _BATCH_SIZE), stages):
                claimed = await self._ledger.leases.claim(
                    page,
                    worker=token_prefix,
                    lease=self.ttl,
                    max_lost=self._tracker.policy.max_lost,
                )
                # The result has leases of an earlier claim if that claim's reply was lost.
                leases += [
                    lease for lease in claimed.leases if lease.token.startswith(f"{token_prefix}:")
                ]
        return leases

    async def _begin_quarantined(self, leases: Sequence[Lease]) -> list[Lease]:
        """Call `Leases.begin` for quarantined tasks; return *leases* without the lost leases."""
        valid_leases = []
        for lease in leases:
            has_begun = not is_quarantined(lease.task) or lease.task.quarantine_fence == lease.fence
            if has_begun or await self._ledger.leases.begin(lease):
                valid_leases.append(lease)
        return valid_leases

    async def _due_tasks(self, limit: int, stages: Collection[str] | None) -> list[Task]:
        """Return due tasks, but no task whose lease expired during an outage of the ledger."""
        if limit < 1:
            return []
        grace_start = self._tracker.session.retry.grace_start(self._ledger.now())
        scan_limit = limit if grace_start is None else limit + _BATCH_SIZE
        page = await self._ledger.tasks.page(limit=scan_limit, hosts=stages)
        return [task for task in page if not ended_since(task, grace_start)][:limit]

    async def _trim(self, leases: Sequence[Lease], limit: int) -> Sequence[Lease]:
        """Return the oldest *limit* leases, and release all other leases."""
        # In a lease that `leases_of` has returned, `task.due` is the time of the claim.
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
            # The task has ended, and its blobs are deleted. Leave the task out of the result.
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
