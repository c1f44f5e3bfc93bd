"""Prometheus metrics of the server: its requests, and its tasks by status."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from crawlcw.errors import UsageError
from crawlcw.model.histogram import Histogram
from crawlcw.server.refused import RefusedError
from crawlcw.telemetry import metrics
from crawlcw.telemetry.measures import Measures
from crawlcw.telemetry.task_counts import TaskCounts
from crawlcw.tracking import Tracker

_MISSING = "metrics need prometheus-client: install it with `pip install 'crawlcw[serve]'`"


class RequestMetrics:
    """Counts the requests of one server."""

    def __init__(self, tracker: Tracker) -> None:
        self._name = tracker.name
        self._tasks = TaskCounts(tracker.counts)
        self._requests: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._duration = Histogram()

    @web.middleware
    async def counted(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Count a request and its answer."""
        began = time.perf_counter()
        response = await handler(request)
        self._duration.observe(time.perf_counter() - began)
        # The route, not the path: clients could create any number of label values.
        resource = request.match_info.route.resource
        path = "other" if resource is None else resource.canonical
        self._requests[path.strip("/").partition("/")[0]] += 1
        if response.status >= 400:
            self._refused[str(response.status)] += 1
        return response

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the text of `/metrics`; raises `RefusedError` without prometheus-client."""
        try:
            from crawlcw.telemetry.exposition import Snapshot, exposed
        except ModuleNotFoundError:
            raise RefusedError(501, _MISSING) from None
        measured = Measures(
            counters={
                metrics.HTTP_REQUESTS.name: dict(self._requests),
                metrics.HTTP_REFUSED.name: dict(self._refused),
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
        return exposed(Snapshot(totals=measured, gauges=gauges), accept=accept)
