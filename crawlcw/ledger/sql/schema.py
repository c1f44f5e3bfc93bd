"""The tables of a spider or use case in an SQL database, and their indexes.

The statements are SQLite's; `postgres.dialect` translates the differences.
"""

from collections.abc import Callable

from crawlcw.model.task import Status
from crawlcw.model.transitions import REVISIT

#: Condition of a task that may be visited again, as in the index of these tasks.
MAY_BE_REVISITED = f"status IN ({', '.join(f'{status:d}' for status in REVISIT.from_statuses)})"
#: HTTP status of a task's last response, and the condition of a done task with a response.
RESPONSE_STATUS = "json_extract(response, '$.status')"
HAS_RESPONSE = f"response IS NOT NULL AND {MAY_BE_REVISITED}"

#: The document's fields as columns: times are milliseconds since 1970, and
#: headers, context, options, errors, response, visit, stored and the fields of tracked tasks
#: are JSON.
COLUMNS = {
    column.partition(" ")[0]: column
    for column in (
        "id BLOB PRIMARY KEY NOT NULL",
        "url TEXT NOT NULL",
        "host TEXT NOT NULL",
        "method TEXT",
        "headers TEXT",
        "body BLOB",
        "callback TEXT NOT NULL",
        "errback TEXT",
        "context TEXT",
        "depth INTEGER NOT NULL",
        "parent BLOB",
        "priority INTEGER NOT NULL",
        f"status INTEGER NOT NULL CHECK (status IN ({', '.join(str(int(s)) for s in Status)}))",
        "due INTEGER",
        "update_time INTEGER NOT NULL",
        "create_time INTEGER NOT NULL",
        "lock TEXT",
        "lock_time INTEGER",
        "fence INTEGER NOT NULL",
        "settled INTEGER NOT NULL",
        "retry INTEGER NOT NULL",
        "lost INTEGER NOT NULL",
        "reason TEXT",
        "errors TEXT",
        "response TEXT",
        "quarantine_fence INTEGER",
        "data TEXT",
        "results TEXT",
        "trace TEXT",
        "hops INTEGER",
        "options TEXT",
        "visit TEXT",
        "revisit INTEGER",
        "stored TEXT",
    )
}
#: A host's fields as columns; robots and origins are JSON.
HOST_COLUMNS = {
    column.partition(" ")[0]: column
    for column in (
        "id TEXT PRIMARY KEY NOT NULL",
        "ready_at INTEGER",
        "owner TEXT",
        "epoch INTEGER NOT NULL",
        "released INTEGER",
        "not_before INTEGER",
        "delay REAL NOT NULL",
        "failures INTEGER NOT NULL",
        "page_failures INTEGER NOT NULL",
        "given_up TEXT",
        "robots TEXT",
        "finished INTEGER NOT NULL",
        "origins TEXT",
    )
}


class Dialect:
    """SQLite's SQL, in which all statements are written."""

    position = "rowid"  #: the column of the order of a walk through a whole table
    #: Whether transactions write at the same time, and so must lock their rows in one order.
    locks_rows = False
    #: Clause at the end of a SELECT whose rows the transaction will write.
    for_update = ""
    skipping_locked = ""

    def cast(self, column: str) -> str:  # noqa: ARG002  # a value has its own type
        """Return the cast of a parameter to the type of a task's column."""
        return ""

    def update_many(
        self,
        table: str,
        changes: str,
        rows: str,
        condition: str,
        *,
        key: str,  # noqa: ARG002  # there is one writer at a time
        waits: bool,  # noqa: ARG002
    ) -> str:
        """Return the UPDATE of rows to the values in the table `v`, whose column *key* has the ids.

        If another transaction writes a row, the UPDATE waits for it, or skips the row.
        """
        return f"UPDATE {table} SET {changes} FROM (VALUES {rows}) AS v WHERE {condition}"  # noqa: S608  # all parts are the statements' own


SQLITE = Dialect()


class Tables:
    """The tables and indexes of one name: their quoted names, and how they are created."""

    def __init__(
        self,
        *,
        table: Callable[[str], str],
        index: Callable[[str], str],
        marker: str,
        dialect: Dialect = SQLITE,
    ) -> None:
        """Use the functions that return the names of a table and of an index, quoted."""
        self.dialect = dialect
        results = [table(part) for part in ("tasks", "items", "versions", "blobs")]
        self.tasks, self.items, self.versions, self.blobs = results
        other_tables = [table(part) for part in ("hosts", "workers", "rates", "sessions", "state")]
        self.hosts, self.workers, self.rates, self.sessions, self.state = other_tables
        self.marker = marker
        (
            self.due_index,
            self.host_due_index,
            self.changed_index,
            self.ready_index,
            self.owner_index,
        ) = (
            index(part)
            for part in ("due", "host_due", "status_update_time", "hosts_ready_at", "hosts_owner")
        )
        self.host_index, self.callback_index, self.reason_index, self.response_status_index = (
            index(part)
            for part in ("host_status", "callback_depth_status", "reason_status", "response_status")
        )
        self.revisit_index = index("revisit")
        self.workers_left_index = index("workers_left")
        self.blob_task_index = index("blobs_task_id")
        self.create = [*self._of_tasks(), *self._of_items(), *self._of_hosts(), *self._of_workers()]
        #: Indexes are dropped with their tables.
        self.drop = [f"DROP TABLE IF EXISTS {name}" for name in (*results, *other_tables)]

    def _of_tasks(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self.tasks} ({', '.join(COLUMNS.values())})",
            # These two indexes have no finished or ignored tasks.
            f"""CREATE INDEX IF NOT EXISTS {self.due_index} ON {self.tasks}
                (priority DESC, due) WHERE due IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {self.host_due_index} ON {self.tasks}
                (host, priority DESC, due) WHERE due IS NOT NULL""",
            # Equal times are ordered by id, because a walk continues after the last task it saw.
            f"""CREATE INDEX IF NOT EXISTS {self.changed_index} ON {self.tasks}
                (status, update_time DESC, id DESC)""",
            # This index has only tasks that may be visited again.
            f"""CREATE INDEX IF NOT EXISTS {self.revisit_index} ON {self.tasks}
                (revisit) WHERE revisit IS NOT NULL AND {MAY_BE_REVISITED}""",
            # These indexes count tasks with a common value.
            f"CREATE INDEX IF NOT EXISTS {self.host_index} ON {self.tasks} (host, status)",
            f"""CREATE INDEX IF NOT EXISTS {self.callback_index} ON {self.tasks}
                (callback, depth, status)""",
            f"""CREATE INDEX IF NOT EXISTS {self.reason_index} ON {self.tasks}
                (reason, status) WHERE reason IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {self.response_status_index} ON {self.tasks}
                ({RESPONSE_STATUS}, status) WHERE {HAS_RESPONSE}""",
        ]

    def _of_items(self) -> list[str]:
        """Return the statements that create the tables of results: items and large values."""
        return [
            f"""CREATE TABLE IF NOT EXISTS {self.items} (
                task_id BLOB NOT NULL, n INTEGER NOT NULL, item TEXT NOT NULL,
                url TEXT NOT NULL, fetched_at INTEGER NOT NULL, PRIMARY KEY (task_id, n))""",
            f"""CREATE TABLE IF NOT EXISTS {self.versions} (
                task_id BLOB NOT NULL, fence INTEGER NOT NULL, n INTEGER NOT NULL,
                item TEXT NOT NULL, url TEXT NOT NULL, fetched_at INTEGER NOT NULL,
                PRIMARY KEY (task_id, fence, n))""",
            f"""CREATE TABLE IF NOT EXISTS {self.blobs} (
                id TEXT PRIMARY KEY NOT NULL, task_id BLOB NOT NULL, content TEXT NOT NULL,
                create_time INTEGER NOT NULL)""",
            f"CREATE INDEX IF NOT EXISTS {self.blob_task_index} ON {self.blobs} (task_id)",
        ]

    def _of_hosts(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self.hosts} ({', '.join(HOST_COLUMNS.values())})",
            f"""CREATE INDEX IF NOT EXISTS {self.ready_index} ON {self.hosts}
                (ready_at) WHERE ready_at IS NOT NULL""",
            # This index has only leased hosts, because `leave` must not read all free hosts.
            f"""CREATE INDEX IF NOT EXISTS {self.owner_index} ON {self.hosts}
                (owner) WHERE owner IS NOT NULL""",
        ]

    def _of_workers(self) -> list[str]:
        """Return the statements for the tables of workers, rates, sessions and the state."""
        return [
            f"""CREATE TABLE IF NOT EXISTS {self.workers} (
                id TEXT PRIMARY KEY NOT NULL, machine TEXT NOT NULL, host TEXT NOT NULL,
                pid INTEGER NOT NULL, birth TEXT NOT NULL, started INTEGER NOT NULL,
                heartbeat INTEGER NOT NULL, left_at INTEGER,
                idle INTEGER NOT NULL, counters TEXT NOT NULL, vitals TEXT,
                loan TEXT, report TEXT)""",
            f"CREATE INDEX IF NOT EXISTS {self.workers_left_index} ON {self.workers} (left_at, id)",
            f"""CREATE TABLE IF NOT EXISTS {self.rates} (
                kept INTEGER NOT NULL, minute INTEGER NOT NULL, worker TEXT NOT NULL,
                started INTEGER NOT NULL, time INTEGER NOT NULL, vitals TEXT NOT NULL,
                PRIMARY KEY (kept, minute, worker)) WITHOUT ROWID""",
            f"""CREATE TABLE IF NOT EXISTS {self.sessions} (
                id TEXT PRIMARY KEY NOT NULL, fence INTEGER NOT NULL, owner TEXT,
                expires INTEGER, content TEXT NOT NULL)""",
            f"""CREATE TABLE IF NOT EXISTS {self.state} (
                id TEXT PRIMARY KEY NOT NULL, revision INTEGER NOT NULL, content TEXT NOT NULL)""",
        ]


def quoted(name: str) -> str:
    """Return a name in the quotes of SQL."""
    return '"' + name.replace('"', '""') + '"'
