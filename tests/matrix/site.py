"""Site of the matrix: a tree of pages for each of a dozen ways to serve them.

Page n of a kind links to pages 2n+1 and 2n+2 of that kind, so a crawl has several pages under way
from its third page on. The site runs in a thread of the test's own process.
"""

import asyncio
import gzip
import json
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape

from aiohttp import web

from tests.support import loopback
from tests.support.site_threads import in_thread

PAGES = 30
#: Pages for one visitor before the site requires a new one.
QUOTA = 9
#: The proxy that the site bans.
BANNED = "127.0.0.2"
TOKEN = "t-77"


@dataclass(slots=True)
class Site:
    """The site and its state; only its thread writes it."""

    latency: float = 0.04  #: seconds
    version: int = 1
    base: str = ""
    answered: int = 0  #: all answers, without robots.txt
    asked: Counter[str] = field(default_factory=Counter)  #: by path
    members: set[str] = field(default_factory=set)
    visitors: Counter[str] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, answers: int, *, within: float = 60.0) -> bool:
        """Wait for *answers* answers in total; return whether they came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.answered >= answers, within)

    @web.middleware
    async def counted(self, request: web.Request, handler) -> web.StreamResponse:  # type: ignore[no-untyped-def]
        if request.path == "/robots.txt":
            return web.Response(status=404)
        self.asked[request.path] += 1
        await asyncio.sleep(self.latency)
        response: web.StreamResponse = await handler(request)
        with self._changed:
            self.answered += 1
            self._changed.notify_all()
        return response

    async def tree(self, request: web.Request) -> web.StreamResponse:
        """Serve a page of a kind; the kinds differ only in their names."""
        return _page(request, f"n-{_number(request)}")

    async def versioned(self, request: web.Request) -> web.StreamResponse:
        tag = f'"{self.version}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304)
        return _page(request, f"v-{self.version}", headers={"ETag": tag})

    async def rude(self, request: web.Request) -> web.StreamResponse:
        """Refuse every third page always, and every fifth once."""
        number = _number(request)
        if number and number % 3 == 0:
            return web.Response(status=404 + number % 2, text=f"no {number}")
        if number and number % 5 == 0 and self.asked[request.path] == 1:
            return web.Response(status=503)
        return _page(request, f"n-{number}")

    async def moved(self, request: web.Request) -> web.StreamResponse:
        """Redirect to every page, by one response or two, or by a Refresh."""
        number = _number(request)
        target = f"/there/{number}"
        if number % 4 == 1 and request.path.startswith("/moved/"):
            return web.Response(status=302, headers={"Location": f"/between/{number}"})
        if number % 2:
            return web.Response(status=302, headers={"Location": target})
        refresh = f'<meta http-equiv="refresh" content="0; url={target}">'
        return web.Response(text=refresh, content_type="text/html")

    async def there(self, request: web.Request) -> web.StreamResponse:
        return _page(request, f"n-{_number(request)}", kind="moved")

    async def member(self, request: web.Request) -> web.StreamResponse:
        """Serve a page to members, and a login form with status 200 to others."""
        is_member = request.cookies.get("sid") in self.members
        if not is_member or request.headers.get("X-Token") != TOKEN:
            return web.Response(text='<form id="login"></form>', content_type="text/html")
        return _page(request, f"n-{_number(request)}")

    async def log_in(self, request: web.Request) -> web.StreamResponse:
        given = await request.post()
        if given.get("password") != "open":
            return web.Response(status=403)
        sid = secrets.token_hex(8)
        self.members.add(sid)
        response = web.Response(text="welcome")
        response.set_cookie("sid", sid)
        return response

    async def metered(self, request: web.Request) -> web.StreamResponse:
        """Give each visitor a limited number of pages, and then a captcha."""
        visitor = request.cookies.get("visitor") or secrets.token_hex(8)
        self.visitors[visitor] += 1
        if self.visitors[visitor] > QUOTA:
            return _captcha()
        response = _page(request, f"n-{_number(request)}")
        response.set_cookie("visitor", visitor)
        return response

    async def proxied(self, request: web.Request) -> web.StreamResponse:
        return _captcha() if request.remote == BANNED else await self.tree(request)

    async def film(self, request: web.Request) -> web.StreamResponse:
        body = b"%d;" % _number(request) * 4000
        named = f"attachment; filename=film-{_number(request)}.bin"
        headers = {"Content-Disposition": named, "ETag": f'"{_number(request)}"'}
        return web.Response(body=body, headers=headers, content_type="video/mp4")

    async def scripted(self, request: web.Request) -> web.StreamResponse:
        number = _number(request)
        made = f"<h1>n-{number}</h1>{_links('scripted', number)}"
        script = f"<script>document.body.innerHTML = {made!r}</script>"
        return web.Response(text=f"<body>empty{script}</body>", content_type="text/html")

    async def search(self, request: web.Request) -> web.StreamResponse:
        """Serve a page with a form that asks for the pages below it."""
        number = int((await request.post()).get("n", 0)) if request.method == "POST" else 0
        forms = "".join(
            f'<form method="post" id="f{child}"><input type="hidden" name="n" value="{child}">'
            '<input name="q"><button name="go" value="1">go</button></form>'
            for child in _below(number)
        )
        given = dict(await request.post()) if request.method == "POST" else {}
        title = f"n-{number} {sorted(given.items())}"
        return web.Response(text=f"<h1>{escape(title)}</h1>{forms}", content_type="text/html")

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """Answer with the request, as JSON."""
        seen = {"method": request.method, "body": await request.text()}
        seen["kind"] = request.headers.get("X-Kind", "")
        seen["cookie"] = request.cookies.get("k", "")
        return web.json_response(seen)

    async def sitemap(self, request: web.Request) -> web.StreamResponse:
        rows = "".join(f"<url><loc>{self.base}/tree/{n}</loc></url>" for n in range(PAGES))
        body = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{rows}</urlset>'
        return web.Response(body=gzip.compress(body.encode()), content_type="application/gzip")

    async def listed(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="\n".join(f"/tree/{n}" for n in range(200)))

    async def rich(self, request: web.Request) -> web.StreamResponse:
        """Serve a page with rich metadata."""
        number = _number(request)
        thing = json.dumps({"@type": "Thing", "name": f"j-{number}"})
        head = (
            f'<meta property="og:title" content="o-{number}"><base href="/rich/">'
            f'<script type="application/ld+json">{thing}</script>'
        )
        return _page(request, f"n-{number}", head=head)


def _number(request: web.Request) -> int:
    return int(request.match_info["number"])


def _below(number: int) -> list[int]:
    return [each for each in (2 * number + 1, 2 * number + 2) if each < PAGES]


def _links(kind: str, number: int) -> str:
    return "".join(f'<a href="/{kind}/{each}">{each}</a>' for each in _below(number))


def _page(
    request: web.Request,
    title: str,
    *,
    kind: str = "",
    head: str = "",
    headers: dict[str, str] | None = None,
) -> web.Response:
    links = _links(kind or request.path.split("/")[1], _number(request))
    text = f"<head>{head}</head><body><h1>{title}</h1>{links}</body>"
    return web.Response(text=text, content_type="text/html", headers=headers)


def _captcha() -> web.Response:
    return web.Response(text='<div id="captcha"></div>', content_type="text/html")


@contextmanager
def served() -> Iterator[Site]:
    """Serve the site on a port of its own."""
    site = Site()
    app = web.Application(middlewares=[site.counted])
    numbered = {
        "tree": site.tree,
        "versioned": site.versioned,
        "rude": site.rude,
        "moved": site.moved,
        "between": site.moved,
        "there": site.there,
        "member": site.member,
        "metered": site.metered,
        "proxied": site.proxied,
        "film": site.film,
        "scripted": site.scripted,
        "rich": site.rich,
    }
    for kind, handler in numbered.items():
        app.router.add_get(f"/{kind}/{{number}}", handler)
    app.router.add_post("/login", site.log_in)
    app.router.add_route("*", "/search", site.search)
    app.router.add_route("*", "/echo/{number}", site.echo)
    app.router.add_get("/sitemap.xml.gz", site.sitemap)
    app.router.add_get("/list.txt", site.listed)
    with in_thread(loopback.served(app)) as site.base:
        yield site
