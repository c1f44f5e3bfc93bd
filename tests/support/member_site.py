"""A site for members: most pages need a login, which the server may end at any time.

It runs in a thread of the tests' own process: tests can read its logins, and crawls of
other processes can request its pages.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

from aiohttp import web

from crawlcw import Request, Settings, Spider
from crawlcw.api.sessions import LoginSession
from tests.support import loopback
from tests.support.site_threads import in_thread

PASSWORD = "open sesame"


class Members(Spider):
    """Logs in, and records each page with the name in its greeting."""

    name = "members"
    password = PASSWORD

    async def login(self, session: LoginSession) -> None:
        url = urljoin(next(iter(self.start_urls)), "/login")
        page = await session.fetch(url)
        form = {"token": page.text, "user": session.name, "password": self.password}
        await session.submit(Request(url, data=form))

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3], "user": response.text.split("\n")[0]}
        yield from response.follow_all("a")


class Visitors(Members):
    """Is logged in by the page `/enter`, without a login method."""

    settings = Settings(cookies=True)
    login = Spider.login


@dataclass(slots=True)
class Login:
    """One login, as the server recorded it."""

    began: float
    ended: float | None = None  #: None if the form was not sent


@dataclass(slots=True)
class MemberSite:
    """The state of the site; only its thread writes it."""

    pages: int
    latency: float = 0.0
    login_takes: float = 0.0
    forbidden: frozenset[int] = frozenset()  #: pages that are always forbidden
    base: str = ""
    logins: dict[str, Login] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)  #: session id -> user
    seen: Counter[str] = field(default_factory=Counter)  #: paths shown to members
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def start(self) -> str:
        return f"{self.base}/in/0"

    def log_everybody_out(self) -> None:
        self.members.clear()

    def overlapping(self) -> list[Login]:
        """Return the logins that began during another one that has ended."""
        return [
            each
            for each in self.logins.values()
            for other in self.logins.values()
            if other.ended is not None and other.began < each.began < other.ended
        ]

    async def form(self, request: web.Request) -> web.Response:
        token = secrets.token_hex(4)
        self.logins[token] = Login(asyncio.get_running_loop().time())
        response = web.Response(text=token)
        response.set_cookie("csrf", token)
        return response

    async def log_in(self, request: web.Request) -> web.Response:
        given = await request.post()
        token = str(given["token"])
        await asyncio.sleep(self.login_takes)
        if request.cookies.get("csrf") != token or given["password"] != PASSWORD:
            return web.Response(status=403)
        self.logins[token].ended = asyncio.get_running_loop().time()
        response = web.Response(status=302, headers={"Location": "/in/0"})
        sid = secrets.token_hex(8)
        self.members[sid] = str(given["user"])
        response.set_cookie("sid", sid, httponly=True)
        return response

    async def page(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        await asyncio.sleep(self.latency)
        user = self.members.get(request.cookies.get("sid", ""))
        if user is None or number in self.forbidden:
            self.refused[request.path] += 1
            return web.Response(status=401, text="who are you?")
        self.seen[request.path] += 1
        below = (2 * number + 1, 2 * number + 2)
        links = "".join(f'<a href="/in/{each}">{each}</a>' for each in below if each < self.pages)
        response = web.Response(text=f"{user}\n{links}", content_type="text/html")
        response.set_cookie("last", str(number))
        return response

    async def file(self, request: web.Request) -> web.Response:
        user = self.members.get(request.cookies.get("sid", ""))
        if user is None:
            # Like many sites: the login page looks like any other page.
            self.refused[request.path] += 1
            return web.Response(text="<form>please log in</form>", content_type="text/html")
        self.seen[request.path] += 1
        return web.Response(body=b"\xff\xd8" + user.encode(), content_type="image/jpeg")

    async def enter(self, request: web.Request) -> web.Response:
        response = web.Response(text='somebody\n<a href="/in/0">in</a>', content_type="text/html")
        sid = secrets.token_hex(8)
        self.members[sid] = "guest"
        response.set_cookie("sid", sid)
        return response

    async def enter_at_once(self, request: web.Request) -> web.Response:
        response = await self.enter(request)
        response.headers["Location"] = "/in/0"
        response.set_status(302)
        return response

    async def open_page(self, request: web.Request) -> web.Response:
        links = '<a href="/in/0">in</a><a href="/open/1">1</a><a href="/open/2">2</a>'
        return web.Response(text=f"anybody\n{links}", content_type="text/html")


@contextmanager
def served(pages: int, **options: Any) -> Iterator[MemberSite]:
    """Serve a site of *pages* pages on its own port."""
    site = MemberSite(pages, **options)
    app = web.Application()
    app.router.add_get("/login", site.form)
    app.router.add_post("/login", site.log_in)
    app.router.add_get("/in/{number}", site.page)
    app.router.add_get("/open/{number}", site.open_page)
    app.router.add_get("/enter", site.enter)
    app.router.add_get("/enter-at-once", site.enter_at_once)
    app.router.add_get("/file/{number}", site.file)
    with in_thread(loopback.served(app)) as site.base:
        yield site
