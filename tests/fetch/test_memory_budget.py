"""Memory budget: first come, first served, and no request waits for ever."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Response, Settings, Spider, run_spider
from crawlcw.api.attempt import Attempt
from crawlcw.api.request import Request
from crawlcw.fetch.body import MemoryBudget
from tests.support.plain_site import PlainHandler, PlainSite

pytestmark = pytest.mark.quick


async def turns() -> None:
    """Run all tasks until each of them waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_shares_add_up_to_the_limit_and_no_further():
    budget = MemoryBudget(10)
    first, second = await budget.take(6), await budget.take(4)
    third = asyncio.create_task(budget.take(1))
    await turns()
    assert (budget.used, third.done()) == (10, False)

    second.shrink(3)

    assert (await third).size == 1
    for share in (first, second, third.result()):
        share.shrink(0)
    assert budget.used == 0


async def test_a_large_share_is_not_kept_waiting_by_small_ones_that_came_later():
    budget = MemoryBudget(10)
    held = await budget.take(5)
    large = asyncio.create_task(budget.take(8))
    await turns()
    small = asyncio.create_task(budget.take(1))
    await turns()
    assert not small.done()

    held.shrink(0)

    await turns()
    assert (large.done(), small.done(), budget.used) == (True, True, 9)


async def test_who_is_cancelled_while_it_waits_has_nothing_and_lets_the_next_go_on():
    budget = MemoryBudget(10)
    held = await budget.take(5)
    large, small = asyncio.create_task(budget.take(8)), asyncio.create_task(budget.take(5))
    await turns()

    large.cancel()
    await turns()

    assert (large.cancelled(), small.done(), budget.used) == (True, True, 10)
    held.shrink(0)
    small.result().shrink(0)
    assert budget.used == 0


async def test_an_attempt_that_fails_at_its_end_gives_its_memory_back():
    """A page that is open in a browser is closed there."""
    budget = MemoryBudget(10)
    late = AsyncExitStack()

    with pytest.raises(ZeroDivisionError):
        async with Attempt(request=Request("http://a.example/"), cleanup=late) as attempt:
            late.callback(lambda: 1 / 0)
            attempt.keep(await budget.take(10))

    assert budget.used == 0


class LargePages(PlainHandler):
    """Any two of its pages are larger than the budget of a crawl below; one is for members."""

    def get(self) -> None:
        is_seen = self.path == "/page" or (self.path == "/inside" and self.headers["X-Member"])
        self.reply(200, ("page" if is_seen else "refused") + " " * 900_000)


class Reader(Spider):
    name = "reader"

    def parse(self, response: Response) -> Any:
        yield {"page": response.text.strip()}


async def asked_twice(attempt: Any, request: Any, call_next: Any) -> Response:
    await call_next(attempt, request)
    return await call_next(attempt, request)  # type: ignore[no-any-return]


class AsksTwice(Reader):
    layers = (asked_twice,)


class Member(Reader):
    """Its first page is the login probe when the second one is refused."""

    async def login(self, session: Any) -> None:
        await session.fetch(next(iter(self.start_urls)))
        session.headers["X-Member"] = "yes"

    def login_when(self, response: Response) -> bool:
        return response.body.startswith(b"refused")


@pytest.mark.parametrize(
    ("spider", "pages", "failures"),
    [(AsksTwice(), ["page"], {}), (Member(), ["inside", "never"], {"logged-out": 1})],
)
async def test_no_request_waits_for_memory_of_the_page_that_it_is_made_for(
    spider: Reader, pages: list[str], failures: dict[str, int], tmp_path: Path
):
    settings = Settings(
        obey_robots=False,
        cookies=True,
        concurrency=1,
        max_body="1 MiB",
        memory_budget="4 MiB",
        backoff_base="0s",
        backoff_max="0s",
    )
    ledger = f"sqlite:///{tmp_path / 'crawl.db'}"
    with PlainSite(LargePages) as site:
        spider.start_urls = [site.url + page for page in pages]
        async with asyncio.timeout(5):
            report = await run_spider(spider, ledger=ledger, settings=settings)

    assert (report.items, report.failures) == (1, failures)
