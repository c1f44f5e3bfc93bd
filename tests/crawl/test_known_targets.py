"""Pages with a direct link and a redirect to them: recorded once each."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import run_spider
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status
from tests.support import loopback

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
