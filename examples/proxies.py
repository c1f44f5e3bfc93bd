"""A crawl through three proxies: one dies, one is banned, and no page is lost.

    python examples/proxies.py

It serves a small site and three proxies on this machine, and deletes all files at the end.
"""

import asyncio
import tempfile
from collections import Counter

from aiohttp import ClientSession, web

from crawlcw import Settings, Spider, run_spider


class Shop(Spider):
    name = "shop"

    def banned_when(self, response):
        return "captcha" in response.text

    def parse(self, response):
        yield {"page": response.url.rpartition("/")[2], "through": str(response.proxy)}
        yield from response.follow_all("a")


async def shop(request):
    # Each proxy of the example names itself; a site sees the address of a real one.
    if request.headers["Via"] == "proxy 2":
        return web.Response(text="<p>a captcha</p>", content_type="text/html")
    number = int(request.match_info["number"])
    below = [each for each in (2 * number + 1, 2 * number + 2) if each < 31]
    links = "".join(f'<a href="/{each}">{each}</a>' for each in below)
    return web.Response(text=f"<p>{number}</p>{links}", content_type="text/html")


async def listening(stack, server):
    runner = web.ServerRunner(server) if isinstance(server, web.Server) else web.AppRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stack.append(runner)
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


def proxy(name, counts):
    async def pass_on(request):
        counts[name] += 1
        async with ClientSession() as client:
            answer = await client.get(str(request.url), headers={"Via": name})
            body = await answer.read()
        return web.Response(status=answer.status, body=body, content_type=answer.content_type)

    return web.Server(pass_on)


async def main():
    runners, counts = [], Counter()
    app = web.Application()
    app.router.add_get(r"/{number:\d+}", shop)
    start = await listening(runners, app)
    proxies = [await listening(runners, proxy(f"proxy {n}", counts)) for n in (1, 2, 3)]
    await runners.pop().cleanup()  # the third proxy dies
    settings = Settings(proxies=proxies)
    with tempfile.TemporaryDirectory() as folder:
        report = await run_spider(
            Shop(start_urls=[f"{start}/0"]),
            ledger=f"sqlite:///{folder}/ledger.db",
            settings=settings,
        )
    for runner in runners:
        await runner.cleanup()
    print(f"{report.pages} pages, {dict(report.failures)} failures")
    print(f"the banned proxy was left aside: {counts['proxy 2'] < 10}")


asyncio.run(main())
