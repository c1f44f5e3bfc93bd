"""Asking for a page again, only to see whether its server answers."""

from collections.abc import Callable
from datetime import datetime

import anyio

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.redirects import status_error, throttles
from crawlcw.downloader import memory_budget
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError, Reason


class Probes:
    """Requests whose answers nobody parses."""

    def __init__(
        self, downloader: Downloader, settings: Settings, *, now: Callable[[], datetime]
    ) -> None:
        """*now* is the time of day, for a Retry-After that is a date."""
        self._downloader = downloader
        self._timeout = settings.timeout.total_seconds()
        self._now = now

    async def ask(self, url: str) -> Response:
        """Return what *url* answers, redirects not followed.

        Raises `FetchError` where it does not answer in time, or asks to wait.
        """
        try:
            with anyio.fail_after(self._timeout), memory_budget.page():
                response = await self._downloader.fetch(Request(url), url=url)
        except TimeoutError:
            raise FetchError(Reason.TIMEOUT_TOTAL, f"no answer in {self._timeout:g} s") from None
        if throttles(response):
            raise status_error(response, now=self._now())
        return response
