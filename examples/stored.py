"""A spider that changes after its crawl: stored pages are parsed again, without the site.

    python examples/stored.py

Needs no network: it crawls the bookshop that comes with crawlcw. On the command line, use
`crawlcw run SPIDER -s keep_bodies=true`, then `crawlcw parse SPIDER --stored --save`.
Needs warcio: `pip install 'crawlcw[warc]'`.
"""

import asyncio
import importlib.util
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from crawlcw.demo.bookshop import Bookshop

SPIDER = """
from crawlcw import Settings, Spider

class Books(Spider):
    name = "books"
    start_urls = ["{url}"]
    settings = Settings(keep_bodies=True, max_depth=1)

    def parse(self, response):
        yield {{"title": response.css_first("title").text(){more}}}
        yield from response.follow_all("a")
"""


def crawlcw(*arguments):
    """Run a command, and return its output."""
    command = [sys.executable, "-m", "crawlcw", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def crawl(url):
    """Crawl the shop with a spider that records titles."""
    Path("books.py").write_text(SPIDER.format(url=url, more=""))
    crawlcw("run", "books.py", "--quiet")


async def main():
    async with Bookshop() as shop:
        url = shop.url
        await asyncio.to_thread(crawl, url)
    parse_anew(url)


def parse_anew(url):
    """Add a field to the spider, and parse the stored pages again; the server has ended."""
    changed = SPIDER.format(url=url, more=', "links": len(response.css("a"))')
    Path("books.py").write_text(changed)
    print(crawlcw("parse", "books.py", "--stored", "--save", "--yes").splitlines()[0])
    print(crawlcw("export", "books", "-o", "-").splitlines()[0])


if __name__ == "__main__":
    if importlib.util.find_spec("warcio") is None:
        sys.exit("this example needs warcio: pip install 'crawlcw[warc]'")
    # Ledger and pages are in `.crawlcw` in the working directory.
    with TemporaryDirectory() as folder, chdir(folder):
        asyncio.run(main())
