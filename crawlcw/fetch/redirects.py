"""The layer that follows the redirects of one attempt, within the attempt's deadline."""

import asyncio
from collections.abc import Container
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

from crawlcw.api.attempt import Attempt, Next, Purpose, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.credentials import HARMLESS
from crawlcw.model import urls
from crawlcw.model.retry import retry_after

REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Headers that do not apply to a redirect's target (RFC 9110, section 15.4).
_ABOUT_THE_LAST_VISIT = frozenset({"if-none-match", "if-modified-since"})
_BODY_FORMAT = frozenset({"content-type", "content-encoding", "content-language"})
_ABOUT_THE_BODY = _BODY_FORMAT | {"content-location"}
#: Headers that a redirect to another origin keeps, because they contain no secret.
_PORTABLE = HARMLESS | _BODY_FORMAT


class Admission(Protocol):
    """Permits requests of URLs that have no task of their own, such as a redirect's target."""

    async def admit(self, attempt: Attempt, url: str) -> None:
        """Wait until an attempt may request *url*; raises `FetchError` if *url* is refused."""

    async def turn(self, attempt: Attempt, url: str) -> None:
        """Wait until the delay of the host permits a request of *url*."""

    def throttled(self, response: Response) -> None:
        """Record that a redirect's target is throttled, and pause redirects to this host."""

    def part(
        self, attempt: Attempt, url: str, *, is_document: bool, turn: asyncio.Lock
    ) -> AbstractAsyncContextManager[None]:
        """Context in which a browser may request a part of a page; raises `FetchError`.

        A part is an image, for example. If *is_document* is true, it is a document that a script
        loads. If the part's host has no free slot, the request waits for *turn*, the lock of the
        page.
        """


class FollowRedirects:
    """Layer that follows redirects to the final response, within the deadline of the attempt.

    - The request's timeout covers all hops (the first request and each redirect).
    - Before a target is requested, it must be in scope and allowed by robots.txt, and the host's
      delay must have passed. For a redirect of robots.txt, only the host's delay counts.
    - The layer returns a redirect and does not follow it in three cases: `Attempt.follows` returns
      false, the status is accepted as a page (see `is_page`), or the request was a probe.
    - `Response.url` is the target of the last redirect, `Response.request` is the attempt's
      request, and `elapsed` is the sum of all hops.
    """

    def __init__(self, settings: Settings, admission: Admission) -> None:
        self._settings = settings
        self._seconds = settings.timeout.total_seconds()
        self._admission = admission

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response after all redirects; raises `FetchError`."""
        request_timeout = request.options.timeout
        seconds = self._seconds if request_timeout is None else request_timeout
        try:
            async with asyncio.timeout(seconds) as timeout:
                attempt.deadline.timeout = timeout
                try:
                    return await self._followed(attempt, request, call_next)
                finally:
                    attempt.deadline.timeout = None
        except TimeoutError:
            if not timeout.expired():
                raise
            error = FetchError(Reason.TIMEOUT_TOTAL, f"no response within {seconds:g} s")
            error.deadline = request_timeout
            error.proxy = attempt.proxy
            raise error from None

    async def _followed(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        hop, elapsed = request, timedelta(0)
        visits = {(hop.method, hop.url): 1}
        while True:
            attempt.url = hop.url
            try:
                response = await call_next(attempt, hop)
            except FetchError as error:
                error.hop = len(attempt.redirects) + 1
                raise
            if attempt.purpose is Purpose.PROBE:
                return response
            elapsed += response.elapsed
            if attempt.redirects and throttles(response, self._settings.throttle_statuses):
                self._admission.throttled(response)
            if response.status not in REDIRECTS or is_page(response, request, self._settings):
                break
            try:
                next_hop = onward(hop, response)
                if attempt.follows is not None and not attempt.follows(next_hop.url):
                    break
                attempt.redirects.append(response)
                hop = next_hop
                # Keep the request's cookies, as a redirect may lead back to the first origin.
                hop.options = request.options
                visit = visits[hop.method, hop.url] = visits.get((hop.method, hop.url), 0) + 1
                self._check_end(attempt, hop.url, visit=visit)
                await self._admission.admit(attempt, hop.url)
            except FetchError as error:
                error.hop = len(attempt.redirects) + 2  # the host has answered
                error.response = response
                raise
        if attempt.redirects or response.request is not attempt.request:
            response = replaced(response, request=attempt.request, elapsed=elapsed)
        if response.truncated:
            self._check_cut(attempt, response)
        return response

    def _check_end(self, attempt: Attempt, url: str, *, visit: int) -> None:
        """Raise `FetchError` if the redirects seem never to end."""
        # Many servers set a cookie and redirect to the same page, so allow a second visit.
        cookies = attempt.session is not None or self._settings.cookies
        if visit > 1 + cookies:
            raise FetchError(Reason.REDIRECT_LOOP, loop_message(url, cookies=cookies))
        max_redirects = self._settings.max_redirects
        if len(attempt.redirects) > max_redirects:
            message = f"more than {max_redirects} redirects, the last one to {url}"
            raise FetchError(Reason.REDIRECT_LIMIT, message)

    def _check_cut(self, attempt: Attempt, response: Response) -> None:
        """Raise `FetchError` if the page was cut, unless `truncate` allows cut pages."""
        options, settings = attempt.request.options, self._settings
        cuts = settings.truncate if options.truncate is None else options.truncate
        if cuts or not 200 <= response.status < 300:
            return
        if response.truncated in ("coding", "checksum"):
            error = FetchError(Reason.PAYLOAD_TRUNCATED, "the compressed body is incomplete")
        else:
            max_body = settings.max_body if options.max_body is None else options.max_body
            message = f"the body is larger than max_body={max_body:,}"
            error = FetchError(Reason.BODY_TOO_LARGE, message)
        error.hop, error.response = len(attempt.redirects) + 1, response
        raise error


def onward(request: Request, response: Response, *, target: str | None = None) -> Request:
    """Return the request for the target of the redirect *response*.

    The result has default `options`. *target* replaces the Location of *response*. Raises
    `FetchError`.
    """
    target = target or _target(response)
    method, body, headers = request.method, request.body, request.headers
    dropped_headers = _ABOUT_THE_LAST_VISIT
    # Browsers send a GET without a body if a 301, 302 or 303 redirects a POST (RFC 9110, 15.4).
    if (response.status == 303 and method not in ("GET", "HEAD")) or (
        response.status in (301, 302) and method == "POST"
    ):
        method, body = "GET", None
        dropped_headers |= _ABOUT_THE_BODY
    headers = tuple(pair for pair in headers if pair[0].lower() not in dropped_headers)
    if len({urls.origin_of(url) for url in (request.url, response.url, target)}) > 1:
        headers = tuple(pair for pair in headers if pair[0].lower() in _PORTABLE)
    return request.retargeted(target, method=method, headers=headers, body=body)


def loop_message(url: str, *, cookies: bool = False) -> str:
    """Return the message for a `redirect-loop`; *cookies* is true if the crawl keeps cookies."""
    hint = "" if cookies else "; perhaps the site needs cookies"
    return f"the redirects lead back to {url}{hint}"


def is_page(response: Response, request: Request, settings: Settings) -> bool:
    """Return whether *response* is a page for a callback: a layer or its status decides."""
    if response.is_page is not None:
        return response.is_page
    accepted = request.options.accept_statuses
    if accepted is None:
        accepted = settings.accept_statuses
    status = response.status
    # Partial content (206) is no page, because crawlcw requests no part of a page.
    is_good = 200 <= status < 300 and status != 206 and status not in settings.throttle_statuses
    return is_good or status in accepted


def throttles(response: Response, statuses: Container[int]) -> bool:
    """Return whether *response* has one of *statuses*, or is a 503 with a Retry-After."""
    status = response.status
    return status in statuses or (status == 503 and "retry-after" in response.headers)


def status_error(
    response: Response, *, now: datetime, reason: Reason = Reason.HTTP_STATUS
) -> FetchError:
    """Return the `FetchError` for the error status of *response*."""
    error = FetchError(
        reason,
        f"HTTP {response.status}",
        status=response.status,
        retry_after=retry_after(response.headers.get("retry-after"), now=now),
    )
    error.response = response
    return error


def _target(response: Response) -> str:
    """Return the target of a redirect; raises `FetchError` if it has no valid target."""
    location = response.headers.get("location", "")
    if not location.strip():
        raise FetchError(
            Reason.REDIRECT_INVALID,
            f"status {response.status} without a Location header",
            status=response.status,
        )
    try:
        target = urls.resolve(response.url, location)
    except FetchError as error:
        if error.reason is not Reason.URL_INVALID:
            raise
        message = f"location {error.message}"
        raise FetchError(Reason.REDIRECT_INVALID, message, status=response.status) from None
    # Refuse a target URL with a user or password, because crawlcw would log in with them.
    if "@" in location and urls.has_userinfo(response.url, location):
        raise FetchError(Reason.REFUSED_CREDENTIALS, "the redirect's URL has a user or a password")
    return target
