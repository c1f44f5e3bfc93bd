"""Session pools: each session keeps its cookies and its proxy over runs and processes."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Status
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import parse
from tests.support import exit_site
from tests.support.crawl_process import Process, Store, begin_together, wait_until
from tests.support.exit_site import QUICK, ExitSite, ExitSpider
from tests.support.ledgers import sessions_in
from tests.support.proxy_servers import ProxyServer

pytestmark = pytest.mark.thorough


@pytest.fixture
def site() -> Iterator[ExitSite]:
    with exit_site.served(31, sets_cookie=True) as running:
        yield running


async def sessions(ledger_url: str) -> dict[str, Identity]:
    ledger = await open_ledger(ledger_url, "exits")
    try:
        return {each.name: each for each in await sessions_in(ledger)}
    finally:
        await ledger.close()


def exits_by_visitor(site: ExitSite) -> dict[str, set[str]]:
    found = defaultdict(set)
    for visit in site.visits:
        if visit.visitor:
            found[visit.visitor].add(visit.exit)
    return found


async def test_requests_are_spread_over_sessions_with_cookies_and_proxies_of_their_own(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any], ledger_url: str
):
    # Not the number of proxies: a plain rotation of both would repeat the same pairs.
    report = await crawl(three, sessions=4)

    assert report.counts[Status.FINISHED] == 31
    assert all(len(exits) == 1 for exits in exits_by_visitor(site).values())
    known = await sessions(ledger_url)
    assert known.keys() == {"pool-1", "pool-2", "pool-3", "pool-4"}
    assert {each.proxy for each in known.values()} == {each.url for each in three}
    assert all(len(each.cookies) == 1 for each in known.values())
    assert min(site.exits.values()) >= 7


@pytest.mark.representative("sqlite")
async def test_a_session_keeps_its_proxy_and_its_cookies_in_the_next_run(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any], ledger_url: str
):
    await crawl(three, sessions=3, max_pages=12)
    before = await sessions(ledger_url)

    report = await crawl(three[::-1], sessions=3)

    assert report.counts[Status.FINISHED] == 31
    after = await sessions(ledger_url)
    assert {name: each.proxy for name, each in after.items()} == {
        name: each.proxy for name, each in before.items()
    }
    assert all(len(exits) == 1 for exits in exits_by_visitor(site).values())
    assert len(exits_by_visitor(site)) == 3


@pytest.mark.representative("sqlite")
async def test_a_banned_session_is_replaced_by_a_new_one_with_another_proxy(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any], ledger_url: str
):
    site.banned = {"127.0.0.3"}

    report = await crawl(three, sessions=3, proxy_ban_statuses=403)

    assert report.counts[Status.FINISHED] == 31
    assert (report.failures, report.host_failures) == ({}, {})
    known = await sessions(ledger_url)
    assert three[1].url not in {each.proxy for each in known.values()}
    assert any(each.reason.startswith("banned: HTTP 403") for each in known.values())


async def test_a_login_goes_through_the_proxy_of_its_session(
    site: ExitSite, three: list[ProxyServer], crawl: Callable[..., Any]
):
    class Member(ExitSpider):
        async def login(self, session: Any) -> None:
            await session.fetch(f"{site.url}/p/0?login={session.name}")

    report = await crawl(three, Member(), sessions=3)

    assert report.counts[Status.FINISHED] == 31
    logins = [each for each in site.visits if not each.visitor]
    assert {each.exit for each in logins} == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    assert all(len(exits) == 1 for exits in exits_by_visitor(site).values())


async def test_processes_that_are_killed_leave_each_session_with_its_proxy(
    site: ExitSite, three: list[ProxyServer], ledger_url: str, tmp_path: Path
):
    settings = {
        **QUICK,
        "sessions": 3,
        "delay": "10ms",
        "per_host_concurrency": 1,
        "proxies": ",".join(each.url for each in three),
    }

    def start() -> Process:
        store = Store(ledger_url, "exits")
        return Process(store, [f"{site.url}/p/0"], tmp_path / "log", on_cue=False, **settings)

    for pages in (5, 12):
        with start() as process:
            wait_until(lambda: len(site.visits) >= pages)  # noqa: B023  # it is called here
            process.kill()
    with start() as process:
        process.drained()

    assert len({each.path for each in site.visits}) == 31
    assert all(len(exits) == 1 for exits in exits_by_visitor(site).values())
    known = await sessions(ledger_url)
    assert {each.proxy for each in known.values()} == {parse(each.url).key for each in three}


async def test_processes_share_the_sessions_of_a_pool(
    site: ExitSite, three: list[ProxyServer], ledger_url: str, tmp_path: Path
):
    settings = {**QUICK, "sessions": 3, "proxies": ",".join(each.url for each in three)}
    store = Store(ledger_url, "exits")

    with ExitStack() as stack:
        running = [
            stack.enter_context(
                Process(store, [f"{site.url}/p/0"], tmp_path / "log", on_cue=True, **settings)
            )
            for _ in range(2)
        ]
        begin_together(running)
        for process in running:
            process.drained()

    assert all(len(exits) == 1 for exits in exits_by_visitor(site).values())
    assert (await sessions(ledger_url)).keys() == {"pool-1", "pool-2", "pool-3"}
