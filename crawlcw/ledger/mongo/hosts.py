"""Hosts without an owner: waking them, giving them up, and reading their states."""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped, refusals
from crawlcw.ledger.mongo.indexes import (
    ANY_PRIORITY,
    BY_HOST,
    BY_OWNER,
    BY_READY,
    FAILED_BY_HOST,
    HAS_DUE,
    HAS_FAILED,
    LONG_AGO,
)
from crawlcw.ledger.mongo.store import BATCH, MongoStore, all_of
from crawlcw.ledger.mongo.task_table import behind
from crawlcw.ledger.mongo.updates import any_of, bulk_update
from crawlcw.ledger.protocol import Counts, Cursor, Dimension, Group, Groups
from crawlcw.model.hosts import Calls, Host
from crawlcw.model.task import Status
from crawlcw.model.transitions import GIVE_UP_HOST

#: How many tasks `counts` reads by one command, and how many keys: its groups fit into one reply.
_COUNTED, _GROUPED = 20_000, 50_000
_NOTHING = Group(value=None)


class Hosts:
    """Wakes hosts, gives them up and reads them."""

    def __init__(self, store: MongoStore, groups: Groups) -> None:
        self._store = store
        self._groups = groups

    async def wake(self, dues: Mapping[str, datetime]) -> None:
        """Read the hosts, and write those that are unknown or would be ready too late.

        A host that is held when it is read needs no write, also if it is released
        right after: its owner looks for tasks after the release, and the task
        that this is about is in the ledger.
        """
        names = list(dues)
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            with mapped():
                cursor = self._store.hosts.find(
                    {"_id": {"$in": some}}, {"owner": 1, "ready_at": 1, "not_before": 1}
                ).hint("_id_")
                found = {each["_id"]: each for each in await all_of(cursor, len(some))}
                late = {
                    name: ready
                    for name in some
                    if (ready := _woken(found.get(name), dues[name])) is not None
                }
                await self.hasten(late, upsert=True)

    async def hasten(self, readies: Mapping[str, datetime], *, upsert: bool = False) -> None:
        """Let hosts without an owner be ready no later than given; *upsert* those unknown."""
        if not readies:
            return
        names = list(readies)
        bulk = []
        for name in names:
            update: dict[str, Any] = {"$min": {"ready_at": readies[name]}}
            if upsert:
                new = documents.host_document(Host(name=name))
                # The filter sets these two.
                del new["_id"], new["owner"]
                update["$setOnInsert"] = new
            bulk.append(UpdateOne({"_id": name, "owner": None}, update, upsert=upsert, hint="_id_"))
        try:
            await self._store.hosts.bulk_write(bulk, ordered=False)
        except BulkWriteError as error:
            errors = (error.details or {}).get("writeErrors", ())
            if not upsert or refusals(error):
                raise
            # Another process was faster: it made the host known, perhaps for a
            # later time, or it holds it.
            await self.hasten({names[e["index"]]: readies[names[e["index"]]] for e in errors})

    async def wake_all(self) -> int:
        """Wake the hosts in the order of their names, a few thousand at a time."""
        now = self._store.now()
        total = 0
        behind: dict[str, Any] = {}
        while True:
            with mapped():
                cursor = self._store.hosts.find(behind, {"_id": 1}).sort([("_id", 1)])
                cursor = cursor.limit(BATCH).hint("_id_")
                names = [each["_id"] for each in await all_of(cursor, BATCH)]
                if not names:
                    return total
                free = {"_id": {"$in": names}, "owner": None}
                # A rest without a failure is the gap after the last request, and is kept.
                await self._store.hosts.update_many(
                    {**free, "failures": {"$gt": 0}}, {"$unset": {"not_before": ""}}, hint="_id_"
                )
                woken = await self._store.hosts.update_many(
                    free,
                    {
                        "$set": {"ready_at": now, "failures": 0, "page_failures": 0},
                        "$unset": {"given_up": "", "origins": ""},
                    },
                    hint="_id_",
                )
            total += woken.matched_count
            behind = {"_id": {"$gt": names[-1]}}

    async def give_up(
        self,
        host: str,
        *,
        reason: Reason,
        scheme: str | None = None,
        calls: Calls = Calls.NONE,
    ) -> int:
        """Walk the host's tasks by their index once, and ignore them a batch at a time."""
        first, end = documents.urls_of(scheme)
        waiting: dict[str, Any] = {
            "status": any_of(GIVE_UP_HOST.from_statuses),
            "url": {"$gte": first, "$lt": end},
        }
        if calls is not Calls.NONE:
            await self._hasten_tasks(host, waiting, calls)
        if calls is Calls.ALL:
            return 0
        if calls is Calls.ERRBACK:
            waiting["errback"] = {"$exists": False}
        of_host = {"host": host, "priority": {"$lte": ANY_PRIORITY}, **HAS_DUE}
        total = 0
        with mapped():
            # A task that is given up leaves the index behind the cursor, so the
            # leased tasks and the revisits are read once and not for each batch.
            cursor = self._store.tasks.find(of_host | waiting, {"_id": 1}).hint(BY_HOST)
            cursor = cursor.batch_size(BATCH)
            while found := await cursor.to_list(BATCH):
                given_up = bulk_update(GIVE_UP_HOST, now=self._store.now(), reason=reason)
                result = await self._store.durable.update_many(
                    {"_id": {"$in": [each["_id"] for each in found]}, **waiting},
                    given_up,
                    hint="_id_",
                )
                total += result.modified_count
        return total

    async def _hasten_tasks(self, host: str, waiting: Mapping[str, Any], calls: Calls) -> None:
        """Let those tasks of a host be due now that wait for a later time."""
        now = self._store.now()
        later = {**waiting, "due": {"$gt": now}}
        if calls is Calls.ERRBACK:
            later["errback"] = {"$exists": True}
        of_host = {"host": host, "priority": {"$lte": ANY_PRIORITY}}
        with mapped():
            # A task that is due now leaves the stretch of the index that the cursor reads.
            cursor = self._store.tasks.find(of_host | later, {"_id": 1}).hint(BY_HOST)
            cursor = cursor.batch_size(BATCH)
            while found := await cursor.to_list(BATCH):
                await self._store.durable.update_many(
                    {"_id": {"$in": [each["_id"] for each in found]}, **later},
                    {"$set": {"due": now}},
                    hint="_id_",
                )

    async def all(self) -> AsyncIterator[Host]:
        """Stream the hosts' documents."""
        stream = self._store.stream(self._store.hosts, {}, None, _host_read)
        async with aclosing(stream):
            async for host in stream:
                yield host

    async def counts(self) -> dict[str, Counts]:
        """Return the counts of each host; open tasks that are neither leased nor failed wait."""
        groups, failed, leased = await asyncio.gather(
            self._groups.by(Dimension.HOST),
            self._failed(),
            # Of those that are leased, few at any time, each is read.
            self._of_status(Status.PROCESSING),
        )
        found = {str(group.value): group for group in groups}
        # A host that came while they were counted may be among some of them alone.
        names = found.keys() | failed.keys() | leased.keys()
        return {
            name: _counts(found.get(name, _NOTHING), failed=failed[name], leased=leased[name])
            for name in names
        }

    async def _failed(self) -> Counter[str]:
        """Return how many tasks of each host failed and wait, by the index that has no others."""
        numbers: Counter[str] = Counter()
        after = ""
        while True:
            groups = await self._store.aggregate(
                [
                    {"$match": {"host": {"$gt": after}, **HAS_FAILED}},
                    {"$sort": {"host": 1}},
                    {"$limit": _GROUPED},
                    {"$group": {"_id": "$host", "n": {"$sum": 1}}},
                ],
                hint=FAILED_BY_HOST,
                most=_GROUPED + 1,
            )
            found = {group["_id"]: group["n"] for group in groups}
            numbers.update(found)
            if sum(found.values()) < _GROUPED:
                return numbers
            # The last one may have more than were grouped.
            after = max(found)
            of_last = {"host": after, **HAS_FAILED}
            numbers[after] = await self._store.count(of_last, hint=FAILED_BY_HOST)

    async def _of_status(self, status: Status) -> Counter[str]:
        """Return how many tasks of a status each host has, read some at a time."""
        numbers: Counter[str] = Counter()
        place: Cursor | None = None
        while True:
            left = _COUNTED
            for part, order in behind({"status": int(status)}, place):
                groups = await self._store.aggregate(
                    [
                        {"$match": part},
                        {"$sort": dict(order)},
                        {"$limit": left},
                        {
                            "$group": {
                                "_id": "$host",
                                "n": {"$sum": 1},
                                "time": {"$last": "$update_time"},
                                "id": {"$last": "$_id"},
                            }
                        },
                    ],
                    most=left + 1,
                )
                for group in groups:
                    numbers[group["_id"]] += group["n"]
                    left -= group["n"]
                place = _last_of(groups) or place
                if not left:
                    break
            if left:
                return numbers

    async def get(self, names: Collection[str]) -> dict[str, Host]:
        """Read whole documents by their ids, a few thousand at a time."""
        wanted = list(names)
        hosts: dict[str, Host] = {}
        for start in range(0, len(wanted), BATCH):
            some = wanted[start : start + BATCH]
            with mapped():
                cursor = self._store.hosts.find({"_id": {"$in": some}}).hint("_id_")
                found = await all_of(cursor, len(some))
            hosts |= {each["_id"]: documents.host(each) for each in found}
        return hosts

    async def busiest(self, *, limit: int) -> tuple[list[Host], list[Host]]:
        """Read those that have an owner, and the index of when hosts are ready from its end."""
        fields = {"robots": 0}
        held = self._store.hosts.find({"owner": {"$gt": ""}}, fields).hint(BY_OWNER)
        waiting = self._store.hosts.find({"ready_at": {"$gt": LONG_AGO}}, fields)
        waiting = waiting.sort([("ready_at", -1)]).hint(BY_READY)
        with mapped():
            found = [await all_of(each.limit(limit), limit) for each in (held, waiting)]
        return (
            [documents.host(each) for each in found[0]],
            [documents.host(each) for each in found[1] if each["owner"] is None],
        )

    async def next_ready(self) -> datetime | None:
        """Read the first key of the index."""
        cursor = self._store.hosts.find({"ready_at": {"$gt": LONG_AGO}}, {"_id": 0, "ready_at": 1})
        cursor = cursor.sort([("ready_at", 1)]).limit(1).hint(BY_READY)
        with mapped():
            found = await cursor.to_list(1)
        return found[0]["ready_at"] if found else None

    async def due(self, *, after: str, limit: int) -> list[str]:
        """Seek from each host to the next one."""
        names: list[str] = []
        with mapped():
            while len(names) < limit:
                found = await self._first_of({"$gt": after}, {"$lte": ANY_PRIORITY})
                if found is None:
                    break
                after = found["host"]
                names.append(after)
        return names

    async def earliest_due(self, host: str) -> datetime | None:
        """Seek the earliest `due` of each priority that the host has."""
        with mapped():
            return (await self.earliest_dues([host])).get(host)

    async def earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """Return the earliest `due` of those hosts that have one; the others cost nothing."""
        earliest: dict[str, datetime] = {}
        # In the order of the index: the first task found tells of all hosts
        # before it that they have none.
        rest = sorted(hosts)
        while rest:
            found = await self._first_of({"$in": rest}, {"$lte": ANY_PRIORITY})
            if found is None:
                break
            host = found["host"]
            while found is not None:
                earliest[host] = min(found["due"], earliest.get(host, found["due"]))
                found = await self._first_of(host, {"$lt": found["priority"]})
            rest = rest[bisect_right(rest, host) :]
        return earliest

    async def _first_of(self, host: Any, priority: dict[str, int]) -> dict[str, Any] | None:
        cursor = self._store.tasks.find(
            {"host": host, "priority": priority, **HAS_DUE},
            {"_id": 0, "host": 1, "priority": 1, "due": 1},
        )
        cursor = cursor.sort([("host", 1), ("priority", -1), ("due", 1)]).limit(1).hint(BY_HOST)
        found: list[dict[str, Any]] = await cursor.to_list(1)
        return found[0] if found else None


def _counts(group: Group, *, failed: int, leased: int) -> Counts:
    numbers = {
        # They are counted at another moment.
        Status.TODO: max(group.open - failed - leased, 0),
        Status.FAILED: failed,
        Status.PROCESSING: leased,
        Status.FINISHED: group.finished,
        Status.IGNORED: group.ignored,
    }
    return Counts(by_status={status: number for status, number in numbers.items() if number})


def _last_of(groups: Collection[Mapping[str, Any]]) -> Cursor | None:
    """Return where a command has come to that went from late to early; None: nowhere."""
    # It answers without a time zone.
    ends = [(group["time"].replace(tzinfo=UTC), bytes(group["id"])) for group in groups]
    if not ends:
        return None
    time, identity = min(ends)
    return Cursor(update_time=time, id=identity)


def _woken(found: Mapping[str, Any] | None, due: datetime) -> datetime | None:
    """Return when a host is to be ready for a task that is due, or None where nothing changes."""
    if found is None:
        return due
    ready_at = max(due, found.get("not_before") or due)
    if found["owner"] is not None:
        return None
    return None if "ready_at" in found and found["ready_at"] <= ready_at else ready_at


async def _host_read(found: Mapping[str, Any]) -> list[Host]:
    return [documents.host(found)]
