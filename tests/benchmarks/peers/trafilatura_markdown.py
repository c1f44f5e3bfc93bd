"""trafilatura's own crawl to Markdown files: python trafilatura_markdown.py URL FOLDER.

`focused_crawler` returns only the addresses of the pages, so each page is fetched twice.
"""

import socket
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from trafilatura import extract, fetch_url
from trafilatura.settings import use_config
from trafilatura.spider import focused_crawler


def crawl(start: str, folder: Path) -> None:
    """Crawl the host of *start*, one page at a time, and write a file for each page."""
    config = use_config()
    config.set("DEFAULT", "SLEEP_TIME", "0")
    config.set("DEFAULT", "SSRF_PROTECTION", "off")  # the site is on this machine
    _, known = focused_crawler(start, max_seen_urls=100_000, config=config)
    # It takes an address with a fragment for a page of its own.
    for url in {url.partition("#")[0] for url in known}:
        page = fetch_url(url, config=config)
        text = page and extract(page, url=url, output_format="markdown", with_metadata=True)
        if text:
            name = sha256(url.encode()).hexdigest()
            (folder / f"{name}.md").write_text(text)


def resolve_to_loopback(start: str) -> None:
    """Give the site's host the address of this machine."""
    resolve, name = socket.getaddrinfo, urlsplit(start).hostname

    def resolved(host, *arguments, **options):
        return resolve("127.0.0.1" if host == name else host, *arguments, **options)

    socket.getaddrinfo = resolved


if __name__ == "__main__":
    resolve_to_loopback(sys.argv[1])
    crawl(sys.argv[1], Path(sys.argv[2]))
