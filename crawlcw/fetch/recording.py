"""Pages and the redirects to them, on their way to the WARC files.

A layer notes each exchange in the attempt; the fetcher keeps them as soon as there is a page. So
robots.txt, logins and probes are in no file, nor is an answer that a hook made up.
"""

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.archive.bodies import Bodies
from crawlcw.archive.exchange import Exchange
from crawlcw.errors import FetchError, Reason
from crawlcw.model.task import StoredPage

T = TypeVar("T")


class Record:
    """The layer that notes answers as they come, before any hook changes them."""

    purposes = frozenset({Purpose.PAGE})

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response."""
        at = datetime.now(UTC)
        response = await call_next(attempt, request)
        # A file is where the request wants it.
        if attempt.exchanges is not None and response.file is None:
            # What hooks and sessions add, to the URL too, may be a signature or a key.
            url = response.url if request.url == attempt.url else attempt.url
            noted = Exchange.of(request, response, at=at)
            attempt.exchanges.append(noted.asking_only(attempt.request.headers, url=url))
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Keeps the noted exchanges, where a crawl keeps its pages at all."""

    bodies: Bodies | None = None

    async def keep(self, attempt: Attempt) -> StoredPage | None:
        """Keep the page of *attempt* and the redirects to it; return its place.

        None where nothing was noted. Raises `FetchError` (`files-unwritable`).
        """
        return await self._written(attempt, Bodies.keep)

    async def keep_redirects(self, attempt: Attempt) -> None:
        """Keep what led to a page that is another task's; raises as `keep` does."""
        if attempt.exchanges:
            del attempt.exchanges[-1]
        await self._written(attempt, Bodies.keep)

    async def keep_unchanged(self, attempt: Attempt) -> None:
        """Keep that the page of *attempt* is as it was; raises as `keep` does."""
        await self._written(attempt, Bodies.keep_unchanged)

    async def _written(
        self, attempt: Attempt, write: Callable[[Bodies, Sequence[Exchange]], Awaitable[T]]
    ) -> T | None:
        """Write the notes, and begin anew."""
        if self.bodies is None or not attempt.exchanges:
            return None
        noted, attempt.exchanges = attempt.exchanges, []
        try:
            return await write(self.bodies, noted)
        except OSError as error:
            raise unwritable(self.bodies, error) from error


def unwritable(bodies: Bodies, error: OSError) -> FetchError:
    """Return the failure that no page can be kept."""
    why = os.strerror(error.errno or errno.EIO)
    return FetchError(Reason.FILES_UNWRITABLE, f"cannot keep pages in {bodies.folder}: {why}")
