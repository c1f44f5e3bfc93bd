"""The statements that find or count chosen tasks by an index, or among all as they lie."""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

from typing import NamedTuple

from crawlcw.ledger import documents
from crawlcw.ledger.prefixes import Range
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.statements import among, retried

_SHOWN = ("id", *documents.TASK_FIELDS, *documents.CARRIED_FIELDS, "errors", "response", "trace")


class Narrowing(NamedTuple):
    """An index that has tasks by something that is given, and the condition that it answers."""

    name: str
    condition: str


class NarrowStatements:
    """Those of one choice, each with no condition but what was given: an index may tell all."""

    def __init__(
        self, tables: Tables, chosen: TaskFilter, narrowing: Narrowing | None, *, whole: bool
    ) -> None:
        """Take what is narrowed down; None: nothing is; *whole*: it is bound by no time."""
        tasks = tables.tasks
        given = {
            "host = :host": chosen.host,
            "reason = :reason": chosen.reason,
            "callback = :callback": chosen.callback,
            "url >= :url": chosen.url_prefix,
            "(:url_end IS NULL OR url < :url_end)": chosen.url_prefix,
            "due <= :due_by": chosen.due_by,
        }
        conditions = [among(chosen.statuses)]
        conditions += [condition for condition, value in given.items() if value]
        if not whole:
            conditions += ["(update_time, id) < (:before, :before_id)", "update_time >= :since"]
        if narrowing is None:
            # As they lie in the file: an index has them in an order in which each is looked up.
            which = f"FROM {tasks} NOT INDEXED WHERE TRUE"
        else:
            which = f"FROM {tasks} INDEXED BY {narrowing.name} WHERE {narrowing.condition}"
        matching = f"{which} AND {' AND '.join(conditions)}"
        #: How many the index has of it, :few at most.
        self.few = f"SELECT count(*) FROM (SELECT 1 {which} LIMIT :few)"
        self.count = f"SELECT count(*) {matching}"
        self.count_failed = f"{self.count} AND {retried()}"
        self.find = (
            f"SELECT {', '.join(_SHOWN)} {matching} ORDER BY update_time DESC, id DESC LIMIT :limit"
        )


def narrowings(tables: Tables, chosen: TaskFilter, hosts: Range | None) -> list[Narrowing]:
    """Return the indexes of what is given, those first that leave fewest tasks as a rule.

    *hosts*: its tasks are of these alone, see `prefixes.hosts_within`.
    """
    found = []
    if chosen.host:
        found.append(Narrowing(tables.by_host, "host = :host"))
    if chosen.reason:
        found.append(Narrowing(tables.by_reason, "reason = :reason"))
    if chosen.callback:
        found.append(Narrowing(tables.by_callback, "callback = :callback"))
    if hosts is not None:
        before = "" if hosts.end is None else " AND host < :host_end"
        found.insert(0, Narrowing(tables.by_host, f"host >= :host_first{before}"))
    return found
