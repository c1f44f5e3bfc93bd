"""Incremental crawls in processes of their own: unchanged pages cost one conditional request."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawlcw import open_ledger
from crawlcw.model.task import Status
from tests.support import changing_site
from tests.support.changing_site import ChangingSite
from tests.support.crawl_process import Process, Store, wait_until

pytestmark = pytest.mark.thorough

PAGES = 2_000
#: One page of a hundred changes.
EVERY = 100

Start = Callable[..., Process]


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url, "changing")


@pytest.fixture
def site(processes: ExitStack) -> ChangingSite:
    return processes.enter_context(changing_site.served(PAGES))


@pytest.fixture
def start(processes: ExitStack, site: ChangingSite, store: Store, tmp_path: Path) -> Start:
    def start(**settings: Any) -> Process:
        chosen = {"per_host_concurrency": 0, "concurrency": 40} | settings
        log = tmp_path / "crawls.log"
        return processes.enter_context(
            Process(store, [site.url], log, on_cue=False, spider="changing", **chosen)
        )

    return start


async def texts(store: Store) -> dict[str, str]:
    ledger = await open_ledger(store.url, "changing")
    try:
        return {row.item["path"]: row.item["text"] async for row in ledger.queries.items()}
    finally:
        await ledger.close()


def expected(*, versions: int) -> dict[str, str]:
    """Return the item of each page; every hundredth page has changed *versions* times."""
    found = {str(n): versions if n % EVERY == EVERY - 1 else 0 for n in range(PAGES)}
    found[""] = found.pop("0")
    return {path: f"page {path or 0}, version {n}" for path, n in found.items()}


async def test_a_second_crawl_that_is_killed_loses_nothing(
    site: ChangingSite, start: Start, store: Store
):
    start(revisit="0s").drained()
    site.change(every=EVERY)
    site.seen()
    site.answer_after(50)
    killed = start(revisit="1h")
    wait_until(lambda: site.asked() >= 300)
    killed.kill()
    rows = store.rows()

    # Pages that are due or under way keep their items.
    assert {row.items for row in rows} == {1}
    assert len(rows) == PAGES
    finished = sum(row.status == Status.FINISHED for row in rows)
    held = sum(row.lock is not None for row in rows)
    assert finished < PAGES
    assert held

    site.answer_after(0)
    last = start(revisit="1h").drained()

    seen = site.seen()
    assert last["pages"] == PAGES - finished
    assert set(seen["hits"]) == {f"/{n or ''}" for n in range(PAGES)}
    # Only pages under way are requested twice, and each request carries its validators.
    again = sum(seen["hits"].values()) - PAGES
    assert 0 <= again <= held
    assert seen["conditional"] == PAGES + again
    assert await texts(store) == expected(versions=1)
    assert {(row.status, row.retry, row.lock) for row in store.rows()} == {
        (Status.FINISHED, 0, None)
    }
