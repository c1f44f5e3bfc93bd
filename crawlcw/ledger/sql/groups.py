"""Numbers of tasks by host, reason, callback, depth or status code, from indexes alone."""

from typing import Any

from crawlcw.ledger.sql.database import Database, descending
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.values import Counts, Dimension, Group
from crawlcw.model.task import Status


class Groups:
    """Reads an index that has the values and the statuses of all tasks, or of some."""

    def __init__(self, db: Database, sql: Statements) -> None:
        self._db = db
        self._sql = sql

    async def by(self, dimension: Dimension) -> list[Group]:
        """See `port.Groups.by`."""
        if dimension is not Dimension.STATUS_CODE:
            return _added_up(self._db.execute(self._sql.groups[dimension]))
        groups = _added_up(
            (code, status, number)
            # PostgreSQL would read the JSON of every answer for its status code.
            for (code,) in descending(self._db, self._sql.next_answer, {})
            for status, number in self._db.execute(self._sql.of_answer, {"code": code})
        )
        (every,) = _added_up(self._db.execute(self._sql.done)) or [Group(value=None)]
        # Done and without an answer: all but those that have one.
        without = Group(
            value=None,
            finished=every.finished - sum(group.finished for group in groups),
            ignored=every.ignored - sum(group.ignored for group in groups),
        )
        return [*groups, without]

    async def of_hosts(self) -> dict[str, Counts]:
        """See `port.Groups.of_hosts`."""
        totals: dict[str, dict[Status, int]] = {}
        for host, status, number in self._db.execute(self._sql.groups[Dimension.HOST]):
            totals.setdefault(host, {})[Status(status)] = number
        return {host: Counts(by_status=of_host) for host, of_host in totals.items()}


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
