"""Unsolicited answers of a host whose other pages are correct (row 1.5).

Every page names its own URL, which reveals an answer that is recorded for another
URL. Most pages of the host are good, so its connections are trusted before the
first request to a bad page.
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
#: The crawl needs some 60 of them before it trusts a connection at once.
GOOD_FIRST = 160
GOOD_LATER = 40
BAD = 12
#: The time of the second answer: in the segment of the first, right after it,
#: or this number of ms later.
LATENESS = ("same segment", "next segment", 3, 10, 20, 30, 40, 50)
SETTINGS = Settings(concurrency=24, backoff_base="50ms", host_backoff_base="50ms")


def own(target: str, links: str = "") -> bytes:
    return response(f"<title>{target}</title>{links}".encode())


POISON = own("POISON")


@page("/good")
async def _good(exchange: Exchange) -> object:
    # A realistic time, so that the crawl outlasts the rests of the host.
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


async def crawled(server: HostileServer, start: str, ledger: str) -> dict[str, str]:
    """Crawl the site; return the recorded text of each URL from the ledger."""
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
        # The test is valid only if connections were reused at once before the first
        # bad page.
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
