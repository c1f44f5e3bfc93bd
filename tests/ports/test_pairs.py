"""Spiders of Scrapy and their ports on one site: equal items, although the port is killed once."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support import loopback, needed
from tests.support.commands import invoke

needed.module("itemloaders", extra="ports")
needed.module("scrapy", extra="ports")

PAIRS = Path(__file__).parent / "pairs"
ROOT = PAIRS.parents[2]
PATIENCE = 60


@dataclass(kw_only=True)
class Site:
    """Pages by path; the answer to a held page waits until its release."""

    pages: Mapping[str, str]
    url: str = ""
    held: str = ""
    homes: Counter[str] = field(default_factory=Counter)  #: requests for `/`, by client
    is_asked: asyncio.Event = field(
        default_factory=asyncio.Event
    )  #: set by a request for the held page
    is_let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/":
            self.homes[request.headers["User-Agent"].partition("/")[0]] += 1
        if request.path == self.held and not self.is_let_go.is_set():
            self.is_asked.set()
            await self.is_let_go.wait()
        found = self.pages.get(request.path)
        if found is None:
            return web.Response(status=404, text="nothing")
        return web.Response(text=found, content_type="text/html")


@asynccontextmanager
async def served(pages: Mapping[str, str]) -> AsyncIterator[Site]:
    site = Site(pages=pages)
    app = web.Application()
    app.router.add_get("/{path:.*}", site.answer)
    async with loopback.served(app) as site.url:
        try:
            yield site
        finally:
            site.is_let_go.set()


def quotes() -> dict[str, str]:
    def page(number: int) -> str:
        quoted = "".join(
            f"<div class=quote><span class=text>text {number}.{n} &amp; “more”</span>"
            f"<small class=author>author {n}</small><div class=tags>"
            f"<a class=tag>tag {n}</a><a class=tag>tag {number}</a></div></div>"
            for n in range(3)
        )
        return quoted + f"<li class=next><a href=/page/{number + 1}/>next</a>" * (number < 8)

    return {"/": page(1), **{f"/page/{n}/": page(n) for n in range(2, 9)}}


def shop() -> dict[str, str]:
    def category(number: int) -> str:
        items = "".join(
            f"<article><a href=/item/{number}{n}>i</a><a href=/item/{number}{n}.jpg>m</a></article>"
            for n in range(3)
        )
        more = f"<a href=/category/{number + 1}>more</a>" * (number < 6)
        others = "<a href=/item/aside>in no article</a><a href=/category/login>no</a>"
        return items + more + others

    def item(name: str) -> str:
        return f"<h1>Item {name}</h1><p class=price>£1.{name}</p><img src=../img/{name}.png>"

    names = [f"{number}{n}" for number in range(1, 7) for n in range(3)]
    outside = "<a href='http://127.0.0.2:1/category/1'>o</a><a href=mailto:x>m</a>"
    home = f"<a href=/category/1>c</a>{outside}"
    return {
        "/": home,
        **{f"/category/{n}": category(n) for n in range(1, 7)},
        **{f"/item/{name}": item(name) for name in names},
        "/item/aside": item("0"),
        "/category/login": "no",
    }


def books() -> dict[str, str]:
    def book(shelf: int, n: int) -> str:
        price = f"£{shelf}.5" if n else ""
        name = f"<b> A book called {shelf}.{n}</b>"
        return f"<li class=book>{name}<i>{price}</i><a href=/book/{shelf}{n}>b</a>"

    pages = {f"/book/{s}{n}": f"<span class=author>ann {s}</span><span class=author>bob</span>"
             for s in range(1, 6) for n in range(4) if (s, n) != (2, 2)}  # fmt: skip
    return {
        "/": "".join(f"<a class=shelf href=/shelf/{n}>Shelf {n}</a>" for n in range(1, 6)),
        **{f"/shelf/{s}": "".join(book(s, n) for n in range(4)) for s in range(1, 6)},
        **pages,
    }


#: The pages of each site, and the page at which the port is killed, after some others.
SITES = {
    "quotes": (quotes, "/page/5/"),
    "shop": (shop, "/category/4"),
    "books": (books, "/book/42"),
}


async def run(*command: str, folder: Path) -> asyncio.subprocess.Process:
    """Start a command as the leader of a process group of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    log = (folder / "log").open("ab")
    with log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command,
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


async def ended(process: asyncio.subprocess.Process, folder: Path) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert code == 0, (folder / "log").read_text()


def items(path: Path) -> list[str]:
    """Return the items of a feed as text, sorted."""
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(json.dumps(each, sort_keys=True) for each in found)


@pytest.mark.thorough
@pytest.mark.representative("sqlite", "books")
@pytest.mark.parametrize("shape", SITES)
async def test_a_port_that_is_killed_and_run_again_gives_the_items_of_scrapy(
    shape: str, tmp_path: Path, ledger_url: str
):
    pages, held = SITES[shape]
    async with served(pages()) as site:
        site.held = held
        port = (
            *("crawlcw", "run", str(PAIRS / f"{shape}_crawlcw.py"), "-a", f"home={site.url}/"),
            *("--ledger", ledger_url, "-o", "crawlcw.jsonl"),
            *("-s", "lease=2s", "-s", "concurrency=2"),
        )
        killed = await run(*port, folder=tmp_path)
        try:
            async with asyncio.timeout(PATIENCE):
                await site.is_asked.wait()
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            await killed.wait()
        site.is_let_go.set()
        assert not (tmp_path / "crawlcw.jsonl").exists(), "the kill came too late"

        again = await run(*port, folder=tmp_path)
        scrapy = await run(
            *("scrapy", "runspider", str(PAIRS / f"{shape}_scrapy.py"), "-a", f"home={site.url}/"),
            *("-O", "scrapy.jsonl", "-s", "TELNETCONSOLE_ENABLED=0"),
            folder=tmp_path,
        )
        await ended(again, tmp_path)
        await ended(scrapy, tmp_path)

    assert site.homes == {"crawlcw": 1, "Scrapy": 1}, "the second run continues"
    assert items(tmp_path / "crawlcw.jsonl") == items(tmp_path / "scrapy.jsonl")
    assert len(items(tmp_path / "scrapy.jsonl")) > 10


@pytest.mark.parametrize("shape", SITES)
def test_check_finds_what_is_to_be_ported_and_nothing_in_the_port(shape: str):
    assert invoke("check", str(PAIRS / f"{shape}_scrapy.py")).returncode == 2
    port = invoke("check", str(PAIRS / f"{shape}_crawlcw.py"), "-a", "home=http://127.0.0.1/")
    assert port.stdout == f"{shape}: no mistake found\n"
