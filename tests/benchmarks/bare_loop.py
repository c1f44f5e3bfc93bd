"""The least that a crawl can cost: aiohttp, lexbor and a set of the URLs seen.

    python -m tests.benchmarks.bare_loop URL [CONCURRENCY]

No ledger, no limits, no robots.txt, no protection from anything.
"""

import asyncio
import sys

import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser
from yarl import URL


async def bare(start: str, *, concurrency: int) -> int:
    """Crawl all of the host of *start*, with any certificate; return the number of pages."""
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
                    for node in tree.css("a[href]"):
                        link = url.join(URL(node.attributes["href"] or "")).with_fragment(None)
                        if link.host == first.host and link not in seen:
                            seen.add(link)
                            queue.put_nowait(link)
            queue.task_done()

    connector = aiohttp.TCPConnector(limit=0, ssl=False)
    async with aiohttp.ClientSession(connector=connector) as session:
        workers = [asyncio.create_task(fetch(session)) for _ in range(concurrency)]
        await queue.join()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return len(items)


if __name__ == "__main__":
    print(uvloop.run(bare(sys.argv[1], concurrency=int(sys.argv[2]))))
