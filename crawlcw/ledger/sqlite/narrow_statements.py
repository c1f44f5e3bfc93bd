"""The statements that find or count chosen tasks by the index of their host, reason or callback."""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

from crawlcw.ledger import documents
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.statements import among

_SHOWN = ("id", *documents.TASK_FIELDS, *documents.CARRIED_FIELDS, "errors", "response", "trace")


class NarrowStatements:
    """Those of one choice, each with no condition but what was given: an index may tell all."""

    def __init__(self, tables: Tables, chosen: TaskFilter, *, whole: bool) -> None:
        """Take a choice that has a host, reason or callback; *whole*: it is bound by no time."""
        tasks = tables.tasks
        name, index = _narrowest(tables, chosen)
        given = {
            "host = :host": chosen.host,
            "reason = :reason": chosen.reason,
            "callback = :callback": chosen.callback,
            "url >= :url": chosen.url_prefix,
            "(:url_end IS NULL OR url < :url_end)": chosen.url_prefix,
        }
        conditions = [among(chosen.statuses)]
        conditions += [condition for condition, value in given.items() if value]
        if not whole:
            conditions += ["(update_time, id) < (:before, :before_id)", "update_time >= :since"]
        which = f"FROM {tasks} INDEXED BY {index} WHERE {name} = :{name}"
        matching = f"{which} AND {' AND '.join(conditions)}"
        #: Whether there are no more than :few that the index has of it.
        self.few = f"SELECT count(*) AS n FROM (SELECT 1 {which} LIMIT :few)"
        self.count = f"SELECT count(*) {matching}"
        self.find = (
            f"SELECT {', '.join(_SHOWN)} {matching} ORDER BY update_time DESC, id DESC LIMIT :limit"
        )


def _narrowest(tables: Tables, chosen: TaskFilter) -> tuple[str, str]:
    """Return the column of what is given that leaves fewest tasks as a rule, and its index."""
    if chosen.host:
        return "host", tables.by_host
    if chosen.reason:
        return "reason", tables.by_reason
    return "callback", tables.by_callback


def is_narrow(chosen: TaskFilter) -> bool:
    """Return whether there are statements of this kind for a choice."""
    given = chosen.host or chosen.reason or chosen.callback
    return bool(given) and chosen.ids is None and bool(chosen.statuses)
