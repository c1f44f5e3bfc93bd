"""Pages with a direct link and a redirect to them: recorded once each."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anyio.lowlevel import checkpoint

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble, run_spider
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.values import Claimed
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status, Task
from crawlcw.testing import Replay, ReplayDownloader
from tests.support import loopback
from tests.support.ledgers import LEASE, FakeClock, PatchedLedger, claimed_one, make_task

PAGES = 200


class Pages(Spider):
    """Records every page and follows every link."""

    name = "pages"

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3]}
        yield from response.follow_all("a")


@asynccontextmanager
async def served(links: Callable[[int], list[str]]) -> AsyncIterator[tuple[str, Counter[str]]]:
    """Serve `/` with links, `/page/N`, and `/to/N` that leads there; count the requests."""
    seen: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        seen[request.path] += 1
        if request.path == "/robots.txt":
            raise web.HTTPNotFound
        if request.path.startswith("/to/"):
            raise web.HTTPFound(request.path.replace("/to/", "/page/"))
        links_here = (
            ""
            if request.path != "/"
            else "".join(f'<a href="{link}">{link}</a>' for n in range(PAGES) for link in links(n))
        )
        return web.Response(text=f"<p>{request.path}{links_here}", content_type="text/html")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with loopback.served(app) as address:
        yield f"{address}/", seen


@pytest.mark.thorough
@pytest.mark.representative("redirect-first")
@pytest.mark.parametrize(
    "links",
    [
        lambda n: [f"/to/{n}", f"/page/{n}"],
        lambda n: [f"/page/{n}", f"/to/{n}"],
        lambda n: [f"/to/{n}"],
    ],
    ids=["redirect-first", "page-first", "redirect-alone"],
)
async def test_a_page_that_a_redirect_leads_to_is_asked_for_once(
    links: Callable[[int], list[str]], tmp_path: Path
):
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with served(links) as (home, seen):
        spider = Pages(start_urls=[home])
        report = await run_spider(spider, ledger=url, settings=Settings(delay=0.0))
    ledger = await open_ledger(url, Pages.name)
    paths = sorted([row.item["path"] async for row in ledger.queries.items()])
    await ledger.close()

    assert paths == sorted(["", *(f"page/{n}" for n in range(PAGES))])
    assert report.counts.by_status == {Status.FINISHED: 2 * PAGES + 1}
    assert seen.total() == 2 * PAGES + 2, seen.most_common(3)  # with / and robots.txt


@pytest.mark.thorough
async def test_a_page_that_redirects_in_place_lead_to_is_recorded_once(tmp_path: Path):
    """With cookies, the redirect may matter: each URL is requested, and one task has the items."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with served(lambda n: [f"/to/{n}", f"/page/{n}"]) as (home, _):
        spider = Pages(start_urls=[home])
        report = await run_spider(spider, ledger=url, settings=Settings(delay=0.0, cookies=True))
    ledger = await open_ledger(url, Pages.name)
    paths = sorted([row.item["path"] async for row in ledger.queries.items()])
    await ledger.close()

    assert paths == sorted(["", *(f"page/{n}" for n in range(PAGES))])
    assert (report.pages, report.redirects) == (1 + PAGES, PAGES)


FROM, PAGE = "http://a.example/from", "http://a.example/page"
WEB = {FROM: Replay(status=302, headers={"Location": PAGE}), PAGE: "a page"}
#: With cookies a redirect is followed in place.
IN_PLACE = Settings(delay=0.0, cookies=True, obey_robots=False)


async def test_a_page_that_may_kill_its_process_is_not_parsed_beside_others_for_a_redirect(
    tmp_path: Path,
):
    """It is asked for again and runs alone: its crashes count against no other page, and count."""
    clock = FakeClock()
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", Pages.name, clock=clock)
    await ledger.tasks.add([make_task(PAGE)])
    for _ in range(2):
        await claimed_one(ledger)
        clock.advance(seconds=LEASE.total_seconds())
    held_elsewhere = [await claimed_one(ledger)]

    class Web(ReplayDownloader):
        async def fetch(self, request: Request, *, url: str) -> Response:
            if url == PAGE and held_elsewhere:
                await ledger.outcomes.release([held_elsewhere.pop()])
            return await super().fetch(request, url=url)

    site = Web(WEB)
    report = await assemble(Pages(start_urls=[FROM]), ledger, site, IN_PLACE).run()
    await ledger.close()

    assert site.requested == [FROM, PAGE, PAGE]
    assert (report.pages, report.redirects) == (1, 1)


async def test_a_redirect_that_is_lost_leaves_no_lease_of_the_page_that_was_claimed_for_it(
    tmp_path: Path,
):
    class Losing(PatchedLedger):
        patched = ("leases.claim",)

        async def claim(self, tasks: Sequence[Task], **options: Any) -> Claimed:
            claimed = await self.real.leases.claim(tasks, **options)
            if tasks[0].url == PAGE:
                crawl.stop()
                crawl._session.held.lose([Request(FROM).identity()[1]])
                await checkpoint()  # its answer is on the way
            return claimed

    ledger = await Losing.open(tmp_path / "ledger.db", Pages.name)
    crawl = assemble(Pages(start_urls=[FROM]), ledger, ReplayDownloader(WEB), IN_PLACE)
    await crawl.run()
    record = await ledger.tasks.get(Request(PAGE).identity()[1])
    await ledger.close()

    assert record is not None
    assert record.task.status is not Status.PROCESSING


async def test_a_refusal_behind_a_redirect_is_not_of_the_host_that_led_there(tmp_path: Path):
    class Wide(Pages):
        start_urls = [FROM]
        allowed_hosts = ["a.example", "b.example"]

    ledger = await SqliteLedger.open(tmp_path / "ledger.db", Pages.name)
    busy = "http://b.example/busy"
    answers = {
        FROM: Replay(status=302, headers={"Location": busy}),
        busy: Replay(status=429, headers={"Retry-After": "1"}),
    }
    settings = replace(IN_PLACE, max_retry=1)

    site = ReplayDownloader(answers)
    report = await assemble(Wide(), ledger, site, settings).run()
    await ledger.close()

    assert site.requested == [FROM, busy]
    assert (report.failures, report.host_failures) == ({"http-status": 1}, {})


async def test_a_page_that_is_refused_waits_no_longer_than_a_host_may_rest(tmp_path: Path):
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", Pages.name)
    busy = Replay(status=503, headers={"Retry-After": "3600"})
    site = ReplayDownloader({FROM: Replay(status=302, headers={"Location": PAGE}), PAGE: busy})
    briefly = timedelta(milliseconds=10)
    rests = {"backoff_base": briefly, "host_backoff_base": briefly, "host_backoff_max": briefly}
    settings = replace(IN_PLACE, max_retry=2, **rests)

    async with asyncio.timeout(20):
        await assemble(Pages(start_urls=[FROM]), ledger, site, settings).run()
    await ledger.close()

    assert site.requested == [FROM, PAGE] * 2
