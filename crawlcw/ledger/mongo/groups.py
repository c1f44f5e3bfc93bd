"""Numbers of tasks by host, reason, callback, depth or status code, from indexes alone.

The server counts a stretch of an index four times as fast as it groups one, so what there are
few values of is counted value by value. Hosts, which may be many, are grouped.
"""

import asyncio
from collections import Counter
from typing import Any

from crawlcw.ledger.mongo.store import (
    ANY_PRIORITY,
    BY_ANSWER,
    BY_CALLBACK,
    BY_HOST,
    BY_REASON,
    BY_STATUS,
    DONE_BY_CALLBACK,
    DONE_BY_HOST,
    FAILED_BY_HOST,
    HAS_FAILED,
    IS_DONE,
    LONG_AGO,
    MongoStore,
)
from crawlcw.ledger.values import Counts, Dimension, Group
from crawlcw.model.task import Status

#: So many commands are under way at once.
_AT_ONCE = 8
#: Values that one command finds.
_NAMED = 50_000
#: Keys of an index that one command groups.
_KEYS = 50_000
_NOTHING = Group(value=None)
_IS_FINISHED = {"status": int(Status.FINISHED)}
_IS_IGNORED = {"status": int(Status.IGNORED)}
#: An open task has a `due`; with these bounds the index alone answers.
_IS_OPEN = {"priority": {"$lte": ANY_PRIORITY}, "due": {"$gt": LONG_AGO}}


class Groups:
    """Counts stretches of indexes; the open tasks are the rest of all."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def by(self, dimension: Dimension) -> list[Group]:
        """See `port.Groups.by`."""
        match dimension:
            case Dimension.HOST:
                return await self._by_host()
            case Dimension.CALLBACK:
                return await self._by_callback()
            case Dimension.DEPTH:
                return await self._by_depth()
            case Dimension.REASON:
                return await self._by_reason()
            case Dimension.STATUS_CODE:
                return await self._by_status_code()

    async def of_hosts(self) -> dict[str, Counts]:
        """See `port.Groups.of_hosts`: open tasks that are neither leased nor failed wait."""
        groups, failed, leased = await asyncio.gather(
            self._by_host(), self._of_each_host(HAS_FAILED, FAILED_BY_HOST), self._leased()
        )
        found = {str(group.value): group for group in groups}
        # A host that came while they were counted may be among some of them alone.
        names = found.keys() | failed.keys() | leased.keys()
        return {
            name: _counts(found.get(name, _NOTHING), failed=failed[name], leased=leased[name])
            for name in names
        }

    async def _leased(self) -> Counter[str]:
        """Return how many tasks of each host are leased: each is read, and there are few."""
        groups = await self._store.aggregate(
            [
                {"$match": {"status": int(Status.PROCESSING)}},
                {"$group": {"_id": "$host", "n": {"$sum": 1}}},
            ],
            most=_NAMED,
        )
        return Counter({group["_id"]: group["n"] for group in groups})

    async def _by_callback(self) -> list[Group]:
        names = await self._values(BY_CALLBACK, "callback", {}, above="")
        return await asyncio.gather(
            *(self._of_callback(name, {"callback": name}) for name in names)
        )

    async def _by_depth(self) -> list[Group]:
        pairs = [
            {"callback": name, "depth": depth}
            for name in await self._values(BY_CALLBACK, "callback", {}, above="")
            for depth in await self._values(BY_CALLBACK, "depth", {"callback": name}, above=-1)
        ]
        found = await asyncio.gather(*(self._of_callback(pair["depth"], pair) for pair in pairs))
        sums: dict[Any, Group] = {}
        for group in found:
            sums[group.value] = sums.get(group.value, Group(value=group.value)) + group
        return list(sums.values())

    async def _of_callback(self, value: Any, where: dict[str, Any]) -> Group:
        total, done = await asyncio.gather(
            self._count(where, BY_CALLBACK), self._done(value, where, DONE_BY_CALLBACK)
        )
        return _of_total(value, total, done.finished, done.ignored)

    async def _by_reason(self) -> list[Group]:
        names = await self._values(BY_REASON, "reason", {}, above="")
        return await asyncio.gather(*map(self._of_reason, names))

    async def _of_reason(self, reason: str) -> Group:
        failed, ignored = await asyncio.gather(
            *(
                self._count({"reason": reason, "status": int(status)}, BY_REASON)
                for status in (Status.FAILED, Status.IGNORED)
            )
        )
        return Group(value=reason, open=failed, ignored=ignored)

    async def _by_status_code(self) -> list[Group]:
        field = "response.status"
        codes = await self._values(BY_ANSWER, field, IS_DONE, above=0)
        every, *known = await asyncio.gather(
            self._done(None, {}, BY_STATUS),
            *(self._done(code, {field: code}, BY_ANSWER) for code in codes),
        )
        without = Group(
            value=None,
            finished=every.finished - sum(group.finished for group in known),
            ignored=every.ignored - sum(group.ignored for group in known),
        )
        return [*known, without]

    async def _done(self, value: Any, where: dict[str, Any], index: str) -> Group:
        finished, ignored = await asyncio.gather(
            *(self._count(where | status, index) for status in (_IS_FINISHED, _IS_IGNORED))
        )
        return Group(value=value, finished=finished, ignored=ignored)

    async def _by_host(self) -> list[Group]:
        # A task that ends in between is in two of them, or in none.
        opened, finished, ignored = await asyncio.gather(
            self._of_each_host(_IS_OPEN, BY_HOST),
            self._of_each_host(_IS_FINISHED, DONE_BY_HOST),
            self._of_each_host(_IS_IGNORED, DONE_BY_HOST),
        )
        return [
            Group(value=n, open=opened[n], finished=finished[n], ignored=ignored[n])
            for n in opened.keys() | finished.keys() | ignored.keys()
        ]

    async def _of_each_host(self, where: dict[str, Any], index: str) -> Counter[str]:
        """Group the tasks of an index that begins with the host, some of its keys at a time."""
        numbers: Counter[str] = Counter()
        after = ""
        while True:
            pipeline: list[dict[str, Any]] = [
                {"$match": {"host": {"$gt": after}, **where}},
                {"$sort": {"host": 1}},
                {"$limit": _KEYS},
                {"$group": {"_id": "$host", "n": {"$sum": 1}}},
            ]
            groups = await self._store.aggregate(pipeline, hint=index, most=_KEYS + 1)
            found = {group["_id"]: group["n"] for group in groups}
            numbers.update(found)
            if sum(found.values()) < _KEYS:
                return numbers
            # The last one may have more than were grouped.
            after = max(found)
            numbers[after] = await self._count({"host": after, **where}, index)

    async def _values(
        self, index: str, field: str, where: dict[str, Any], *, above: Any
    ) -> list[Any]:
        """Return the values of a field that are above another one, in order: one seek each."""
        values: list[Any] = []
        while True:
            pipeline: list[dict[str, Any]] = [
                {"$match": {**where, field: {"$gt": values[-1] if values else above}}},
                {"$group": {"_id": f"${field}"}},
                {"$sort": {"_id": 1}},
                {"$limit": _NAMED},
            ]
            found = await self._store.aggregate(pipeline, hint=index, most=_NAMED + 1)
            values += [group["_id"] for group in found]
            if len(found) < _NAMED:
                return values

    async def _count(self, where: dict[str, Any], index: str) -> int:
        async with self._slots:
            return await self._store.count(where, hint=index)


def _of_total(value: Any, total: int, finished: int, ignored: int) -> Group:
    # Counted one after the other: what ended in between is not counted twice.
    rest = max(total - finished - ignored, 0)
    return Group(value=value, open=rest, finished=finished, ignored=ignored)


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
