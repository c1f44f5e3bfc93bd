"""Lower bound for the cost of a crawl: aiohttp, lexbor and a set of seen URLs.

    python tests/benchmarks/bare_loop.py URL [CONCURRENCY]

Each distinct link of a page is taken once. There is no ledger, no limit, no robots.txt and no
protection.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser
from yarl import URL


async def bare(start: str, *, concurrency: int) -> int:
    """Crawl the host of *start*, with any certificate; return the number of pages."""
    queue: asyncio.Queue[URL] = asyncio.Queue()
    first = URL(start)
    seen = {first}
    queue.put_nowait(first)
    items = []

    async def fetch(session: aiohttp.ClientSession) -> None:
        while True:
            url = await queue.get()
            async with session.get(url) as response:
                body = await response.read()
                if response.status == 200 and response.content_type == "text/html":
                    tree = LexborHTMLParser(body)
                    title = tree.css_first("title")
                    items.append({"url": str(url), "title": title.text() if title else ""})
                    links = {node.attributes["href"] or "" for node in tree.css("a[href]")}
                    for reference in {link.partition("#")[0] for link in links}:
                        link = url.join(URL(reference))
                        if link.host == first.host and link not in seen:
                            seen.add(link)
                            queue.put_nowait(link)
            queue.task_done()

    await emptied(queue, fetch, aiohttp.TCPConnector(limit=0, ssl=False), workers=concurrency)
    return len(items)


async def emptied(
    queue: asyncio.Queue[Any],
    fetch: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]],
    connector: aiohttp.TCPConnector,
    *,
    workers: int,
) -> None:
    """Run *workers* copies of *fetch*, an endless loop over *queue*, until the queue is done."""
    async with aiohttp.ClientSession(connector=connector) as session:
        running = [asyncio.create_task(fetch(session)) for _ in range(workers)]
        await queue.join()
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    print(uvloop.run(bare(sys.argv[1], concurrency=int(sys.argv[2]))))
