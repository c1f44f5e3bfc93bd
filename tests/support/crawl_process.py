"""Whole crawls in processes of their own, to be killed, stopped and frozen.

    python -m tests.support.crawl_process LEDGER SPIDER START_URL...
        [-s NAME=VALUE ...] [-a NAME=VALUE ...] [--machine NAME] [--on-cue]

Crawls a site, or many hosts, as `crawlcw run` does, signals included, and prints its report
as one line of JSON. With `--on-cue` it prints `ready` and starts when it gets a line, so
that several processes start together. With `--machine` it claims to run on another machine.

Exit codes: 0 drained or stopped, 69 ledger unavailable, 78 ledger not usable,
130 stopped at once.
"""

import argparse
import importlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crawlcw import Settings, Spider
from crawlcw.api.settings import layered
from crawlcw.assembly import open_crawl
from crawlcw.cli.loop import run
from crawlcw.cli.signals import stopping
from crawlcw.engine.stats import Stats
from crawlcw.errors import LedgerConfigurationError, LedgerUnavailableError
from crawlcw.model.counters import Report
from crawlcw.model.task import Status
from tests.support.docs import REPOSITORY, DocsSpider, path_of
from tests.support.programs import Program

LEDGER_UNAVAILABLE = 69
LEDGER_NOT_USABLE = 78
STOPPED_AT_ONCE = 130
#: A process loads the one that it needs: others have servers with them.
_SPIDERS = {
    "docs": "tests.support.docs:DocsSpider",
    "blocking": "tests.faults.hard_pages:BlockingSpider",
    "deadly": "tests.faults.hard_pages:DeadlySpider",
    "slow": "tests.faults.hard_pages:SlowSpider",
    "hosts": "tests.support.many_hosts:HostsSpider",
    "changing": "tests.support.changing_site:ChangingSpider",
    "members": "tests.support.member_site:Members",
    "visitors": "tests.support.member_site:Visitors",
    "counting": "tests.support.counting_site:Counting",
    "exits": "tests.support.exit_site:ExitSpider",
    "one_host": "tests.support.one_host_site:OneHost",
}
_ENOUGH = 180.0
#: Milliseconds, far less than a lease: a process that is frozen meanwhile loses none.
_SHORT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task as its store has it, read by the store's own client."""

    host: str
    path: str
    status: int
    lock: str | None
    retry: int
    lost: int
    quarantine_fence: int | None  #: None if no crashed worker held it, or if it is finished
    fence: int
    reason: str | None
    items: int


@dataclass(frozen=True, slots=True)
class Store:
    """A ledger of crawling processes, read by the store's own client."""

    url: str
    spider: str = DocsSpider.name

    def rows(self) -> list[Row]:
        """Return every task; none if no crawl has started yet."""
        if self.url.startswith("mongodb"):
            return self._of_mongodb()
        return self._of_postgres() if self.url.startswith("postgresql") else self._of_sqlite()

    def _of_mongodb(self) -> list[Row]:
        with _mongodb(self.url) as client:
            found = list(client.get_default_database()[self.spider].find())
        return [_row(each, len(each.get("items") or ())) for each in found]

    def _of_sqlite(self) -> list[Row]:
        with _reading(self.url) as database:
            tables = "SELECT count(*) FROM sqlite_master WHERE name IN (?, ?)"
            names = (self.spider, f"{self.spider}.items")
            if database.execute(tables, names).fetchone()[0] < len(names):
                return []
            items = f'SELECT task_id, count(*) FROM "{self.spider}.items" GROUP BY task_id'
            counts = dict(database.execute(items))
            tasks = database.execute(f'SELECT * FROM "{self.spider}"')
            return [_row(each, counts.get(each["id"], 0)) for each in tasks]

    def _of_postgres(self) -> list[Row]:
        schema = f'"crawlcw.{self.spider}"'
        with _asking(self.url) as database:
            there = database.execute("SELECT to_regclass(%s) AS items", (f"{schema}.items",))
            if there.fetchone()["items"] is None:
                return []
            # One statement: an outcome between two would give a task another one's items.
            found = f"""SELECT host, url, status, lock, retry, lost, quarantine_fence, fence,
                reason, coalesce(items, 0) AS items FROM {schema}.tasks LEFT JOIN
                (SELECT task_id, count(*) AS items FROM {schema}.items GROUP BY 1) AS counts
                ON task_id = id"""
            return [_row(each, each["items"]) for each in database.execute(found)]

    def owners(self) -> dict[str, str]:
        """Return the hosts that are leased, and the token of each lease."""
        if self.url.startswith("mongodb"):
            with _mongodb(self.url) as client:
                hosts = client.get_default_database()[f"{self.spider}.hosts"]
                return {each["_id"]: each["owner"] for each in hosts.find({"owner": {"$ne": None}})}
        if self.url.startswith("postgresql"):
            owned = f'SELECT id, owner FROM "crawlcw.{self.spider}".hosts WHERE owner IS NOT NULL'
            with _asking(self.url) as database:
                return {each["id"]: each["owner"] for each in database.execute(owned)}
        with _reading(self.url) as database:
            owned = f'SELECT id, owner FROM "{self.spider}.hosts" WHERE owner IS NOT NULL'
            return {each["id"]: each["owner"] for each in database.execute(owned)}

    def held_by(self, pid: int | None = None) -> list[Row]:
        """Return the tasks that are leased, of all workers or those of one process."""
        return [
            row
            for row in self.rows()
            if row.lock is not None and (pid is None or f"-{pid}-" in row.lock)
        ]

    def is_writable(self) -> bool:
        """Return whether no transaction is under way that others would have to wait for."""
        if self.url.startswith("mongodb"):
            return True
        if self.url.startswith("postgresql"):
            return self._is_writable_on_postgres()
        with _reading(self.url) as database:
            database.execute(f"PRAGMA busy_timeout = {_SHORT}")
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
            return True

    def _is_writable_on_postgres(self) -> bool:
        from psycopg.errors import LockNotAvailable

        schema = f'"crawlcw.{self.spider}"'
        with _asking(self.url) as database:
            database.execute(f"SET lock_timeout = {_SHORT}")
            try:
                with database.transaction():
                    database.execute(f"LOCK TABLE {schema}.tasks, {schema}.hosts IN EXCLUSIVE MODE")
            except LockNotAvailable:
                return False
            return True


def _mongodb(url: str) -> Any:
    # The processes of other stores need not load the driver: a quarter of their imports.
    import pymongo

    # A long timeout: the URL's may be short, for the crawl.
    return pymongo.MongoClient(url, timeoutMS=20_000)


@contextmanager
def _asking(url: str) -> Iterator[Any]:
    # Only tests of this store need its driver.
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as database:
        yield database


@contextmanager
def _reading(url: str) -> Iterator[sqlite3.Connection]:
    path = Path(url.removeprefix("sqlite:///"))
    database = sqlite3.connect(path, timeout=1, isolation_level=None)
    database.row_factory = sqlite3.Row
    try:
        yield database
    finally:
        database.close()


def _row(found: Any, items: int) -> Row:
    known = dict(found)
    return Row(
        host=known["host"],
        path=path_of(known["url"]),
        status=known["status"],
        lock=known["lock"],
        retry=known["retry"],
        lost=known["lost"],
        quarantine_fence=known.get("quarantine_fence"),
        fence=known["fence"],
        reason=known.get("reason"),
        items=items,
    )


class Process(Program):
    """A crawl in a process."""

    def __init__(
        self,
        store: Store,
        start_urls: Sequence[str],
        log: Path,
        *,
        on_cue: bool,
        environment: Mapping[str, str] | None = None,
        spider: str = "",
        arguments: Mapping[str, object] | None = None,
        machine: str = "",
        **settings: Any,
    ):
        """Start the process; *environment* is added to that of this one.

        *spider* replaces the spider that the store is named for, and gets
        *arguments*. *machine* is the name of its machine.
        """
        command = [sys.executable, "-m", "tests.support.crawl_process"]
        command += [store.url, spider or store.spider]
        command += [*start_urls, *(f"-s{name}={value}" for name, value in settings.items())]
        command += [f"-a{name}={value}" for name, value in dict(arguments or {}).items()]
        command += [f"--machine={machine}"] if machine else []
        super().__init__(
            command + ["--on-cue"] * on_cue,
            log,
            folder=REPOSITORY,
            environment=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE,
        )

    def await_ready(self) -> None:
        """Wait until a process that starts on its cue has loaded everything."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.log

    def cue(self) -> None:
        """Start the crawl of a process that is ready."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self, *, within: float = _ENOUGH) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return the exit code and the report."""
        try:
            output, _ = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not at its end after {within:g} s: {self.log}") from None
        return self.process.returncode, json.loads(output or "{}")

    def drained(self, *, within: float = _ENOUGH) -> dict[str, Any]:
        """Wait for the end, check that the crawl is drained, and return the report."""
        code, report = self.end(within=within)
        assert (code, report.get("finish_reason")) == (0, "drained"), self.log
        return report


def begin_together(waiting: Sequence[Process]) -> None:
    """Start the crawls of processes that wait for their cue, when all of them are ready."""
    for process in waiting:
        process.await_ready()
    for process in waiting:
        process.cue()


def wait_until(condition: Callable[[], object], *, within: float = _ENOUGH) -> None:
    """Wait until a condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.005)


def _printed(report: Report, stats: Stats) -> str:
    return json.dumps(
        {
            "pid": os.getpid(),
            "finish_reason": report.finish_reason,
            "pages": report.pages,
            "items": report.items,
            "unchanged": report.unchanged,
            "released": report.released,
            "leases_lost": report.leases_lost,
            "claims": stats.claims,
            "claims_missed": stats.claims_missed,
            "elapsed": report.elapsed,
            "processing": report.counts[Status.PROCESSING],
        }
    )


async def _crawl(spider: Spider, ledger: str, settings: Settings) -> tuple[Report, Stats]:
    async with open_crawl(spider, ledger=ledger, settings=settings) as crawl:
        with stopping(crawl, grace=crawl.settings.grace):
            return await crawl.run(), crawl.stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger")
    parser.add_argument("spider", choices=_SPIDERS)
    parser.add_argument("start", nargs="+")
    parser.add_argument("-s", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("-a", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--machine", metavar="NAME")
    parser.add_argument("--on-cue", action="store_true")
    arguments = parser.parse_args()
    values = dict(text.split("=", 1) for text in arguments.a)
    module, _, name = _SPIDERS[arguments.spider].partition(":")
    kind: type[Spider] = getattr(importlib.import_module(module), name)
    spider = kind(start_urls=arguments.start, **values)
    if arguments.machine:
        # The machine's name; see `crawlcw.engine.workers`.
        socket.gethostname = lambda: arguments.machine
    settings = layered(spider.settings, assignments=arguments.s)
    if arguments.on_cue:
        print("ready", flush=True)
        sys.stdin.readline()
    try:
        report, stats = run(_crawl(spider, arguments.ledger, settings))
    except LedgerUnavailableError as error:
        print(f"LedgerUnavailableError: {error}", file=sys.stderr)
        sys.exit(LEDGER_UNAVAILABLE)
    except LedgerConfigurationError as error:
        print(f"LedgerConfigurationError: {error}", file=sys.stderr)
        sys.exit(LEDGER_NOT_USABLE)
    print(_printed(report, stats))
    sys.exit(STOPPED_AT_ONCE if report.finish_reason == "stopped-at-once" else 0)


if __name__ == "__main__":
    main()
