"""Session of one process on a use case: claim, renew, settle and release its tasks.

All work on tracked tasks goes through a session, so that a process has one name in the
ledger, one renewal and one group commit. It joins the list of workers at its first claim;
calls without a claim need no entry.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import anyio

from crawlcw.engine.batching import write_in_groups
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import LeaseLostError, LedgerError, LedgerUnavailableError, SettingsError
from crawlcw.ledger.protocol import Claimed, Ledger
from crawlcw.ledger.shielding import run_shielded
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease, Task
from crawlcw.model.transitions import Outcome, Settlement, settle
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.policy import Policy

logger = logging.getLogger(__name__)

#: Seconds between two looks at the use case's settings.
_POLICY_CHECK = 30.0
#: How long the end of a session waits for a ledger that is away.
LAST_PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An outcome on its way to the ledger, and who waits for it."""

    settlement: Settlement
    written: asyncio.Future[None]


class Session(WorkerSession):
    """The leases of one process on one use case."""

    def __init__(self, ledger: Ledger, policy: Policy, *, give_up: timedelta) -> None:
        """Give up where the ledger has not answered for *give_up*."""
        self.policy = policy
        super().__init__(ledger, lease=lambda: self.policy.lease, give_up=give_up)
        self._claiming: Coalescer[Task, Claimed] = Coalescer(self._claim_each)
        self._outcomes: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._upkeep: asyncio.Task[None] | None = None
        self._joining = anyio.Lock()
        self._broken: Exception | None = None

    async def claim(self, tasks: Sequence[Task]) -> Claimed:
        """Claim tasks as `Leases.claim` does, and keep the leases; raises `LedgerError`."""
        await self._begin()
        return await self._claimed(asyncio.create_task(self._claim(tasks)))

    async def claim_one(self, task: Task) -> Lease | None:
        """Do what `claim` does for one task, in one round trip with others at the same time."""
        await self._begin()
        claimed = await self._claimed(self._claiming(task))
        return next(iter(claimed.leases), None)

    async def _claimed(self, claiming: asyncio.Future[Claimed]) -> Claimed:
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await run_shielded(self._undo(claiming))
            raise

    async def _claim_each(self, tasks: Sequence[Task]) -> list[Claimed]:
        """Claim tasks that are wanted apart; of two who want the same one the second misses it."""
        wanted = {task.id: task for task in tasks}
        claimed = await self._claim(list(wanted.values()))
        got = {lease.task.id: (lease,) for lease in claimed.leases}
        return [Claimed(leases=got.pop(task.id, ())) for task in tasks]

    async def _claim(self, tasks: Sequence[Task]) -> Claimed:
        lease = self.policy.lease
        claimed = await self.ledger.leases.claim(
            tasks,
            worker=self.worker,
            lease=lease,
            max_lost=self.policy.max_lost,
        )
        self.stats.claims += len(tasks)
        self.stats.claims_missed += claimed.missed
        self.held.add(claimed.leases)
        if lease != self.policy.lease:
            # The renewal at that change was without these.
            self.lease_changed()
        return claimed

    async def _undo(self, claiming: asyncio.Future[Claimed]) -> None:
        """Release the tasks of a claim whose caller is gone."""
        await asyncio.wait([claiming], timeout=LAST_PATIENCE.total_seconds())
        if not claiming.done():
            # The ledger is away: the renewal releases the tasks that are claimed when it is back.
            claiming.add_done_callback(self._let_orphan)
            return
        with suppress(LedgerError):
            await self.release(claiming.result().leases)

    def _let_orphan(self, claiming: asyncio.Future[Claimed]) -> None:
        if not claiming.cancelled() and claiming.exception() is None:
            self.held.orphans += claiming.result().leases

    def settle(self, lease: Lease, outcome: Outcome) -> asyncio.Future[None]:
        """Let an outcome be recorded, together with others on their way, and the lease end.

        The returned future is done when that has happened. It raises `LeaseLostError`
        if another worker holds the task now, and `LedgerError` if the store
        cannot hold the outcome: then the task is given up as `store-rejected`.
        Raises `LedgerError` at once where nothing can be recorded any more.
        """
        settlement = settle(
            lease,
            outcome,
            now=self.ledger.now(),
            policy=self.policy.retries,
            chance=random.random(),
        )
        self._check()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The waiter may be cancelled, and this with it: the outcome is recorded all the same.
        self._outcomes.put_nowait(_Waiting(settlement, written))
        return written

    async def release(self, leases: Iterable[Lease]) -> None:
        """Give tasks back, no attempt spent, cancelled or not; raises `LedgerError`."""
        await run_shielded(self._release(list(leases)))

    async def give_back(self, leases: Iterable[Lease]) -> None:
        """Release because this is being cancelled; should that take long, the leases run out."""
        with suppress(LedgerError, TimeoutError):
            releasing = self._release(list(leases))
            await run_shielded(asyncio.wait_for(releasing, LAST_PATIENCE.total_seconds()))

    async def _release(self, released: Sequence[Lease]) -> None:
        self.held.settling(released)
        try:
            await self.ledger.outcomes.release(released)
        finally:
            self.held.end(released)

    async def close(self) -> None:
        """Write the outcomes on their way, give back the leases, and leave the list of workers."""
        if self._upkeep is None:
            return
        if self._broken is None:
            self.retry.shorten(LAST_PATIENCE)
            await self._outcomes.join()
        self._upkeep.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._upkeep
        self._upkeep = None
        await self.watchdog.__aexit__()
        self._broken = self._broken or LedgerError("the tracker was closed")
        left = self.held.all()
        # What cannot be said now the next process on this machine finds out.
        try:
            with suppress(LedgerUnavailableError):
                await self.release_all()
                await self.leave()
        finally:
            # Last: the caller may be one of those that are stopped by this.
            self.held.lose([lease.task.id for lease in left])

    async def refresh(self) -> None:
        """Follow the settings that the ledger has now; raises `LedgerUnavailableError`."""
        before = self.policy.lease
        try:
            self.policy = Policy.of(await self.ledger.notes.policy())
        except SettingsError as error:
            # They were written by hand; the settings so far stay in force.
            logger.warning(
                "the settings in the ledger are wrong: %s",
                printable(error),
                extra={"event": "policy_wrong"},
            )
        if self.policy.lease != before:
            self.lease_changed()

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def _begin(self) -> None:
        """Join the workers and begin the upkeep, where that has not happened yet."""
        self._check()
        if self._upkeep is not None:
            return
        async with self._joining:
            if self._upkeep is None:
                await self.join()
                await self.watchdog.__aenter__()
                self._upkeep = asyncio.create_task(self._keep_up(), name="crawlcw upkeep")

    async def _keep_up(self) -> None:
        try:
            async with anyio.create_task_group() as running:
                running.start_soon(partial(self.keep_up, on_lost=self._count_lost))
                running.start_soon(self._follow_policy)
                running.start_soon(write_in_groups, self._outcomes, self._write_outcomes)
        except* Exception as errors:
            self._break(errors.exceptions[0])

    def _break(self, error: Exception) -> None:
        """Stop everything that runs under a lease: nothing of it could be recorded."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        logger.error("the session ends: %s", printable(error), extra={"event": "session_broken"})
        self._broken = error
        self.held.lose([lease.task.id for lease in self.held.all()])
        while not self._outcomes.empty():
            waiting = self._outcomes.get_nowait()
            if not waiting.written.done():
                waiting.written.set_exception(error)
            self._outcomes.task_done()

    async def _follow_policy(self) -> None:
        """Look now and then whether another process has changed the settings."""
        while True:
            await anyio.sleep(_POLICY_CHECK)
            with suppress(LedgerUnavailableError):
                await self.refresh()

    def _count_lost(self, task_ids: set[bytes]) -> None:
        self.stats.leases_lost += len(task_ids)

    async def _write_outcomes(self, group: list[_Waiting]) -> None:
        settlements = [waiting.settlement for waiting in group]
        self.held.settling(settlement.lease for settlement in settlements)
        try:
            committed = await self.ledger.outcomes.commit(settlements)
        except LedgerError as error:
            for waiting in group:
                _tell(waiting, error)
                # The session's close waits for it no longer.
                self._outcomes.task_done()
            raise
        finally:
            self.held.end(settlement.lease for settlement in settlements)
        lost = {lease.task.id for lease in committed.lost}
        rejected = {lease.task.id: why for lease, why in committed.rejected}
        self.stats.leases_lost += len(lost)
        for waiting in group:
            task = waiting.settlement.lease.task
            if task.id in lost:
                _tell(waiting, LeaseLostError(f"another worker holds task {task.url!r} now"))
            elif task.id in rejected:
                said = f"the outcome of task {task.url!r} cannot be stored: {rejected[task.id]}"
                _tell(waiting, LedgerError(said))
            else:
                self.stats.record(waiting.settlement)
                _tell(waiting, None)


def _tell(waiting: _Waiting, error: Exception | None) -> None:
    if waiting.written.done():
        return
    if error is None:
        waiting.written.set_result(None)
    else:
        waiting.written.set_exception(error)
        # All callers may be gone, and asyncio would complain of an error unseen.
        waiting.written.exception()
