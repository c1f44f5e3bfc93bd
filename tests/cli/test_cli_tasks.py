"""The commands that list tasks and change them: tasks, ignore, reset, policy."""

import asyncio
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from crawlcw.api.request import Request
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status
from crawlcw.tracking import NewTask, Tracker
from tests.support.commands import invoke
from tests.support.ledgers import claimed, failure, success

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the test's ledger; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)

    def run(*arguments: str) -> tuple[int, str, str]:
        done = invoke(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def orders(ledger_url: str) -> None:
    """Three orders: one finished, one given up, one waiting."""

    async def fill() -> None:
        async with Tracker.open(ledger_url, "orders", max_retry=1) as tracker:
            await tracker.add_many(NewTask(f"o{n}", {"n": n}, stage="charge") for n in range(3))
            async with tracker.start("o0") as execution:
                execution.result = {"paid": True}
            with pytest.raises(ValueError, match="card"):
                async with tracker.start("o1"):
                    raise ValueError("card \x1b[31m refused")

    asyncio.run(fill())


async def _statuses(ledger_url: str) -> dict[str, Status]:
    async with Tracker.open(ledger_url, "orders") as tracker:
        return {task.key: task.status async for task in tracker.walk()}


@pytest.mark.usefixtures("orders")
def test_tasks_are_listed_the_last_changed_first(run: Run):
    code, out, _ = run("tasks", "orders")

    assert code == 0
    lines = out.splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["ignored", "o1", "charge"],
        ["finished", "o0", "charge"],
        ["todo", "o2", "charge"],
    ]
    assert "task-error: ValueError: card" in lines[0]
    assert "\x1b" not in out


@pytest.mark.usefixtures("orders")
def test_tasks_are_chosen_by_status_reason_stage_and_time(run: Run):
    def keys(*options: str) -> list[str]:
        code, out, _ = run("tasks", "orders", "--json", *options)
        assert code == 0
        return [json.loads(line)["key"] for line in out.splitlines()]

    assert keys("--status", "todo", "--status", "finished") == ["o0", "o2"]
    assert keys("--reason", "task-error") == ["o1"]
    assert keys("--stage", "charge", "--limit", "1") == ["o1"]
    assert keys("--stage", "ship") == []
    assert run("tasks", "orders", "--status", "failed") == (
        0,
        "",
        "no task of orders matches these options\n",
    )
    assert keys("--given-up") == ["o1"]
    assert len(keys("--since", "1h")) == 3
    assert keys("--since", "0s") == []
    assert len(keys("--limit", "0")) == 3


@pytest.mark.usefixtures("orders")
def test_one_task_is_shown_with_all_about_it(run: Run):
    code, out, _ = run("tasks", "orders", "--key", "o1", "--json")

    assert code == 0
    found = json.loads(out)
    assert (found["status"], found["reason"], found["data"]) == ("ignored", "task-error", {"n": 1})
    assert "card" in found["errors"][0]["message"]
    assert [each["event"] for each in found["trace"]] == ["give up"]


@pytest.mark.thorough
@pytest.mark.representative("sqlite", "max_retry")
@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tasks", "orders", "--key", "o9"], "no task 'o9'"),
        (["tasks", "orders", "--reason", "task-eror"], "did you mean task-error?"),
        (["tasks", "orders", "--since", "soon"], "not a duration"),
        (["tasks", "refunds"], "nothing is recorded"),
        (["ignore", "orders", ""], "a key must have 1 to 1024 bytes"),
        (["reset", "orders", "o0", "--stage", "a b"], "is not a valid stage name"),
        (["reset", "orders"], "choose the tasks: either KEYs, or --host"),
        (["reset", "orders", "o0", "--all"], "choose the tasks"),
        (["reset", "orders", "--all"], "No terminal to confirm on: add --yes"),
        (
            ["drop", "orders"],
            "Drop 3 tasks and 0 items of orders, for good? No terminal to confirm on",
        ),
        (["drop", "refunds"], "nothing is recorded"),
        (["policy", "orders", "max_retry"], "write NAME=VALUE"),
        (["policy", "orders", "max_rety=2"], "did you mean max_retry?"),
        (["policy", "orders", "lease=soon"], "not a duration"),
        (["policy", "a b"], "is not a valid use case name"),
        (["export", "orders", "-o", "-"], "`crawlcw tasks orders --json --limit 0` prints them"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, arguments: list[str], said: str):
    code, out, err = run(*arguments)

    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("orders")
def test_what_waits_is_withdrawn_and_anything_is_reset(run: Run, ledger_url: str):
    assert run("ignore", "orders", "o0", "o2")[:2] == (0, "1 of 2 withdrawn\n")
    assert asyncio.run(_statuses(ledger_url))["o2"] is Status.IGNORED
    # The task is unwanted, which is no failure.
    assert run("retry-failed", "orders", "--dry-run")[1] == "1 task would be tried again\n"

    assert run("reset", "orders", "o0", "o1", "o2")[:2] == (0, "3 of 3 todo again\n")

    assert set(asyncio.run(_statuses(ledger_url)).values()) == {Status.TODO}


@pytest.mark.usefixtures("orders")
def test_many_are_reset_by_status_and_stage(run: Run, ledger_url: str):
    assert run("reset", "orders", "--status", "finished", "--host", "ship", "-y")[1] == (
        "0 todo again\n"
    )
    assert run("reset", "orders", "--status", "finished", "--status", "ignored", "-y")[1] == (
        "2 todo again\n"
    )
    assert set(asyncio.run(_statuses(ledger_url)).values()) == {Status.TODO}
    assert run("reset", "orders", "--all", "--yes")[1] == "3 todo again\n"


@pytest.mark.usefixtures("orders")
def test_what_is_dropped_is_gone(run: Run):
    assert run("drop", "orders", "--yes")[:2] == (
        0,
        "orders was deleted from the ledger, with 3 tasks\n",
    )

    code, _, err = run("stats", "orders")
    assert code == 2
    assert "nothing is recorded" in err


@pytest.mark.usefixtures("orders")
def test_nothing_is_dropped_under_a_worker(run: Run, ledger_url: str):
    async def join() -> None:
        ledger = await open_ledger(ledger_url, "orders", kind=None)
        await ledger.workers.join(this_worker(now=ledger.now()))
        await ledger.close()

    asyncio.run(join())

    code, _, err = run("drop", "orders", "--yes")

    assert code == 2
    assert f"1 worker of orders is at work (process {os.getpid()} on " in err
    assert run("stats", "orders")[0] == 0


def test_settings_are_shown_and_changed_for_all(run: Run, ledger_url: str):
    assert run("policy", "orders", "max_retry=7", "lease=2m", "backoff_base=8s")[0] == 0

    code, out, _ = run("policy", "orders")

    assert code == 0
    assert "max_retry        7 " in out
    assert "lease            2 min " in out
    assert "backoff_base     8.0 s " in out
    assert "backoff_max      60 min " in out

    async def policy() -> tuple[int, timedelta]:
        async with Tracker.open(ledger_url, "orders") as tracker:
            return tracker.policy.max_retry, tracker.policy.lease

    assert asyncio.run(policy()) == (7, timedelta(minutes=2))


PARENT, CHILD = "http://books.test/", "http://books.test/a"
SPIDER = """\
from crawlcw import Spider

class Books(Spider):
    name = "books"
    start_urls = ["http://books.test/"]
"""


@pytest.fixture
def books(ledger_url: str, tmp_path: Path) -> None:
    """A finished page, and a failed one that it links to."""
    (tmp_path / "spiders").mkdir()
    (tmp_path / "spiders" / "books.py").write_text(SPIDER)

    async def fill() -> None:
        ledger = await open_ledger(ledger_url, "books")
        parent = Request(PARENT).task(now=ledger.now())
        child = Request(CHILD, "parse_book", context={"n": 1}).task(
            now=ledger.now(), depth=1, parent=parent.id
        )
        await ledger.tasks.add([parent, child])
        first, second = sorted(await claimed(ledger), key=lambda lease: lease.task.depth)
        await ledger.outcomes.commit(
            [
                success(ledger, first, {"title": "Home \x1b[2J"}),
                failure(ledger, second, Reason.PARSE_ERROR, message="KeyError \x1b[31m"),
            ]
        )
        await ledger.close()

    asyncio.run(fill())


@pytest.mark.usefixtures("books")
def test_one_url_is_shown_with_its_story(run: Run):
    code, parent, _ = run("show", "books", PARENT)
    _, child, _ = run("show", "books", CHILD)
    _, whole, _ = run("show", "books", CHILD, "--json")

    assert code == 0
    assert "\n  finished since " in parent
    assert '\n  item {"title":"Home \\u001b[2J"}\n' in parent
    assert "\n  GET, for parse_book(), depth 1\n" in child
    assert f"\n  linked from {PARENT}\n" in child
    assert '\n  context {"n":1}\n' in child
    assert "parse-error: KeyError \\x1b[31m\n" in child
    assert "\x1b" not in parent + child + whole
    found = json.loads(whole)
    assert (found["linked_from"], found["callback"], found["depth"]) == ([PARENT], "parse_book", 1)


@pytest.mark.usefixtures("books")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://other.test/", "a link to it is not followed, refused-scope"),
        (f"{PARENT}{'a/' * 40}", "a link to it is not followed, trap-path-segments"),
        (f"{PARENT}b", "no parsed page links to it, but a link would be followed"),
    ],
    ids=["scope", "trap", "never-linked"],
)
def test_a_url_that_is_not_there_is_explained(run: Run, url: str, said: str):
    code, out, err = run("show", "books", url)

    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.usefixtures("books")
def test_tasks_show_what_they_ask_for_and_their_items(run: Run):
    _, shown, _ = run("tasks", "books")
    _, out, _ = run("tasks", "books", "--json", "--items")
    code, _, err = run("tasks", "books", "--items")

    assert re.search(rf" {re.escape(CHILD)} +parse_book\(\) depth 1  parse-error: ", shown)
    child, parent = sorted(map(json.loads, out.splitlines()), key=lambda each: -each["depth"])
    assert (child["parent"], child["method"], child["body_bytes"]) == (parent["id"], "GET", 0)
    assert (child["items"], parent["items"]) == ([], [{"title": "Home \x1b[2J"}])
    assert (code, "--items goes with --json" in err) == (2, True)


def test_a_crawls_tasks_are_named_by_their_urls(run: Run, ledger_url: str):
    async def fill() -> None:
        ledger = await open_ledger(ledger_url, "books")
        request = Request("http://books.test/a?b=1")
        await ledger.tasks.add([request.task(now=ledger.now())])
        await ledger.close()

    asyncio.run(fill())

    assert run("ignore", "books", "http://books.test/a?b=1")[1] == "1 of 1 withdrawn\n"
    code, out, _ = run("tasks", "books", "--key", "http://BOOKS.test/a?b=1", "--json")
    assert code == 0
    assert json.loads(out)["url"] == "http://books.test/a?b=1"
    assert json.loads(out)["reason"] == "withdrawn"
    assert run("reset", "books", "http://books.test/a?b=1")[1] == "1 of 1 todo again\n"
    code, _, err = run("reset", "books", "http://books.test/a?b=1", "--stage", "s")
    assert code == 2
    assert "no stages" in err
    assert run("ignore", "books", "nonsense")[0] == 2


SEARCH = "http://books.test/search?q=a"
OTHER_SEARCH = f"{SEARCH}&page=2"


@pytest.fixture
def searches(ledger_url: str) -> None:
    """Three tasks that their URLs do not identify, and two of them have one URL."""
    posted = Request(SEARCH, "parse_second", method="POST", body="page=2")
    others = [
        Request(SEARCH, "parse_first", fingerprint=b"first"),
        Request(OTHER_SEARCH, fingerprint=b"other"),
    ]

    async def fill() -> None:
        ledger = await open_ledger(ledger_url, "books")
        now = ledger.now()
        await ledger.tasks.add([posted.task(now=now)])
        (lease,) = await claimed(ledger)
        await ledger.tasks.add([request.task(now=now - timedelta(hours=1)) for request in others])
        await ledger.outcomes.commit([success(ledger, lease, {"title": "second"})])
        await ledger.close()

    asyncio.run(fill())


@pytest.mark.usefixtures("searches")
def test_tasks_that_their_url_does_not_identify_have_its_name_too(run: Run):
    _, shown, note = run("show", "books", SEARCH)
    _, listed, _ = run("tasks", "books", "--key", SEARCH, "--json")
    _, other, no_note = run("show", "books", OTHER_SEARCH)
    code, _, err = run("show", "books", "http://books.test/search?q=b")

    assert '\n  item {"title":"second"}\n' in shown
    assert "2 tasks have this URL: `crawlcw tasks books --key" in note
    assert [json.loads(line)["callback"] for line in listed.splitlines()] == [
        "parse_second",
        "parse_first",
    ]
    assert ("GET, for parse()" in other, no_note) == (True, "")
    assert (code, "is not recorded" in err) == (2, True)


@pytest.mark.usefixtures("searches")
def test_tasks_that_their_url_does_not_identify_change_together(run: Run):
    assert run("reset", "books", SEARCH, "--dry-run")[1] == "2 of 2 would be todo again\n"
    assert run("ignore", "books", SEARCH, OTHER_SEARCH)[1] == "2 of 3 withdrawn\n"
    assert run("recrawl", "books", SEARCH, "--yes")[1].startswith("1 page will be visited again")
    assert run("purge", "books", SEARCH, "--yes")[1] == "2 tasks deleted\n"


@pytest.mark.usefixtures("searches")
def test_a_task_that_its_url_identifies_is_the_only_one_of_this_url(run: Run, ledger_url: str):
    async def add() -> None:
        ledger = await open_ledger(ledger_url, "books")
        await ledger.tasks.add([Request(SEARCH, "parse_plain").task(now=ledger.now())])
        await ledger.close()

    asyncio.run(add())

    _, listed, _ = run("tasks", "books", "--key", SEARCH, "--json")
    assert json.loads(listed)["callback"] == "parse_plain"
    assert run("ignore", "books", SEARCH)[1] == "1 of 1 withdrawn\n"
