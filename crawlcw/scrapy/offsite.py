"""Decide whether a project crawls a request: its offsite middleware and `request_scheduled`."""

from collections.abc import Callable
from typing import Any

import scrapy
from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.httpobj import urlparse_cached
from twisted.python.failure import Failure

from crawlcw.scrapy.components import call

#: Maximum number of hosts whose decisions are kept in memory.
_MAX_HOSTS = 10_000


class Offsite:
    """Admits the requests that no receiver of the signal `request_scheduled` refuses.

    Scrapy's offsite middleware is such a receiver. If it is the only receiver, `admits` calls it
    once for each host, because a signal for each link would take more time than the link's page.
    """

    def __init__(self, crawler: Crawler, middleware: Any) -> None:
        """*middleware* is the project's `OffsiteMiddleware`, or None if it has none."""
        self._crawler = crawler
        receivers = liveReceivers(getAllReceivers(crawler, signals.request_scheduled))
        owners = [getattr(receiver, "__self__", None) for receiver in receivers]
        self._sends_signal = any(owner is not middleware for owner in owners)
        self._refuse: Callable[..., Any] | None = None
        self._follows: Callable[[scrapy.Request], bool] | None = None
        if middleware is not None and not self._sends_signal:
            self._refuse = middleware.process_request
            if type(middleware).__module__.startswith("scrapy."):
                self._follows = lambda request: middleware.should_follow(request, crawler.spider)
        self._admitted_hosts: set[str | None] = set()

    def admits(self, request: scrapy.Request) -> bool:
        """Return whether the project crawls *request*."""
        if self._sends_signal:
            results = self._crawler.signals.send_catch_log(
                signals.request_scheduled,
                request=request,
                spider=self._crawler.spider,
                dont_log=IgnoreRequest,
            )
            return not any(_is_refusal(result) for _, result in results)
        if self._refuse is None or request.dont_filter:
            return True
        host = urlparse_cached(request).hostname
        if host in self._admitted_hosts:
            return True
        if self._follows is not None and self._follows(request):
            if len(self._admitted_hosts) >= _MAX_HOSTS:
                self._admitted_hosts.clear()
            self._admitted_hosts.add(host)
            return True
        try:
            call(self._refuse, self._crawler, request=request)
        except IgnoreRequest:
            return False
        return True


def _is_refusal(result: object) -> bool:
    return isinstance(result, Failure) and isinstance(result.value, IgnoreRequest)
