"""Group commits: their content, the order of writes, and the announcements."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlcw.api.spider import Spider
from crawlcw.crawl.callbacks import Produced
from crawlcw.crawl.committer import Committer, TaskAdder
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import Done
from crawlcw.engine.session import TaskLeases
from crawlcw.engine.stats import Stats
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger.protocol import Added, Committed
from crawlcw.model.counters import DroppedLinks
from crawlcw.model.task import Lease, Status, StoredPage, Task
from crawlcw.model.transitions import Event, Settlement, Succeeded
from tests.support.ledgers import (
    LEASE,
    FakeClock,
    PatchedLedger,
    claimed,
    make_task,
    make_tasks,
    settled,
    success,
)

pytestmark = pytest.mark.quick


class Journal(PatchedLedger):
    """Ledger that logs its writes, and whose answers to a commit can be held back."""

    patched = ("tasks.add", "outcomes.commit")

    def begin_log(self) -> None:
        self.entries: list[tuple[str, int]] = []
        self.writing = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def add(self, tasks: Sequence[Task]) -> Added:
        self.entries.append(("add", len(tasks)))
        return await self.real.tasks.add(tasks)

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        self.entries.append(("commit", len(settlements)))
        committed = await self.real.outcomes.commit(settlements)
        self.writing.set()
        await self.go.wait()
        return committed


class KilledError(Exception):
    """Stands for the death of the process."""


class Writing:
    """A committer with its collaborators, and a log of its announcements."""

    def __init__(self, ledger: Journal, bodies: Any = None) -> None:
        self.ledger = ledger
        self.done: asyncio.Queue[Done] = asyncio.Queue()
        self.held = TaskLeases()
        self.stats = Stats()
        adder = TaskAdder(ledger=ledger, stats=self.stats, announce=self.announce, max_depth=None)
        self.seen = adder.known_ids
        self.told: list[tuple[bool, set[str]]] = []
        self.announced: set[str] = set()
        self.is_killed = False  #: before anything is announced
        session = SimpleNamespace(
            ledger=ledger, leases=self.held, stats=self.stats, instruments=None
        )
        self._committer = Committer(
            session,
            coordinator=self,
            adder=adder,
            state=KeptState(Spider(), ledger),
            bodies=bodies,
            end=lambda *_: None,
        )

    async def announce(self, tasks: Iterable[Task]) -> None:
        if self.is_killed:
            raise KilledError
        told = list(tasks)
        self.ledger.entries.append(("announce", len(told)))
        self.announced.update(task.url for task in told)

    def note_written(self, *, has_more: bool, retry_hosts: Iterable[str]) -> None:
        self.told.append((has_more, set(retry_hosts)))

    async def leases(self, number: int) -> list[Lease]:
        await self.ledger.tasks.add(make_tasks(number))
        leases = await claimed(self.ledger)
        self.held.add(leases)
        self.ledger.entries.clear()
        return leases

    async def run(self) -> None:
        await self._committer.run(self.done, lambda: True)

    async def write(self, *done: Done) -> None:
        """Write all outcomes, as one group if they fit."""
        for each in done:
            self.done.put_nowait(each)
        running = asyncio.create_task(self.run())
        await self.done.join()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.fixture
async def writing(tmp_path: Path) -> AsyncIterator[Writing]:
    ledger = await Journal.open(tmp_path / "ledger.db", "books", clock=FakeClock())
    yield Writing(ledger)
    await ledger.close()


def done(writing: Writing, lease: Lease, *links: Task, items: Sequence[Any] = ()) -> Done:
    settlement = success(writing.ledger, lease, *items)
    return Done(settlements=(settlement,), produced=Produced(tasks=[*links]))


async def test_what_has_gathered_is_written_in_one_group(writing: Writing):
    leases = await writing.leases(50)

    await writing.write(*(done(writing, lease, items=[{"n": 1}]) for lease in leases))

    assert writing.ledger.entries == [("commit", 50)]
    assert len(writing.held) == 0
    assert (writing.stats.pages, writing.stats.items) == (50, 50)
    assert writing.stats.outcomes == {Event.FINISH: 50}


async def test_links_are_added_first_and_each_once(writing: Writing):
    one, other = await writing.leases(2)
    links = [make_task(f"http://a.example/{n}") for n in range(3)]

    await writing.write(done(writing, one, *links), done(writing, other, *links[1:]))

    assert writing.ledger.entries == [("add", 3), ("announce", 3), ("commit", 2)]
    assert writing.stats.links_added == 3
    assert all(link.id in writing.seen for link in links)


async def test_links_that_lie_too_deep_are_written_once(writing: Writing):
    """Most pages of a site link to the same ones, some of them from nearer pages."""
    deep = make_task("http://a.example/deep", due=None)
    near = make_task("http://a.example/near", due=None)
    writing.seen.add([near.id])

    for lease in await writing.leases(2):
        produced = Produced(too_deep=[deep, near])
        await writing.write(Done(settlements=(success(writing.ledger, lease),), produced=produced))

    assert writing.ledger.entries == [("add", 1), ("commit", 1), ("commit", 1)]


async def test_of_links_that_were_not_announced_the_page_is_not_committed(writing: Writing):
    (lease,) = await writing.leases(1)
    link = make_task("http://a.example/1")
    writing.is_killed = True
    writing.done.put_nowait(done(writing, lease, link, items=[{"n": 1}]))

    with pytest.RaisesGroup(KilledError):
        await writing.run()

    assert writing.ledger.entries == [("add", 1)]
    assert (await writing.ledger.queries.counts()).by_status == {
        Status.PROCESSING: 1,
        Status.TODO: 1,
    }
    assert lease.task.id in writing.held
    assert link.id not in writing.seen

    heir = Writing(writing.ledger)
    await heir.write(done(heir, lease, link, items=[{"n": 1}]))

    assert heir.announced == {link.url}
    assert (await writing.ledger.queries.counts())[Status.FINISHED] == 1


async def test_a_result_that_comes_too_late_is_dropped_and_counted(writing: Writing):
    late, kept = await writing.leases(2)
    await writing.ledger.outcomes.release([late])

    await writing.write(
        done(writing, late, items=[{"n": 1}]), done(writing, kept, items=[{"n": 2}])
    )

    assert (writing.stats.leases_lost, writing.stats.pages, writing.stats.items) == (1, 1, 1)
    assert [row.item async for row in writing.ledger.queries.items()] == [{"n": 2}]
    assert len(writing.held) == 0


async def test_a_lease_that_the_commit_has_just_ended_is_not_lost(writing: Writing):
    """It is renewed while the answer to the commit is on its way."""
    (lease,) = await writing.leases(1)
    writing.ledger.go.clear()
    all_written = asyncio.create_task(writing.write(done(writing, lease)))
    await writing.ledger.writing.wait()

    lost = await writing.held.renew(writing.ledger, lease=LEASE)
    writing.ledger.go.set()
    await all_written

    assert lost == set()
    assert (writing.stats.leases_lost, writing.stats.pages) == (0, 1)


async def test_pages_that_cannot_be_kept_are_given_back_while_others_are_under_way(
    writing: Writing,
):
    async def sync() -> None:
        raise FetchError(Reason.FILES_UNWRITABLE, "the disk is full")

    full = Writing(writing.ledger, bodies=SimpleNamespace(sync=sync))
    (lease,) = await full.leases(1)
    page = Succeeded(stored=StoredPage(file="a.warc.gz", offset=0, length=1))

    await full.write(Done(settlements=(settled(full.ledger, lease, page),)))

    assert full.ledger.entries == []
    assert full.held.orphans == [lease]


async def test_what_the_store_cannot_hold_fails_alone(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("crawlcw.ledger.sql.rows._LARGEST_VALUE", 10_000)
    huge, small = await writing.leases(2)
    long_link = make_task("http://a.example/long", context={"x": "x" * 20_000})
    link = make_task("http://a.example/link")

    await writing.write(
        done(writing, huge, long_link, items=[{"x": "x" * 20_000}]), done(writing, small, link)
    )

    record = await writing.ledger.tasks.get(huge.task.id)
    assert record is not None
    assert (record.task.status, record.task.reason) == (Status.IGNORED, Reason.STORE_REJECTED)
    assert writing.stats.pages == 1
    assert writing.stats.failures == {"store-rejected": 1}
    assert writing.stats.given_up == 1
    assert writing.stats.links_dropped == {"store-rejected": 1}
    assert long_link.id not in writing.seen
    assert link.id in writing.seen
    warned = [each.url for each in caplog.records if each.event == "store_rejected"]
    assert warned == [long_link.url, huge.task.url]


def dropped(*links: str) -> DroppedLinks:
    found = DroppedLinks()
    for link in links:
        found.note("refused-scope", link)
    return found
