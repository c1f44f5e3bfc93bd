"""Live updates of the page, as server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import logging
from contextlib import suppress

from aiohttp import web

from crawlcw.dashboard.crawls import Crawls
from crawlcw.dashboard.overview import Overview
from crawlcw.errors import LedgerError
from crawlcw.feeds.escaping import escape_json
from crawlcw.model.sanitize import printable
from crawlcw.model.values import to_json
from crawlcw.server.connections import CONNECTIONS

logger = logging.getLogger(__name__)

#: Seconds between two events.
_EVERY = 1.0
#: Seconds after which a client that reads nothing is dropped.
_PATIENCE = 30.0
_AWAY = "the ledger is unavailable"


class Streams:
    """The live streams of one dashboard."""

    def __init__(self, crawls: Crawls) -> None:
        self._crawls = crawls
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams."""
        self._stopping.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send a crawl's overview every second, until the client leaves or the server ends."""
        overview = await self._crawls.overview(request.match_info["name"])
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        with suppress(ConnectionError, TimeoutError):
            await response.prepare(request)
            # The server works on the request as long as the stream lasts.
            request.app[CONNECTIONS].asked(request)
            while not self._stopping.is_set():
                event = await _seen(overview)
                async with asyncio.timeout(_PATIENCE):
                    await response.write(event)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _EVERY)
        return response


async def _seen(overview: Overview) -> bytes:
    try:
        return _event("overview", await overview.get())
    except LedgerError as error:
        # The stream goes on, and the page shows the error: the ledger may come back.
        logger.warning(
            "the ledger is unavailable: %s", printable(error), extra={"event": "refused"}
        )
        return _event("away", {"error": _AWAY})


def _event(name: str, data: object) -> bytes:
    # `to_json` writes no line ends, which would end an event.
    return f"event: {name}\ndata: {escape_json(to_json(data))}\n\n".encode()
