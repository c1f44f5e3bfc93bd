"""A spider's state over kills, failures and processes: what each page adds counts once."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Report, Request, Response, Settings, Spider, Status, url_list
from crawlcw.assembly import assemble, run_spider
from crawlcw.crawl import outcomes
from crawlcw.crawl.callbacks import SLICE
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import info_of
from crawlcw.errors import Reason, SpiderError
from crawlcw.ledger.protocol import Added, Committed
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.spider_state import PageSums, StoredState
from crawlcw.model.task import ResponseInfo, Task
from crawlcw.model.transitions import Settlement
from crawlcw.testing import Replay, ReplayDownloader
from tests.support.counting_site import served
from tests.support.crawl_process import Process, Store, begin_together, wait_until
from tests.support.ledgers import (
    FakeClock,
    PatchedFacet,
    claimed,
    failure,
    make_task,
    success,
)

QUICK = Settings(obey_robots=False, backoff_base="0s", backoff_max="0s", lease="30s")
BASE = "https://a.example/"


async def state_of(ledger_url: str, name: str) -> dict[str, Any]:
    """Return the values in a ledger; check that no change is pending."""
    ledger = await open_ledger(ledger_url, name)
    try:
        found = await ledger.spider_state.read()
    finally:
        await ledger.close()
    if found is None:
        return {}
    assert found.pending == {}
    return dict(found.values)


async def items_of(ledger_url: str, name: str) -> list[dict[str, Any]]:
    ledger = await open_ledger(ledger_url, name)
    try:
        return [row.item async for row in ledger.queries.items()]
    finally:
        await ledger.close()


PAGES = 120


@pytest.mark.thorough
@pytest.mark.parametrize("pause", [0, 0.02])
@pytest.mark.parametrize("kills", [2, 6])
async def test_a_crawl_that_is_killed_at_random_moments_counts_each_page_once(
    pause: float, kills: int, processes: ExitStack, ledger_url: str, tmp_path: Path
):
    tree = processes.enter_context(served(PAGES, latency=0.01))
    store = Store(ledger_url, "counting")
    chance = random.Random(f"{kills} {pause} {ledger_url[:7]}")

    def start() -> Process:
        log = tmp_path / "crawls.log"
        arguments = {"pause": pause}
        return processes.enter_context(
            Process(store, [tree.start], log, on_cue=False, arguments=arguments, concurrency=8)
        )

    for _ in range(kills):
        enough = tree.asked + chance.randint(1, PAGES // kills)
        process = start()
        wait_until(lambda enough=enough: tree.asked >= enough)
        process.kill()
    start().drained()

    state = await state_of(ledger_url, "counting")
    items = await items_of(ledger_url, "counting")
    assert {row.status for row in store.rows()} == {Status.FINISHED}
    assert state["added"] == PAGES
    assert {item["number"]: item["above"] for item in items} == {
        number: f"page {(number - 1) // 2}" if number else "none" for number in range(PAGES)
    }


@pytest.fixture
def crawl(ledger_url: str) -> Callable[..., Any]:
    """Crawl pages that are lists of links."""

    async def crawl(spider: Spider, pages: dict[str, Any], **settings: Any) -> Report:
        answers = {
            BASE + path: Replay(body=page, headers=HTML) if isinstance(page, str) else page
            for path, page in pages.items()
        }
        chosen = Settings(**{**vars(QUICK), **settings})
        downloader = ReplayDownloader(answers)
        return await run_spider(spider, ledger=ledger_url, settings=chosen, downloader=downloader)

    return crawl


HTML = {"Content-Type": "text/html"}


@pytest.mark.parametrize("told", [{"given up": 1}, {}], ids=["errback", "silent errback"])
async def test_a_page_that_fails_changes_nothing_and_its_errback_does(
    told: dict[str, int], crawl: Callable[..., Any], ledger_url: str
):
    class Failing(Spider):
        name = "failing"
        start_urls = (BASE, BASE + "bad")

        def parse(self, response: Response) -> Any:
            self.state.add("pages")
            self.state[response.url] = True
            if response.url.endswith("bad"):
                raise ValueError("it is bad")

        def on_error(self, request: Request, error: Exception) -> Any:
            for name in told:
                self.state.add(name)

    report = await crawl(Failing(), {"": "", "bad": ""}, max_retry=2)

    assert report.failures == {"parse-error": 1}
    assert await state_of(ledger_url, "failing") == {"pages": 1, BASE: True, **told}


async def test_what_start_and_opened_change_is_there_for_pages_and_kept(
    crawl: Callable[..., Any], ledger_url: str
):
    class Starting(Spider):
        name = "starting"
        allowed_hosts = ("a.example",)

        async def opened(self) -> None:
            self.state.add("processes")

        async def start(self) -> AsyncIterator[Request]:
            self.state["wanted"] = ["x"]
            yield Request(BASE)

        def parse(self, response: Response) -> Any:
            yield {"wanted": self.state["wanted"], "runs": self.state.get("runs")}

        async def closed(self, report: Report) -> None:
            self.state.add("runs")

    await crawl(Starting(), {"": ""})

    assert await items_of(ledger_url, "starting") == [{"wanted": ["x"], "runs": None}]
    kept = {"processes": 1, "wanted": ["x"], "runs": 1}
    assert await state_of(ledger_url, "starting") == kept
    await crawl(Starting(), {"": ""})
    assert (await state_of(ledger_url, "starting"))["runs"] == 2


async def test_the_next_run_goes_on_with_the_state(crawl: Callable[..., Any], ledger_url: str):
    class Again(Spider):
        name = "again"
        start_again = True

        async def start(self) -> AsyncIterator[Request]:
            yield Request(BASE, each_run=True)

        allowed_hosts = ("a.example",)

        def parse(self, response: Response) -> Any:
            self.state["visits"] = [*self.state.get("visits", []), len(response.text)]

    for text in ("a", "bb", "ccc"):
        await crawl(Again(), {"": text})

    assert await state_of(ledger_url, "again") == {"visits": [1, 2, 3]}


async def test_a_page_knows_what_another_process_has_kept_before_it_added_the_page(
    crawl: Callable[..., Any], ledger_url: str
):
    class Reading(Spider):
        name = "reading"
        allowed_hosts = ("a.example",)

        async def start(self) -> AsyncIterator[Request]:
            yield Request(BASE)
            await first.wait()
            ledger, other = await open_ledger(ledger_url, "reading"), Spider()
            kept = KeptState(other, ledger)
            other.state["told"] = "x"
            await kept.keep()
            await ledger.tasks.add([make_task(BASE + "next")])
            await ledger.close()

        def parse(self, response: Response) -> Any:
            first.set()
            yield {"url": response.url, "told": self.state.get("told")}

    first = asyncio.Event()

    await crawl(Reading(), {"": "", "next": ""})

    items = await items_of(ledger_url, "reading")
    assert {item["url"]: item["told"] for item in items} == {BASE: None, BASE + "next": "x"}


async def test_a_state_that_is_used_after_its_callback_has_ended_is_told(
    crawl: Callable[..., Any], ledger_url: str, caplog: pytest.LogCaptureFixture
):
    told: list[str] = []

    class Late(Spider):
        name = "late"
        start_urls = (BASE,)

        def parse(self, response: Response) -> Any:
            self.state["a"] = 1
            self.task = asyncio.create_task(self.later())

        async def later(self) -> None:
            await asyncio.sleep(0.05)
            try:
                self.state["b"] = 2
            except SpiderError as error:
                told.append(str(error))

        async def closed(self, report: Report) -> None:
            await self.task

    await crawl(Late(), {"": ""})

    assert told == [f"self.state was used after the end of the callback of {BASE}"]
    assert [record.event for record in caplog.records] == ["state_lost"], "nobody awaits the task"
    assert await state_of(ledger_url, "late") == {"a": 1}


@pytest.mark.parametrize("runner", ["to_thread", "executor", "thread"])
async def test_a_thread_is_told_that_it_cannot_change_the_state(
    crawl: Callable[..., Any], ledger_url: str, caplog: pytest.LogCaptureFixture, runner: str
):
    class Threads(Spider):
        name = "threads"
        start_urls = (BASE,)

        async def parse(self, response: Response) -> Any:
            self.state.add("pages")
            if runner == "to_thread":
                await asyncio.to_thread(self.count)
            elif runner == "executor":
                await asyncio.get_running_loop().run_in_executor(None, self.count)
            else:
                thread = threading.Thread(target=lambda: suppressed(self.count))
                thread.start()
                thread.join()

        def count(self) -> None:
            self.state.add("lines", 3)

    def suppressed(function: Callable[[], None]) -> None:
        with suppress(SpiderError):
            function()

    report = await crawl(Threads(), {"": ""})

    is_awaited = runner != "thread"
    assert report.failures == ({"parse-error": 1} if is_awaited else {})
    assert caplog.messages[0] == (
        "self.state was used in a thread: return the values from it, and change self.state in "
        "the callback; this change is lost"
    )
    assert await state_of(ledger_url, "threads") == ({} if is_awaited else {"pages": 1})


async def test_a_list_of_urls_has_its_state_before_the_first_of_them_is_due(
    crawl: Callable[..., Any], ledger_url: str
):
    number = 2 * SLICE + 1

    class Listing(Spider):
        name = "listing"
        start_urls = (BASE,)

        @url_list
        def parse(self, response: Response) -> Any:
            self.state["list"] = "here"
            for each in range(number):
                yield Request(f"{BASE}{each}", callback=self.page)
            self.state["ended"] = True

        def page(self, response: Response) -> Any:
            yield {"list": self.state["list"]}

    pages = {str(each): "" for each in range(number)}
    report = await crawl(Listing(), {"": "", **pages})

    assert report.counts[Status.FINISHED] == number + 1
    assert await items_of(ledger_url, "listing") == [{"list": "here"}] * number
    assert await state_of(ledger_url, "listing") == {"list": "here", "ended": True}


async def test_no_link_and_no_outcome_is_written_before_the_state_of_its_page(ledger_url: str):
    class Parents(Spider):
        name = "parents"
        start_urls = (BASE,)

        def parse(self, response: Response) -> Any:
            self.state[response.url] = "parent"
            yield from response.follow_all("a")

    pages = {"": '<a href="/1">1</a>', "1": '<a href="/2">2</a>', "2": ""}
    answers = {BASE + path: Replay(body=body, headers=HTML) for path, body in pages.items()}
    ledger = await open_ledger(ledger_url, "parents")
    tasks, real, states = ledger.tasks, ledger.outcomes, ledger.spider_state
    others_first = cycle([True, False])  #: whether another process writes before this one
    behind: list[str] = []

    async def known() -> set[str]:
        state = await ledger.spider_state.read() or StoredState()
        return {*state.values}

    async def add(added: Sequence[Task]) -> Added:
        names = {f"{BASE}{int(each.url[-1]) - 1 or ''}" for each in added if each.url != BASE}
        behind.extend(names - await known())
        return await tasks.add(added)

    async def commit(settlements: Sequence[Settlement]) -> Committed:
        behind.extend({each.lease.task.url for each in settlements} - await known())
        return await real.commit(settlements)

    async def change(before: StoredState, after: StoredState) -> bool:
        return not next(others_first) and await states.change(before, after)

    ledger.tasks, ledger.outcomes, ledger.spider_state = (
        PatchedFacet(tasks, add=add),
        PatchedFacet(real, commit=commit),
        PatchedFacet(states, change=change),
    )
    report = await assemble(Parents(), ledger, ReplayDownloader(answers), QUICK).run()
    await ledger.close()

    assert report.counts[Status.FINISHED] == 3
    assert behind == []


async def test_a_page_whose_result_comes_too_late_counts_once(ledger_url: str):
    class Counting(Spider):
        name = "counting"
        start_urls = (BASE,)

        def parse(self, response: Response) -> Any:
            self.state.add("parsed")

    ledger = await open_ledger(ledger_url, "counting")
    real = ledger.outcomes
    others = [real.release]

    async def commit(settlements: Sequence[Settlement]) -> Committed:
        while others:
            await others.pop()([each.lease for each in settlements])
        return await real.commit(settlements)

    ledger.outcomes = PatchedFacet(real, commit=commit)
    report = await assemble(Counting(), ledger, ReplayDownloader({BASE: ""}), QUICK).run()
    await ledger.close()

    assert (report.leases_lost, report.pages) == (1, 1)
    assert await state_of(ledger_url, "counting") == {"parsed": 1}


MOVED = Replay(status=302, headers={"Location": "/page"})


@pytest.mark.parametrize(
    "pages", [{"": ""}, {"": MOVED, "page": ""}], ids=["page", "behind a redirect in place"]
)
async def test_a_page_that_an_internal_error_puts_back_counts_once(
    pages: dict[str, Any],
    crawl: Callable[..., Any],
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """The error comes when the callback has ended well."""

    class Counting(Spider):
        name = "counting"
        start_urls = (BASE,)

        def parse(self, response: Response) -> Any:
            self.state.add("parsed")

    errors = iter([TypeError("a bug")])

    def broken(response: Response) -> ResponseInfo:
        for error in errors:
            raise error
        return info_of(response)

    monkeypatch.setattr(outcomes, "info_of", broken)
    monkeypatch.setattr(outcomes, "_FIRST_WAIT", timedelta(milliseconds=1))

    # With cookies a redirect is followed in place.
    report = await crawl(Counting(), pages, cookies=True, lease="3s")

    assert (report.internal_errors, report.pages) == (1, 1)
    assert await state_of(ledger_url, "counting") == {"parsed": 1}


async def test_a_crawl_that_is_stopped_counts_the_page_that_ran_alone(tmp_path: Path):
    """Its fetcher ends while the outcome is written."""

    class Counting(Spider):
        name = "counting"
        start_urls = (BASE,)

        def parse(self, response: Response) -> Any:
            self.state.add("parsed")

    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = await open_ledger(url, "counting")
    await ledger.tasks.add([Request(BASE).task(now=ledger.now())])
    for worker in ("dead", "dead too"):
        page = await ledger.tasks.page(limit=1)
        await ledger.leases.claim(page, worker=worker, lease=timedelta(0), max_lost=5)
    real = ledger.outcomes

    async def commit(settlements: Sequence[Settlement]) -> Committed:
        crawl.stop()
        for _ in range(100):
            await asyncio.sleep(0)
        return await real.commit(settlements)

    ledger.outcomes = PatchedFacet(real, commit=commit)
    crawl = assemble(Counting(), ledger, ReplayDownloader({BASE: ""}), QUICK)
    report = await crawl.run()
    await ledger.close()

    assert (report.finish_reason, report.pages) == ("stopped", 1)
    assert await state_of(url, "counting") == {"parsed": 1}


async def test_a_spider_without_a_state_asks_its_ledger_for_none(ledger_url: str):
    class Plain(Spider):
        name = "plain"
        start_urls = (BASE,)

        def parse(self, response: Response) -> Any:
            yield from response.follow_all("a")

    links = "".join(f'<a href="/{number}">x</a>' for number in range(300))
    answers = {f"{BASE}{number}": Replay(body="", headers=HTML) for number in range(300)}
    answers[BASE] = Replay(body=links, headers=HTML)
    ledger = await open_ledger(ledger_url, "plain")
    crawl = assemble(Plain(), ledger, ReplayDownloader(answers), QUICK)
    report = await crawl.run()
    asked = {name: n for name, n in crawl.stats.ledger_operations.items() if "spider_state" in name}
    await ledger.close()

    assert report.counts[Status.FINISHED] == 301
    assert asked == {"spider_state.read": 1}


async def test_two_processes_share_a_state_and_one_that_is_killed_loses_none_of_it(
    processes: ExitStack, ledger_url: str, tmp_path: Path
):
    pages = 300
    tree = processes.enter_context(served(pages, latency=0.02))
    store = Store(ledger_url, "counting")

    def start() -> Process:
        log = tmp_path / "crawls.log"
        return processes.enter_context(
            Process(store, [tree.start], log, on_cue=True, concurrency=6, lease="6s")
        )

    crawls = [start() for _ in range(3)]
    begin_together(crawls)
    wait_until(lambda: tree.asked > pages // 4)
    crawls[0].kill()
    wait_until(lambda: tree.asked > pages // 2)
    crawls[1].kill()
    crawls[2].drained()

    state = await state_of(ledger_url, "counting")
    items = await items_of(ledger_url, "counting")
    assert {row.status for row in store.rows()} == {Status.FINISHED}
    assert state["added"] == pages
    assert {item["number"]: item["above"] for item in items} == {
        number: f"page {(number - 1) // 2}" if number else "none" for number in range(pages)
    }


async def test_what_dead_processes_have_added_counts_by_the_ends_of_their_pages(tmp_path: Path):
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "left", clock=FakeClock())
    tasks = {name: make_task(BASE + name) for name in ("finished", "failed", "later", "gone")}
    await ledger.tasks.add([task for name, task in tasks.items() if name != "gone"])
    leases = {lease.task.id: lease for lease in await claimed(ledger)}
    await ledger.outcomes.commit(
        [
            success(ledger, leases[tasks["finished"].id]),
            success(ledger, leases[tasks["later"].id]),
            failure(ledger, leases[tasks["failed"].id], Reason.CONNECT),
        ]
    )
    # The page that was done later is done by a later run.
    fences = {"finished": 1, "failed": 0, "later": 0, "gone": 1}
    pending = {tasks[name].id: PageSums(fence, {name: 1}) for name, fence in fences.items()}
    left = StoredState(revision=1, pending=pending)
    await ledger.spider_state.change(StoredState(), left)
    state = KeptState(Spider(), ledger)

    await state.open()
    await state.close()
    after = await ledger.spider_state.read()
    await ledger.close()

    assert after is not None
    assert after.values == {"finished": 1}
    assert after.pending.keys() == {tasks["failed"].id}


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "pages", clock=FakeClock())
    yield ledger
    await ledger.close()


async def values_of(ledger: SqliteLedger) -> dict[str, Any]:
    """Return the values in a ledger, without those that are pending."""
    found = await ledger.spider_state.read()
    return {} if found is None else dict(found.values)


async def test_a_state_without_a_ledger_ends_with_its_process():
    spider = Spider()
    KeptState(spider, None)

    spider.state["a"] = 1

    assert dict(spider.state) == {"a": 1}


async def test_an_attribute_of_the_spiders_own_is_no_state(file: SqliteLedger):
    class Own(Spider):
        state = {"a": 1}  # type: ignore[assignment]  # as spiders had it before

    spider = Own()
    state = KeptState(spider, file)
    await state.open()
    await state.close()

    assert (spider.state, await values_of(file)) == ({"a": 1}, {})


async def test_two_processes_that_write_at_once_lose_no_change(file: SqliteLedger):
    spiders = Spider(), Spider()
    states = [KeptState(spider, file) for spider in spiders]

    for number, spider in enumerate(spiders):
        spider.state[f"of {number}"] = number
    async with asyncio.timeout(5):
        for state in states:
            await state.keep()

    assert await values_of(file) == {"of 0": 0, "of 1": 1}


async def test_a_callback_tells_its_changes(file: SqliteLedger):
    spider = Spider()
    state = KeptState(spider, file)
    spider.state["gone"] = 1

    with state.running(make_task()) as page:
        spider.state["new"] = 2
        del spider.state["gone"]
        changed = state.changes(page)

    assert changed == {"gone": None, "new": 2}
    assert dict(spider.state) == {"gone": 1}, "it has not ended well"


async def test_a_spider_that_names_its_state_in_a_function_within_one_has_the_newest(
    file: SqliteLedger,
):
    class Nested(Spider):
        def parse(self, response: Response) -> Any:
            def found() -> Any:
                return self.state["a"]

            return found()

    spider, other = Nested(), Spider()
    state, others = KeptState(spider, file), KeptState(other, file)
    await state.open()
    other.state["a"] = 1
    await others.keep()

    await state.refresh()

    assert spider.parse(Response(BASE, request=Request(BASE))) == 1
