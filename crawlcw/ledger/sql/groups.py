"""Numbers of tasks by host, reason, callback, depth or status code, from indexes alone."""

from typing import Any

from crawlcw.ledger.protocol import Dimension, Group, most_first
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.model.task import Status


class Groups:
    """Reads an index that has the values and the statuses of all tasks, or of some."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def by(self, dimension: Dimension) -> list[Group]:
        """See `protocol.Groups.by`."""
        return most_first(await self._store.reader.run(self._by, dimension))

    def _by(self, db: Database, dimension: Dimension) -> list[Group]:
        with db.snapshot():
            groups = _added_up(db.execute(self._store.sql.groups[dimension]))
            if dimension is Dimension.STATUS_CODE:
                groups.append(_without(db, self._store.sql.done, groups))
        return groups


def _added_up(rows: Any) -> list[Group]:
    sums: dict[Any, Group] = {}
    for value, status, number in rows:
        before = sums.get(value, Group(value=value))
        sums[value] = before + _of_status(value, Status(status), number)
    return list(sums.values())


def _of_status(value: Any, status: Status, number: int) -> Group:
    match status:
        case Status.FINISHED:
            return Group(value=value, finished=number)
        case Status.IGNORED:
            return Group(value=value, ignored=number)
        case _:
            return Group(value=value, open=number)


def _without(db: Database, done: str, known: list[Group]) -> Group:
    """Return the tasks that are done and have no answer: all but those that have one."""
    (every,) = _added_up(db.execute(done)) or [Group(value=None)]
    return Group(
        value=None,
        finished=every.finished - sum(group.finished for group in known),
        ignored=every.ignored - sum(group.ignored for group in known),
    )
