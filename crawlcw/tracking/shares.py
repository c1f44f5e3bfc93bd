"""The share of a worker: handed out, looked after, and cut back to what it asks for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crawlcw.errors import LedgerError, LedgerUnavailableError, UsageError
from crawlcw.model.task import Lease, Payload, Task
from crawlcw.model.transitions import ended_since, is_suspect
from crawlcw.tracking import keys as names
from crawlcw.tracking.dispensing import Dispensing, holder, request_holder

#: So many tasks are claimed by one write, and so many more are looked at while some are spared.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """One task that a worker is to do."""

    key: str
    stage: str
    data: Mapping[str, Any]
    context: Mapping[str, Any]  #: what the stage before has passed along
    fence: int  #: the number of this claim: larger than that of any before
    attempt: int  #: which attempt at this stage it is; the first is 1
    until: datetime  #: when others may take it, unless it is touched before


class Shares(Dispensing):
    """Hands out tasks, and knows who holds which."""

    async def assign(
        self,
        worker: str,
        limit: int,
        *,
        stages: Collection[str] | None = None,
        request: str | None = None,
    ) -> list[Assigned]:
        """Return what *worker* is to do, at most *limit* tasks: its own unfinished ones first.

        Those keep for another `ttl`. Where they are fewer, others are added by
        priority, of *stages* only if some are given; where they are more, those
        held the shortest, of these the ones of lowest priority, go back to the
        pool at once. When one worker asks twice at the same time it may get up to
        the limit twice: what is in neither answer, or in both, the next `assign`
        sorts out, and `check` tells of it.

        With *request*, any word of the worker's own, the tasks are a share beside
        its others: the same request sent again returns what it still holds of
        them, and claims only where that is nothing. Raises `UsageError`.
        """
        me = holder(worker)
        mine = me if request is None else request_holder(worker, request)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise UsageError(f"a limit is a whole number from 0, not {limit!r}")
        if stages is not None:
            stages = self._tracker.use_case.places(names.stage(each) for each in stages)
        await self._follow_policy()
        until = self._ledger.now() + self.ttl
        held = await self._ledger.leases.held(mine)
        kept = await self._trimmed(held, limit) if request is None else held
        leases = await self._begun(await self._renewed(kept))
        if request is None or not leases:
            token = f"{mine}:{self._nonce}"
            more = await self._claimed(token, limit - len(leases), stages)
            leases += await self._begun(more)
        assigned = [await self._assigned(lease, until) for lease in leases]
        return [each for each in assigned if each is not None]

    async def check(self, worker: str, keys: Collection[str]) -> frozenset[str]:
        """Return those of the keys that the worker still holds: `done` would accept them now."""
        held = await self._held(worker)
        return frozenset(lease.task.url for lease in held) & frozenset(keys)

    async def touch(self, worker: str, keys: Collection[str] | None = None) -> int:
        """Let the worker keep what it holds for another `ttl`; return how many tasks that is.

        Only those of *keys*, if some are given.
        """
        return len(await self.renew(worker, keys))

    async def renew(self, worker: str, keys: Collection[str] | None = None) -> frozenset[str]:
        """Do what `touch` does; return the keys of the tasks that are still held."""
        held = await self._held(worker)
        wanted = None if keys is None else frozenset(keys)
        chosen = [lease for lease in held if wanted is None or lease.task.url in wanted]
        return frozenset(lease.task.url for lease in await self._renewed(chosen))

    async def _held(self, worker: str) -> list[Lease]:
        me = holder(worker)
        return await self._ledger.leases.held(me)

    async def _trimmed(self, held: Sequence[Lease], limit: int) -> Sequence[Lease]:
        """Return those that are within the limit, and give the others back."""
        # Of a lease that is read again, `due` is when it was claimed.
        first = sorted(held, key=lambda each: (each.task.due, -each.task.priority, each.task.id))
        if surplus := first[limit:]:
            await self._ledger.outcomes.release(surplus)
            self._tracker.added.set()
        return first[:limit]

    async def _renewed(self, held: Sequence[Lease]) -> list[Lease]:
        if not held:
            return []
        patience = self._tracker.session.patience
        lost = await patience.insist(lambda: self._ledger.leases.renew(held, lease=self.ttl))
        return [lease for lease in held if lease.task.id not in lost]

    async def _claimed(
        self, token: str, number: int, stages: Collection[str] | None
    ) -> list[Lease]:
        """Claim by priority until there are enough, or until none is due."""
        leases: list[Lease] = []
        while len(leases) < number:
            page = await self._page(min(number - len(leases), _AT_ONCE), stages)
            if not page:
                break
            claimed = await self._claim(page, token)
            # A claim of somebody else, whose reply was lost, may be found again here.
            leases += [each for each in claimed if each.token.startswith(f"{token}:")]
            # Some missed are no end: others were faster, and there may be more.
        return leases

    async def _claim(self, page: Sequence[Task], token: str) -> Sequence[Lease]:
        claimed = await self._ledger.leases.claim(
            page, worker=token, lease=self.ttl, max_lost=self._tracker.policy.max_lost
        )
        return claimed.leases

    async def _page(self, limit: int, stages: Collection[str] | None) -> list[Task]:
        """Return tasks that are due, without those whose holders could not reach the ledger."""
        since = self._tracker.session.patience.spared_since(self._ledger.now())
        look_at = limit if since is None else limit + _AT_ONCE
        page = await self._ledger.tasks.page(limit=look_at, hosts=stages)
        return [task for task in page if not ended_since(task, since)][:limit]

    async def _begun(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return those that are still held; of suspects it is noted that the work begins."""
        kept = []
        for lease in leases:
            noted = not is_suspect(lease.task) or lease.task.begun == lease.fence
            if noted or await self._ledger.leases.begin(lease):
                kept.append(lease)
        return kept

    async def _assigned(self, lease: Lease, until: datetime) -> Assigned | None:
        task = lease.task
        carried = task.carried or Payload()
        try:
            data = await self._blobs.load(carried.data)
            context = await self._blobs.load(task.context)
        except LedgerUnavailableError:
            raise
        except LedgerError:
            # It ended since it was read, and what it carried has been replaced.
            return None
        return Assigned(
            key=task.url,
            stage=self._tracker.use_case.named(task.callback),
            data=data,
            context=context or {},
            fence=lease.fence,
            attempt=task.retry + 1,
            until=until,
        )
