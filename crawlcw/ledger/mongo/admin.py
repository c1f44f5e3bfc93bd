"""Changes of many tasks at once, by somebody who holds none of them.

Each goes some thousand tasks at a time, so that a million of them neither block
the ledger nor run into its time limit.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.counting import among_all, by_index
from crawlcw.ledger.mongo.hosts import Hosts
from crawlcw.ledger.mongo.indexes import BY_REVISIT, BY_STATUS, BY_TASK, MAY_BE_REVISITED
from crawlcw.ledger.mongo.store import BATCH, MongoStore, all_of
from crawlcw.ledger.mongo.updates import any_of, bulk_update, refused_for_depth
from crawlcw.ledger.mongo.walks import conditions, hosts_too, places, walk
from crawlcw.ledger.notes import Notes
from crawlcw.ledger.prefixes import simplified
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import transitions
from crawlcw.model.task import WAITING, Status
from crawlcw.model.transitions import ADMIT, RETRY, REVISIT, BulkChange

_PURGED_AT_ONCE = 1_000


class Admin:
    """Brings tasks back, withdraws, prioritises and purges them, or drops them all."""

    def __init__(self, store: MongoStore, hosts: Hosts, blobs: Blobs, notes: Notes) -> None:
        self._store = store
        self._hosts = hosts
        self._blobs = blobs
        self._notes = notes
        #: Hosts of tasks that were admitted, and that may not have been woken yet.
        self._admitted_hosts: set[str] = set()
        #: Whether pages were made due again whose hosts may not have been woken yet.
        self._unwoken = False
        #: Tasks that may have been deleted without what belongs to them.
        self._half_purged: set[bytes] = set()

    async def retry_failed(self, selection: TaskFilter, *, dry_run: bool = False) -> int:
        """Reset the chosen failures a few thousand at a time, within the time limit of each."""
        now = self._store.now()
        total = 0
        if dry_run and selection.ids is None:
            return await self._number_of_failures(selection.counted_at(now))
        for chosen in _failures(selection, until=None if dry_run else now):
            with mapped():
                if selection.ids is not None:
                    total += await self._reset_among(list(selection.ids), chosen, now, dry_run)
                else:
                    total += await self._reset(chosen, now)
        if RETRY.wakes_hosts and not dry_run:
            await self._hosts.wake_all()
        return total

    async def _number_of_failures(self, selection: TaskFilter) -> int:
        """Count those of each status by an index, or else those of all of them at once."""
        selection = simplified(selection, self._store.kind)
        total = 0
        untold: list[dict[str, Any]] = []
        for chosen in _failures(selection, until=None):
            narrowed = hosts_too(chosen, selection, self._store.kind)
            number = await by_index(self._store, chosen, narrowed)
            if number is None:
                untold.append(chosen)
            else:
                total += number
        if not untold:
            return total
        number = await among_all(self._store, untold)
        if number is not None:
            return total + number
        with mapped():
            for chosen in untold:
                total += await self._store.tasks.count_documents(chosen, hint=BY_STATUS)
        return total

    async def _reset_among(
        self, ids: list[bytes], chosen: dict[str, Any], now: datetime, dry_run: bool
    ) -> int:
        reset = bulk_update(RETRY, now=now)
        total = 0
        for start in range(0, len(ids), BATCH):
            some = {**chosen, "_id": {"$in": ids[start : start + BATCH]}}
            if dry_run:
                total += await self._store.tasks.count_documents(some, hint="_id_")
            else:
                result = await self._store.durable.update_many(some, reset, hint="_id_")
                total += result.modified_count
        return total

    async def _reset(self, chosen: dict[str, Any], now: datetime) -> int:
        """Walk through the index from place to place.

        A walk that began anew each time would pass all that was reset before, and all
        that has another reason.
        """
        reset = bulk_update(RETRY, now=now)
        total = 0
        async for ids in places(self._store, chosen, BATCH):
            result = await self._store.durable.update_many(
                {"_id": {"$in": ids}, **chosen}, reset, hint="_id_"
            )
            total += result.modified_count
        return total

    async def withdraw(self, chosen: TaskFilter, *, reason: Reason) -> int:
        """Ignore them by ids, where they still wait."""
        return await self._change(chosen, transitions.WITHDRAW, reason=reason)

    async def reopen(
        self, chosen: TaskFilter, *, stage: str | None = None, anew: bool = False
    ) -> int:
        """Reset them by ids, and raise their fences.

        What was read of them before must not be claimed: it may be of another stage.
        """
        also = self._store.woken(self._store.now())
        # The host of a page is its URL's, and it has no results of stages.
        if stage is not None and self._store.kind.tracked:
            also |= {"host": stage, "callback": stage}
        if anew and self._store.kind.tracked:
            also["results"] = {}
        return await self._change(chosen, transitions.REOPEN, also=also)

    async def revisit(self, chosen: TaskFilter) -> int:
        """Reset them by ids, and raise their fences, as `reopen` does."""
        return await self._change(chosen, REVISIT)

    async def revisit_due(self) -> int:
        """Go through the index of those that may be visited again, which holds no others."""
        now = self._store.now()
        due = {**MAY_BE_REVISITED, "revisit": {"$lte": now}}
        update = bulk_update(REVISIT, now=now)
        total = 0
        while True:
            with mapped():
                cursor = self._store.tasks.find(due, {"_id": 1}).hint(BY_REVISIT).limit(BATCH)
                ids = [found["_id"] for found in await all_of(cursor, BATCH)]
                if not ids:
                    break
                # Noted before: where the answer is lost, the next call finds nothing more.
                self._unwoken = REVISIT.wakes_hosts
                # What is changed is not found again.
                result = await self._store.durable.update_many(
                    {**due, "_id": {"$in": ids}}, update, hint="_id_"
                )
            total += result.modified_count
        if self._unwoken:
            await self._hosts.wake_all()
            self._unwoken = False
        return total

    async def _change(
        self,
        chosen: TaskFilter,
        change: BulkChange,
        *,
        reason: Reason | None = None,
        also: Mapping[str, Any] | None = None,
    ) -> int:
        """Make a bulk change of the chosen tasks that it is for, and set *also* these fields."""
        now = self._store.now()
        total = 0
        for part in change.parts:
            update = bulk_update(part, now=now, reason=reason)
            update["$set"] |= also or {}
            freed = chosen.freed(part, now=now)
            async for guard in walk(self._store, freed, part.from_statuses):
                with mapped():
                    result = await self._store.durable.update_many(guard, update, hint="_id_")
                total += result.modified_count
        if change.wakes_hosts and not self._store.kind.tracked:
            await self._hosts.wake_all()
        return total

    async def prioritise(self, priorities: Mapping[bytes, int]) -> int:
        """Set each by an update of its own, many in one bulk."""
        # One that was delayed on its way must not change what has been claimed since.
        waiting = {
            "status": any_of(WAITING),
            "update_time": {"$lte": self._store.now()},
        }
        writes = [
            UpdateOne({"_id": task_id, **waiting}, {"$set": {"priority": number}}, hint="_id_")
            for task_id, number in priorities.items()
        ]
        total = 0
        for start in range(0, len(writes), BATCH):
            with mapped():
                result = await self._store.durable.bulk_write(
                    writes[start : start + BATCH], ordered=False
                )
            total += result.modified_count
        return total

    async def purge(self, chosen: TaskFilter) -> int:
        """Delete the tasks first, and then what belongs to them.

        A crash in between leaves what nothing refers to; where a reply is lost,
        the next call deletes it.
        """
        # First, for a crash must not leave seeds that are gone and taken to be there.
        await self._notes.set_state({"seeds": None})
        await self._forget(list(self._half_purged))
        total = 0
        async for guard in walk(self._store, chosen, tuple(Status), size=_PURGED_AT_ONCE):
            ids = guard["_id"]["$in"]
            try:
                with mapped():
                    result = await self._store.durable.delete_many(guard, hint="_id_")
                total += result.deleted_count
                await self._forget(ids)
            except LedgerUnavailableError:
                self._half_purged.update(ids)
                raise
        return total

    async def _forget(self, ids: list[bytes]) -> None:
        """Delete what belongs to those of the tasks that are not there."""
        if not ids:
            return
        with mapped():
            cursor = self._store.tasks.find({"_id": {"$in": ids}}, {"_id": 1}).hint("_id_")
            there = {bytes(each["_id"]) for each in await all_of(cursor, len(ids))}
            gone = [task_id for task_id in ids if task_id not in there]
            await self._store.items.delete_many({"_id.task": {"$in": gone}}, hint=BY_TASK)
            if self._store.kind.tracked:
                await self._blobs.drop_of(gone)
        self._half_purged.difference_update(ids)

    async def drop(self) -> None:
        """Drop what belongs to the tasks before them: half of it must not be left behind."""
        store = self._store
        with mapped():
            for collection in (
                store.items,
                store.blob_chunks,
                store.blob_files,
                store.hosts,
                store.workers,
                store.rates.collection,
                store.sessions.collection,
                store.state.collection,
                store.durable,
            ):
                await collection.drop()
            await store.schema.delete_one({"_id": store.name})

    async def admit_to_depth(self, max_depth: int | None) -> int:
        """Walk through what is ignored, some thousand tasks a command, whatever their reasons.

        No index knows the reasons, so a command that looked for one might read
        millions of tasks and run into its time limit.
        """
        total = 0
        now = self._store.now()
        within = {} if max_depth is None else {"depth": {"$lte": max_depth}}
        ignored = TaskFilter(statuses=ADMIT.from_statuses)
        async for guard in walk(self._store, ignored, ADMIT.from_statuses, size=BATCH):
            refused = {"_id": guard["_id"], **refused_for_depth(now), **within}
            with mapped():
                cursor = self._store.tasks.find(refused, {"host": 1}).hint("_id_")
                # Noted before: where an answer is lost, the next call wakes them.
                self._admitted_hosts |= {each["host"] for each in await all_of(cursor, BATCH)}
                if self._admitted_hosts:
                    update = bulk_update(ADMIT, now=now)
                    result = await self._store.durable.update_many(refused, update, hint="_id_")
                    total += result.modified_count
            await self._wake_admitted(now)
        await self._wake_admitted(now)
        return total

    async def _wake_admitted(self, now: datetime) -> None:
        if self._admitted_hosts:
            await self._hosts.wake(dict.fromkeys(self._admitted_hosts, now))
            self._admitted_hosts.clear()


def _failures(selection: TaskFilter, *, until: datetime | None) -> Iterator[dict[str, Any]]:
    """Yield a filter for each status whose tasks may be brought back."""
    for status in RETRY.from_statuses:
        reasons = [str(r) for r in Reason if transitions.retries(status, r)]
        if selection.reason is not None:
            reasons = [reason for reason in reasons if reason == selection.reason]
        if not reasons or status not in selection.statuses:
            continue
        chosen = {**conditions(selection, now=until), "status": int(status)}
        # Where every reason is retried, tasks without one, or with one of a later version, are too.
        if len(reasons) < len(Reason):
            chosen["reason"] = {"$in": reasons}
        if until is not None:
            # What fails again meanwhile is not brought back once more.
            chosen["update_time"] = {"$lte": until, **chosen.get("update_time", {})}
        yield chosen
