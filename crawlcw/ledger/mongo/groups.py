"""Count tasks by host, reason, callback, depth or status code, and read only indexes.

`$group` takes four times as long as a count of an index range. So the server groups only the first
tasks of each value (for example of each host), and counts the value's remaining tasks.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from crawlcw.ledger.mongo.store import (
    ANY_PRIORITY,
    BY_CALLBACK,
    BY_HOST,
    BY_REASON,
    BY_RESPONSE_STATUS,
    BY_STATUS,
    DONE_BY_CALLBACK,
    DONE_BY_HOST,
    FAILED_BY_HOST,
    HAS_FAILED,
    LONG_AGO,
    MongoStore,
)
from crawlcw.ledger.values import Counts, Dimension, Group
from crawlcw.model.task import Status

#: Number of index keys that one command groups.
_KEYS_PER_COMMAND = 10_000
_EMPTY_GROUP = Group(value=None)
_IS_FINISHED = {"status": int(Status.FINISHED)}
_IS_IGNORED = {"status": int(Status.IGNORED)}
#: Filter of tasks with a `due` time. Because of its two bounds, the server reads only the index.
_IS_OPEN = {"priority": {"$lte": ANY_PRIORITY}, "due": {"$gt": LONG_AGO}}
_NO_TESTS: Mapping[str, Any] = {}


class Groups:
    """Counts tasks by ranges of indexes."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def by(self, dimension: Dimension) -> list[Group]:
        """See `port.Groups.by`."""
        match dimension:
            case Dimension.HOST:
                return await self._by_host()
            case Dimension.CALLBACK:
                return await self._of_all("callback")
            case Dimension.DEPTH:
                return await self._by_depth()
            case Dimension.REASON:
                failed_counts, ignored_counts = await asyncio.gather(
                    self._count_by_value("reason", HAS_FAILED, BY_REASON),
                    self._count_by_value("reason", _IS_IGNORED, BY_REASON),
                )
                return _groups(failed_counts, Counter(), ignored_counts)
            case Dimension.STATUS_CODE:
                return await self._by_status_code()

    async def of_hosts(self) -> dict[str, Counts]:
        """See `port.Groups.of_hosts`; subtract leased and failed tasks to count `todo` tasks."""
        groups, failed_counts, leased_counts = await asyncio.gather(
            self._by_host(),
            self._count_by_value("host", HAS_FAILED, FAILED_BY_HOST),
            self._leased(),
        )
        group_by_host = {str(group.value): group for group in groups}
        # If a process adds a host between these three counts, only the later counts have the host.
        names = group_by_host.keys() | failed_counts.keys() | leased_counts.keys()
        return {
            name: _counts(
                group_by_host.get(name, _EMPTY_GROUP),
                failed=failed_counts[name],
                leased=leased_counts[name],
            )
            for name in names
        }

    async def _leased(self) -> Counter[str]:
        """Return the number of leased tasks of each host; the server reads the leased tasks."""
        groups = await self._store.aggregate(
            [
                {"$match": {"status": int(Status.PROCESSING)}},
                {"$group": {"_id": "$host", "n": {"$sum": 1}}},
            ],
            limit=_KEYS_PER_COMMAND,
        )
        return Counter({group["_id"]: group["n"] for group in groups})

    async def _by_host(self) -> list[Group]:
        # A task that ends between these two counts is counted twice or not at all.
        open_counts, done_counts = await asyncio.gather(
            self._count_by_value("host", _IS_OPEN, BY_HOST), self._done_counts("host", DONE_BY_HOST)
        )
        return _groups(open_counts, *done_counts)

    async def _of_all(self, field: str, where: Mapping[str, Any] = _NO_TESTS) -> list[Group]:
        """Return groups of all tasks by *field*, which is `callback` or `depth`."""
        total_counts, done_counts = await asyncio.gather(
            self._count_by_value(field, where, BY_CALLBACK),
            self._done_counts(field, DONE_BY_CALLBACK, where),
        )
        # Subtract done tasks from all tasks, so that a task that ends between these two counts is
        # not counted twice.
        return _groups(total_counts - done_counts[0] - done_counts[1], *done_counts)

    async def _by_depth(self) -> list[Group]:
        group_by_depth: dict[Any, Group] = {}
        for callback in await self._count_by_value("callback", {}, BY_CALLBACK):
            for group in await self._of_all("depth", {"callback": callback}):
                group_by_depth[group.value] = (
                    group_by_depth.get(group.value, Group(value=group.value)) + group
                )
        return list(group_by_depth.values())

    async def _by_status_code(self) -> list[Group]:
        finished, ignored = await self._done_counts("response.status", BY_RESPONSE_STATUS)
        totals = [await self._store.count(s, hint=BY_STATUS) for s in (_IS_FINISHED, _IS_IGNORED)]
        no_value_group = Group(
            value=None, finished=totals[0] - finished.total(), ignored=totals[1] - ignored.total()
        )
        return [*_groups(Counter(), finished, ignored), no_value_group]

    async def _done_counts(
        self, field: str, index: str, where: Mapping[str, Any] = _NO_TESTS
    ) -> tuple[Counter[Any], Counter[Any]]:
        """Return the number of finished tasks, and of ignored tasks, for each value of *field*."""
        return await asyncio.gather(
            self._count_by_value(field, {**where, **_IS_FINISHED}, index),
            self._count_by_value(field, {**where, **_IS_IGNORED}, index),
        )

    async def _count_by_value(
        self, field: str, where: Mapping[str, Any], index: str
    ) -> Counter[Any]:
        """Return the number of tasks in an index for each value of *field*, in batches of keys.

        *where* has one value for each index field before *field*, so *field* sorts the index range.
        """
        numbers: Counter[Any] = Counter()
        last_value: Any = -1 if field in ("depth", "response.status") else ""
        while True:
            pipeline: list[dict[str, Any]] = [
                {"$match": {**where, field: {"$gt": last_value}}},
                {"$sort": {field: 1}},
                {"$limit": _KEYS_PER_COMMAND},
                {"$group": {"_id": f"${field}", "n": {"$sum": 1}}},
            ]
            groups = await self._store.aggregate(pipeline, hint=index, limit=_KEYS_PER_COMMAND + 1)
            counts = {group["_id"]: group["n"] for group in groups}
            numbers.update(counts)
            if sum(counts.values()) < _KEYS_PER_COMMAND:
                return numbers
            # Count the last value again, because the server may have grouped only some of its
            # tasks.
            last_value = max(counts)
            numbers[last_value] = await self._store.count({**where, field: last_value}, hint=index)


def _groups(opened: Counter[Any], finished: Counter[Any], ignored: Counter[Any]) -> list[Group]:
    return [
        Group(value=v, open=opened[v], finished=finished[v], ignored=ignored[v])
        for v in opened.keys() | finished.keys() | ignored.keys()
    ]


def _counts(group: Group, *, failed: int, leased: int) -> Counts:
    numbers = {
        # The difference could be negative, because the counts are from different moments.
        Status.TODO: max(group.open - failed - leased, 0),
        Status.FAILED: failed,
        Status.PROCESSING: leased,
        Status.FINISHED: group.finished,
        Status.IGNORED: group.ignored,
    }
    return Counts(by_status={status: number for status, number in numbers.items() if number})
