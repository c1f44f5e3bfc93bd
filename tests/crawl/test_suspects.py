"""Suspects in child processes: the verdict, and that those which wait keep nothing from others.

Real children are in `tests/blame`; here a child is this process.
"""

from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.crawl import Crawl
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.runner import InProcess, Runner
from crawlcw.crawl.suspects import ChildDiedError, NoChildError, Suspects
from crawlcw.crawl.url_lists import WriteLinks
from crawlcw.downloader.credentials import Credentials
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import Failed
from crawlcw.testing import ReplayDownloader
from tests.support.ledgers import LEASE, START, make_task

SUSPECTS = [f"http://a.example/suspect/{n}" for n in range(6)]
OTHERS = [f"http://a.example/other/{n}" for n in range(20)]
DEATH = ChildDiedError("signal 9, Killed")


class Pages(Spider):
    name = "pages"
    start_urls = [*SUSPECTS, *OTHERS]

    def parse(self, response):
        yield {"url": response.url}


@dataclass(kw_only=True)
class FakeChild:
    """A child that waits to be let go, and then dies or lives."""

    children: "FakeChildren"

    def downloader(self, credentials: Credentials) -> Downloader:
        return self.children.web

    def runner(
        self,
        *,
        scope: Scope,
        seen: Container[bytes],
        now: Callable[[], datetime],
        write: WriteLinks,
    ) -> Runner:
        watch = Watchdog(
            Stats(), limit=timedelta(0), renew_every=LEASE, upkeep=self.children.upkeep
        )
        parsing = Parsing(Settings())
        inside = InProcess(
            spider=Pages(),
            scope=scope,
            seen=seen,
            now=now,
            watch=watch,
            parsing=parsing,
            write=write,
        )
        return FakeRunner(children=self.children, inside=inside)


@dataclass(kw_only=True)
class FakeRunner:
    children: "FakeChildren"
    inside: Runner

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        self.children.tried.append(task.url)
        await self.children.go.wait()
        if task.url in self.children.poison:
            raise DEATH
        return await self.inside.run(callback, *arguments, task=task)


class NoUpkeep:
    async def renew(self) -> None: ...
    async def close(self) -> None: ...


class FakeChildren:
    """Two children, none of which dies but of what is poison."""

    def __init__(self, *, poison: tuple[str, ...] = (), startable: bool = True) -> None:
        self.web = ReplayDownloader(dict.fromkeys([*SUSPECTS, *OTHERS], "<p>"))
        self.go = anyio.Event()
        self.poison = poison
        self.upkeep = NoUpkeep()
        self.tried: list[str] = []
        self.usable = True
        self._startable = startable
        self.in_use = 0

    @property
    def free(self) -> bool:
        return self.in_use < 2

    @asynccontextmanager
    async def one(self) -> AsyncIterator[FakeChild]:
        if not self._startable:
            self.usable = False
            raise NoChildError("no room")
        self.in_use += 1
        try:
            yield FakeChild(children=self)
        finally:
            self.in_use -= 1


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    tasks = [make_task(url, due=ledger.now(), update_time=ledger.now()) for url in SUSPECTS]
    # A worker that is gone held them.
    await ledger.tasks.add(tasks)
    page = await ledger.tasks.page(limit=100)
    claimed = await ledger.leases.claim(page, worker="dead", lease=timedelta(0), max_lost=None)
    assert len(claimed.leases) == len(SUSPECTS)
    yield ledger
    await ledger.close()


def crawl(ledger: SqliteLedger, children: FakeChildren) -> Crawl:
    settings = Settings(concurrency=4, per_host_concurrency=0, obey_robots=False)
    return assemble(Pages(), ledger, children.web, settings, children=children)


async def statuses(ledger: SqliteLedger, urls: list[str]) -> list[Status]:
    return [
        record.task.status
        for url in urls
        if (record := await ledger.tasks.get(make_task(url).id)) is not None
    ]


async def test_suspects_that_wait_for_a_child_keep_no_fetcher_from_other_pages(
    ledger: SqliteLedger,
):
    children = FakeChildren()

    async with anyio.create_task_group() as group:
        running = crawl(ledger, children)
        group.start_soon(running.run)
        with anyio.fail_after(20):
            # Two of four fetchers are with the children.
            while set(await statuses(ledger, OTHERS)) != {Status.FINISHED}:
                await anyio.sleep(0.01)
            assert len(children.tried) == 2
            children.go.set()
    assert set(await statuses(ledger, [*SUSPECTS, *OTHERS])) == {Status.FINISHED}
    assert sorted(children.tried) == sorted(SUSPECTS), "each once, and no other page"


async def test_a_suspect_of_which_two_children_die_is_convicted_and_no_other(
    ledger: SqliteLedger,
):
    children = FakeChildren(poison=(SUSPECTS[2],))
    children.go.set()

    with anyio.fail_after(20):
        report = await crawl(ledger, children).run()

    record = await ledger.tasks.get(make_task(SUSPECTS[2]).id)
    assert record is not None
    assert (record.task.status, record.task.reason) == (Status.IGNORED, Reason.CRASHED_WORKER)
    assert (record.task.lost, record.task.begun) == (0, 0)
    assert "2 processes died" in record.errors[0].message
    assert "signal 9, Killed" in record.errors[0].message
    others = [url for url in [*SUSPECTS, *OTHERS] if url != SUSPECTS[2]]
    assert set(await statuses(ledger, others)) == {Status.FINISHED}
    assert children.tried.count(SUSPECTS[2]) == 2
    assert report.failures == {"crashed-worker": 1}


async def test_where_no_child_can_be_started_suspects_run_alone_in_this_process(
    ledger: SqliteLedger,
):
    children = FakeChildren(startable=False)

    with anyio.fail_after(20):
        await crawl(ledger, children).run()

    assert children.tried == []
    assert set(await statuses(ledger, [*SUSPECTS, *OTHERS])) == {Status.FINISHED}


# --- the verdict


def lease_of(url: str = "http://a.example/", *, fence: int = 2) -> Lease:
    task = make_task(url, status=Status.PROCESSING, fence=fence - 1)
    return Lease(task=task, token=f"w:{fence}", fence=fence, expires=START + LEASE)


def test_two_deaths_in_a_row_under_one_lease_convict():
    suspects = Suspects(FakeChildren(), HeldLeases(), max_lost=5)
    lease = lease_of()

    assert suspects.died(lease, DEATH) is None
    verdict = suspects.died(lease, DEATH)

    assert verdict is not None
    assert (verdict.reason, verdict.last) == (Reason.CRASHED_WORKER, True)
    assert suspects.died(lease, DEATH) is None, "it begins anew"


def test_a_life_in_between_and_another_lease_make_a_death_forgotten():
    suspects = Suspects(FakeChildren(), HeldLeases(), max_lost=5)
    lease = lease_of()

    assert suspects.died(lease, DEATH) is None
    suspects.lived(lease)
    assert suspects.died(lease, DEATH) is None
    assert suspects.died(lease_of(fence=3), DEATH) is None
    assert suspects.died(lease_of("http://a.example/2"), DEATH) is None


def test_with_children_nothing_is_given_up_at_a_claim():
    children = FakeChildren()
    suspects = Suspects(children, HeldLeases(), max_lost=5)

    assert suspects.max_lost is None
    children.usable = False
    assert suspects.max_lost == 5
    assert Suspects(None, HeldLeases(), max_lost=4).max_lost == 4


def test_what_no_child_works_on_is_given_up_by_the_limit_of_lost_workers():
    suspects = Suspects(FakeChildren(), HeldLeases(), max_lost=5)
    lease = lease_of()
    lost = replace(lease.task, lost=4, fence=7, begun=7)

    verdict = suspects.lost_too_often(replace(lease, task=lost))

    assert verdict is not None
    assert (verdict.reason, verdict.last) == (Reason.CRASHED_WORKER, True)
    assert "5 workers" in verdict.message
    innocent = replace(lost, begun=6)
    assert suspects.lost_too_often(replace(lease, task=innocent)) is None


def test_only_what_a_crashed_worker_held_is_for_a_child():
    children = FakeChildren()
    suspects = Suspects(children, HeldLeases(), max_lost=5)
    lease = lease_of()

    assert suspects.children_for(lease) is children
    fresh = replace(lease, task=replace(lease.task, status=Status.TODO))
    assert suspects.children_for(fresh) is None


def test_a_suspect_waits_until_a_child_is_free_and_no_longer_than_its_lease():
    children = FakeChildren()
    held = HeldLeases()
    suspects = Suspects(children, held, max_lost=5)
    kept, lost = lease_of(), lease_of("http://a.example/2")
    held.add([kept, lost])

    children.in_use = 2
    suspects.wait(kept)
    suspects.wait(lost)
    held.lose([lost.task.id])
    waits = suspects.waits(kept), suspects.take_waiting()
    children.in_use = 1

    assert waits == (True, [])
    assert suspects.take_waiting() == [kept]
    assert not suspects.waits(kept)
