"""Selection of tasks for commands that change many: the same options in all of them."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pytest

from crawlcw.api.request import Request
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status
from tests.support.commands import invoke
from tests.support.ledgers import claimed, failure, make_task, success

HOUR = timedelta(hours=1)
SHORT = timedelta(milliseconds=1)  #: over before the next command begins
SHOP = "http://a.example/shop/"
URLS = (f"{SHOP}1", f"{SHOP}2", "http://a.example/shoe", "http://b.example/shop/1")


@pytest.fixture
def pages(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pages: one finished, one given up, two waiting."""
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)

    async def fill() -> None:
        ledger = await open_ledger(ledger_url, "pages", create=True)
        now = ledger.now()
        await ledger.tasks.add([make_task(url, callback="page", due=now) for url in URLS[:2]])
        first, second = sorted(await claimed(ledger), key=lambda lease: lease.task.url)
        await ledger.outcomes.commit(
            [success(ledger, first, {"n": 1}), failure(ledger, second, Reason.TLS)]
        )
        await ledger.tasks.add([make_task(url, due=now) for url in URLS[2:]])
        await ledger.close()

    asyncio.run(fill())


def listed(*options: str) -> set[str]:
    done = invoke("tasks", "pages", *options)
    assert (done.returncode, bool(done.stderr)) == (0, not done.stdout)
    return {url for url in URLS if f" {url}" in done.stdout.replace("\n", " \n")}


async def with_status(ledger_url: str, status: Status) -> set[str]:
    ledger = await open_ledger(ledger_url, "pages")
    found = await ledger.queries.find(TaskFilter(statuses=[status]), limit=10)
    await ledger.close()
    return {record.task.url for record in found}


CHANGES = [
    (["ignore", "--url-prefix", SHOP], "0 {}withdrawn", set(URLS[2:])),
    (["ignore", "--url-prefix", "http://A.example/sho"], "1 {}withdrawn", {URLS[3]}),
    (["ignore", "--all"], "2 {}withdrawn", set()),
    (["retry-failed", "--callback", "page"], "1 task {}tried again", set(URLS[1:])),
    (["retry-failed", "--host", "b.example"], "0 tasks {}tried again", set(URLS[2:])),
    (["reset", "--status", "finished", "--since", "1h"], "1 {}todo again", {URLS[0], *URLS[2:]}),
    (["reset", "--reason", "tls"], "1 {}todo again", set(URLS[1:])),
    (["recrawl", "--callback", "page"], "1 page {}visited again", {URLS[0], *URLS[2:]}),
    (["recrawl", "--reason", "tls"], "1 page {}visited again", set(URLS[1:])),
    (["recrawl", URLS[0], "--host", "b.example"], "0 pages {}visited again", set(URLS[2:])),
    (["purge", "--status", "todo", "--host", "a.example"], "1 task {}deleted", {URLS[3]}),
    (["purge", URLS[3]], "1 task {}deleted", {URLS[2]}),
]


@pytest.mark.thorough
@pytest.mark.representative("sqlite", "ignore---url-prefix-http://A")
@pytest.mark.representative("sqlite", "purge---status")
@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    ("command", "said", "todo"), CHANGES, ids=["-".join(each[0]) for each in CHANGES]
)
def test_chosen_tasks_are_changed_and_a_dry_run_counts_them_before(
    ledger_url: str, command: list[str], said: str, todo: set[str]
):
    name, *options = command
    yes = [] if name == "retry-failed" else ["--yes"]
    words = {"tried again": "will be ", "visited again": "will be "}
    done_words = next((words[end] for end in words if said.endswith(end)), "")

    dry = invoke(name, "pages", *options, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout == said.format("would be ") + "\n"
    assert asyncio.run(with_status(ledger_url, Status.TODO)) == set(URLS[2:])

    done = invoke(name, "pages", *options, *yes)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said.format(done_words))
    assert asyncio.run(with_status(ledger_url, Status.TODO)) == todo


@pytest.mark.usefixtures("pages")
def test_tasks_are_listed_by_what_is_chosen():
    assert listed("--url-prefix", SHOP) == set(URLS[:2])
    assert listed("--url-prefix", f"{SHOP}1", "--callback", "page") == {URLS[0]}
    assert listed("--host", "http://b.example/") == {URLS[3]}
    assert listed("--callback", "nobody") == set()


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ignore", "pages"], "choose the tasks: either KEYs, or --host, --url-prefix"),
        (["ignore", "pages", URLS[2], "--host", "a.example"], "choose the tasks"),
        (["ignore", "pages", "--host", "a.example"], "of pages with host a.example? No terminal"),
        (["purge", "pages"], "--since and --status"),
        (["purge", "pages", "--url-prefix", SHOP], "Delete 2 tasks of pages with their items"),
        (["purge", "pages", "--url-prefix", "a.example/shop"], "write http://host/path"),
        (["purge", "pages", "--url-prefix", "http://a.example?x"], "has no path"),
        (["reset", "pages", "--callback", "page"], "with callback page todo again? No terminal"),
        (["reset", "pages", "--since", "90m"], "with changed in the last 90 min todo again?"),
        (["recrawl", "pages", "--status", "ignored"], "Visit all pages of pages with status ign"),
        (["tasks", "pages", "--since", "soon"], "not a duration"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_told_in_a_sentence(arguments: list[str], said: str):
    done = invoke(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["ignore", "--all"], "3 withdrawn"),
        (["reset", "--host", "a.example"], "4 todo again"),
        (["purge", "--since", "1h"], "4 tasks deleted"),
    ],
    ids=["ignore", "reset", "purge"],
)
def test_what_nobody_holds_any_more_is_changed_and_what_is_held_is_told(
    ledger_url: str, pages: None, command: list[str], said: str
):
    async def hold() -> None:
        ledger = await open_ledger(ledger_url, "pages")
        gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            born = replace(this_worker(now=ledger.now()), name="dead", pid=gone.pid, birth="1")
            await ledger.workers.join(born)
            await ledger.workers.join(this_worker(now=ledger.now()))
        finally:
            gone.communicate(b"\n")
        holders = {
            URLS[2]: ("dead", HOUR),
            f"{SHOP}9": ("alive", HOUR),
            f"{SHOP}8": ("late", SHORT),
        }
        await ledger.tasks.add([make_task(url, due=ledger.now()) for url in holders])
        for found in await ledger.tasks.page(limit=9):
            if found.url in holders:
                worker, lease = holders[found.url]
                await ledger.leases.claim([found], worker=worker, lease=lease, max_lost=3)
        await ledger.close()

    asyncio.run(hold())
    name, *options = command

    dry = invoke(name, "pages", *options, "--dry-run", "--json")
    done = invoke(name, "pages", *options, "--yes")

    left = "; 1 did not change: workers are at work on it"
    number = int(said.split()[0])
    assert json.loads(dry.stdout) == {"tasks": number, "dry_run": True, "at_work": 1}
    assert (done.returncode, done.stdout) == (0, f"{said}{left}\n")
    assert asyncio.run(with_status(ledger_url, Status.PROCESSING)) <= {f"{SHOP}9"}


def test_a_url_names_its_other_requests_if_it_has_no_get_request(pages: None, ledger_url: str):
    form, other = f"{SHOP}form", f"{SHOP}form?other"

    async def fill() -> None:
        ledger = await open_ledger(ledger_url, "pages")
        requests = [
            Request(form, method="POST", body=b"a"),
            Request(form, fingerprint=b"of another framework"),
            Request(other, method="POST"),
            Request(URLS[0], method="POST"),
        ]
        await ledger.tasks.add([request.task(now=ledger.now()) for request in requests])
        await ledger.close()

    asyncio.run(fill())
    by_key = invoke("tasks", "pages", "--key", form).stdout
    shown = invoke("show", "pages", form)
    withdrawn = invoke("ignore", "pages", form)

    assert by_key.count(f"{form} ") == 2
    assert (shown.returncode, shown.stdout.startswith(f"{form}\n")) == (0, True)
    assert withdrawn.stdout == "2 of 2 withdrawn\n"
    # The GET request of a URL is its page, whatever other requests the URL has.
    assert invoke("tasks", "pages", "--key", URLS[0]).stdout.count(URLS[0]) == 1
    assert asyncio.run(with_status(ledger_url, Status.TODO)) == {URLS[0], *URLS[2:], other}
