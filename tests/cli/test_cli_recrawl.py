"""`crawlcw recrawl`, and the items of several visits."""

import asyncio
import json
from datetime import timedelta

import pytest

from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status
from crawlcw.model.transitions import Succeeded
from crawlcw.tracking import NewTask, Tracker
from tests.support.commands import invoke
from tests.support.ledgers import claimed, make_task, settled, visit

PAGES = ("http://a.example/1", "http://a.example/2", "http://b.example/1")


@pytest.fixture
def pages(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three finished pages of two hosts."""
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)
    asyncio.run(visited(ledger_url, "first"))


async def visited(ledger_url: str, text: str) -> None:
    """Finish all due pages with one item each; add the missing ones."""
    ledger = await open_ledger(ledger_url, "pages", create=True)
    await ledger.tasks.add([make_task(url, due=ledger.now()) for url in PAGES])
    outcome = Succeeded(items=({"text": text},), visit=visit(), kept_versions=2)
    leases = await claimed(ledger)
    await ledger.outcomes.commit([settled(ledger, lease, outcome) for lease in leases])
    await ledger.close()


async def todo(ledger_url: str) -> set[str]:
    ledger = await open_ledger(ledger_url, "pages")
    try:
        records = [await ledger.tasks.get(make_task(url).id) for url in PAGES]
        return {r.task.url for r in records if r and r.task.status is Status.TODO}
    finally:
        await ledger.close()


@pytest.mark.parametrize(
    ("options", "again"),
    [
        (["--yes"], set(PAGES)),
        (["--yes", "--older-than", "1ms"], set(PAGES)),
        (["--yes", "--older-than", "7d"], set()),
        (["--yes", "--host", "b.example"], {PAGES[2]}),
        ([PAGES[0]], {PAGES[0]}),
    ],
    ids=["all", "older", "too-young", "host", "url"],
)
def test_finished_pages_that_are_chosen_are_visited_again(
    pages, ledger_url: str, options: list[str], again: set[str]
):
    done = invoke("recrawl", "pages", *options)

    assert (done.returncode, done.stderr) == (0, "")
    number = "1 page" if len(again) == 1 else f"{len(again)} pages"
    how = " by the next run" if again else ""
    assert done.stdout == f"{number} will be visited again{how}\n"
    assert asyncio.run(todo(ledger_url)) == again


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "Visit all finished pages of pages again? No terminal to confirm on"),
        (["--older-than", "soon", "--yes"], "--older-than: 'soon' is not a duration"),
        (["--host", "a b", "--yes"], "'a b' is not a host"),
        (["ftp://me:secret@a/"], "not a URL: 'ftp://***@a/' is neither http nor https"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(pages, ledger_url: str, options: list[str], told: str):
    done = invoke("recrawl", "pages", *options)

    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert asyncio.run(todo(ledger_url)) == set()


def test_a_use_case_has_no_pages(ledger_url: str, monkeypatch: pytest.MonkeyPatch):
    async def fill() -> None:
        async with Tracker.open(ledger_url, "orders") as tracker:
            await tracker.add_many([NewTask("o1")])

    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)
    asyncio.run(fill())

    for options in ((), ("--yes",), ("--dry-run",)):
        done = invoke("recrawl", "orders", *options)

        assert (done.returncode, "its tasks are not pages" in done.stderr) == (2, True)


def test_the_items_of_all_visits_are_exported_where_that_is_asked_for(pages, ledger_url: str):
    invoke("recrawl", "pages", PAGES[0])
    asyncio.run(visited(ledger_url, "second"))

    last = invoke("export", "pages", "-o", "-")
    versions = invoke("export", "pages", "-o", "-", "--versions")

    assert texts(last.stdout) == ["first", "first", "second"]
    assert texts(versions.stdout) == ["first", "first", "first", "second"]


def texts(lines: str) -> list[str]:
    return sorted(json.loads(line)["text"] for line in lines.splitlines())


async def test_export_since_leaves_out_what_was_only_found_unchanged(pages, ledger_url: str):
    ledger = await open_ledger(ledger_url, "pages")
    (row, *_) = [row async for row in ledger.queries.items()]
    await asyncio.to_thread(invoke, "recrawl", "pages", "--yes")
    age = (ledger.now() - row.fetched_at) / timedelta(milliseconds=1)
    await ledger.close()

    now = await asyncio.to_thread(invoke, "export", "pages", "-o", "-", "--since", "1ms")
    since = await asyncio.to_thread(
        invoke, "export", "pages", "-o", "-", "--since", f"{age + 60_000:.0f}ms"
    )

    # Their status changed just now; they were fetched before that.
    assert texts(now.stdout) == []
    assert texts(since.stdout) == ["first"] * 3
