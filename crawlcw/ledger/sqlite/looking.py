"""Looking at so many tasks, the last changed first, and picking those that are wanted."""

# ruff: noqa: S608  # the tables' names are quoted; every value is a parameter

import heapq
import sqlite3
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from crawlcw.ledger.searching import Wanted
from crawlcw.ledger.sqlite.chosen_statements import NARROWING, STRETCH
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.walks import Row
from crawlcw.model.task import Status


class Looked(NamedTuple):
    """What was picked, and where that has come to."""

    ids: list[bytes]  #: in their order
    last: sqlite3.Row | None  #: the last one that was looked at; None: there are no others


def looked(
    db: sqlite3.Connection,
    look: str,
    statuses: Collection[Status],
    bounds: Row,
    *,
    limit: int,
    look_at: int,
) -> Looked:
    """Pick up to *limit* of the first *look_at* tasks, of one moment if the caller reads so."""
    ids: list[bytes] = []
    last: sqlite3.Row | None = None
    number = 0
    # Each status is read only as far as it is looked at.
    streams = [db.execute(look, {**bounds, "status": status}) for status in sorted(set(statuses))]
    for last in islice(heapq.merge(*streams, key=place_of, reverse=True), look_at):
        number += 1
        if last["wanted"]:
            ids.append(last["id"])
            if len(ids) == limit:
                break
    is_all = number < look_at and len(ids) < limit
    return Looked(ids, None if is_all else last)


def looking(tables: Tables, wanted: Wanted) -> str:
    """Return the statement that looks at the tasks of one status, the last changed first."""
    conditions = [NARROWING]
    if wanted.containing:
        conditions.append("instr(url, :containing) > 0")
    if wanted.reasons is not None:
        listed = ", ".join(f"'{reason}'" for reason in sorted(wanted.reasons))
        conditions.append(f"ifnull(reason IN ({listed}), 0)")
    return (
        f"SELECT update_time, id, {' AND '.join(conditions)} AS wanted "
        f"FROM {tables.tasks} INDEXED BY {tables.changed} WHERE status = :status "
        f"AND {STRETCH} ORDER BY update_time DESC, id DESC"
    )


def place_of(row: sqlite3.Row) -> tuple[int, bytes]:
    """Return what the order goes by."""
    return row["update_time"], row["id"]
