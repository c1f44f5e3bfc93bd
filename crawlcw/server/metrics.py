"""`/metrics` of a crawl, on its own socket. The caller provides the text."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from crawlcw.server.access import Access, is_loopback
from crawlcw.server.connections import Connections, Deadlines
from crawlcw.server.listening import Handler, application, listening
from crawlcw.server.refused import RefusedError

#: Returns the text and its content type for the Accept header of a request.
Scrape = Callable[[str], Awaitable[tuple[bytes, str]]]
#: Prometheus keeps one connection open; the others are for people.
_MOST_CONNECTIONS = 32

logger = logging.getLogger(__name__)


@asynccontextmanager
async def serving_metrics(scrape: Scrape, *, host: str, port: int) -> AsyncIterator[str]:
    """Answer `GET /metrics` by *scrape* within the block, and yield the address.

    On loopback, a check of the Host header refuses pages of other sites in a browser.
    Raises `UsageError` if the server cannot listen at the address.
    """
    connections = Connections(most=_MOST_CONNECTIONS, deadlines=Deadlines())
    check = Access(None).check if is_loopback(host) else lambda _request: None
    served = application(connections, check, around=[_told])
    served.router.add_route("GET", "/metrics", answer_of(scrape))
    async with listening(served, host=host, port=port, subject="the metrics: ") as address:
        logger.info("metrics at %s/metrics", address, extra={"event": "metrics", "at": address})
        yield address


def answer_of(scrape: Scrape) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of requests for metrics."""

    async def answer(request: web.Request) -> web.Response:
        text, content_type = await scrape(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    return answer


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    # Without the JSON of the other servers, which needs pydantic.
    try:
        return await handler(request)
    except RefusedError as refused:
        return web.Response(status=refused.status, text=f"{refused}\n")
