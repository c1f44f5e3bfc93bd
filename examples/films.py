"""Films saved to a folder: one under two names, and one after an interrupted download.

    python examples/films.py

Needs no network: it serves some generated files. The server interrupts the first
download, and the second attempt requests the rest.
"""

import asyncio
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from crawlcw import Settings, Spider, open_ledger, run_spider


class Films(Spider):
    """One item for each film on the start page."""

    name = "films"
    settings = Settings(backoff_base="0s", max_file="2 GiB")

    def parse(self, response):
        for link in response.css("a"):
            yield response.follow(link, self.parse_film, save_to=self.folder)

    def parse_film(self, response):
        yield {"url": response.url, "file": response.file}


class Site:
    """A page and three films."""

    def __init__(self):
        chance = random.Random(5)
        long, short = chance.randbytes(3 << 20), chance.randbytes(1000)
        self.films = {"long.mp4": long, "short.mp4": short, "copy.mp4": short}
        self.breaks = True

    async def page(self, _):
        links = "".join(f'<a href="/{name}">{name}</a>' for name in self.films)
        return web.Response(text=links, content_type="text/html")

    async def film(self, request):
        if (content := self.films.get(request.match_info["name"])) is None:
            raise web.HTTPNotFound
        start = request.http_range.start or 0
        print(f"{request.path}, from byte {start:,}")
        answer = web.StreamResponse(status=206 if start else 200, headers={"ETag": '"v1"'})
        answer.content_type, answer.content_length = "video/mp4", len(content) - start
        if start:
            last = f"{len(content) - 1}/{len(content)}"
            answer.headers["Content-Range"] = f"bytes {start}-{last}"
        await answer.prepare(request)
        if self.breaks and len(content) > 1 << 20:
            self.breaks = False
            await answer.write(content[: 1 << 20])
            request.transport.close()
        else:
            await answer.write(content[start:])
        return answer


async def main():
    site = Site()
    app = web.Application()
    app.add_routes([web.get("/", site.page), web.get("/{name}", site.film)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with TemporaryDirectory() as folder:
        films = Films(start_urls=[f"http://127.0.0.1:{runner.addresses[0][1]}/"])
        films.folder = f"{folder}/films"
        ledger = f"sqlite:///{folder}/ledger.db"
        report = await run_spider(films, ledger=ledger)
        print(f"{report.finish_reason}: {report.items} films, failed attempts {report.failures}")

        opened = await open_ledger(ledger, Films.name)
        async for row in opened.queries.items():
            file = row.item["file"]
            print(f"{row.item['url']}: {file['size']:,} bytes in {Path(file['path']).name}")
        await opened.close()
        print_number(films.folder)
    await runner.cleanup()


def print_number(folder):
    print(f"{len(list(Path(folder).glob('??/*')))} files")


if __name__ == "__main__":
    asyncio.run(main())
