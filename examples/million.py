"""A long list of URLs: added from a file, crawled in two runs, and exported.

    python examples/million.py             # 2,000 URLs
    python examples/million.py 1000000     # a million

It serves the pages on this machine, under two host names, and leaves nothing behind.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from crawlcw import Settings, Spider

SPIDER = str(Path(__file__).resolve())


class Shop(Spider):
    """Products whose addresses are known; the pages of `crawlcw add` are all that it crawls."""

    name = "shop"
    start_urls = []
    allowed_hosts = ["127.0.0.1", "localhost"]
    settings = Settings(max_pages_per_host=None)

    def parse(self, response):
        yield {"product": int(response.css_first("h1").text())}


async def product(request):
    text = f"<h1>{request.match_info['number']}</h1>"
    return web.Response(text=text, content_type="text/html")


def crawlcw(*arguments):
    subprocess.run([sys.executable, "-m", "crawlcw", *arguments], check=True)


def crawl(port, number):
    with Path("urls.txt").open("w") as urls:
        for n in range(number):
            host = ("127.0.0.1", "localhost")[n % 2]
            urls.write(f"http://{host}:{port}/product/{n}\n")

    crawlcw("add", SPIDER, "urls.txt")
    # A crawl of the web does without: hosts and ports of your own network are refused.
    run = ("run", SPIDER, "--quiet", "-s", f"allow_private=127.0.0.1:{port},localhost:{port}")
    # The first run ends by number, and the next one goes on from there.
    crawlcw(*run, "--max-pages", str(number // 4))
    crawlcw(*run, "--concurrency", "200", "--processes", "2")
    crawlcw("export", "shop", "-o", "items.jsonl")

    with Path("items.jsonl").open() as items:
        products = {json.loads(line)["product"] for line in items}
    print(f"{len(products)} of {number} products")


async def main(number):
    app = web.Application()
    app.router.add_get(r"/product/{number:\d+}", product)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await asyncio.to_thread(crawl, runner.addresses[0][1], number)
    await runner.cleanup()


if __name__ == "__main__":
    # The ledger is in .crawlcw of the working directory.
    with TemporaryDirectory() as folder, chdir(folder):
        asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 2_000))
