"""Read-only commands on a use case: their output, and its name, which no spider can take."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger_opening import open_tracked
from crawlcw.model.task import Payload, Task, key_id
from crawlcw.model.transitions import Failed, Progress
from tests.cli.test_cli import crawlcw, folder  # noqa: F401  # a fixture
from tests.support.commands import invoke
from tests.support.ledgers import claimed, settled


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A ledger with a use case named like a spider in ./spiders; one task failed."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = await open_tracked(url, "pages")
    now = datetime.now(UTC)
    await ledger.tasks.add(
        [
            Task(
                id=key_id(key),
                url=key,
                host="Pay now",
                callback="Pay now",
                carried=Payload(),
                due=now,
                update_time=now,
                create_time=now,
            )
            for key in ("one", "two")
        ]
    )
    (lease,) = await claimed(ledger, worker="@ann", limit=1)
    failed = Failed(
        reason=Reason.TASK_ERROR, last=True, progress=Progress(worker="@ann", started_at=now)
    )
    await ledger.outcomes.commit([settled(ledger, lease, failed)])
    await ledger.close()
    return url


def test_a_use_case_is_looked_at_as_one(url: str):
    stats = invoke("stats", "pages", "--ledger", url, "--json")
    stages = invoke("hosts", "pages", "--ledger", url)
    doctor = invoke("doctor", "pages", "--ledger", url)
    retried = invoke("retry-failed", "pages", "--ledger", url, "--host", "Pay now")

    numbers = json.loads(stats.stdout)
    assert numbers["use_case"] == "pages"
    assert "spider" not in numbers
    assert numbers["reasons"] == {"task-error": 1}
    assert [line.split()[:3] for line in stages.stdout.splitlines()] == [
        ["stage", "todo", "processing"],
        ["Pay", "now", "1"],
    ]
    assert doctor.stdout.splitlines()[0] == "pages: checked 2 tasks, 0 workers at work"
    assert doctor.stdout.splitlines()[-1] == "clean: no violation"
    assert retried.stdout == "1 task will be tried again\n"


def test_a_spider_does_not_run_under_the_name_of_a_use_case(url: str):
    run = crawlcw("run", "pages", "--ledger", url)

    assert run.returncode == 78
    assert "holds a use case named pages, not a spider: give the spider another name" in run.stderr
    assert len(run.stderr.splitlines()) == 1
