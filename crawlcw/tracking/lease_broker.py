"""The leases of workers that are no processes of ours: handed out by name, and read by it.

Such a worker is on no list, and no process looks whether it lives. Its tasks are leased to
its name. Where it does not touch one in time, the task goes back to the pool by the
lease's end, and counts as lost as with any other lease.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Collection, Sequence
from datetime import timedelta

from crawlcw.errors import UsageError
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import ended_since, is_quarantined
from crawlcw.tracking.tracker import Tracker

_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")
#: Seconds between two looks at the use case's settings.
_POLICY_CHECK = 15.0
#: Tasks claimed by one write, and looked at beyond those while some have their grace.
_AT_ONCE = 500


class LeaseBroker:
    """Leases the tasks of a tracker to names."""

    def __init__(self, tracker: Tracker, *, ttl: timedelta | None = None) -> None:
        """Let a worker keep its tasks for *ttl*, by default the policy's lease."""
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._ttl = ttl
        # Several brokers count their claims each for itself.
        self._nonce = secrets.token_hex(6)
        self._policy_seen = time.monotonic()
        self._claiming = asyncio.Lock()

    @property
    def ttl(self) -> timedelta:
        """How long a worker keeps its tasks, from each time it asks or touches them."""
        return self._ttl or self._tracker.policy.lease

    async def follow_policy(self) -> None:
        """Look now and then, at a request, whether the settings were changed elsewhere."""
        now = time.monotonic()
        if now - self._policy_seen > _POLICY_CHECK:
            self._policy_seen = now
            await self._tracker.session.refresh()

    async def held(self, by: str) -> list[Lease]:
        """Return the leases of a holder, see `holder`."""
        return await self._ledger.leases.held(by)

    async def renew(self, held: Sequence[Lease]) -> list[Lease]:
        """Let leases run for another `ttl`; return those that are still held."""
        if not held:
            return []
        lost = await self._ledger.leases.renew(held, lease=self.ttl)
        return [lease for lease in held if lease.task.id not in lost]

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give tasks back as they were."""
        if leases:
            await self._ledger.outcomes.release(leases)
            self._tracker.added.set()

    async def claim(self, by: str, number: int, stages: Collection[str] | None) -> list[Lease]:
        """Claim for a holder by priority, of *stages* if given, until *number* or none is due.

        One request after the other: side by side, all would read the same tasks, and each task
        can be claimed once.
        """
        leases: list[Lease] = []
        async with self._claiming:
            # Missed tasks are no end: others were faster, and there may be more.
            while page := await self._page(min(number - len(leases), _AT_ONCE), stages):
                leases += await self._leased(page, by)
        return leases

    async def _leased(self, tasks: Sequence[Task], by: str) -> list[Lease]:
        token = f"{by}:{self._nonce}"
        claimed = await self._ledger.leases.claim(
            tasks, worker=token, lease=self.ttl, max_lost=self._tracker.policy.max_lost
        )
        # A claim of another request, whose reply was lost, may be found again here.
        return [each for each in claimed.leases if each.token.startswith(f"{token}:")]

    async def begin(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return those still held; of quarantined tasks it is noted that the work begins."""
        kept = []
        for lease in leases:
            noted = not is_quarantined(lease.task) or lease.task.quarantine_fence == lease.fence
            if noted or await self._ledger.leases.begin(lease):
                kept.append(lease)
        return kept

    async def _page(self, limit: int, stages: Collection[str] | None) -> list[Task]:
        """Return tasks that are due, without those whose holders could not reach the ledger."""
        if limit < 1:
            return []
        since = self._tracker.session.retry.grace_since(self._ledger.now())
        look_at = limit if since is None else limit + _AT_ONCE
        page = await self._ledger.tasks.page(limit=look_at, hosts=stages)
        return [task for task in page if not ended_since(task, since)][:limit]


def holder(worker: object) -> str:
    """Return the beginning of the tokens of a worker's leases; raises `UsageError`."""
    return f"@{_word(worker, 'name of a worker')}"


def request_holder(worker: object, request: object) -> str:
    """Return the beginning of the tokens that one request of a worker has got."""
    return f"{holder(worker)}:~{_word(request, 'token of a request')}"


def _word(given: object, what: str) -> str:
    if not isinstance(given, str) or not _WORD.fullmatch(given):
        raise UsageError(f"{given!r} is no {what}: write 1 to 100 letters, digits, '.', '_' or '-'")
    return given


def is_held(task: Task, by: str) -> bool:
    """Return whether *by* holds the task; a lease that ran out holds until it is taken over."""
    return (
        task.status is Status.PROCESSING
        and task.lock is not None
        and task.lock.startswith(f"{by}:")
    )
