"""A server that answers without being asked, at a host whose other pages are in order (row 1.5).

Every page says its own URL, so an answer that is recorded for another URL is
seen. Most pages of the host are good, and its connections are trusted before
the first bad endpoint is asked.
"""

import asyncio
import random
from collections.abc import Iterator
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

RUNS = 20
#: The crawl asks for some 60 of them before it trusts a connection at once.
GOOD_FIRST = 160
GOOD_LATER = 40
BAD = 12
#: When the second answer follows: in the segment of the first, right after it,
#: or so many ms later.
LATENESS = ("same segment", "next segment", 3, 10, 20, 30, 40, 50)
SETTINGS = Settings(concurrency=24, backoff_base="50ms", host_backoff_base="50ms")


def own(target: str, links: str = "") -> bytes:
    return response(f"<title>{target}</title>{links}".encode())


POISON = own("POISON")


@page("/good")
async def _good(exchange: Exchange) -> object:
    # As long as a page takes to make: so the crawl lasts until rests are over.
    await asyncio.sleep(0.005)
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
    """Answers twice; the connection is served in order, as most servers do."""
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
    """Answers twice, the second time beside what else the connection is asked for."""
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
    """Records for each page what it says that it is."""

    name = "own"

    def parse(self, response: Any) -> Iterator[Any]:
        yield {"asked": response.url, "said": response.css_first("title").text()}
        yield from response.follow_all("a[href]")


async def crawled(server: HostileServer, start: str, ledger: str) -> dict[str, str]:
    """Crawl the site; return what was recorded for each URL, read from the ledger."""
    async with open_crawl(
        Own(start_urls=[server.url(start)]), ledger=ledger, settings=SETTINGS
    ) as crawl:
        await crawl.run()
    opened = await open_ledger(ledger, Own.name, settings=SETTINGS)
    try:
        items = [row.item async for row in opened.queries.items()]
    finally:
        await opened.close()
    return {item["asked"].removeprefix(server.url("")): item["said"] for item in items}


async def is_never_a_page(folder: Path, *, seed: int) -> None:
    late = LATENESS[seed % len(LATENESS)]
    start = f"/start?seed={seed}&late={str(late).replace(' ', '+')}"
    async with hostile_server.running() as server:
        recorded = await crawled(server, start, f"sqlite:///{folder}/{seed}.db")
        assert {url: said for url, said in recorded.items() if url != said} == {}
        assert set(recorded) == {start, *site(seed, str(late))}
        # Connections were used again at once when the first bad page was asked
        # for, or this would prove nothing.
        connections, requests = min(server.before["/twice"], server.before["/twice-beside"])
        assert connections < requests / 2


@pytest.mark.parametrize("seed", [1, 5])
async def test_an_answer_nobody_asked_for_is_never_recorded(tmp_path: Path, seed: int) -> None:
    await is_never_a_page(tmp_path, seed=seed)


@pytest.mark.thorough
@pytest.mark.timeout(240)
async def test_an_answer_nobody_asked_for_is_never_recorded_in_many_runs(tmp_path: Path) -> None:
    for seed in range(RUNS):
        await is_never_a_page(tmp_path, seed=seed)
