"""A tree of pages, and a spider that counts in its state.

Each page of the tree links to two further ones. The spider counts the
pages, and passes each page's name to the pages below it in its state.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from crawlcw import Response, Settings, Spider
from tests.support import loopback
from tests.support.site_threads import in_thread


class Counting(Spider):
    """Counts pages by adding."""

    name = "counting"
    settings = Settings(obey_robots=False, backoff_base="0s", backoff_max="0s")
    pause = "0"  #: seconds between a change and the end of a callback

    async def parse(self, response: Response) -> Any:
        number = int(response.url.rsplit("/", 1)[1])
        self.state.add("added")
        self.state[f"title {number}"] = f"page {number}"
        above = self.state[f"title {(number - 1) // 2}"] if number else "none"
        if float(self.pause):
            await asyncio.sleep(float(self.pause))
        yield {"number": number, "above": above}
        for link in response.follow_all("a"):
            yield link


@dataclass(slots=True)
class Tree:
    """The site, and the number of its requests."""

    pages: int
    latency: float = 0.0
    asked: int = 0
    base: str = ""

    @property
    def start(self) -> str:
        return f"{self.base}/0"

    async def page(self, request: web.Request) -> web.Response:
        self.asked += 1
        await asyncio.sleep(self.latency)
        number = int(request.match_info["number"])
        below = (each for each in (2 * number + 1, 2 * number + 2) if each < self.pages)
        links = "".join(f'<a href="/{each}">{each}</a>' for each in below)
        return web.Response(text=f"<p>{number}</p>{links}", content_type="text/html")


@contextmanager
def served(pages: int, **options: Any) -> Iterator[Tree]:
    """Serve a tree of *pages* pages on its own port."""
    tree = Tree(pages, **options)
    app = web.Application()
    app.router.add_get("/{number}", tree.page)
    with in_thread(loopback.served(app)) as tree.base:
        yield tree
