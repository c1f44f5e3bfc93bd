"""The site of the project `shop`: a server on loopback, in a thread of the tests' process."""

import asyncio
import gzip
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.support.site_threads import in_thread

#: Seconds: longer than the shortest timeout of the spider `errors`.
SLOW = 1.2
BOOKS = 24
QUOTES_PAGES = 6


@dataclass(kw_only=True)
class Site:
    """The address of the site, and its requests since the last reset."""

    url: str
    closed_url: str  #: nothing listens there
    latency: float = 0.0  #: seconds
    requests: Counter[str] = field(default_factory=Counter)

    def reset(self) -> None:
        """Forget the requests, so that the next crawl gets the same responses."""
        self.requests.clear()


@contextmanager
def running(*, latency: float = 0.0) -> Iterator[Site]:
    """Serve the site until the end of the block."""
    with in_thread(_serving(latency)) as site:
        yield site


@asynccontextmanager
async def _serving(latency: float) -> AsyncIterator[Site]:
    # A port that is bound and does not listen refuses connections.
    with socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))
        closed_url = f"http://127.0.0.2:{closed.getsockname()[1]}/"
        site = Site(url="", closed_url=closed_url, latency=latency)
        runner = web.AppRunner(_application(site), access_log=None, shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            site.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield site
        finally:
            await runner.cleanup()


def _application(site: Site) -> web.Application:
    pages = {**_TEXTS, **{path: _bytes(*page) for path, page in _BODIES.items()}}

    async def respond(request: web.Request) -> web.StreamResponse:
        site.requests[request.path_qs] += 1
        await asyncio.sleep(site.latency)
        if page := pages.get(request.path):
            return page() if callable(page) else _html(page)
        first = request.path.split("/")[1]
        if respond_to := _PAGES.get(first):
            return await respond_to(request, site)
        raise web.HTTPNotFound(text="no such page", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    return app


def _html(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, content_type="text/html", status=status)


def _bytes(body: bytes, content_type: str) -> Callable[[], web.Response]:
    return lambda: web.Response(body=body, headers={"Content-Type": content_type})


_TEXTS = {
    "/start": "<h1>start</h1>",
    "/ok": "<h1>fine</h1>",
    "/private": "<h1>private</h1>",
    "/refresh": '<meta http-equiv="refresh" content="0; url=/ok?refreshed">',
    "/catalogue": "".join(f'<a href="/catalogue/{name}">{name}</a>' for name in "abc"),
    "/comes-back": "<h1>come back</h1>",
}
_BODIES = {
    "/latin": ("<h1>café</h1>".encode("latin-1"), "text/html; charset=iso-8859-1"),
    "/meta-charset": (
        '<meta charset="cp1251"><h1>привет</h1>'.encode("cp1251"),
        "text/html",
    ),
    "/json": ('{"name": "café"}'.encode(), "application/json"),
    "/text": (b"plain text", "text/plain"),
    "/xml": (b"<?xml version='1.0'?><a><b>1</b></a>", "application/xml"),
    "/empty": (b"", "text/html"),
}


async def _robots(request: web.Request, site: Site) -> web.Response:
    return web.Response(
        text=f"User-agent: *\nDisallow: /private\nSitemap: {site.url}/sitemap-all.xml\n"
    )


async def _sitemap(request: web.Request, site: Site) -> web.Response:
    pages = {"/sitemap-numbers.xml": ["/numbers/1", "/numbers/2", "/skipped"]}
    pages["/sitemap-books.xml"] = ["/book/1", "/book/2?skipped"]
    kind, entry = ("urlset", "url") if request.path in pages else ("sitemapindex", "sitemap")
    entries = "".join(
        f"<{entry}><loc>{site.url}{path}</loc></{entry}>"
        for path in pages.get(request.path, list(pages))
    )
    text = f'<{kind} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</{kind}>'
    return web.Response(text=text, content_type="application/xml")


async def _headers(request: web.Request, site: Site) -> web.Response:
    names = ("Accept", "Accept-Language", "Authorization", "Content-Type", "Cookie", "X-A")
    return web.json_response({name: request.headers.get(name) for name in (*names, "User-Agent")})


async def _status(request: web.Request, site: Site) -> web.Response:
    status = int(request.path.rpartition("/")[2])
    return _html(f"<h1>status {status}</h1>", status=status)


async def _flaky(request: web.Request, site: Site) -> web.Response:
    return _html("<h1>flaky</h1>", status=503 if site.requests["/flaky"] == 1 else 200)


async def _slow(request: web.Request, site: Site) -> web.Response:
    await asyncio.sleep(SLOW)
    return _html("<h1>slow</h1>")


async def _redirect(request: web.Request, site: Site) -> web.Response:
    location = "/ok?redirected" if request.path.endswith("/again") else "/redirect/again"
    return web.Response(status=302, headers={"Location": location})


async def _loop(request: web.Request, site: Site) -> web.Response:
    number = int(request.query.get("n", "0"))
    return web.Response(status=302, headers={"Location": f"/loop?n={number + 1}"})


async def _cut(request: web.Request, site: Site) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/html", "Content-Length": "99"})
    await response.prepare(request)
    await response.write(b"<h1>cut</h1>")
    assert request.transport is not None
    request.transport.close()
    return response


async def _gzip(request: web.Request, site: Site) -> web.Response:
    headers = {"Content-Type": "text/html", "Content-Encoding": "gzip"}
    return web.Response(body=gzip.compress(b"<h1>packed</h1>", mtime=0), headers=headers)


async def _echo(request: web.Request, site: Site) -> web.Response:
    return web.Response(body=await request.read(), content_type=request.content_type)


async def _query(request: web.Request, site: Site) -> web.Response:
    return _html(f"<h1>{request.query_string}</h1>")


async def _numbers(request: web.Request, site: Site) -> web.Response:
    return _html(f"<h1>{request.path.removeprefix('/numbers/')}</h1>")


async def _set_cookie(request: web.Request, site: Site) -> web.Response:
    response = _html("<h1>set</h1>")
    response.set_cookie("user", request.query["user"])
    response.set_cookie("theme", f"dark{request.query['user']}", path="/show-cookie")
    return response


async def _show_cookie(request: web.Request, site: Site) -> web.Response:
    return _html(" ".join(f"{name}={value}" for name, value in sorted(request.cookies.items())))


async def _quotes(request: web.Request, site: Site) -> web.Response:
    number = int(request.path.rpartition("/")[2])
    quotes = "".join(
        f'<div class="quote"><span class="text">quote {number}.{n}</span>'
        f'<small class="author">author {n % 3}</small>'
        f'<a class="tag">t{n}</a><a class="tag">t{number}</a></div>'
        for n in range(10)
    )
    more = f'<li class="next"><a href="/quotes/{number + 1}">next</a></li>'
    return _html(quotes + (more if number < QUOTES_PAGES else ""))


async def _login(request: web.Request, site: Site) -> web.Response:
    form = await request.post()
    if request.method == "GET":
        text = (
            '<form method="post" action="/login"><input name="token" type="hidden" value="t0k3n">'
            '<input name="user"><input name="password" type="password"></form>'
        )
        response = _html(text)
        response.set_cookie("visit", "v1")
        return response
    is_right = form.get("token") == "t0k3n" and form.get("password") == "right"
    if not is_right or request.cookies.get("visit") != "v1":
        return _html("wrong password", status=200)
    response = web.Response(status=302, headers={"Location": "/account/home"})
    response.set_cookie("session", f"of-{form['user']}")
    return response


async def _account(request: web.Request, site: Site) -> web.Response:
    if not (session := request.cookies.get("session")):
        return _html("<h1>forbidden</h1>", status=403)
    return _html(f"<h1>{session} at {request.path}</h1>")


async def _catalogue(request: web.Request, site: Site) -> web.Response:
    first = "abc".index(request.path[-1])
    books = "".join(
        f'<li><a href="/book/{n}{"?sold-out" if n % 7 == 6 else ""}">book {n}</a></li>'
        for n in range(first, BOOKS, 2)
    )
    return _html(f'<ul class="books">{books}</ul><a href="/book/99">no book</a>')


async def _book(request: web.Request, site: Site) -> web.Response:
    number = int(request.path.rpartition("/")[2])
    return _html(f"<h1>Title{number % 5} of {number}</h1>")


async def _links(request: web.Request, site: Site) -> web.Response:
    number = request.path.rpartition("/")[2]
    paths = (
        *(f"/status/404?{number}", f"/status/410?{number}", f"/status/500?{number}"),
        *(f"/ok?{number}", f"/ok?from=memory&{number}", f"/ok?ignored=1&{number}"),
        *(f"/comes-back?{number}", "/ok?shared"),
    )
    return _html("".join(f'<a href="{path.replace("&", "&amp;")}">link</a>' for path in paths))


_PAGES = {
    "account": _account,
    "book": _book,
    "catalogue": _catalogue,
    "cut": _cut,
    "echo": _echo,
    "flaky": _flaky,
    "gzip": _gzip,
    "headers": _headers,
    "links": _links,
    "login": _login,
    "loop": _loop,
    "numbers": _numbers,
    "query": _query,
    "quotes": _quotes,
    "redirect": _redirect,
    "robots.txt": _robots,
    "set-cookie": _set_cookie,
    "show-cookie": _show_cookie,
    "sitemap-all.xml": _sitemap,
    "sitemap-books.xml": _sitemap,
    "sitemap-numbers.xml": _sitemap,
    "slow": _slow,
    "status": _status,
}
