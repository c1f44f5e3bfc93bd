"""The downloader that a spider makes of the default one, held to what a downloader does.

What it raises is the page's own failure, and so is an answer that is none. Whether
it keeps to the rest of its contract `testing.DownloaderContract` finds out.
"""

import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.api.user_code import Called, Cancellation, calls_user_code
from crawlcw.crawl.callbacks import Raised
from crawlcw.crawl.spider_fault import SpiderFaultError
from crawlcw.downloader.memory_budget import attempt_deadline
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError, LedgerError, Reason, SpiderError
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import describe_error

logger = logging.getLogger(__name__)

_NAME = "downloader"
_OUR_FILES = (__file__,)


@asynccontextmanager
async def downloader_of(spider: Spider, default: Downloader) -> AsyncIterator[Downloader]:
    """Open the downloader of *spider*, and close it and the *default* one afterwards.

    Raises `SpiderError` where its `downloader()` makes none.
    """
    try:
        if type(spider).downloader is Spider.downloader:
            yield default
            return
        own = _OwnDownloader(_made(spider, default))
        try:
            yield own
        finally:
            await own.close()
    finally:
        await default.close()


def _made(spider: Spider, default: Downloader) -> Downloader:
    made: Any  # whatever the user's code returns
    try:
        made = spider.downloader(default)
    except SpiderError:
        raise
    except Exception as error:
        said = printable(describe_error(error))
        raise SpiderError(f"the spider's downloader() raised {said}") from error
    if inspect.iscoroutine(made):
        made.close()  # else Python warns that nobody has awaited it
        raise SpiderError("the spider's downloader() must be a plain function, not `async def`")
    if not all(callable(getattr(made, name, None)) for name in ("fetch", "close")):
        raise SpiderError(
            f"the spider's downloader() returned {type(made).__name__}, which is no Downloader: "
            "it needs `async def fetch(self, request, *, url)` and `async def close(self)`"
        )
    own: Downloader = made
    return own


class _OwnDownloader:
    """A downloader of the user's own, whatever it does."""

    def __init__(self, own: Downloader) -> None:
        self._own = own

    @calls_user_code
    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
        called = Called(name=_NAME, subject=url)
        cancellation = Cancellation(deadline=attempt_deadline.get(None))
        try:
            response = await self._own.fetch(request, url=url)
            await cancellation.strike()
            _check(response, url)
        except (FetchError, LedgerError):
            raise
        except TimeoutError as error:
            raise FetchError(Reason.TIMEOUT_READ, describe_error(error)) from error
        except OSError as error:
            raise FetchError(Reason.DISCONNECTED, describe_error(error)) from error
        except BaseException as error:  # the user's code may raise anything
            if cancellation.passes(error):
                raise
            await cancellation.after(error)
            raised = Raised.by(error, own=_OUR_FILES, function=self._own.fetch)
            raise SpiderFaultError(called.name, raised) from None
        response.request = request
        return response

    async def close(self) -> None:
        """Close it."""
        cancellation = Cancellation()
        try:
            await self._own.close()
        except BaseException as error:  # likewise
            if cancellation.passes(error):
                raise
            logger.warning(
                "the spider's downloader raised when it was closed: %s",
                printable(describe_error(error)),
                extra={"event": "spider_error"},
            )


def _check(response: object, url: str) -> None:
    if not isinstance(response, Response):
        raise TypeError(f"fetch() returned {type(response).__name__}, not a crawlcw.Response")
    if response.url != url:
        # Nobody has asked whether that is in scope, or what robots.txt says of it.
        raise ValueError("fetch() answered for another URL: it must not follow redirects")
