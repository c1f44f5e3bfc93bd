"""The `port.Unit` of an SQL ledger, which has all tables of the ledger on one connection.

The module also counts tasks, from indexes only, and it reads raw rows for `doctor`.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import RATE_KEY, LedgerTables, Part, Path
from crawlcw.ledger.sql.database import Database, Row, descending
from crawlcw.ledger.sql.rows import TIMES, moment
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.table import Index, Table
from crawlcw.ledger.sql.task_table import ITEM_CHARACTERS, ITEM_ROWS, Results, TaskTable
from crawlcw.ledger.values import Counts, Dimension, Group
from crawlcw.model.task import Status

_LARGE_COLUMNS = frozenset({"body", "context", "data", "results"})
_JSON_COLUMNS = frozenset({"options", "context", "data", "results"})
#: Last millisecond of the year 9999, since 1970.
_LAST_MILLISECOND = 253_402_300_799_999


def ledger_tables_on(db: Database, sql: Statements) -> LedgerTables:
    """Return all tables of one ledger on one connection."""
    tables, dialect = sql.tables, sql.tables.dialect
    ready_index, is_ready = f"INDEXED BY {tables.ready_index}", "AND ready_at IS NOT NULL"
    owner_index, is_owned = f"INDEXED BY {tables.owner_index}", "AND owner IS NOT NULL"
    of_hosts = {
        Path.READY: Index(ready_index, "ready_at", is_ready),
        Path.LAST_READY: Index(ready_index, "ready_at DESC", is_ready),
        Path.OWNER: Index(owner_index, "owner", is_owned),
    }
    left_index = Index(f"INDEXED BY {tables.workers_left_index}", "left_at, id")
    columns = ("_id", "fence", "owner", "expires")
    return LedgerTables(
        marker=Table(db, tables.marker, dialect, key=("spider",)),
        state=Table(db, tables.state, dialect, columns=("_id", "revision")),
        hosts=Table(db, tables.hosts, dialect, indexes=of_hosts),
        # A release of a host need not be durable, because a lease expires without a release.
        host_leases=Table(db, tables.hosts, dialect, durable=False),
        workers=Table(db, tables.workers, dialect, indexes={Path.LEFT: left_index}),
        sessions=Table(db, tables.sessions, dialect, columns=columns),
        item_keys=Table(db, tables.item_keys, dialect),
        rates=Table(db, tables.rates, dialect, key=RATE_KEY, durable=False),
        tasks=TaskTable(db, sql),
        groups=Groups(db, sql),
        results=Results(db, sql),
        raw=Raw(db, sql),
    )


class Groups:
    """Counts the tasks that share a value, by indexes that contain this value and the status."""

    def __init__(self, db: Database, sql: Statements) -> None:
        self._db = db
        self._sql = sql

    async def by(self, dimension: Dimension) -> list[Group]:
        """See `port.Groups.by`."""
        if dimension is not Dimension.STATUS_CODE:
            return _added_up(self._db.execute(self._sql.groups[dimension]))
        groups = _added_up(
            (code, status, number)
            # Find each status code by one index seek, because PostgreSQL would otherwise read the
            # JSON of every response.
            for (code,) in descending(self._db, self._sql.next_response_status, {})
            for status, number in self._db.execute(self._sql.of_response_status, {"code": code})
        )
        (total_group,) = _added_up(self._db.execute(self._sql.count_done)) or [Group(value=None)]
        no_value_group = Group(
            value=None,
            finished=total_group.finished - sum(group.finished for group in groups),
            ignored=total_group.ignored - sum(group.ignored for group in groups),
        )
        return [*groups, no_value_group]

    async def of_hosts(self) -> dict[str, Counts]:
        """See `port.Groups.of_hosts`."""
        totals: dict[str, dict[Status, int]] = {}
        for host, status, number in self._db.execute(self._sql.groups[Dimension.HOST]):
            totals.setdefault(host, {})[Status(status)] = number
        return {host: Counts(by_status=counts) for host, counts in totals.items()}


def _added_up(rows: Any) -> list[Group]:
    sums: dict[Any, Group] = {}
    for value, status, number in rows:
        subtotal = sums.get(value, Group(value=value))
        sums[value] = subtotal + _of_status(value, Status(status), number)
    return list(sums.values())


def _of_status(value: Any, status: Status, number: int) -> Group:
    match status:
        case Status.FINISHED:
            return Group(value=value, finished=number)
        case Status.IGNORED:
            return Group(value=value, ignored=number)
        case _:
            return Group(value=value, open=number)


class Raw:
    """Reads rows as they are stored; a stored value may have any type."""

    def __init__(self, db: Database, sql: Statements) -> None:
        self._db = db
        self._sql = sql

    async def read(
        self, part: Part, *, cursor: Any = None, wanted_ids: Collection[Any] | None = None
    ) -> tuple[list[Document], Any]:
        """See `port.Raw.read`; rows are sorted by `position`, because ids may be invalid."""
        columns, position = self._sql.raw[part]
        select, order = f"SELECT {position} AS row, {columns}", f"ORDER BY {position}"
        if wanted_ids is not None:
            marks = ", ".join("?" * len(wanted_ids))
            rows = self._db.execute(f"{select} WHERE id IN ({marks}) {order}", [*wanted_ids])
            return [*map(_document, rows)], None
        condition, values = ("", []) if cursor is None else (f"WHERE {position} > ?", [cursor])
        documents: list[Document] = []
        size = 0
        for row in self._db.stream(f"{select} {condition} {order}", values):
            documents.append(_document(row))
            large = [row[name] for name in _LARGE_COLUMNS & documents[-1].keys()]
            size += sum(len(value) for value in large if isinstance(value, str | bytes))
            if len(documents) >= ITEM_ROWS or size >= ITEM_CHARACTERS:
                return documents, row["row"]
        return documents, None


def _document(row: Row) -> Document:
    """Return a row as a document without nulls; leave a value of a wrong type as it is."""
    document = {name: value for name, value in dict(row).items() if value is not None}
    document["_id"] = document.pop("id")
    del document["row"]
    for name in TIMES & document.keys():
        if isinstance(document[name], int) and abs(document[name]) < _LAST_MILLISECOND:
            document[name] = moment(document[name])
    for name in _JSON_COLUMNS & document.keys():
        # Keep a value that is not valid JSON unchanged.
        with suppress(TypeError, ValueError):
            document[name] = json.loads(document[name])
    return document
