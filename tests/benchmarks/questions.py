"""Time of every query of an operator, on a ledger of many tasks.

    python -m tests.benchmarks.questions [--postgres] [--mongodb URI] [--tasks 1000000]

The tasks are those of 1,000 hosts: 5 of 8 are finished, each with an answer and an item, and one
each is waiting, failed and ignored. They are written straight into the store. Prints, for each
query, the median of three in seconds: on a clock, of the CPU of this process (on SQLite, all of
it), and of the CPU of the server, which must have no other work. `--postgres` starts a server for
one run, and vacuums it after the tasks are written, as autovacuum does later. `--keep FOLDER`
leaves the other ledgers for the next run.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pymongo

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.protocol import Dimension, Ledger, TaskFilter
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status
from crawlcw.model.transitions import REOPEN, WITHDRAW
from tests.support import bulk_ledgers, postgres
from tests.support.dashboards import Page, dashboard
from tests.support.ledgers import START
from tests.support.mongod import with_database

NAME = "questions"
ROUNDS = 3
_CALLBACKS = ("parse", "parse_book", "parse_list", "parse_author")
_REASONS = (Reason.CONNECT, Reason.TIMEOUT_READ, Reason.TLS)
_NOBODY = "https://nobody.example/"

Question = Callable[[], Awaitable[Any]]


class Took(NamedTuple):
    """Seconds on a clock, of this process's CPU, and of the server's CPU."""

    elapsed: float
    cpu: float
    served: float


def fill_mongodb(uri: str, database: str, number: int) -> None:
    """Fill the collection without its indexes; they are created when it is opened."""
    with pymongo.MongoClient(uri) as client:
        client[database][NAME].drop_indexes()
    bulk_ledgers.fill_mongodb(uri, database, NAME, _tasks(number))


def _tasks(number: int) -> Iterator[documents.Document]:
    return bulk_ledgers.task_documents(number, callbacks=_CALLBACKS, reasons=_REASONS)


async def prepared(url: str, fill: Callable[[], None]) -> None:
    """Make the ledger and fill it, unless it was kept."""
    ledger = await open_ledger(url, NAME)
    try:
        if await ledger.queries.has(tuple(Status)):
            return
        await ledger.hosts.wake({bulk_ledgers.host_of(n): START for n in range(bulk_ledgers.HOSTS)})
        await asyncio.to_thread(fill)
    finally:
        await ledger.close()
    await (await open_ledger(url, NAME)).close()


def questions(ledger: Ledger) -> Iterator[tuple[str, Question]]:
    """Yield the queries of the commands."""
    queries = ledger.queries
    yield "stats: statuses", queries.counts
    yield "stats: reasons", queries.reasons
    yield "stats: items of 10,000 tasks", lambda: queries.item_count_within(scan_limit=10_000)
    for by in Dimension:
        yield f"stats --by {by}", lambda by=by: ledger.groups.by(by)
    yield "hosts: counts", ledger.hosts.counts
    chosen = {
        "all": TaskFilter(),
        "--status failed": TaskFilter(statuses=[Status.FAILED]),
        "--host": TaskFilter(host="h77.com"),
        "--host, none": TaskFilter(host="nobody.example"),
        "--reason": TaskFilter(reason=Reason.TLS),
        "--reason, none": TaskFilter(reason=Reason.TIMEOUT_CONNECT),
        "--callback": TaskFilter(callback="parse"),
        "--callback, none": TaskFilter(callback="parse_nothing"),
        "--url-prefix": TaskFilter(url_prefix="https://h77.com/cat"),
        "--url-prefix, none of a host": TaskFilter(url_prefix="https://h77.com/no"),
        "--url-prefix, no such host": TaskFilter(url_prefix=_NOBODY),
        "--url-prefix within a host": TaskFilter(url_prefix="https://h77.c"),
        "--url-prefix of 11 hosts": TaskFilter(url_prefix="https://h77"),
        "--url-prefix of 111 hosts": TaskFilter(url_prefix="https://h7"),
        "--url-prefix of all hosts": TaskFilter(url_prefix="https://h"),
        "--url-prefix of no host": TaskFilter(url_prefix="https://nobody"),
        "--url-prefix, a scheme": TaskFilter(url_prefix="https://"),
        "--url-prefix, no such scheme": TaskFilter(url_prefix="http://"),
        "--url-prefix of all": TaskFilter(url_prefix="http"),
        "--host --callback": TaskFilter(host="h77.com", callback="parse"),
    }
    for said, which in chosen.items():
        yield f"tasks {said}", lambda which=which: queries.find(which, limit=50)
    for said, which in chosen.items():
        withdrawn, reopened = (which.with_statuses(e.from_statuses) for e in (WITHDRAW, REOPEN))
        yield f"ignore --dry-run {said}", lambda which=withdrawn: queries.count(which)
        yield f"reset --dry-run {said}", lambda which=reopened: queries.count(which)
        yield (
            f"retry-failed --dry-run {said}",
            lambda which=which: ledger.admin.count_failed(which),
        )


def pages(page: Page, task: str) -> Iterator[tuple[str, Question]]:
    """Yield the requests of the dashboard's page."""
    crawl = f"/api/crawls/{NAME}"
    yield "page: start", lambda: page.get("/api/start")
    yield "page: crawls", lambda: page.get("/api/crawls")
    yield "page: items", lambda: page.get(f"{crawl}/items")
    yield "page: first event", lambda: _first_event(page)
    for span in ("hour", "week"):
        yield f"page: history {span}", lambda span=span: page.get(f"{crawl}/history?span={span}")
    for asked in (
        "",
        "text=nowhere",
        "host=h77.com",
        "host=nobody.example",
        "reason=timeout-connect",
        "prefix=https://h77.com/no",
        "prefix=https://nobody",
        "status=failed&reason=tls",
    ):
        yield f"page: tasks {asked}", lambda asked=asked: page.get(f"{crawl}/tasks?{asked}")
    yield "page: one task", lambda: page.get(f"{crawl}/tasks/{task}")
    for action in ("retry", "ignore", "reset"):
        for selection in ({}, {"host": "h77.com"}, {"reason": "tls"}):
            body = {"action": action, "selection": selection, "dry_run": True}
            yield (
                f"page: {action}, dry run {selection or ''}",
                lambda body=body: page.post(f"{crawl}/act", body),
            )


async def _first_event(page: Page) -> None:
    live = f"{page.address}/api/crawls/{NAME}/live"
    async with page.http.get(live, headers=page.headers) as response:
        assert response.status == 200, response.status
        await response.content.readuntil(b"\n\n")


def cpu_of(client: "pymongo.MongoClient[dict[str, Any]]") -> float:
    """Return the CPU time of a server in seconds."""
    told = client.admin.command("serverStatus")["extra_info"]
    return float(told["user_time_us"] + told["system_time_us"]) / 1e6


async def _took(question: Question, served: Callable[[], float]) -> Took:
    found = []
    for _ in range(ROUNDS):
        before = served()
        began, used = time.monotonic(), time.process_time()
        answer = await question()
        took = time.monotonic() - began, time.process_time() - used
        found.append(Took(*took, served() - before))
        if isinstance(answer, tuple):
            assert answer[0] == 200, answer
    return Took(*(statistics.median(each) for each in zip(*found, strict=True)))


async def asked(url: str, *, served: Callable[[], float], only: str) -> dict[str, Took]:
    """Run all queries three times, one after the other."""
    found = {}
    ledger = await open_ledger(url, NAME, create=False, kind=None)
    try:
        for name, question in questions(ledger):
            if name.startswith(only):
                found[name] = await _took(question, served)
        (record,) = await ledger.queries.find(TaskFilter(), limit=1)
    finally:
        await ledger.close()
    async with dashboard(url) as page:
        await page.start()
        for name, question in pages(page, record.task.id.hex()):
            if name.startswith(only):
                found[name] = await _took(question, served)
    return found


def shown(found: dict[str, dict[str, Took]]) -> Iterator[str]:
    """Yield a table: a line a question, three columns a store."""
    names = list(next(iter(found.values())))
    width = max(map(len, names))
    yield " " * width + "".join(f"  {store[:8]:>8}   CPU  server" for store in found)
    for name in names:
        cells = (
            f"  {took[name].elapsed:8.3f} {took[name].cpu:5.2f}  {took[name].served:6.2f}"
            for took in found.values()
        )
        yield f"{name:{width}}" + "".join(cells)


async def measured(
    mongodb: str | None, *, own_postgres: bool, tasks: int, folder: Path, keep: bool, only: str
) -> None:
    """Fill the stores, run the queries, and print the times."""
    path = folder / "questions.db"
    database = f"crawlcw_questions_{tasks}"
    found = {}
    await prepared(f"sqlite:///{path}", lambda: bulk_ledgers.fill_sqlite(path, NAME, _tasks(tasks)))
    found["SQLite"] = await asked(f"sqlite:///{path}", served=lambda: 0.0, only=only)
    if own_postgres:
        with (
            tempfile.TemporaryDirectory() as place,
            postgres.server(Path(place) / "server") as server,
        ):
            url = server.database(NAME)
            await prepared(url, lambda: bulk_ledgers.fill_postgres(url, NAME, _tasks(tasks)))
            found["PostgreSQL"] = await asked(url, served=server.cpu, only=only)
    if mongodb:
        url = with_database(mongodb, database)
        try:
            await prepared(url, lambda: fill_mongodb(mongodb, database, tasks))
            with pymongo.MongoClient(mongodb) as client:
                served = partial(cpu_of, client)
                found["MongoDB"] = await asked(url, served=served, only=only)
        finally:
            if not keep:
                with pymongo.MongoClient(mongodb) as client:
                    client.drop_database(database)
    for line in shown(found):
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--mongodb", metavar="URI")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="TEXT", help="questions that begin so")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing, suppress(KeyboardInterrupt):
        folder = given.keep or Path(passing)
        asyncio.run(
            measured(
                given.mongodb,
                own_postgres=given.postgres,
                tasks=given.tasks,
                folder=folder,
                keep=bool(given.keep),
                only=given.only,
            )
        )


if __name__ == "__main__":
    main()
