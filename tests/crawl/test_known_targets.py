"""Pages with a direct link and a redirect to them: recorded once each."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anyio.lowlevel import checkpoint

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import assemble, run_spider
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.values import Claimed
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.counters import Report
from crawlcw.model.task import Status, Task
from crawlcw.testing import Replay, ReplayDownloader
from tests.support import loopback
from tests.support.ledgers import PatchedLedger

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


HOME, OTHER = "http://a.example/", "http://b.example/"
FROM, PAGE = "http://a.example/from", "http://a.example/page"
WEB = {FROM: Replay(status=302, headers={"Location": PAGE}), PAGE: "a page"}
#: With cookies a redirect is followed in place.
IN_PLACE = Settings(delay=0.0, cookies=True, obey_robots=False)


async def test_a_redirect_that_is_lost_leaves_no_lease_of_the_page_that_was_claimed_for_it(
    tmp_path: Path,
):
    class Losing(PatchedLedger):
        patched = ("leases.claim",)

        async def claim(self, tasks: Sequence[Task], **options: Any) -> Claimed:
            claimed = await self.real.leases.claim(tasks, **options)
            if tasks[0].url == PAGE:
                crawl.stop()
                crawl._session.leases.lose([Request(FROM).identity()[1]])
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

    assert site.requested_urls == [FROM, busy]
    assert (report.failures, report.host_failures) == ({"http-status": 1}, {})


class Aliased(Pages):
    start_urls = [HOME]
    options: dict[str, Any] = {}

    def parse(self, response: Any) -> Any:
        if response.url != HOME:
            return
        yield Request(PAGE, self.film, priority=-50, **self.options)
        yield Request(FROM, priority=50)
        # More than are claimed ahead, so that the page is not yet.
        yield from (Request(f"{HOME}{n}") for n in range(8))

    def film(self, response: Any) -> Any:
        yield {"path": f"film of {response.session and response.session.name}"}


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ({}, True),
        ({"max_retry": 3, "timeout": 5}, True),
        ({"save_to": "films"}, False),
        ({"max_body": 1000}, False),
        ({"truncate": False}, False),
        ({"headers": {"X-Key": "k"}}, False),
        ({"cookies": {"a": "1"}}, False),
        ({"accept_statuses": 404}, False),
        ({"proxy": "direct"}, False),
        ({"session": "ada"}, False),
    ],
    ids=lambda value: next(iter(value), "plain") if isinstance(value, dict) else "",
)
@pytest.mark.parametrize(
    "settings",
    [
        {"cookies": True},
        pytest.param({"proxies": ["http://127.0.0.1:9"]}, marks=pytest.mark.thorough),
    ],
    ids=["cookies", "proxies"],
)
async def test_a_page_in_hand_is_another_tasks_if_that_asks_for_it_alike(
    options: dict[str, Any],
    is_shared: bool,
    settings: dict[str, Any],
    ledger: SqliteLedger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    spider = Aliased()
    spider.options = options

    _, requested = await crawled(
        ledger, WEB | {f"{HOME}{n}": "" for n in ["", *range(8)]}, spider, **settings
    )

    session = options.get("session") or ("default" if "cookies" in settings else "")
    assert await paths(ledger) == [f"film of {session}"]
    assert requested.count(PAGE) == (1 if is_shared else 2)


# Targets of redirects and refreshes.

HTML = {"Content-Type": "text/html"}


def moved(target: str) -> Replay:
    return Replay(status=302, headers={"Location": target})


def refreshing(target: str) -> Replay:
    return Replay(headers=HTML, body=f'<meta http-equiv="refresh" content="0; url={target}">')


def linking(*urls: str) -> Replay:
    return Replay(headers=HTML, body="".join(f'<a href="{url}">x</a>' for url in urls))


class Wide(Pages):
    allowed_hosts = ["a.example", "b.example"]


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", Pages.name)
    yield ledger
    await ledger.close()


async def crawled(
    ledger: SqliteLedger, answers: dict[str, Any], spider: Spider, **settings: Any
) -> tuple[Report, list[str]]:
    """Crawl one page after the other; return the report and the requested URLs."""
    site = ReplayDownloader(answers)
    chosen = {"delay": 0.0, "backoff_base": 0.0, "concurrency": 1, "obey_robots": False}
    report = await assemble(spider, ledger, site, Settings(**chosen | settings)).run()
    return report, site.requested_urls


async def paths(ledger: SqliteLedger) -> list[str]:
    return sorted([row.item["path"] async for row in ledger.queries.items()])


async def test_through_a_pool_of_proxies_a_redirect_to_another_host_is_a_task_of_that_host(
    ledger: SqliteLedger,
):
    answers = {OTHER: linking(FROM), FROM: moved(OTHER)}

    _, requested = await crawled(
        ledger, answers, Wide(start_urls=[OTHER]), proxies=["http://127.0.0.1:9"]
    )

    assert requested == [OTHER, FROM], "the known page is not asked for once more"


@pytest.mark.parametrize(
    ("answer", "found"),
    [(moved(PAGE), ["page"]), (refreshing(PAGE), ["from", "page"])],
    ids=["302", "refresh"],
)
async def test_the_answer_to_a_form_is_parsed_as_its_page(
    answer: Replay, found: list[str], ledger: SqliteLedger
):
    class Form(Pages):
        start_urls = [FROM]

        async def start(self) -> AsyncIterator[Request]:
            yield Request(FROM, data={"a": "1"})

    report, _ = await crawled(ledger, {FROM: answer, PAGE: "a page"}, Form())

    assert await paths(ledger) == found
    assert report.redirects == 0


async def test_a_redirect_to_a_known_page_is_none_too_many(ledger: SqliteLedger):
    answers = {HOME: linking(FROM), FROM: moved(HOME)}

    report, _ = await crawled(ledger, answers, Pages(start_urls=[HOME]), max_redirects=0)

    assert (report.redirects, report.failures) == (1, {})


async def test_a_redirect_of_each_run_has_its_target_done_again(ledger: SqliteLedger):
    class Again(Pages):
        start_urls = [FROM]
        start_again = True

        async def start(self) -> AsyncIterator[Request]:
            yield Request(FROM, each_run=True)

    answers = {FROM: moved(PAGE), PAGE: "a page"}
    await crawled(ledger, answers, Again())

    _, requested = await crawled(ledger, answers, Again())

    assert requested == [FROM, PAGE]


async def test_three_redirects_in_a_circle_are_a_loop(ledger: SqliteLedger):
    circle = [f"{HOME}{n}" for n in range(3)]
    answers = {circle[n - 1]: moved(circle[n]) for n in range(3)}

    report, _ = await crawled(ledger, answers, Pages(start_urls=[circle[0]]))

    assert (report.redirects, report.failures) == (2, {"redirect-loop": 1})
