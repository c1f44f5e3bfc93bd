"""Serve the metrics of a crawl or of a task server at `/metrics`, and count a server's requests."""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Counts
from crawlcw.model.counters import Histogram
from crawlcw.server.access import Access, RefusedError, is_loopback
from crawlcw.server.connections import Connections, Handler
from crawlcw.server.listening import Route, listening
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Measures, Snapshot, TaskCounts

#: Takes the Accept header of a request, and returns the metrics' text and its content type.
Scrape = Callable[[str], Awaitable[tuple[bytes, str]]]
#: The maximum number of connections, of which Prometheus keeps one open.
_MAX_CONNECTIONS = 32

logger = logging.getLogger(__name__)


@asynccontextmanager
async def serving_metrics(scrape: Scrape, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve `/metrics` with the text from *scrape* within a `with` block, and yield the address.

    If *host* is loopback, the server checks the Host header. Without the check, a web page of
    another site could read the metrics. Raises `UsageError` if the server cannot listen at *port*.
    """
    async with listening(
        [route(scrape)],
        host=host,
        port=port,
        connections=Connections(max_connections=_MAX_CONNECTIONS),
        check=Access(None).check if is_loopback(host) else lambda _request: None,
        middlewares=[_map_errors],
        subject="the metrics: ",
    ) as address:
        logger.info("metrics at %s/metrics", address, extra={"event": "metrics", "at": address})
        yield address


def route(scrape: Scrape) -> Route:
    """Return the route `GET /metrics`, which responds with the text from *scrape*."""

    async def respond(request: web.Request) -> web.Response:
        text, content_type = await scrape(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    return "GET", "/metrics", respond


def metrics_text(snapshot: Snapshot, *, accept: str) -> tuple[bytes, str]:
    """Return the metrics of *snapshot* as text, with the content type of the text.

    Raises `RefusedError` if prometheus-client is not installed.
    """
    try:
        from crawlcw.telemetry import exposition
    except ModuleNotFoundError:
        message = "metrics need prometheus-client: install it with `pip install 'crawlcw[metrics]'`"
        raise RefusedError(501, message) from None
    return exposition.render(snapshot, accept=accept)


@web.middleware
async def _map_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    # Do not use `exchange.json_response`, because `exchange` needs pydantic.
    try:
        return await handler(request)
    except RefusedError as refusal:
        return web.Response(status=refusal.status, text=f"{refusal}\n")


class RequestMetrics:
    """Counts the requests to one task server, and makes the text of the server's `/metrics`."""

    def __init__(self, use_case: str, count: Callable[[], Awaitable[Counts]]) -> None:
        """*count* returns the number of tasks of each status, or raises `LedgerError`."""
        self._name = use_case
        self._tasks = TaskCounts(count)
        self._requests: Counter[str] = Counter()
        self._count_by_status: Counter[str] = Counter()
        self._duration = Histogram()

    @web.middleware
    async def count_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request and its response, and measure the duration."""
        started_at = time.perf_counter()
        response = await handler(request)
        self._duration.observe(time.perf_counter() - started_at)
        # Label requests by route. If paths were labels, clients could create any number of labels.
        resource = request.match_info.route.resource
        path = "other" if resource is None else resource.canonical
        self._requests[path.strip("/").partition("/")[0]] += 1
        if response.status >= 400:
            self._count_by_status[str(response.status)] += 1
        return response

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the text of `/metrics`; raises `RefusedError`, see `metrics_text`."""
        measures = Measures(
            counters={
                metrics.HTTP_REQUESTS.name: dict(self._requests),
                metrics.HTTP_REFUSED.name: dict(self._count_by_status),
            },
            histograms={metrics.HTTP_DURATION.name: self._duration.numbers()},
        )
        gauges = {metrics.INFO.name: {self._name: 1.0}}
        try:
            tasks = await self._tasks.latest()
        except UsageError:
            tasks = None
        if tasks is not None:
            gauges[metrics.TASKS.name] = dict(tasks)
        return metrics_text(Snapshot(totals=measures, gauges=gauges), accept=accept)
