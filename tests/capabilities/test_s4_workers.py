"""S4: producers add tasks; workers claim, run and record them, and end when none is left."""

import json

import pytest

from crawlcw.model.task import Status
from crawlcw.tracking import Execution, Tracker, Worker
from tests.capabilities.commands import Commands
from tests.capabilities.use_cases import UseCases, fail, finish
from tests.support.crawl_process import wait_until


@pytest.mark.seed("4.1")
async def test_a_worker_takes_runs_and_records(tracker: Tracker):
    async def todo(execution: Execution) -> str:
        if execution.key == "bad":
            raise ValueError("no such order")
        execution.data["receipt"] = 7
        return "paid"

    await tracker.add_many(["good", "bad"])
    report = await Worker(tracker, {"todo": todo}, concurrency=2, drain=True).run()
    good, bad = [await tracker.get(key) for key in ("good", "bad")]

    assert (report.finish_reason, report.succeeded, report.failed) == ("drained", 1, 3)
    assert (good.status, good.data, good.results) == (
        Status.FINISHED,
        {"receipt": 7},
        {"todo": "paid"},
    )
    assert (bad.status, bad.retry) == (Status.IGNORED, 3)
    assert [error.message for error in bad.errors] == ["ValueError: no such order"] * 3


@pytest.mark.seed("4.2")
def test_any_script_adds_while_workers_run(commands: Commands, use_cases: UseCases):
    with commands.work("--concurrency", "2", "--quiet"):
        commands.add(json.dumps({"key": "order-1"}))
        wait_until(lambda: commands.worked() == ["order-1 1"])
        said = commands.add('"order-1"', '"order-2"', '{"key": "order-3", "data": {"n": 1}}')
        wait_until(lambda: len(commands.worked()) == 3)

    assert said == "2 added, 1 known already\n"
    assert {line.split()[0] for line in commands.worked()} == {"order-1", "order-2", "order-3"}


@pytest.mark.seed("4.9")
async def test_drained_means_that_everything_is_finished_or_ignored(tracker: Tracker):
    async def drained() -> bool:
        return await tracker.ledger.queries.next_due() is None

    assert await drained()
    await tracker.add("order-1")
    assert not await drained()
    await fail(tracker, "order-1")
    assert not await drained()
    async with tracker.start("order-1"):
        assert not await drained()
    assert await drained()
    await tracker.add("order-2")
    await fail(tracker, "order-2", times=3)
    assert await drained()
    await tracker.reset("order-2")
    assert not await drained()
    await finish(tracker, "order-2")
    assert await drained()
