"""`crawlcw add` and `crawlcw work`: accepted arguments, and the errors for others."""

import asyncio
import json
import re
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM

import pytest

from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status
from crawlcw.tracking import SyncTracker
from tests.support.commands import invoke
from tests.support.crawl_process import wait_until
from tests.support.ledgers import make_task
from tests.support.work_process import Working, crawlcw, tasks_of

USE_CASE = """\
from crawlcw.tracking import UseCase

orders = UseCase("orders", max_retry=1)

@orders.stage
async def charge(execution):
    if "broken" in execution.data:
        raise ValueError(execution.data["broken"])
    return execution.data
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def run(*arguments: object, given: str = "") -> tuple[int, str, str]:
    """Run a command; return its exit code, its output, and its errors."""
    # A worker loads user code, so it needs a process of its own.
    run_command = crawlcw if arguments[0] == "work" else invoke
    ended = run_command(*map(str, arguments), given=given)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def use_case(tmp_path: Path) -> Path:
    path = tmp_path / "orders.py"
    path.write_text(USE_CASE)
    return path


def test_tasks_are_added_in_every_format_while_a_worker_runs(
    ledger_url: str, use_case: Path, tmp_path: Path, processes: ExitStack
):
    rows = tmp_path / "orders.csv"
    rows.write_text('sku,amount,priority\n"a,1",3,7\nb,4,\n')
    objects = tmp_path / "orders.jsonl"
    objects.write_text('{"key": "c", "amount": 3}\n\n"d"\n{"key": "e", "data": {"x": [1]}}\n')
    worker = processes.enter_context(Working(use_case, ledger_url, log=tmp_path / "log"))
    wanted = 0

    def taken() -> bool:
        with SyncTracker.open(ledger_url, "orders") as tracker:
            return tracker.counts()[Status.FINISHED] == wanted

    for count, *what in (
        (2, rows, "--key", "sku"),
        (3, objects),
        (2, "-", "--priority", 5),
    ):
        code, said, _ = run("add", "orders", *what, "--ledger", ledger_url, given=" f \n\ng\n")
        assert (code, said) == (0, f"{count} added, 0 known already\n")
        wanted += count
        wait_until(taken)
    again = run("add", "orders", "-", "--ledger", ledger_url, given="f\nh\n")
    wanted += 1
    wait_until(taken)
    worker.send(SIGTERM)

    assert worker.end()[0] == 0, worker.log
    assert again[:2] == (0, "1 added, 1 known already\n")
    tasks = tasks_of(ledger_url, "orders")
    assert {key: (task.data, task.priority) for key, task in tasks.items()} == {
        "a,1": ({"amount": "3"}, 7),
        "b": ({"amount": "4"}, 0),
        "c": ({"amount": 3}, 0),
        "d": ({}, 0),
        "e": ({"x": [1]}, 0),
        "f": ({}, 5),
        "g": ({}, 5),
        "h": ({}, 0),
    }
    assert tasks["c"].results == {"charge": {"amount": 3}}


@pytest.mark.thorough
@pytest.mark.representative("fields")
@pytest.mark.parametrize(
    ("style", "given", "complaint"),
    [
        ("jsonl", '{"key": "a"}\n{"key": \n', r"line 2 is not JSON: .+"),
        ("jsonl", '"a"\n\n[1]\n', r"line 3 is neither a text nor an object with the text 'key'.+"),
        (
            "jsonl",
            '"a"\n{"key": "b", "priority": "x"}\n',
            r"line 2: the priority 'x' is .+",
        ),
        ("jsonl", '"a"\n{"key": "b", "data": 1}\n', r"line 2: `data` is not an object"),
        (
            "jsonl",
            '"a"\n{"key": "b", "data": {}, "c": 1}\n',
            r"line 2 has `data` and .+",
        ),
        ("csv", "key,n\na,1\nb\n", r"line 3 has not as many fields as the first line"),
        ("lines", f"a\n{'b' * 1025}\n", r"line 2: a key must have 1 to 1024 bytes, .+"),
        ("jsonl", '"a"\n""\n', r"line 2: a key must have 1 to 1024 bytes, .+"),
        (
            "jsonl",
            '"a"\n{"key": "b", "priority": 2000}\n',
            r"line 2: a priority must be .+, not 2000",
        ),
        (
            "jsonl",
            '"a"\n{"key": "b", "stage": "no name"}\n',
            r"line 2: 'no name' is not a valid stage name.+",
        ),
    ],
)
def test_wrong_input_is_told_with_its_line_and_what_came_before_is_added(
    url: str, style: str, given: str, complaint: str
):
    code, said, complained = run(
        "add", "orders", "-", "--format", style, "--ledger", url, given=given
    )

    assert (code, said) == (2, "")
    assert re.fullmatch(rf"crawlcw: {complaint}\n", complained), complained
    assert list(tasks_of(url, "orders")) == ["a"]


def test_columns_without_a_key_and_text_that_is_no_utf_8_are_told(url: str, tmp_path: Path):
    (tmp_path / "no.txt").write_bytes(b"a\n\xff\n")
    add = ("add", "orders", "--ledger", url)

    assert run(*add, "-", "--format", "csv", given="sku,n\na,1\n") == (
        2,
        "",
        "crawlcw: the first line has no column 'key' (it has: sku, n): --key names another one\n",
    )
    code, _, complained = run(*add, tmp_path / "no.txt")
    assert (code, complained) == (2, "crawlcw: line 2 is not UTF-8: invalid start byte\n")
    assert list(tasks_of(url, "orders")) == ["a"]


@pytest.mark.thorough
@pytest.mark.representative("refunds")
@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("missing.py", "there is no file missing.py"),
        ("{}:refunds", ".*orders.py has no use case 'refunds'; its use cases: orders"),
        ("json:loads", "json has no use case 'loads'; it has none"),
        ("nowhere.at.all:orders", "there is no module 'nowhere' to import"),
        ("orders", "'orders' names no use case: give a file .*, or package.module:object"),
    ],
)
def test_work_says_what_there_is_instead(url: str, use_case: Path, what: str, complaint: str):
    code, said, complained = run("work", what.format(use_case), "--ledger", url)

    assert (code, said) == (2, "")
    assert re.fullmatch(rf"crawlcw: {complaint}\n", complained), complained


def test_of_several_use_cases_one_is_to_be_named(url: str, use_case: Path):
    use_case.write_text(USE_CASE + 'refunds = UseCase("refunds")\nhandlerless = refunds\n')

    code, _, complained = run("work", use_case, "--ledger", url)
    assert code == 2
    assert "has several use cases (orders, refunds" in complained
    code, _, complained = run("work", f"{use_case}:refunds", "--ledger", url)
    assert code == 2
    assert "the use case refunds has no handler: declare one" in complained


def test_a_use_case_cannot_have_the_name_of_a_spider(ledger_url: str, use_case: Path):
    async def crawl() -> None:
        ledger = await open_ledger(ledger_url, "orders")
        await ledger.tasks.add([make_task()])
        await ledger.close()

    asyncio.run(crawl())
    to_it = ("--ledger", ledger_url)

    code, said, complained = run("work", use_case, "--drain", *to_it)
    assert (code, said) == (78, "")
    assert re.fullmatch("crawlcw: .* spider.*: give the .*\n", complained), complained
    for command in (("policy", "orders"), ("policy", "orders", "max_retry=2")):
        code, said, complained = run(*command, *to_it)
        assert (code, said) == (2, "")
        assert complained.startswith("crawlcw: orders is a spider, not a use case: its settings")
    # A spider accepts pages, not keys.
    code, said, complained = run("add", "orders", "-", *to_it, given="a\n")
    assert (code, said) == (2, "0 added, 0 known already, 1 refused\n")
    assert "refused-scheme: 1, such as a" in complained


def test_what_failed_is_counted_and_tried_again(url: str, use_case: Path):
    to_it = ("--ledger", url)
    given = '"well"\n{"key": "ill", "broken": "no \\u001b[31mway"}\n'
    run("add", "orders", "-", "--format", "jsonl", *to_it, given=given)
    code, said, log = run("work", use_case, "--drain", *to_it)

    assert code == 0
    assert said == (
        "drained: 1 done, 1 failed attempts, 0 released here; "
        "orders has 0 todo, 0 failed, 0 processing, 1 finished, 1 ignored\n"
    )
    assert "\x1b" not in log
    stats = json.loads(run("stats", "orders", "--json", *to_it)[1])
    assert stats["reasons"] == {"task-error": 1}
    assert run("retry-failed", "orders", *to_it)[1].startswith("1 task will be tried again")
    stats = json.loads(run("stats", "orders", "--json", *to_it)[1])
    assert (stats["counts"]["todo"], stats["reasons"]) == (1, {})
