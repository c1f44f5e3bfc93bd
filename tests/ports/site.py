"""A site on loopback for the ports: pages by path, or by a function of the request."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web

from tests.support import loopback

#: A page as text, or bytes with their content type.
Page = str | tuple[bytes, str]


@asynccontextmanager
async def served(pages: Mapping[str, Page], *, password: str = "") -> AsyncIterator[str]:
    """Serve *pages* by their paths, a login and a JSON endpoint beside them; yield the address.

    `/login` takes the user `u` with *password* and the token of its form; `/api` answers
    a page of quotes to a POST.
    """

    async def page(request: web.Request) -> web.Response:
        found = pages.get(request.path)
        if found is None:
            raise web.HTTPNotFound
        if isinstance(found, str):
            return web.Response(text=found, content_type="text/html")
        return web.Response(body=found[0], headers={"Content-Type": found[1]})

    async def login(request: web.Request) -> web.Response:
        sent = parse_qs(await request.text())
        well = sent.get("csrf") == ["t0k3n"] and sent.get("password") == [password]
        if not well:
            raise web.HTTPForbidden
        return web.Response(text=f"<h1>Hello {sent['user'][0]}</h1>", content_type="text/html")

    async def api(request: web.Request) -> web.Response:
        number = (await request.json())["page"]
        quotes = [{"text": f"quote {number}.{n}"} for n in range(2)]
        answer: dict[str, Any] = {"quotes": quotes, "has_next": number < 3, "page": number}
        return web.Response(text=json.dumps(answer), content_type="application/json")

    app = web.Application()
    app.router.add_post("/login", login)
    app.router.add_post("/api", api)
    app.router.add_get("/{path:.*}", page)
    async with loopback.served(app) as address:
        yield address
