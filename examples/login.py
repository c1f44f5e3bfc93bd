"""A crawl behind a login: interrupted after some pages, and continued.

    python examples/login.py

It serves a small site for members on this machine, and deletes all files at the end.
"""

import asyncio
import secrets
import tempfile
from urllib.parse import urljoin

from aiohttp import web

from crawlcw import Request, Settings, Spider, Status, run_spider


class Members(Spider):
    name = "members"
    login_when = 401

    async def login(self, session):
        url = urljoin(self.start_urls[0], "/login")
        await session.submit(Request(url, data={"user": "ada", "password": "lovelace"}))

    def parse(self, response):
        yield {"url": response.url, "text": response.css_first("p").text()}
        yield from response.follow_all("a")


class Site:
    def __init__(self):
        self.members = {}
        self.logins = 0

    async def login(self, request):
        form = await request.post()
        if (form["user"], form["password"]) != ("ada", "lovelace"):
            return web.Response(status=403)
        self.logins += 1
        key = secrets.token_hex(8)
        self.members[key] = form["user"]
        response = web.Response(text="welcome")
        response.set_cookie("key", key)
        return response

    async def page(self, request):
        user = self.members.get(request.cookies.get("key"))
        if user is None:
            return web.Response(status=401)
        number = int(request.match_info["number"])
        link = f'<a href="/in/{number + 1}">more</a>' if number < 19 else ""
        return web.Response(text=f"<p>page {number} for {user}</p>{link}", content_type="text/html")


async def main():
    site = Site()
    app = web.Application()
    app.router.add_post("/login", site.login)
    app.router.add_get("/in/{number}", site.page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    spider = Members(start_urls=[f"http://127.0.0.1:{runner.addresses[0][1]}/in/0"])
    with tempfile.TemporaryDirectory() as folder:
        ledger = f"sqlite:///{folder}/ledger.db"
        await run_spider(spider, ledger=ledger, settings=Settings(max_pages=5))
        site.members.clear()  # the server ends all sessions
        report = await run_spider(spider, ledger=ledger)
    await runner.cleanup()
    print(
        f"{report.counts[Status.FINISHED]} pages, {site.logins} logins, {report.failures} failures"
    )


asyncio.run(main())
