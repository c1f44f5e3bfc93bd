"""The tables of a spider or use case and their indexes, and how those of older versions change."""

from collections.abc import Mapping

from crawlcw.model.task import Status

SCHEMA_VERSION = 5

#: The document's fields as columns: times are milliseconds since 1970, and
#: headers, context, errors, response and what only tracked tasks have are JSON.
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
        "begun INTEGER",
        "data TEXT",
        "results TEXT",
        "trace TEXT",
        "hops INTEGER",
    )
}
#: A host's fields as columns; robots, counts and origins are JSON.
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
        "counts TEXT NOT NULL",
        "origins TEXT",
    )
}


class Tables:
    """The tables and indexes of one name: their names, quoted, and what makes them."""

    def __init__(self, name: str) -> None:
        self.tasks, self.items, self.workers, self.hosts, self.blobs = (
            quoted(table)
            for table in (name, *(f"{name}.{p}" for p in ("items", "workers", "hosts", "asides")))
        )
        self.due, self.host_due, self.changed, self.ready, self.owned = (
            quoted(f"{name}.{index}")
            for index in ("due", "host_due", "status_update_time", "hosts_ready_at", "hosts_owner")
        )
        self.left = quoted(f"{name}.workers_left")
        self.of_task = quoted(f"{name}.asides_task_id")

        tracked = [self._adding(column) for column in ("data", "results", "trace")]
        origins = f"ALTER TABLE {self.hosts} ADD COLUMN {HOST_COLUMNS['origins']}"
        newest = [self._adding("hops"), origins]
        unordered = f"DROP INDEX IF EXISTS {quoted(f'{name}.status')}"
        #: What brings tables of an older version up to date, before `create`.
        self.upgrades: Mapping[int, list[str]] = {
            2: [self._adding("begun"), *tracked, unordered, *newest],
            3: [*tracked, unordered, *newest],
            4: newest,
        }
        self.create = [
            f"CREATE TABLE IF NOT EXISTS {self.tasks} ({', '.join(COLUMNS.values())})",
            f"""CREATE TABLE IF NOT EXISTS {self.items} (
                task_id BLOB NOT NULL, n INTEGER NOT NULL, item TEXT NOT NULL,
                url TEXT NOT NULL, fetched_at INTEGER NOT NULL, PRIMARY KEY (task_id, n))""",
            f"""CREATE TABLE IF NOT EXISTS {self.workers} (
                id TEXT PRIMARY KEY NOT NULL, machine TEXT NOT NULL, host TEXT NOT NULL,
                pid INTEGER NOT NULL, birth TEXT NOT NULL, started INTEGER NOT NULL,
                heartbeat INTEGER NOT NULL, "left" INTEGER,
                hungry INTEGER NOT NULL, tally TEXT NOT NULL)""",
            f'CREATE INDEX IF NOT EXISTS {self.left} ON {self.workers} ("left", id)',
            # What is finished or ignored has no place in these two.
            f"""CREATE INDEX IF NOT EXISTS {self.due} ON {self.tasks}
                (priority DESC, due) WHERE due IS NOT NULL""",
            f"""CREATE INDEX IF NOT EXISTS {self.host_due} ON {self.tasks}
                (host, priority DESC, due) WHERE due IS NOT NULL""",
            # Equal times are ordered as well: a walk goes on behind the last one it saw.
            f"""CREATE INDEX IF NOT EXISTS {self.changed} ON {self.tasks}
                (status, update_time DESC, id DESC)""",
            f"CREATE TABLE IF NOT EXISTS {self.hosts} ({', '.join(HOST_COLUMNS.values())})",
            f"""CREATE INDEX IF NOT EXISTS {self.ready} ON {self.hosts}
                (ready_at) WHERE ready_at IS NOT NULL""",
            # Of those that are held only: `leave` must not read all the others.
            f"""CREATE INDEX IF NOT EXISTS {self.owned} ON {self.hosts}
                (owner) WHERE owner IS NOT NULL""",
            f"""CREATE TABLE IF NOT EXISTS {self.blobs} (
                id TEXT PRIMARY KEY NOT NULL, task_id BLOB NOT NULL, content TEXT NOT NULL,
                create_time INTEGER NOT NULL)""",
            f"CREATE INDEX IF NOT EXISTS {self.of_task} ON {self.blobs} (task_id)",
        ]

    def _adding(self, column: str) -> str:
        return f"ALTER TABLE {self.tasks} ADD COLUMN {COLUMNS[column]}"


def quoted(name: str) -> str:
    """Return a name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'
