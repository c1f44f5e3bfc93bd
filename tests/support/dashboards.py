"""Dashboards in this process, and a client like their page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from crawlcw.dashboard.crawls import Crawls
from crawlcw.dashboard.gate import KEY_HEADER
from crawlcw.dashboard.serving import serving
from crawlcw.ledger_opening import open_ledger, recorded_names


@dataclass(slots=True)
class Page:
    """Client of one dashboard."""

    http: aiohttp.ClientSession
    address: str
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        given = self.headers | headers
        async with self.http.get(self.address + path, headers=given) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        given = self.headers | headers
        async with self.http.post(self.address + path, json=body, headers=given) as response:
            return response.status, await response.json()

    async def start(self) -> Any:
        """Start as the page does; later requests carry its key."""
        status, found = await self.get("/api/start")
        assert status == 200, found
        self.headers[KEY_HEADER] = found["key"]
        return found


@asynccontextmanager
async def dashboard(
    url: str, *only: str, token: str | None = None, allowed_hosts: tuple[str, ...] = ()
) -> AsyncIterator[Page]:
    """Serve the dashboard of a ledger, or of some of its crawls, on a port of its own."""
    crawls = Crawls(
        open_ledger=partial(open_ledger, url, create=False, kind=None),
        read_names=partial(recorded_names, url),
        shown_names=only,
    )
    async with (
        crawls,
        serving(
            crawls, host="127.0.0.1", port=0, token=token, allowed_hosts=allowed_hosts
        ) as address,
        aiohttp.ClientSession() as http,
    ):
        yield Page(http, address)
