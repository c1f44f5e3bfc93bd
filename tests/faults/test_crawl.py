"""Whole crawls over a network that loses messages all the time."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pymongo
import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import run_spider
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.counters import Report
from crawlcw.model.task import Status
from crawlcw.testing import Replay, ReplayDownloader
from tests.faults.invariants import Documents, assert_sound
from tests.faults.proxy import ByChance, End, Fault, Loss, Plan, proxied
from tests.faults.wires import Command
from tests.support import needed
from tests.support.mongod import with_database

pytestmark = pytest.mark.thorough

PAGES = 120
WITHIN = 40.0
LOSSES = [
    Fault(loss=loss, end=end)
    for loss in (Loss.REQUEST, Loss.REPLY)
    for end in (End.RESET, End.SILENCE)
]


class Pages(Spider):
    """Page n links to the next five, to every second one by a redirect."""

    name = "books"
    start_urls = ["http://a.example/0"]

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}
        yield from response.follow_all("a")


class Web(ReplayDownloader):
    """Downloader that lets other coroutines run before it answers, as a network does."""

    async def fetch(self, request: Request, *, url: str) -> Response:
        await asyncio.sleep(0.002)
        return await super().fetch(request, url=url)


def web(pages: int = PAGES) -> Web:
    answers: dict[str, Any] = {}
    for n in range(pages):
        following = range(n + 1, min(n + 6, pages))
        body = "".join(f'<a href="/{"to/" if m % 2 else ""}{m}">{m}</a>' for m in following)
        answers[f"http://a.example/{n}"] = body
        answers[f"http://a.example/to/{n}"] = Replay(status=302, headers={"Location": f"/{n}"})
    return Web(answers)


def crawled(uri: str, plan: Plan, site: Web, **settings: Any) -> Report:
    quick = {"concurrency": 8, "per_host_concurrency": 0, "max_depth": None}
    with proxied(uri) as (proxy, near):
        if near.startswith("mongodb"):
            near += ("&" if "?" in near else "?") + "timeoutMS=1000&serverMonitoringMode=poll"

        async def crawl() -> Report:
            proxy.plan(plan)
            async with asyncio.timeout(WITHIN):
                return await run_spider(
                    Pages(), ledger=near, settings=Settings(**quick | settings), downloader=site
                )

        return asyncio.run(crawl())


@pytest.mark.representative("40-1-each")
@pytest.mark.parametrize("claim", ["each", "batch"])
@pytest.mark.parametrize(("pages", "seed"), [(40, 1), (PAGES, 1), (PAGES, 2)])
def test_a_crawl_over_a_network_that_loses_much_loses_nothing(
    mongodb_uri: str, database_name: str, short_waits: None, claim: str, pages: int, seed: int
):
    names = {"update", "findAndModify", "find", "aggregate"}
    plan = ByChance(LOSSES, rate=0.03, seed=seed, names=names)
    site = web(pages)

    crawled(with_database(mongodb_uri, database_name), plan, site, claim=claim)

    with pymongo.MongoClient(mongodb_uri) as client:
        found = {
            name: {
                str(each["_id"]) if name == "books.items" else each["_id"]: each
                for each in client[database_name][name].find()
            }
            for name in ("books", "books.hosts", "books.workers", "books.items")
        }
    assert_complete(found, pages)
    assert {worker["left_at"] is not None for worker in found["books.workers"].values()} == {True}


@pytest.mark.parametrize(("pages", "seed"), [(40, 1), (PAGES, 1), (PAGES, 2)])
def test_a_crawl_over_a_network_that_loses_much_loses_nothing_on_postgres(
    postgres_url: str, short_waits: None, pages: int, seed: int
):
    psycopg = needed.module("psycopg", extra="postgres")
    from tests.faults.postgres_world import documents, impatient

    chance = ByChance(LOSSES, rate=0.03, seed=seed)

    def plan(command: Command) -> Fault | None:
        # A crawl that cannot open its ledger ends.
        statement = command.body.get("statement", "")
        return chance(command) if ".books" in statement or command.name == "COMMIT" else None

    async def make() -> None:
        ledger = await open_ledger(postgres_url, "books")
        await ledger.close()

    asyncio.run(make())
    with impatient(answer=timedelta(seconds=1), silence=timedelta(seconds=1.5)):
        crawled(postgres_url, plan, web(pages))

    with psycopg.connect(postgres_url, row_factory=psycopg.rows.dict_row) as db:
        found = documents(db)
    assert_complete(found, pages)
    assert {worker["left_at"] is not None for worker in found["workers"].values()} == {True}


def assert_complete(found: Documents, pages: int) -> None:
    """Assert that a crawl has recorded every page once, and holds nothing."""
    assert_sound(found)
    tasks = found["books"].values()
    assert {task["status"] for task in tasks} == {Status.FINISHED}
    assert {(task["retry"], task["lost"]) for task in tasks} == {(0, 0)}
    items = sorted(item["url"] for task in tasks for item in task.get("items", ()))
    assert items == sorted(f"http://a.example/{n}" for n in range(pages))
    assert not [host for host in found["books.hosts"].values() if host["owner"]]
