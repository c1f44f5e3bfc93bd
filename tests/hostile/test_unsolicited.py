"""Unsolicited answers of a host whose other pages are correct (row 1.5).

Every page names its own URL, which reveals an answer that is recorded for another URL. The second
answer comes in the segment of the first, right after it, or a number of ms later.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from crawlcw import Settings, Spider
from crawlcw.assembly import open_crawl
from crawlcw.ledger_opening import open_ledger
from tests.hostile import server as hostile_server
from tests.hostile.pages import KEEP, Exchange, page, response
from tests.hostile.server import HostileServer

GOOD_FIRST = 160
GOOD_LATER = 40
BAD = 12
SETTINGS = Settings(concurrency=24, backoff_base="50ms", host_backoff_base="50ms")


def own(target: str, links: str = "") -> bytes:
    return response(f"<title>{target}</title>{links}".encode())


POISON = own("POISON")


@page("/good")
async def _good(exchange: Exchange) -> object:
    await exchange.send(own(exchange.target))
    return KEEP


@page("/start")
async def _start(exchange: Exchange) -> object:
    asked = parse_qs(exchange.target.partition("?")[2])
    links = "".join(f'<a href="{path}">' for path in site(int(asked["seed"][0]), asked["late"][0]))
    await exchange.send(own(exchange.target, links))
    return KEEP


@page("/twice")
async def _twice(exchange: Exchange) -> object:
    """Answers twice, and serves the connection in order, as most servers do."""
    late, answer = _lateness(exchange), own(exchange.target)
    if late == "same segment":
        await exchange.send(answer + POISON)
        return KEEP
    await exchange.send(answer)
    if late == "next segment":
        await exchange.taken()
    else:
        await asyncio.sleep(int(late) / 1_000)
    await exchange.send(POISON)
    return KEEP


@page("/twice-beside")
async def _twice_beside(exchange: Exchange) -> object:
    """Answers twice, the second time beside further requests on the connection."""
    late = _lateness(exchange)
    delay = int(late) / 1_000 if late.isdecimal() else 0
    await exchange.send(own(exchange.target))
    asyncio.get_running_loop().call_later(delay, exchange.writer.write, POISON)
    return KEEP


def _lateness(exchange: Exchange) -> str:
    return parse_qs(exchange.target.partition("?")[2])["late"][0]


def site(seed: int, late: str) -> list[str]:
    """Return the links: good pages first, then the bad ones among others."""
    name = late.replace(" ", "+")
    bad = [f"/twice{'-beside' * (n % 2)}?late={name}&n={n}" for n in range(BAD)]
    good = [f"/good?n={n}" for n in range(GOOD_FIRST + GOOD_LATER)]
    mixed = good[GOOD_FIRST:] + bad
    random.Random(seed).shuffle(mixed)
    return good[:GOOD_FIRST] + mixed


class Own(Spider):
    """Records the URL that each page names."""

    name = "own"

    def parse(self, response: Any) -> Iterator[Any]:
        yield {"asked": response.url, "said": response.css_first("title").text()}
        yield from response.follow_all("a[href]")


async def crawled(
    server: HostileServer, start: str, ledger: str, *, beside: Sequence[str] = ()
) -> dict[str, str]:
    """Crawl the site, and pages *beside* it; return the recorded text of each URL."""
    spider = Own(start_urls=[server.url(start), *beside])
    async with open_crawl(spider, ledger=ledger, settings=SETTINGS) as crawl:
        await crawl.run()
    opened = await open_ledger(ledger, Own.name, settings=SETTINGS)
    try:
        items = [row.item async for row in opened.queries.items()]
    finally:
        await opened.close()
    return {item["asked"].removeprefix(server.url("")): item["said"] for item in items}


async def test_a_second_answer_in_the_segment_of_the_first_is_never_recorded(
    tmp_path: Path,
) -> None:
    late = "same segment"
    async with hostile_server.running() as server:
        recorded = await crawled(server, _start_of(late), f"sqlite:///{tmp_path}/crawl.db")
        connections, requests = min(server.before["/twice"], server.before["/twice-beside"])

    assert {url: said for url, said in recorded.items() if url != said} == {}
    assert set(recorded) == {_start_of(late), *site(1, late)}
    # The test is valid only if connections were reused before the first bad page.
    assert connections < requests / 2


@pytest.mark.parametrize("late", [pytest.param("next segment", marks=pytest.mark.thorough), "10"])
async def test_later_ones_are_recorded_for_pages_of_their_host_alone_and_lose_no_page(
    tmp_path: Path, late: str
) -> None:
    async with hostile_server.running() as bad, hostile_server.running() as good:
        start = _start_of(late)
        beside = [good.url(f"/good?n={n}") for n in range(GOOD_LATER)]
        recorded = await crawled(bad, start, f"sqlite:///{tmp_path}/crawl.db", beside=beside)

    assert set(recorded) == {start, *site(1, late), *beside}
    assert all(good.url(recorded[url]) == url for url in beside)


def _start_of(late: str) -> str:
    return f"/start?seed=1&late={late.replace(' ', '+')}"
