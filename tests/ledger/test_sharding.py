"""Commands of a crawl on a sharded cluster, without a `mongos`.

A log records the commands to a real server, and the tests check them by the rules of
`tests.support.sharding`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pymongo
import pytest

from crawlcw import Settings, Spider
from crawlcw.assembly import assemble
from crawlcw.doctor.examination import examine
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger.copying import Part
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import Dimension, TaskFilter
from crawlcw.model.hosts import FailureCalls
from crawlcw.model.task import Status
from crawlcw.testing import ReplayDownloader
from tests.ledger.test_copying import filled
from tests.support.command_log import CommandLog
from tests.support.ledgers import (
    LEASE,
    changed_task,
    claimed,
    make_task,
    make_tasks,
    success,
)
from tests.support.sharding import Statement, statements

HOSTS, PAGES = 8, 6
GONE = "http://gone.example/"
SHARDED = ("tasks", "hosts", "items")
LARGE = "x" * (2 << 20)
#: Statements for each page, link and host: their number grows with the crawl.
HOT = {
    "aggregate tasks: _id, due, host, priority": "due tasks of hosts",
    "update tasks: _id": "new tasks",
    "update tasks: _id, fence, lock, status": "outcomes, and tasks given back",
    "update items: _id": "large items",
    "find hosts: _id, owner": "hosts leased",
    "update hosts: _id, ready_at": "hosts to lease",
    "update hosts: _id": "hosts made known",
    "update hosts: _id, epoch, owner": "hosts renewed, saved and given back",
    "find tasks: _id, due, host, priority": "earliest tasks of hosts given back",
}
CLAIMS = {
    "each": {"findAndModify tasks: _id, due, fence, status"},
    "batch": {"update tasks: _id, due, fence, status", "find tasks: _id, status"},
}
#: Statements that all shards get, and their purposes: none is for a page.
SCATTERED = {
    "find hosts: ready_at": "hosts to lease, and when the next one is ready",
    "find tasks: due, priority": "tasks of hosts that processes share, and the end of a crawl",
    "find tasks: due, host, priority": "lost wake-ups: a process without work",
    "find tasks: revisit, status": "pages to visit again: once a process",
    "find tasks: reason": "tasks over an earlier max_depth, and seeds: once a process",
    "aggregate tasks: lock, status": "tasks of a worker that ends",
    "update hosts: owner": "hosts of a worker that ends",
    "aggregate tasks: status": "counts: report, progress",
    "aggregate tasks: reason": "counts: report, progress",
    "aggregate tasks: reason, status": "counts: report, progress",
    "count tasks: reason, status": "counts: report, progress",
    "count tasks: status": "whether there are tasks: once a process",
}


class Linked(Spider):
    """Pages of many hosts, each with an item, some of them large."""

    name = "books"
    allowed_hosts = ("*",)
    start_urls = tuple(f"http://h{n}.example/0" for n in range(HOSTS))
    settings = Settings(concurrency=4, backoff_base=0, host_backoff_base=0.001, host_max_failures=2)

    def parse(self, response):
        yield {"url": response.url}
        if response.url.endswith("h1.example/1"):
            yield {"large": LARGE}
        yield from response.follow_all("a")


def web(text: str) -> ReplayDownloader:
    answers: dict[str, Any] = {}
    for host in range(HOSTS):
        for page in range(PAGES):
            next_host = f"http://h{(host + 1) % HOSTS}.example/{page}"
            to = [next_host, GONE, *([f"/{page + 1}"] if page + 1 < PAGES else [])]
            links = "".join(f'<a href="{each}">{text}</a>' for each in to)
            answers[f"http://h{host}.example/{page}"] = links
    failure = FetchError(Reason.CONNECT, "refused")
    return ReplayDownloader(answers | {GONE: failure, f"{GONE}robots.txt": failure})


@pytest.fixture
async def opened(
    mongodb_uri: str, database_name: str, command_log: CommandLog
) -> AsyncIterator[Callable[..., Awaitable[MongoLedger]]]:
    async with AsyncExitStack() as stack:

        async def opened(**options: Any) -> MongoLedger:
            client = pymongo.AsyncMongoClient(
                mongodb_uri, tz_aware=True, event_listeners=[command_log]
            )
            await stack.enter_async_context(client)
            store = MongoStore(client[database_name], "books", client=client, **options)
            ledger = MongoLedger(store)
            await ledger.inspection.prepare()
            return ledger

        yield opened


def sent(command_log: CommandLog) -> list[Statement]:
    """Return the statements on the sharded collections, and reset the log."""
    commands, command_log.commands = command_log.commands, []
    found = [each for command in commands for each in statements(command, spider="books")]
    return [each for each in found if each.collection in SHARDED]


@pytest.mark.parametrize("claims", ["each", "batch"])
async def test_a_crawl_names_the_ids_of_its_pages_and_hosts(opened, command_log, claims: str):
    ledger = await opened(claims=claims)
    sent(command_log)
    targeted: set[str] = set()
    scattered: set[str] = set()
    for text in ("once", "and again"):
        report = await assemble(Linked(), ledger, web(text), Linked.settings).run()
        assert report.pages == HOSTS * PAGES
        for each in sent(command_log):
            (targeted if each.is_targeted else scattered).add(each.shape)
        await ledger.admin.revisit(TaskFilter(statuses=[Status.FINISHED]))
        sent(command_log)

    assert scattered <= SCATTERED.keys()
    assert targeted >= HOT.keys() | CLAIMS[claims] | {"delete items: _id"}


@pytest.mark.parametrize("claims", ["each", "batch"])
async def test_what_is_done_with_tasks_and_hosts_that_are_known_names_them(
    opened, command_log, claims: str
):
    ledger = await opened(claims=claims)
    now = ledger.now()
    await ledger.tasks.add(
        [*make_tasks(9, due=now), make_task("http://b.example/", due=now + LEASE)]
    )
    leases = await claimed(ledger)
    sent(command_log)

    await ledger.tasks.page_each({"example.com": 3, "b.example": 3, "none.example": 3})
    await ledger.tasks.get(leases[0].task.id)
    await ledger.tasks.admit_nearer([make_task("http://example.com/1")])
    await ledger.tasks.reopen_changed([changed_task("http://example.com/1", changed=now)])
    await ledger.leases.begin(leases[0])
    await ledger.leases.renew(leases, lease=LEASE)
    await ledger.leases.save(leases[1], data={"n": 1}, duration=LEASE)
    await ledger.outcomes.commit([success(ledger, leases[0], {"large": LARGE}, {"large": LARGE})])
    await ledger.outcomes.commit([success(ledger, leases[0])])  # after the end of its lease
    await ledger.outcomes.release(leases[1:])
    await ledger.leases.renew(leases, lease=LEASE)
    await ledger.hosts.wake({"example.com": now, "c.example": now})
    await ledger.hosts.get(["example.com", "c.example"])
    await ledger.hosts.earliest_due("example.com")
    for calls in FailureCalls:
        await ledger.hosts.give_up("example.com", reason=Reason.CONNECT, calls=calls)
    assert all(each.is_targeted for each in sent(command_log))

    held = await ledger.host_leases.lease(worker="a", limit=9, lease=LEASE)
    states = [(each, replace(each.host, ready_at=None)) for each in held]
    assert {each.shape for each in sent(command_log) if not each.is_targeted} == {
        "find hosts: ready_at"
    }
    await ledger.host_leases.renew(held, lease=LEASE)
    await ledger.host_leases.save(states)
    await ledger.host_leases.release(states)
    await ledger.host_leases.release(states)  # a repeated release
    assert all(each.is_targeted for each in sent(command_log))


@pytest.mark.parametrize("kind", LedgerKind)
async def test_mongos_refuses_no_command(opened, command_log, kind: LedgerKind):
    ledger = await opened(kind=kind)
    await filled(ledger)
    every = TaskFilter()
    await examine(ledger, recheck_delay=timedelta(0))
    for dimension in Dimension:
        await ledger.groups.by(dimension)
    await ledger.queries.counts()
    await ledger.queries.reasons()
    await ledger.queries.item_count()
    await ledger.hosts.counts()
    await ledger.hosts.busiest(limit=9)
    await ledger.hosts.due(last_host="", limit=9)
    await ledger.workers.leave("a")
    await ledger.queries.page(TaskFilter(containing="1"), limit=9, scan_limit=99)
    for chosen in (every, TaskFilter(host="example.com"), TaskFilter(reason=Reason.CONNECT)):
        await ledger.queries.find(chosen, limit=9)
        await ledger.queries.count(chosen)
    async for _ in ledger.queries.items():
        pass
    async for _ in ledger.queries.versions():
        pass
    for part in Part:
        async for _ in ledger.copier.read(part):
            pass
    if kind.tracked:
        await ledger.blobs.drop([await ledger.blobs.put(make_task().id, LARGE)])
    await ledger.admin.retry_failed(every)
    await ledger.admin.withdraw(every, reason=Reason.CONNECT)
    await ledger.admin.revisit(every)
    await ledger.admin.revisit_due()
    await ledger.admin.admit_to_depth(9)
    await ledger.admin.prioritise({make_task().id: 1})
    await ledger.admin.purge(every)

    for command in command_log.commands:
        assert "startTransaction" not in command
        if any(index.get("unique") for index in command.get("indexes", ())):
            # GridFS creates this index itself; its collection stays on one shard.
            assert command["createIndexes"] == "books.blobs.chunks"
    verbs = {next(iter(command)) for command in command_log.commands}
    assert not verbs & {"collMod", "mapReduce", "distinct", "validate", "collStats"}
    # Unsharded collections as well: a user may shard any of them by its `_id`.
    refused = [
        each
        for command in command_log.commands
        for each in statements(command, spider="books")
        if each.is_refused
    ]
    assert refused == []
