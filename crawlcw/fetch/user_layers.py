"""Run the user's own code around a request: hooks, layers, and a spider's downloader.

If the user's code raises an error, only the page of that request fails.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, cast

import anyio

from crawlcw.api.attempt import (
    Attempt,
    Deadline,
    Downloader,
    Layer,
    Next,
    Purpose,
    copied,
    layer_name,
    replaced,
    user_attempt,
)
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.api.user_code import Called, Cancellation, Raised, calls_user_code
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Defer, FetchError, LedgerError, Reason, SpiderError, StopCrawl
from crawlcw.fetch.addresses import Hop, current_hop
from crawlcw.fetch.redirects import Admission
from crawlcw.model import urls
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import describe_error, printable
from crawlcw.model.task import RequestOptions

logger = logging.getLogger(__name__)

_OUR_FILES = (__file__,)
#: Minimum wait of a page that a layer defers, so that the crawl does not retry it all the time.
_LEAST_WAIT = timedelta(seconds=1)
#: Longest wait of a deferred page; a ledger cannot store dates after the year 9999.
_LONGEST_WAIT = timedelta(days=36_500)


class SpiderFaultError(FetchError):
    """A hook, a layer or the spider's downloader raised an error for a request."""

    def __init__(self, name: str, raised: Raised) -> None:
        super().__init__(raised.reason, f"{name} raised {raised.message}")
        self.name = name  #: name of the hook, layer or downloader
        self.raised = raised


async def _fault(
    error: BaseException, cancellation: Cancellation, name: str, function: Callable[..., Any]
) -> BaseException:
    """Return a `SpiderFaultError` for *error*; return *error* itself if it is a cancellation."""
    if cancellation.passes(error):
        return error
    await cancellation.raise_pending_after(error)
    return SpiderFaultError(name, Raised.by(error, own_prefixes=_OUR_FILES, function=function))


def _checked(error: Defer) -> BaseException:
    """Return *error* with `due` as a duration from now, or a `SpiderError` if `due` is invalid."""
    wait = error.due
    try:
        if isinstance(wait, datetime):
            wait -= datetime.now(UTC)  # `TypeError` if the time has no zone
        if wait is not None and not isinstance(wait, timedelta):
            raise TypeError  # refused, as a time without a zone is
    except Exception:  # a user's time zone class may raise any error
        message = "is neither a duration nor a time with a time zone"
        return SpiderError(f"Defer(due={error.due!r}) {message}")
    if wait is not None and wait > _LONGEST_WAIT:
        return SpiderError(f"Defer(due={error.due!r}) is more than 100 years ahead")
    error.due = max(wait or _LEAST_WAIT, _LEAST_WAIT)
    return error


#: Types of the attributes that a response from the user's code must have.
_OF_RESPONSE: dict[str, type] = {"url": str, "status": int, "body": bytes, "elapsed": timedelta}


def _check_response(response: object, message: str) -> None:
    """Raise `TypeError` if the user's code returned no valid `Response`.

    The attributes of a response must have the right types, because the ledger stores them.
    *message* is the error's text; the type of *response* replaces `{}` in it.
    """
    if not isinstance(response, Response):
        raise TypeError(message.format(type(response).__name__))
    for name, kind in _OF_RESPONSE.items():
        if not isinstance(value := getattr(response, name), kind):
            raise TypeError(f"the {name} of its Response is {type(value).__name__}")
    for name, value in response.headers.items():
        if not isinstance(value, str):
            raise TypeError(f"the header {printable(name)} of its Response is not text")


def after_response(spider: Spider) -> Layer | None:
    """Return a layer that calls the spider's `after_response`, or None if the spider has none."""
    hook = spider.after_response
    if type(spider).after_response is Spider.after_response:
        return None

    # `wraps` makes an error without a frame of the user's code point to the hook.
    @wraps(hook, assigned=(), updated=())
    async def after_response(attempt: Attempt, request: Request, call_next: Next) -> Response:
        response = await call_next(attempt, request)
        hook_result = hook(response)
        if inspect.isawaitable(hook_result):
            hook_result = await hook_result
        return response if hook_result is None else hook_result

    return after_response


def before_request(spider: Spider) -> Layer | None:
    """Return a layer that calls the spider's `before_request`, or None if the spider has none."""
    hook = spider.before_request
    if type(spider).before_request is Spider.before_request:
        return None

    @wraps(hook, assigned=(), updated=())
    async def before_request(attempt: Attempt, request: Request, call_next: Next) -> Response:
        result = hook(request)
        if inspect.isawaitable(result):
            result = await result
        if not isinstance(result, Request | Response | None):
            kind = type(result).__name__
            raise TypeError(f"it returned {kind}: return a Request, a Response or nothing")
        if isinstance(result, Response):
            return result
        return await call_next(attempt, request if result is None else result)

    return before_request


def _to_send(request: object, original: Request) -> Request:
    """Return a copy of *request*, which the user's code wants to send instead of *original*."""
    if not isinstance(request, Request):
        raise TypeError("call_next() takes the attempt and a Request")
    if request.url != original.url and urls.origin_of(request.url) != urls.origin_of(original.url):
        # crawlcw uses the delay, the robots.txt and the secrets of the original origin.
        raise ValueError(
            "it may change the URL only within its origin: yield a Request for another one"
        )
    # Copying the request checks its values, because a hook may have assigned values of any type.
    outgoing = copied(request)
    outgoing.options = _exchange_options(request, original)
    return outgoing


def _exchange_options(request: Request, original: Request) -> RequestOptions:
    """Return the options of *original*, with the proxy and timeout of *request* if it has them."""
    options, task_options = request.options, original.options
    if options is task_options:
        return task_options
    # Make a request to check the values, because the user's code may have assigned any values.
    checked = Request(request.url, proxy=options.proxy, timeout=options.timeout).options
    return replace(
        task_options,
        proxy=checked.proxy or task_options.proxy,
        timeout=checked.timeout or task_options.timeout,
    )


def made_by(spider: Spider, default: Downloader) -> Downloader:
    """Return what `spider.downloader(default)` returns; raises `SpiderError` if it is invalid."""
    result: Any  # the user's code may return anything
    try:
        result = spider.downloader(default)
    except SpiderError:
        raise
    except Exception as error:
        error_text = printable(describe_error(error))
        raise SpiderError(f"the spider's downloader() raised {error_text}") from error
    if inspect.iscoroutine(result):
        result.close()  # prevents Python's warning "never awaited"
        raise SpiderError("the spider's downloader() must be a plain function, not `async def`")
    if not all(callable(getattr(result, name, None)) for name in ("fetch", "close")):
        raise SpiderError(
            f"the spider's downloader() returned {type(result).__name__}, which is not a "
            "Downloader: it needs `async def fetch(self, request, *, url)` and `async def "
            "close(self)`"
        )
    downloader: Downloader = result
    return downloader


class AttemptView:
    """Read-only view of an attempt for a user's layer, with only five attributes."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        object.__setattr__(self, "_attempt", attempt)

    def __getattr__(self, name: str) -> Any:
        if name == "request":
            return copied(self._attempt.request)
        if name in ("number", "purpose", "session", "proxy"):
            return getattr(self._attempt, name)
        raise AttributeError(
            f"an attempt has request, number, purpose, session and proxy, but no {name}"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise SpiderError(
            f"attempt.{name} cannot be set: pass another request to call_next(attempt, request)"
        )


class UserLayer:
    """Layer around a user's layer or hook, which limits its time and handles its errors.

    A user's layer with `wire = True` gets all requests; other layers get only requests of pages.
    """

    def __init__(self, layer: Layer, watch: Watchdog, admission: Admission) -> None:
        self._layer = layer
        self._watch = watch
        self._admission = admission
        self.name = layer_name(layer)
        self.is_wire = bool(getattr(layer, "wire", False))
        self.purposes = frozenset(Purpose) if self.is_wire else frozenset({Purpose.PAGE})

    @calls_user_code
    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the layer's response; a layer can end the attempt by `Defer` or `StopCrawl`."""
        called = self._watch.last_user_call = Called(name=self.name, subject=request.url)
        cancellation = Cancellation(deadline=attempt.deadline.timeout)
        deadline = Deadline()
        calls = 0
        # A page has a slot for one request at a time, so the lock lets only one call of `ask` run.
        call_lock = asyncio.Lock()
        lower_error: Exception | None = None

        async def ask(_: Attempt, outgoing: Request) -> Response:
            nonlocal calls, lower_error
            hop, is_repeated = _to_send(outgoing, request), calls > 0
            calls += 1
            is_timed = hop.options.timeout != request.options.timeout
            send = self._timed_send if is_timed else self._send
            with deadline:
                async with call_lock:
                    try:
                        return await send(attempt, hop, call_next, is_repeated=is_repeated)
                    except Exception as error:
                        lower_error = error
                        raise
                    finally:
                        self._watch.last_user_call = called

        attempt.deadline.pause()
        outer_attempt = user_attempt.set(attempt)
        try:
            # Pass a copy of the request, so that the layer's changes affect only this hop.
            layer_request, attempt_view = copied(request), cast("Attempt", AttemptView(attempt))
            async with asyncio.timeout(self._watch.limit or None) as deadline.timeout:
                response = await self._layer(attempt_view, layer_request, ask)
            await cancellation.raise_pending()
            _check_response(response, "it returned {}: return a Response")
        except (FetchError, StopCrawl, LedgerError):
            raise
        except BaseException as error:  # the user's code may raise anything
            if error is lower_error:
                raise  # a layer below raised this error, such as for a missing browser
            if isinstance(error, Defer) and attempt.purpose is Purpose.PAGE:
                error = _checked(error)
                if isinstance(error, Defer):
                    raise
            if isinstance(error, TimeoutError) and deadline.timeout and deadline.timeout.expired():
                error = TimeoutError(f"{self.name} did not end within {self._watch.limit:g} s")
            raise await _fault(error, cancellation, self.name, self._layer) from None
        finally:
            user_attempt.reset(outer_attempt)
            attempt.deadline.resume()
        # Restore the request's URL, because the layer may have added a secret signature to the URL.
        return response if response.url == request.url else replaced(response, url=request.url)

    async def _send(
        self, attempt: Attempt, request: Request, call_next: Next, *, is_repeated: bool
    ) -> Response:
        if is_repeated:
            # Wait for the host's delay before each further request of the layer.
            await self._admission.turn(attempt, request.url)
        attempt.deadline.resume()
        try:
            return await call_next(attempt, request)
        finally:
            attempt.deadline.pause()

    async def _timed_send(
        self, attempt: Attempt, request: Request, call_next: Next, *, is_repeated: bool
    ) -> Response:
        """Send *request* with a deadline of its own, and pause the attempt's deadline."""
        seconds, attempt_deadline = request.options.timeout, attempt.deadline
        assert seconds is not None
        attempt.deadline = deadline = Deadline()
        try:
            async with asyncio.timeout(seconds) as deadline.timeout:
                with deadline:  # `_send` ends this pause, and begins it again
                    return await self._send(attempt, request, call_next, is_repeated=is_repeated)
        except TimeoutError:
            if deadline.timeout is None or not deadline.timeout.expired():
                raise
            error = FetchError(Reason.TIMEOUT_TOTAL, f"no response within {seconds:g} s")
            error.deadline, error.proxy = seconds, attempt.proxy
            raise error from None
        finally:
            attempt.deadline = attempt_deadline


class OwnDownloader:
    """Layer that calls a spider's own downloader, which may call crawlcw's downloader in turn.

    If the downloader raises an exception or returns no response, the page fails.
    `testing.DownloaderContract` checks the other rules for a downloader.
    """

    def __init__(self, downloader: Downloader, *, grace: timedelta) -> None:
        """Use *downloader*; at the end, wait for its `close`, but not longer than *grace*."""
        self._downloader = downloader
        self._grace = grace

    @calls_user_code
    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:  # noqa: ARG002  # arguments of a layer
        """Return the response that the spider's downloader returns."""
        called = Called(name="downloader", subject=request.url)
        cancellation = Cancellation(deadline=attempt.deadline.timeout)
        current_hop.set(Hop(attempt))
        try:
            response = await self._downloader.fetch(request, url=request.url)
            await cancellation.raise_pending()
            _check_response(response, "fetch() returned {}, not a crawlcw.Response")
            if response.url != request.url:
                # The crawl has not checked this URL against the scope and robots.txt.
                raise ValueError(
                    "fetch() returned the response of another URL: it must not follow redirects"
                )
        except (FetchError, LedgerError):
            raise
        except TimeoutError as error:
            raise FetchError(Reason.TIMEOUT_READ, describe_error(error)) from error
        except OSError as error:
            raise FetchError(Reason.DISCONNECTED, describe_error(error)) from error
        except BaseException as error:  # the user's code may raise anything
            raise await _fault(error, cancellation, called.name, self._downloader.fetch) from None
        return response if response.request is request else replaced(response, request=request)

    async def close(self) -> None:
        """Close the downloader."""
        cancellation = Cancellation()
        try:
            with anyio.move_on_after(self._grace.total_seconds()) as limit:
                await self._downloader.close()
            if limit.cancelled_caught:
                raise TimeoutError(
                    f"it did not close within the grace period ({format_duration(self._grace)})"
                )
        except BaseException as error:  # the user's code may raise anything
            if cancellation.passes(error):
                raise
            logger.warning(
                "close() of the spider's downloader raised: %s",
                printable(describe_error(error)),
                extra={"event": "spider_error"},
            )
