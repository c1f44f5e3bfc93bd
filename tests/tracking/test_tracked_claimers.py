"""Sixteen claimers in three processes: their tasks are disjoint, and together they are all."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from crawlcw.model.task import Status
from crawlcw.tracking import Tracker
from tests.support.docs import REPOSITORY

pytestmark = pytest.mark.thorough

CLAIMERS = (6, 5, 5)
PROCESS = "tests.support.claiming_process"


async def test_sixteen_claimers_in_three_processes_never_share_a_task_and_leave_none(
    ledger_url: str, processes: ExitStack
):
    tasks = 20_000 if ledger_url.startswith("mongodb") else 5_000
    keys = [f"task-{n}" for n in range(tasks)]
    async with Tracker.open(ledger_url, "numbers", lease="10m") as tracker:
        await tracker.add_many(keys)
        claiming = [
            processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", PROCESS, ledger_url, "numbers", str(n)],
                    cwd=REPOSITORY,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for n in CLAIMERS
        ]
        assert [each.stdout.readline() for each in claiming] == ["ready\n"] * len(CLAIMERS)
        for each in claiming:
            each.stdin.write("go\n")
            each.stdin.flush()
        shares = [json.loads(each.stdout.readline()) for each in claiming]
        counts = await tracker.counts()
        for each in claiming:
            each.kill()  # a soft stop, which releases all tasks, takes longer

    claims = [(key, fence) for share in shares for key, fence in share]
    assert sorted(key for key, _ in claims) == sorted(keys)
    assert {fence for _, fence in claims} == {1}
    assert all(shares)
    assert counts.by_status == {Status.PROCESSING: tasks}
