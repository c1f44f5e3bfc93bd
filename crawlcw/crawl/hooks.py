"""The spider's hooks around the download of a page: `before_request` and `after_response`.

They are run for each hop of a redirect, and for pages alone: neither for
robots.txt nor for the probes that ask whether a host is back.
"""

import inspect
from collections.abc import Callable
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.api.user_code import Called, Cancellation, calls_user_code, time_limit
from crawlcw.crawl.callbacks import Raised
from crawlcw.crawl.spider_fault import SpiderFaultError
from crawlcw.downloader.memory_budget import deadline_paused
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, StopCrawl
from crawlcw.model import urls

_OUR_FILES = (__file__,)


async def answered(response: Response, spider: Spider, watch: Watchdog) -> Response:
    """Return what `after_response` of *spider* makes of an answer; raises what it wants."""
    if type(spider).after_response is Spider.after_response:
        return response
    return await _after(spider.after_response, response, watch, url=response.url)


def hooked(downloader: Downloader, spider: Spider, watch: Watchdog) -> Downloader:
    """Return *downloader* with the hooks of *spider*, where it has any."""
    kind = type(spider)
    before = kind.before_request is not Spider.before_request
    after = kind.after_response is not Spider.after_response
    if not (before or after):
        return downloader
    return _HookedDownloader(
        downloader,
        before=spider.before_request if before else None,
        after=spider.after_response if after else None,
        watch=watch,
    )


class _HookedDownloader:
    """A `Downloader` whose requests and answers pass the spider's hooks."""

    def __init__(
        self,
        downloader: Downloader,
        *,
        before: Callable[[Request], Any] | None,
        after: Callable[[Response], Any] | None,
        watch: Watchdog,
    ) -> None:
        self._downloader = downloader
        self._before = before
        self._after = after
        self._watch = watch

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`. Raises what a hook wants, `StopCrawl` too."""
        sent: Request | Response = request
        if self._before is not None:
            # The task's own request stays what it is: it is what is tried again.
            hop = request.elsewhere(
                url, method=request.method, headers=request.headers, body=request.body
            )
            sent = await _run(
                "before_request", self._before, hop, _to_send, watch=self._watch, url=url
            )
        if isinstance(sent, Response):
            response = sent
        else:
            target = url if self._before is None else sent.url
            response = await self._downloader.fetch(sent, url=target)
        # What a hook adds to a URL, a signature for example, is for the server alone.
        response.url = url
        if self._after is not None:
            response = await _after(self._after, response, self._watch, url=url)
        return response

    async def close(self) -> None:
        """Close what it asks."""
        await self._downloader.close()


async def _after(
    hook: Callable[[Response], Any], response: Response, watch: Watchdog, *, url: str
) -> Response:
    answer: Response = await _run("after_response", hook, response, _answer, watch=watch, url=url)
    return answer


@calls_user_code
async def _run(
    name: str,
    hook: Callable[[Any], Any],
    given: Any,
    read: Callable[[Any, Any, str], Any],
    *,
    watch: Watchdog,
    url: str,
) -> Any:
    """Return what *read* makes of what a hook returns for what it is *given*."""
    called = Called(name=name, subject=url)
    cancellation = Cancellation()
    watch.begin(called)
    try:
        with deadline_paused():
            result = hook(given)
            if inspect.isawaitable(result):
                async with time_limit(called, watch.limit, stalled=watch.stalled):
                    result = await result
        await cancellation.strike()
        return read(result, given, url)
    except (FetchError, StopCrawl):
        raise  # the outcome that it chose
    except BaseException as error:  # the spider's code may raise anything
        if cancellation.passes(error):
            raise
        await cancellation.after(error)
        raised = Raised.by(error, own=_OUR_FILES, function=hook)
        raise SpiderFaultError(name, raised) from None
    finally:
        watch.end()


def _to_send(result: object, given: Request, url: str) -> Request | Response:
    """Return the request or the answer that `before_request` wants instead of *given*."""
    if isinstance(result, Response):
        return result
    wanted = given if result is None else result
    if not isinstance(wanted, Request):
        raise TypeError(
            f"it returned {type(result).__name__}: return a Request, a Response or nothing"
        )
    if wanted.url != url and urls.origin_of(wanted.url) != urls.origin_of(url):
        # Another host has other delays, another robots.txt and other secrets.
        raise ValueError("it may change the URL at its own origin only: yield a Request elsewhere")
    # Made anew, for what was assigned to it may be of any type.
    sent = wanted.elsewhere(
        wanted.url, method=wanted.method, headers=wanted.headers, body=wanted.body
    )
    sent.options = given.options  # those of the task: its timeout, its browser
    return sent


def _answer(result: object, given: Response, url: str) -> Response:
    """Return the answer that `after_response` wants instead of *given*."""
    answer = given if result is None else result
    if not isinstance(answer, Response):
        raise TypeError(f"it returned {type(result).__name__}: return a Response or nothing")
    answer.url = url
    return answer
