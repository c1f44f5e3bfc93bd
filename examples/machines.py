"""One crawl by three machines, of which two die: every page is recorded once.

    python examples/machines.py
    CRAWLCW_LEDGER=mongodb://127.0.0.1/crawl python examples/machines.py

Each `crawlcw run` stands for a machine: nothing but the ledger connects them, here a
SQLite file or the given database. Needs no network: it crawls the bookshop that comes with crawlcw.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from crawlcw import Request, Settings, Spider
from crawlcw.demo.bookshop import Bookshop

SPIDER = str(Path(__file__).resolve())


class Books(Spider):
    """The books of the shop at `url`, slowly enough to be interrupted."""

    name = "books"
    settings = Settings(delay="20ms")

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        yield from response.follow_all("nav.shelves a, a[rel=next]", callback=self.parse)
        yield from response.follow_all("article.book a", callback=self.parse_book)

    def parse_book(self, response):
        yield {"title": response.css_first("h1").text()}


def crawlcw(*arguments, **options):
    command = [sys.executable, "-m", "crawlcw", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def output(*arguments):
    with crawlcw(*arguments, stderr=subprocess.DEVNULL) as command:
        return command.stdout.read()


def pages_finished():
    """Ask the ledger, which has no such crawl until the first machine has begun."""
    said = output("stats", "books", "--json")
    return json.loads(said)["counts"]["finished"] if said else 0


def crawl(url):
    *dying, last = [crawlcw("run", SPIDER, "-a", f"url={url}", "--quiet") for _ in range(3)]
    for number, machine in enumerate(dying, 1):
        while pages_finished() < 50 * number:
            pass  # each question takes a moment
        machine.kill()
        machine.communicate()
        print(f"machine {number} is dead")
    last.communicate()
    lines = output("export", "books", "-o", "-").splitlines()
    titles = {json.loads(line)["title"] for line in lines}
    print(f"the last machine ended with {last.returncode}")
    print(f"{len(lines)} books, {len(titles)} titles")


async def main():
    async with Bookshop() as shop:
        await asyncio.to_thread(crawl, shop.url)


if __name__ == "__main__":
    # The ledger is in .crawlcw of the working directory, unless CRAWLCW_LEDGER names another.
    with TemporaryDirectory() as folder, chdir(folder):
        asyncio.run(main())
