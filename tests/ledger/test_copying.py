"""A ledger stays the same when it is copied to another store and back."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from crawlcw.engine.session import WorkerSession
from crawlcw.engine.workers import this_worker
from crawlcw.errors import LedgerConfigurationError, LedgerError
from crawlcw.ledger.copying import UNFINISHED, CopiedLedger, Part, copy
from crawlcw.ledger.documents import Document
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Counters
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.identities import Cookie, Identity
from crawlcw.model.rates import Vitals
from crawlcw.model.spider_state import PageSums, StoredState
from crawlcw.model.task import RequestOptions, ResponseInfo
from crawlcw.model.transitions import Succeeded, Unchanged
from crawlcw.model.values import ItemFields
from tests.support.ledgers import (
    claimed,
    failure,
    make_task,
    make_tasks,
    sessions_in,
    settled,
    success,
    visit,
)
from tests.support.mongod import with_database

pytestmark = pytest.mark.asyncio

LARGE = "x" * ((1 << 20) + 1)  #: set aside on MongoDB


class Opened:
    """Ledgers on any store, closed with the test."""

    def __init__(self, stack: AsyncExitStack, mongodb: str, folder: Path) -> None:
        self._stack = stack
        self._mongodb = mongodb
        self._folder = folder

    async def __call__(self, store: str, *, kind: LedgerKind = LedgerKind.SPIDER) -> CopiedLedger:
        url = self._mongodb if store == "mongodb" else f"sqlite:///{self._folder}/{store}.db"
        ledger = await open_ledger(url, "books", kind=kind)
        self._stack.push_async_callback(ledger.close)
        return ledger


@pytest.fixture
async def opened(tmp_path: Path, mongodb_uri: str, database_name: str) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        yield Opened(stack, with_database(mongodb_uri, database_name), tmp_path)


def silent(_part: Part, _number: int) -> None:
    pass


async def filled(ledger: CopiedLedger) -> list[bytes]:
    """Fill a ledger with tasks of every kind; return their ids."""
    now = ledger.now()
    tasks = [
        *make_tasks(6, due=now),
        make_task(
            "http://a.example/",
            due=now + timedelta(hours=1),
            method="POST",
            headers=(("A", "1"),),
            body=b"\0\xff",
            errback="lost",
            context={"$a": {"b.c": 1.5}, "bytes": b"\0", "when": now},
            options=RequestOptions(max_retry=7),
            depth=3,
            parent=b"p" * 16,
        ),
    ]
    await ledger.tasks.add(tasks)
    await ledger.hosts.wake({"example.com": now, "a.example": now + timedelta(hours=1)})
    (host,) = await ledger.host_leases.lease(worker="a", limit=1, lease=timedelta(minutes=1))
    learned = replace(host.host, delay=0.25, failures=2, finished=3, ready_at=now)
    await ledger.host_leases.release([(host, learned)])
    first, second, third, *_ = await claimed(ledger)
    await ledger.outcomes.commit(
        [
            settled(
                ledger,
                first,
                Succeeded(
                    items=(
                        {"$n": 1, "text": "\u2028é"},
                        ItemFields({"large": LARGE}, item_class="Large"),
                        ItemFields({"n": 3}, item_class="Small"),
                    ),
                    response=ResponseInfo(status=200, final_url="http://example.com/there"),
                    visit=visit(etag='"1"', interval=1.5),
                    revisit=now,
                    kept_versions=3,
                ),
            ),
            success(ledger, second),
            failure(ledger, third, message="it is down", status=503),
        ]
    )
    # The items are older than the last outcome of the page.
    assert await ledger.admin.revisit_due() == 1
    (lease,) = (each for each in await claimed(ledger) if each.task.id == first.task.id)
    confirmed = Unchanged(visit=visit(etag='"2"'), revisit=now + timedelta(days=7))
    await ledger.outcomes.commit([settled(ledger, lease, confirmed)])
    worker = this_worker(now=now)
    await ledger.workers.join(worker)
    counters = Counters(pages=2, items=3, links_dropped={"trap": 1})
    await ledger.workers.beat(worker.name, counters, vitals=Vitals(finished=2))
    await ledger.workers.leave(worker.name)
    # A killed worker has not left: its last vitals stay in the ledger.
    killed = replace(worker, name="killed")
    await ledger.workers.join(killed)
    await ledger.workers.beat(killed.name, counters, vitals=Vitals(finished=2))
    await ledger.notes.set_state({"seeds": {"a.b": 1}})
    await ledger.sessions.change(None, session(now))
    pending = {first.task.id: PageSums(1, {"a.b": 3})}
    state = StoredState(revision=1, values={"$d": {"e.f": b"1", "$c": [now]}}, pending=pending)
    await ledger.spider_state.change(StoredState(), state)
    return [task.id for task in tasks]


def session(now: datetime) -> Identity:
    cookie = Cookie(
        name="sid",
        value="1",
        domain="a.example",
        host_only=True,
        path="/",
        port=0,
        secure=True,
        expires=now,
    )
    return Identity(
        name="ada", fence=3, cookies={"c": cookie}, data={"$a.b": 1}, owner="w", expires=now
    )


@pytest.mark.parametrize("first", ["sqlite", "mongodb"])
async def test_a_copy_and_the_copy_of_a_copy_are_the_same(opened: Opened, first: str):
    stores = ["one", "mongodb", "two"] if first == "sqlite" else ["mongodb", "one", "two"]
    source, between, last = [await opened(store) for store in stores]
    ids = await filled(source)

    copied = await copy(source, between, on_progress=silent)
    again = await copy(between, last, on_progress=silent)

    assert copied == again
    assert (copied[Part.TASKS].number, copied[Part.TASKS].items) == (7, 3)
    assert (copied[Part.HOSTS].number, copied[Part.WORKERS].number) == (2, 2)
    for ledger in (between, last):
        for each in ids:
            assert await ledger.tasks.get(each) == await source.tasks.get(each)
        items = [row async for row in ledger.queries.items()]
        assert items == [row async for row in source.queries.items()]
        assert [row.item_class for row in items] == [None, "Large", "Small"]
        versions = [row async for row in ledger.queries.versions()]
        assert versions == items
        assert await ledger.notes.state() == {"seeds": {"a.b": 1}}
        assert await ledger.workers.counters() == await source.workers.counters()
        assert await ledger.spider_state.read() == await source.spider_state.read()
        assert await sessions_in(ledger) == await sessions_in(source) != []
        assert [h async for h in ledger.hosts.all()] == [h async for h in source.hosts.all()]


async def test_what_a_use_case_has_as_blobs_is_copied_with_its_tasks(opened: Opened):
    source, between, last = [
        await opened(store, kind=LedgerKind.USE_CASE) for store in ("one", "mongodb", "two")
    ]
    task = make_task("http://a.example/")
    await source.tasks.add([task])
    blob = await source.blobs.put(task.id, {"a.b": [1, b"\0"]})  # type: ignore[attr-defined]
    await source.notes.set_policy({"max_retry": 2})

    await copy(source, between, on_progress=silent)
    await copy(between, last, on_progress=silent)

    for ledger in (between, last):
        assert await ledger.blobs.read(blob) == {"a.b": [1, b"\0"]}  # type: ignore[attr-defined]
        assert await ledger.notes.policy() == {"max_retry": 2}


class Losing:
    """Loses the last document of a part."""

    def __init__(self, ledger: CopiedLedger, part: Part) -> None:
        self._copying = ledger.copier
        self.read = ledger.copier.read
        self._part = part

    async def write(self, part: Part, documents: list[Document]) -> None:
        await self._copying.write(part, documents[: -1 if part is self._part else None])


@pytest.mark.parametrize("part", [Part.TASKS, Part.HOSTS])
async def test_a_copy_that_is_not_whole_is_told_and_is_not_worked_on(opened: Opened, part: Part):
    source, target = await opened("one"), await opened("two")
    await filled(source)
    target.copier = Losing(target, part)

    with pytest.raises(LedgerError, match=rf"\d {part} were written, and \d were read back"):
        await copy(source, target, on_progress=silent)

    assert (await target.notes.state())[UNFINISHED]
    session: WorkerSession = WorkerSession(
        target, lease_length=lambda: timedelta(minutes=1), give_up=timedelta(seconds=1)
    )
    with pytest.raises(LedgerConfigurationError, match="run the same copy command again"):
        await session.join()
