"""The tables and indexes of a spider or use case in an SQL database.

The statements are in SQLite's SQL; `postgres.dialect` translates them for PostgreSQL.
"""

from collections.abc import Callable

from crawlcw.model.task import Status
from crawlcw.model.transitions import REVISIT

#: SQL condition for tasks that may be visited again; the index of these tasks has this condition.
MAY_BE_REVISITED = f"status IN ({', '.join(f'{status:d}' for status in REVISIT.from_statuses)})"
#: SQL for the status code of a response, and SQL that tests for a done task with a response.
RESPONSE_STATUS = "json_extract(response, '$.status')"
HAS_RESPONSE = f"response IS NOT NULL AND {MAY_BE_REVISITED}"

#: Columns of a task, one for each field of a task's document. Times are milliseconds since 1970.
#: The columns headers, context, options, errors, response, visit, stored, data, results and trace
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
#: Columns of a host, one for each field of a host's document; robots and origins are JSON.
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
    """The SQL dialect of SQLite, in which crawlcw writes all statements."""

    position = "rowid"  #: column by which a walk through a table is sorted
    #: Whether transactions can write at the same time; if so, each locks its rows in order of id.
    locks_rows = False
    #: Clause at the end of a SELECT that locks the selected rows for a later write.
    for_update = ""
    skipping_locked = ""

    def cast(self, column: str) -> str:  # noqa: ARG002  # SQLite needs no casts
        """Return SQL that converts a parameter to a column's type, for example `::bigint`."""
        return ""

    def update_many(
        self,
        table: str,
        changes: str,
        rows: str,
        condition: str,
        *,
        key: str,  # noqa: ARG002  # for PostgreSQL
        waits: bool,  # noqa: ARG002
    ) -> str:
        """Return an UPDATE with values from a list of rows `v`, which has ids in column *key*.

        The UPDATE waits for locked rows if *waits* is true, and otherwise skips locked rows.
        """
        return f"UPDATE {table} SET {changes} FROM (VALUES {rows}) AS v WHERE {condition}"  # noqa: S608  # all parts are our own SQL


SQLITE = Dialect()


class Tables:
    """The quoted names of a ledger's tables and indexes, and the statements that create them."""

    def __init__(
        self,
        *,
        table: Callable[[str], str],
        index: Callable[[str], str],
        marker: str,
        dialect: Dialect = SQLITE,
    ) -> None:
        """The functions *table* and *index* return the quoted name of a table or of an index."""
        self.dialect = dialect
        results = [table(part) for part in ("tasks", "items", "versions", "blobs")]
        self.tasks, self.items, self.versions, self.blobs = results
        of_hosts = [table(part) for part in ("hosts", "workers", "rates")]
        self.hosts, self.workers, self.rates = of_hosts
        of_spider = [table(part) for part in ("sessions", "state", "item_keys")]
        self.sessions, self.state, self.item_keys = of_spider
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
        self.item_key_index = index("item_keys_task")
        self.create = [*self._of_tasks(), *self._of_items(), *self._of_hosts(), *self._of_workers()]
        #: Statements that drop the tables, together with their indexes.
        self.drop = [f"DROP TABLE IF EXISTS {name}" for name in (*results, *of_hosts, *of_spider)]

    def _of_tasks(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self.tasks} ({', '.join(COLUMNS.values())})",
            # The indexes of due tasks leave out finished and ignored tasks, which have no due time.
            f"""CREATE INDEX IF NOT EXISTS {self.due_index} ON {self.tasks}
                (priority DESC, due) WHERE due IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {self.host_due_index} ON {self.tasks}
                (host, priority DESC, due) WHERE due IS NOT NULL""",
            # Order tasks with equal times by id, so that a listing can continue after any task.
            f"""CREATE INDEX IF NOT EXISTS {self.changed_index} ON {self.tasks}
                (status, update_time DESC, id DESC)""",
            # The index `revisit` has only tasks that may be visited again.
            f"""CREATE INDEX IF NOT EXISTS {self.revisit_index} ON {self.tasks}
                (revisit) WHERE revisit IS NOT NULL AND {MAY_BE_REVISITED}""",
            # The next four indexes count tasks with a common value.
            f"CREATE INDEX IF NOT EXISTS {self.host_index} ON {self.tasks} (host, status)",
            f"""CREATE INDEX IF NOT EXISTS {self.callback_index} ON {self.tasks}
                (callback, depth, status)""",
            f"""CREATE INDEX IF NOT EXISTS {self.reason_index} ON {self.tasks}
                (reason, status) WHERE reason IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {self.response_status_index} ON {self.tasks}
                ({RESPONSE_STATUS}, status) WHERE {HAS_RESPONSE}""",
        ]

    def _of_items(self) -> list[str]:
        """Return the statements that create the tables of items and of large values."""
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
            f"""CREATE TABLE IF NOT EXISTS {self.item_keys} (
                id TEXT PRIMARY KEY NOT NULL, task TEXT NOT NULL, fence INTEGER NOT NULL,
                previous TEXT)""",
            f"CREATE INDEX IF NOT EXISTS {self.item_key_index} ON {self.item_keys} (task)",
        ]

    def _of_hosts(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self.hosts} ({', '.join(HOST_COLUMNS.values())})",
            f"""CREATE INDEX IF NOT EXISTS {self.ready_index} ON {self.hosts}
                (ready_at) WHERE ready_at IS NOT NULL""",
            # The index by owner has only leased hosts, so that a search reads no free hosts.
            f"""CREATE INDEX IF NOT EXISTS {self.owner_index} ON {self.hosts}
                (owner) WHERE owner IS NOT NULL""",
        ]

    def _of_workers(self) -> list[str]:
        """Return the statements that create the tables of workers, rates, sessions and state."""
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
    """Return a name in SQL's double quotes."""
    return '"' + name.replace('"', '""') + '"'
