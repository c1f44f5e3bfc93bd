"""S0: coordinators hand out tasks, workers do them, and any process may die."""

import asyncio
import time
from contextlib import ExitStack

import pytest

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble
from crawlcw.crawl.fetcher import Fetcher
from crawlcw.errors import TaskLockedError
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Status
from crawlcw.testing import ReplayDownloader
from crawlcw.tracking import Tracker
from tests.capabilities.use_cases import UseCases, due_keys, finish, task_of, that_may_be_cut_off
from tests.capabilities.worker_process import cue, line, process

PROCESSES = 4
TASKS = 60


class Pages(Spider):
    name = "pages"
    start_urls = [f"http://a.example/{n}" for n in range(20)]


@pytest.mark.seed("0.2")
async def test_a_crawl_without_fetchers_claims_and_asks_no_server(tmp_path, monkeypatch):
    asked = []

    class Web(ReplayDownloader):
        async def fetch(self, request):
            asked.append(request)

    async def rest(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Fetcher, "run", rest)
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "pages")
    settings = Settings(obey_robots=False)
    crawl = assemble(Pages(), ledger, Web({}), settings)
    running = asyncio.create_task(crawl.run())
    while not (await ledger.queries.counts())[Status.PROCESSING]:
        assert not running.done()
    counts = await ledger.queries.counts()
    crawl.stop_now()
    await asyncio.wait_for(running, 20)
    await ledger.close()

    assert counts[Status.TODO] + counts[Status.PROCESSING] == counts.total == 20
    assert asked == []


@pytest.mark.seed("0.3")
async def test_four_processes_share_the_work_and_do_each_task_once(use_cases: UseCases):
    tracker = await use_cases.open(lease=60)
    await tracker.add_many([f"order-{n}" for n in range(TASKS)])
    with ExitStack() as ended:
        workers = [
            ended.enter_context(process("work", use_cases.url, tracker.name))
            for _ in range(PROCESSES)
        ]
        assert [line(worker) for worker in workers] == ["ready"] * PROCESSES
        for worker in workers:
            cue(worker)
        shares = [int(await asyncio.to_thread(line, worker)) for worker in workers]

    tasks = [task async for task in tracker.walk()]
    assert sum(shares) == len(tasks) == TASKS
    assert min(shares) > 0
    assert {(task.status, task.data["times"]) for task in tasks} == {(Status.FINISHED, 1)}


@pytest.mark.seed("0.9")
async def test_the_task_of_a_process_that_was_killed_runs_again(use_cases: UseCases):
    async with Tracker.open(use_cases.url, use_cases.named("orders"), lease=2) as tracker:
        await tracker.add("order-1")
        with process("hold", use_cases.url, tracker.name, "order-1") as holder:
            assert line(holder) == "held"
            with pytest.raises(TaskLockedError):
                await finish(tracker, "order-1")
            holder.kill()
            holder.wait()
            killed = time.monotonic()
            while True:
                try:
                    await finish(tracker, "order-1")
                    break
                except TaskLockedError:
                    await asyncio.sleep(0.01)
            waited = time.monotonic() - killed
        task = await tracker.get("order-1")

    assert waited < 1.5 * 2 + 2  # 2 s for a busy machine
    assert (task.status, task.trace[-1].fence, task.lost) == (Status.FINISHED, 2, 0)
    assert task.retry == 0


@pytest.mark.seed("0.18")
async def test_a_lock_that_could_not_be_released_lapses(on_mongodb: UseCases):
    other = await on_mongodb.open()
    await other.add("order-1")
    async with that_may_be_cut_off(on_mongodb) as (network, tracker):
        with pytest.raises(KeyboardInterrupt):
            async with tracker.start("order-1"):
                network.cut()
                raise KeyboardInterrupt
        locked = await task_of(other, "order-1")
        on_mongodb.clock.advance(seconds=60)
        await finish(other, "order-1")

    assert locked.status is Status.PROCESSING
    assert (await other.get("order-1")).status is Status.FINISHED


@pytest.mark.seed("0.29")
async def test_a_thousand_locked_tasks_do_not_stand_in_the_way_of_ten(
    tracker: Tracker, other: Tracker
):
    await tracker.add_many([f"locked-{n}" for n in range(1000)])
    await other.session.claim(await other.ledger.tasks.page(limit=1000))
    ready = [f"ready-{n}" for n in range(10)]
    await tracker.add_many(ready)

    assert sorted(await due_keys(tracker, limit=10)) == ready
    await finish(tracker, *ready)
