"""Every statement on tasks that somebody has chosen: to be shown, changed or deleted.

What is chosen is looked up by id where ids are given; else each status is walked
through by its index, the last changed first, from one place to the next.
"""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

from collections.abc import Collection

from crawlcw.ledger import documents
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.statements import among, retried, setting
from crawlcw.model.task import Status
from crawlcw.model.transitions import RETRY, BulkChange

_SHOWN = ("id", *documents.TASK_FIELDS, *documents.CARRIED_FIELDS, "errors", "response", "trace")

#: What the index of statuses answers. Where two bounds are given the nearer one is taken
#: before, so that the index has one.
STRETCH = "(update_time, id) < (:before, :before_id) AND update_time >= :since"
#: And what the task itself has to be read for.
NARROWING = (
    "(:reason IS NULL OR reason = :reason) AND (:host IS NULL OR host = :host) "
    "AND (:url IS NULL OR url >= :url) AND (:url_end IS NULL OR url < :url_end) "
    "AND (:callback IS NULL OR callback = :callback) AND (:due_by IS NULL OR due <= :due_by)"
)
#: What reopening a task changes besides.
ENTERED = (
    "host = coalesce(:stage, host), callback = coalesce(:stage, callback), "
    "results = CASE WHEN :anew THEN NULL ELSE results END"
)


class ChosenStatements:
    """The statements on tasks of certain statuses."""

    def __init__(self, tables: Tables, statuses: Collection[Status]) -> None:
        tasks = tables.tasks
        filters = f"{STRETCH} AND {NARROWING}"
        of_these = among(statuses)
        failures = retried()
        walked = f"FROM {tasks} INDEXED BY {tables.changed} WHERE status = :status AND {filters}"
        onward = "ORDER BY update_time DESC, id DESC LIMIT :limit"
        #: Each of these is about one task, which still must be as it was chosen.
        by_id = f"WHERE id = :id AND {of_these} AND {filters}"

        self.find = f"SELECT {', '.join(_SHOWN)} {walked} {onward}"
        self.find_by_id = f"SELECT {', '.join(_SHOWN)} FROM {tasks} {by_id}"
        self.walk = f"SELECT id, update_time {walked} {onward}"
        self.count = f"SELECT count(*) {walked}"
        #: How many there are before any is read, :few at most.
        self.few = (
            f"SELECT count(*) FROM (SELECT 1 FROM {tasks} INDEXED BY {tables.changed} "
            f"WHERE status = :status AND {STRETCH} LIMIT :few)"
        )
        self.count_by_id = f"SELECT count(*) FROM {tasks} {by_id}"
        self.purge = f"DELETE FROM {tasks} {by_id}"

        self.walk_failed = f"SELECT id, update_time {walked} AND {failures} {onward}"
        self.retry = f"UPDATE {tasks} SET {setting(RETRY)} {by_id} AND {failures}"
        self.count_failed = (
            f"SELECT count(*) FROM {tasks} WHERE {of_these} AND {filters} AND {failures}"
        )
        self._tasks, self._by_id = tasks, by_id
        self.count_failed_by_id = f"SELECT count(*) FROM {tasks} {by_id} AND {failures}"

    def changing(self, change: BulkChange, *also: str) -> str:
        """Return the statement that makes a bulk change of one task, and sets *also* something."""
        fields = ", ".join([setting(change), *also])
        return f"UPDATE {self._tasks} SET {fields} {self._by_id}"
