"""`/metrics` of a crawl, on its own socket. The caller provides the text."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from crawlcw.errors import UsageError
from crawlcw.server.access import Access, is_loopback
from crawlcw.server.connections import Connections, Deadlines
from crawlcw.server.refused import RefusedError
from crawlcw.server.sockets import address_of, why_not

#: Returns the text and its content type for the Accept header of a request.
Scrape = Callable[[str], Awaitable[tuple[bytes, str]]]
#: Prometheus keeps one connection open; the others are for people.
_MOST_CONNECTIONS = 32
_LAST_ANSWERS = 1.0

logger = logging.getLogger(__name__)


@asynccontextmanager
async def serving_metrics(scrape: Scrape, *, host: str, port: int) -> AsyncIterator[str]:
    """Answer `GET /metrics` by *scrape* within the block, and yield the address.

    On loopback, a check of the Host header refuses pages of other sites in a browser.
    Raises `UsageError` if the server cannot listen at the address.
    """
    connections = Connections(most=_MOST_CONNECTIONS, deadlines=Deadlines())
    runner = web.AppRunner(
        _application(scrape, connections, Access(None) if is_loopback(host) else None),
        access_log=None,
        auto_decompress=False,
        shutdown_timeout=_LAST_ANSWERS,
    )
    await runner.setup()
    assert runner.server is not None
    try:
        protocols = connections.protocols(runner.server)
        try:
            listening = await asyncio.get_running_loop().create_server(protocols, host, port)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"the metrics: {why_not(host, port, error)}") from error
        address = address_of(listening)
        logger.info("metrics at %s/metrics", address, extra={"event": "metrics", "at": address})
        try:
            yield address
        finally:
            listening.close()
    finally:
        await runner.cleanup()


def answer_of(scrape: Scrape) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of requests for metrics."""

    async def answer(request: web.Request) -> web.Response:
        text, content_type = await scrape(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    return answer


def _application(
    scrape: Scrape, connections: Connections, access: Access | None
) -> web.Application:
    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connections.asked(request)
        try:
            if access is not None:
                access.check(request)
            return await handler(request)
        except RefusedError as refused:
            return web.Response(status=refused.status, text=f"{refused}\n")

    application = web.Application(middlewares=[guarded])
    application.on_response_prepare.append(connections.answered)
    application.router.add_route("GET", "/metrics", answer_of(scrape))
    return application
