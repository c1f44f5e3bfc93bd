"""A site of generated sitemaps, in a process of its own.

    python -m tests.support.sitemap_site --files 20 --urls 50000

Prints its port and serves until it is ended. `/index.xml` lists the files, their URLs are
pages of a few bytes, and `/__hits__` returns the number of requests by path.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from crawlcw import Settings, SitemapSpider, StopCrawl
from tests.support.docs import REPOSITORY


class FrontierSpider(SitemapSpider):
    """Fills its frontier from sitemaps, and ends at the first page."""

    name = "frontier"
    settings = Settings(obey_robots=False, grace="10m", user_agent="crawlcw-benchmark")

    def __init__(self, sitemap: str) -> None:
        super().__init__()
        self.sitemap_urls = [sitemap]

    def parse(self, response):
        raise StopCrawl("the frontier is full")


class EverythingSpider(FrontierSpider):
    """Crawls all pages of the sitemaps."""

    name = "everything"

    def parse(self, response):
        yield {"url": response.url}


@contextmanager
def served(*, files: int, urls: int) -> Iterator[str]:
    """Serve the site; yield its URL without a final slash."""
    command = [sys.executable, "-m", __name__, f"--files={files}", f"--urls={urls}"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as site:
        try:
            assert site.stdout is not None
            yield f"http://127.0.0.1:{int(site.stdout.readline())}"
        finally:
            site.kill()


def _body(path: str, base: str, *, files: int, urls: int) -> bytes:
    if path == "/index.xml":
        listed = (f"<sitemap><loc>{base}/{n}.xml</loc></sitemap>" for n in range(files))
        return f"<sitemapindex>{''.join(listed)}</sitemapindex>".encode()
    number = path.strip("/").removesuffix(".xml")
    if not path.endswith(".xml") or not number.isdigit():
        return b"<title>page</title>"
    listed = (
        f"<url><loc>{base}/products/category-{n % 97}/product-{number}-{n}.html</loc>"
        "<lastmod>2026-01-31T12:00:00+00:00</lastmod></url>\n"
        for n in range(urls)
    )
    return f"<urlset>{''.join(listed)}</urlset>".encode()


async def _serve(files: int, urls: int) -> None:
    hits: Counter[str] = Counter()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                base = f"http://127.0.0.1:{port}"
                if path == "/__hits__":
                    body = json.dumps(hits).encode()
                else:
                    hits[path] += 1
                    body = _body(path, base, files=files, urls=urls)
                kind = "application/xml" if path.endswith(".xml") else "text/html"
                writer.write(
                    f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--urls", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(_serve(options.files, options.urls))
