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
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Committed, TaskFilter
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger.values import Claimed
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.counters import Report
from crawlcw.model.task import Status, Task
from crawlcw.model.transitions import Settlement
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


# Targets of redirects and refreshes.

HOME, OTHER = "http://a.example/", "http://b.example/"
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
    return report, site.requested


async def paths(ledger: SqliteLedger) -> list[str]:
    return sorted([row.item["path"] async for row in ledger.queries.items()])


async def ended(ledger: SqliteLedger, url: str) -> tuple[Status, str | None]:
    record = await ledger.tasks.get(Request(url).identity()[1])
    assert record is not None
    return record.task.status, record.task.reason


async def test_through_a_pool_of_proxies_a_redirect_to_another_host_is_a_task_of_that_host(
    ledger: SqliteLedger,
):
    answers = {OTHER: linking(FROM), FROM: moved(OTHER)}

    _, requested = await crawled(
        ledger, answers, Wide(start_urls=[OTHER]), proxies=["http://127.0.0.1:9"]
    )

    assert requested == [OTHER, FROM], "the known page is not asked for once more"


async def test_an_errback_sees_the_redirect_that_is_not_followed(ledger: SqliteLedger):
    seen: list[Any] = []

    class Refused(Pages):
        def on_error(self, request: Request, error: Any) -> None:
            seen.append((error.reason, error.response.headers["location"]))

    await crawled(ledger, {FROM: moved(OTHER)}, Refused(start_urls=[FROM]))

    assert seen == [(Reason.REFUSED_SCOPE, OTHER)]


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


@pytest.mark.parametrize(
    ("leading", "found"), [(refreshing, ["", "from"]), (moved, [""])], ids=["refresh", "302"]
)
async def test_what_another_host_disallows_fails_by_itself(
    leading: Callable[[str], Replay], found: list[str], ledger: SqliteLedger
):
    """Its rules are known already: a page that refreshes to it is a page."""
    private = f"{OTHER}private"
    answers = {
        f"{OTHER}robots.txt": Replay(body="User-agent: *\nDisallow: /private"),
        OTHER: linking(FROM),
        FROM: leading(private),
    }

    await crawled(ledger, answers, Wide(start_urls=[OTHER]), obey_robots=True)

    assert await paths(ledger) == found
    assert (await ended(ledger, FROM))[0] is Status.FINISHED
    assert await ended(ledger, private) == (Status.IGNORED, "refused-robots")


async def test_a_page_whose_process_died_as_it_was_handed_on_is_handed_on_again(
    ledger: SqliteLedger,
):
    await ledger.tasks.add([make_task(PAGE, parent=make_task(FROM).id, hops=1)])

    report, _ = await crawled(
        ledger, {FROM: refreshing(PAGE), PAGE: "a page"}, Pages(start_urls=[FROM])
    )

    assert await paths(ledger) == ["page"]
    assert (report.pages, report.redirects) == (1, 1)


async def test_a_redirect_to_a_known_page_is_none_too_many(ledger: SqliteLedger):
    answers = {HOME: linking(FROM), FROM: moved(HOME)}

    report, _ = await crawled(ledger, answers, Pages(start_urls=[HOME]), max_redirects=0)

    assert (report.redirects, report.failures) == (1, {})


async def test_a_redirect_of_a_page_below_the_greatest_depth_is_no_deeper(ledger: SqliteLedger):
    """The limit was higher when the page was added."""
    await ledger.tasks.add([make_task(FROM, depth=3)])
    answers = {HOME: linking(), FROM: moved(PAGE), PAGE: "a page"}

    await crawled(ledger, answers, Pages(start_urls=[HOME]), max_depth=1)

    assert await paths(ledger) == ["", "page"]


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


async def test_a_redirect_that_is_visited_again_leaves_its_target_its_own_time(
    ledger: SqliteLedger,
):
    answers = {FROM: moved(PAGE), PAGE: "a page"}
    await crawled(ledger, answers, Pages(start_urls=[FROM]), revisit="7d")
    await ledger.admin.revisit(TaskFilter(ids={make_task(FROM).id}))

    _, requested = await crawled(ledger, answers, Pages(start_urls=[FROM]), revisit="7d")

    assert requested == [FROM]


async def test_a_new_redirect_does_a_page_of_an_earlier_run_not_again(ledger: SqliteLedger):
    answers = {FROM: moved(PAGE), PAGE: "a page"}
    await crawled(ledger, answers, Pages(start_urls=[PAGE]))

    _, requested = await crawled(ledger, answers, Pages(start_urls=[FROM]))

    assert requested == [FROM]


async def test_a_redirect_in_place_to_what_the_ledger_cannot_hold_fails_at_once(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.ledger.sql.rows._LARGEST_VALUE", 1000)
    monkeypatch.setattr("crawlcw.ledger.sql.rows._SHORT", 500)
    long = PAGE + "x" * 1500

    async with asyncio.timeout(5):
        _, requested = await crawled(
            ledger, {FROM: moved(long), long: "a page"}, Pages(start_urls=[FROM]), cookies=True
        )

    assert requested == [FROM, long]
    assert await ended(ledger, FROM) == (Status.IGNORED, "store-rejected")


@pytest.mark.parametrize(
    ("hops", "leads_on", "due", "end"),
    [
        (1, True, None, (Status.IGNORED, "redirect-loop")),
        (0, True, None, (Status.FINISHED, "redirect")),
        (1, False, None, (Status.FINISHED, "redirect")),
        (1, True, timedelta(hours=1), (Status.FINISHED, "redirect")),
    ],
    ids=["recording", "a-link", "another", "put-back"],
)
async def test_a_page_leads_back_to_the_redirect_that_is_being_recorded(
    hops: int, leads_on: bool, due: timedelta | None, end: Any, tmp_path: Path
):
    """The page is in the ledger before the end of the redirect that leads to it."""

    class OneCommit(PatchedLedger):
        patched = ("outcomes.commit",)

        async def commit(self, settlements: Sequence[Settlement]) -> Committed:
            crawl.stop()
            return await self.real.outcomes.commit(settlements)

    ledger = await OneCommit.open(tmp_path / "ledger.db", Pages.name)
    task = make_task(FROM)
    if due is not None:
        task = replace(task, due=ledger.now() + due)
    await ledger.tasks.add([task])
    if due is None:
        await claimed_one(ledger)
    parent = task.id if leads_on else make_task(HOME).id
    await ledger.tasks.add([make_task(PAGE, parent=parent, hops=hops)])
    site = ReplayDownloader({PAGE: moved(FROM)})
    crawl = assemble(Pages(start_urls=[PAGE]), ledger, site, Settings(obey_robots=False))
    async with asyncio.timeout(10):
        await crawl.run()

    assert await ended(ledger, PAGE) == end
    await ledger.close()


async def test_a_redirect_to_another_redirect_is_no_loop(ledger: SqliteLedger):
    first, second = f"{HOME}1", f"{HOME}2"
    answers = {first: moved(second), second: linking(FROM), FROM: moved(first)}

    report, _ = await crawled(ledger, answers, Pages(start_urls=[first]))

    assert (report.redirects, report.failures) == (2, {})


async def test_three_redirects_in_a_circle_are_a_loop(ledger: SqliteLedger):
    circle = [f"{HOME}{n}" for n in range(3)]
    answers = {circle[n - 1]: moved(circle[n]) for n in range(3)}

    report, _ = await crawled(ledger, answers, Pages(start_urls=[circle[0]]))

    assert (report.redirects, report.failures) == (2, {"redirect-loop": 1})


async def test_a_circle_is_found_where_its_last_page_failed_first(ledger: SqliteLedger):
    answers = {FROM: moved(PAGE), PAGE: [Replay(status=503), moved(FROM)]}

    report, _ = await crawled(ledger, answers, Pages(start_urls=[FROM]), max_retry=2)

    assert report.failures == {"http-status": 1, "redirect-loop": 1}


async def test_redirects_that_changed_their_direction_between_two_visits_are_no_loop(
    ledger: SqliteLedger,
):
    await crawled(ledger, {FROM: moved(PAGE), PAGE: "a page"}, Pages(start_urls=[FROM]))
    await ledger.admin.revisit(TaskFilter(ids={make_task(PAGE).id}))

    report, _ = await crawled(ledger, {PAGE: moved(FROM), FROM: "a page"}, Pages(start_urls=[FROM]))

    assert report.failures == {}
    assert await ended(ledger, PAGE) == (Status.FINISHED, "redirect")


async def test_pages_that_lead_to_one_another_at_their_next_visit_are_a_loop(
    ledger: SqliteLedger,
):
    await crawled(ledger, {FROM: moved(PAGE), PAGE: "a page"}, Pages(start_urls=[FROM]))
    await ledger.admin.revisit(TaskFilter(ids={make_task(url).id for url in (FROM, PAGE)}))

    report, _ = await crawled(
        ledger, {PAGE: moved(FROM), FROM: moved(PAGE)}, Pages(start_urls=[FROM])
    )

    assert (report.redirects, report.failures) == (1, {"redirect-loop": 1})
