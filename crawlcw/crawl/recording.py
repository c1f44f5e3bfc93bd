"""What a page and the redirects to it were, on their way to the WARC files.

A downloader notes each exchange with the page that is under way; the fetcher keeps
them as soon as it knows that there is a page. So robots.txt, logins and probes, which
are no pages, are in no file, nor is an answer that a hook made up.
"""

import errno
import os
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.archive.bodies import Bodies
from crawlcw.archive.exchange import Exchange
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError, Reason
from crawlcw.model.stored_page import StoredPage

T = TypeVar("T")

#: What is exchanged with the page that is under way.
_exchanges: ContextVar[list[tuple[Response, Exchange]] | None] = ContextVar(
    "recorded_exchanges", default=None
)


class RecordingDownloader:
    """A `Downloader` that notes its answers as they come, before any hook changes them."""

    def __init__(self, downloader: Downloader) -> None:
        self._downloader = downloader

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
        at = datetime.now(UTC)
        response = await self._downloader.fetch(request, url=url)
        noted = _exchanges.get()
        # A file is where the request wants it.
        if noted is not None and response.file is None:
            noted.append((response, Exchange.of(request, response, at=at)))
        return response

    async def close(self) -> None:
        """Close what it asks."""
        await self._downloader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Keeps what is noted, where a crawl keeps its pages at all."""

    bodies: Bodies | None = None

    def notes(self, downloader: Downloader) -> Downloader:
        """Return *downloader*, its answers noted where they may be kept."""
        return downloader if self.bodies is None else RecordingDownloader(downloader)

    def page(self) -> AbstractContextManager[None]:
        """Work on one page: what is exchanged in the block is noted until its end."""
        return nullcontext() if self.bodies is None else _noting()

    async def keep(self, request: Request) -> StoredPage | None:
        """Keep the page of *request* and the redirects to it; return its place.

        None where nothing was noted. Raises `FetchError` (`files-unwritable`).
        """
        noted = _taken(request)
        if self.bodies is None or not noted:
            return None
        return await _written(self.bodies, self.bodies.keep(noted))

    async def keep_redirects(self, request: Request) -> None:
        """Keep what led to a page that is somebody else's; raises as `keep` does."""
        redirects = _taken(request)[:-1]
        if self.bodies is not None and redirects:
            await _written(self.bodies, self.bodies.keep(redirects))

    async def keep_unchanged(self, request: Request) -> None:
        """Keep that the page of *request* is as it was; raises as `keep` does."""
        noted = _taken(request)
        if self.bodies is not None and noted:
            await _written(self.bodies, self.bodies.keep_unchanged(noted))


@contextmanager
def _noting() -> Iterator[None]:
    token = _exchanges.set([])
    try:
        yield
    finally:
        _exchanges.reset(token)


def _taken(request: Request) -> Sequence[Exchange]:
    """Return what is noted, and begin anew."""
    noted = _exchanges.get()
    if not noted:
        return ()
    # What hooks and sessions add, to the URL too, may be a signature or a key, and is for the
    # server alone: the answer itself knows by now where it is from.
    taken = [each.asking_only(request.headers, url=answer.url) for answer, each in noted]
    noted.clear()
    return taken


async def _written(bodies: Bodies, writing: Awaitable[T]) -> T:
    try:
        return await writing
    except OSError as error:
        raise unwritable(bodies, error) from error


def unwritable(bodies: Bodies, error: OSError) -> FetchError:
    """Return the failure that no page can be kept."""
    why = os.strerror(error.errno or errno.EIO)
    return FetchError(Reason.FILES_UNWRITABLE, f"cannot keep pages in {bodies.folder}: {why}")
