"""Size and speed of a ledger on PostgreSQL while every task of it is claimed and finished.

    python -m tests.benchmarks.bloat [--tasks 1000000] [--at-once 100] [--sql STATEMENT ...]

The tasks are those of `sizes`. All are added, and then claimed and committed, some at once, each
host in its turn, on a server of its own whose autovacuum has PostgreSQL's defaults. Prints for
each twentieth of them the milliseconds of a page, a claim and a commit, in the median and at
most, the bytes a task of the table and of its indexes, the dead rows, and the number of vacuums.
At the end each index is listed, and all again after a `VACUUM`. *--sql* is done before the first
task is added, for trials: `ALTER TABLE tasks SET (fillfactor = 50)`.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from crawlcw.ledger_opening import open_ledger
from tests.benchmarks import machine, sizes
from tests.support import postgres

_NAME = "bloat"
_PARTS = 20
_HOSTS_AT_ONCE = 10
_STEPS = ("page", "claim", "commit")

Db = psycopg.Connection[Any]


async def crawl(server: postgres.Server, db: Db, *, tasks: int, at_once: int) -> None:
    """Add all tasks, claim and finish each once, and print a line for each part of them."""
    took: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        took[step].append(1000 * (time.monotonic() - began))

    ledger = await open_ledger(server.url(_NAME), _NAME)
    hosts = [f"host-{n:02}.example" for n in range(100)]
    per_host, next_host = at_once // _HOSTS_AT_ONCE, 0
    began = time.monotonic()
    try:
        await sizes.add(ledger, tasks)
        print(f"added in {time.monotonic() - began:.0f} s")
        print(
            f"{'done':>9}"
            + "".join(f"{step:>16}" for step in _STEPS)
            + "   CPU  table indexes  dead"
        )
        print(f"{0:9,}{'':54}{_state(db, tasks)}")
        done = 0
        for part in range(1, _PARTS + 1):
            used = server.cpu()
            while done < tasks * part // _PARTS:
                wanted = dict.fromkeys(hosts[next_host : next_host + _HOSTS_AT_ONCE], per_host)
                next_host = (next_host + _HOSTS_AT_ONCE) % len(hosts)
                with timed("page"):
                    page = await ledger.tasks.page_each(wanted)
                with timed("claim"):
                    leases = await sizes.claim(ledger, page)
                with timed("commit"):
                    await sizes.finish(ledger, leases)
                assert len(leases) == len(page)
                done += len(leases)
            times = "".join(
                f"{statistics.median(took[step]):7.1f} {max(took[step]):8.0f}" for step in _STEPS
            )
            used = 1e6 * _PARTS * (server.cpu() - used) / tasks
            print(f"{done:9,}{times}{used:6.0f}{_state(db, tasks)}", flush=True)
            took.clear()
    finally:
        await ledger.close()
    print(f"all in {time.monotonic() - began:.0f} s")


def _state(db: Db, tasks: int) -> str:
    table, indexes = sizes.table_sizes(db, _NAME)
    dead, vacuums = db.execute(
        "SELECT n_dead_tup, autovacuum_count FROM pg_stat_user_tables WHERE relname = 'tasks'"
    ).fetchone()
    return f"{table / tasks:7.0f} {indexes / tasks:7.0f}{dead:8,}, {vacuums} vacuums"


def _show_indexes(db: Db, tasks: int) -> None:
    listed = db.execute(
        "SELECT indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes "
        "WHERE relname = 'tasks' ORDER BY 1"
    )
    for name, size in listed:
        print(f"    {name:24}{size / tasks:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--sql", action="append", default=[], metavar="STATEMENT")
    given = parser.parse_args()
    print(*(f"{name} {value}" for name, value in machine.described().items()), sep="; ")
    print(postgres.version())
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres.server(Path(folder) / "server") as server,
    ):
        url = server.database(_NAME)
        asyncio.run(_prepared(url))
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"SET search_path = 'crawlcw.{_NAME}'")
            for statement in given.sql:
                db.execute(statement.encode())
            asyncio.run(crawl(server, db, tasks=given.tasks, at_once=given.at_once))
            _show_indexes(db, given.tasks)
            db.execute("VACUUM ANALYZE tasks")
            print(f"after a VACUUM{'':49}{_state(db, given.tasks)}")


async def _prepared(url: str) -> None:
    await (await open_ledger(url, _NAME)).close()


if __name__ == "__main__":
    main()
