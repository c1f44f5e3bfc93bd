"""Redirects: followed here and not by the HTTP client, because every hop is a new decision.

The layers below are asked once for each hop: whether its URL is in scope, whether robots.txt
allows it, which credentials it is sent.
"""

import asyncio
from collections import Counter
from datetime import datetime

from crawlcw.api.attempt import Attempt, Next, Purpose, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.credentials import HARMLESS
from crawlcw.model import urls
from crawlcw.model.retry import retry_after

REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: What is said of a page that a client has; it says nothing of where a redirect leads.
_ABOUT_THE_LAST_VISIT = frozenset({"if-none-match", "if-modified-since"})
#: RFC 9309, section 2.3.1.2.
_MOST_OF_ROBOTS = 5
_ABOUT_THE_BODY = frozenset({"content-type", "content-encoding", "content-language"})


class TimeLimit:
    """The layer that ends an attempt, all of its hops, after the request's timeout."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.timeout.total_seconds()

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response; raises `FetchError` (`timeout-total`)."""
        own = request.options.timeout
        seconds = self._seconds if own is None else own
        try:
            async with asyncio.timeout(seconds) as timeout:
                attempt.deadline.timeout = timeout
                try:
                    return await call_next(attempt, request)
                finally:
                    attempt.deadline.timeout = None
        except TimeoutError:
            if not timeout.expired():
                raise
            late = FetchError(Reason.TIMEOUT_TOTAL, f"no response within {seconds:g} s")
            late.deadline = own
            late.proxy = attempt.proxy
            raise late from None


class FollowRedirects:
    """The layer that leads a request from its URL, over redirects, to a response.

    - A redirect that `Attempt.follows` says no to is returned as it is, see `onward`, and so
      is one that is a page itself, see `is_page`.
    - `Response.url` is where the last redirect has led, `Response.request` is the attempt's,
      and `elapsed` is the sum of all hops.
    """

    purposes = frozenset({Purpose.PAGE, Purpose.ROBOTS, Purpose.LOGIN})

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response; raises `FetchError`."""
        response = await _hop(attempt, request, call_next)
        if response.status in REDIRECTS and not is_page(response, request, self._settings):
            response = await self._followed(attempt, request, response, call_next)
        if response.truncated:
            _check_cut(response, request, self._settings, hops=len(attempt.redirects) + 1)
        return response

    async def _followed(
        self, attempt: Attempt, hop: Request, response: Response, call_next: Next
    ) -> Response:
        elapsed = response.elapsed
        most = self._settings.max_redirects
        if attempt.purpose is Purpose.ROBOTS:
            most = min(most, _MOST_OF_ROBOTS)
        visits = Counter({(hop.method, hop.url): 1})
        # A server that sets a cookie often sends the visitor back for the page.
        cookies = attempt.session is not None or self._settings.cookies
        allowed_visits = 2 if cookies else 1
        while response.status in REDIRECTS and not is_page(
            response, attempt.request, self._settings
        ):
            try:
                target = _target(response)
            except FetchError as error:
                error.hop = len(attempt.redirects) + 2  # the host has answered
                raise _with(response, error) from None
            if attempt.follows is not None and not attempt.follows(target):
                break
            hop = _next(hop, response.status, url=target)
            visits[hop.method, target] += 1
            if visits[hop.method, target] > allowed_visits:
                message = loop_message(target, cookies=cookies)
                raise _with(response, FetchError(Reason.REDIRECT_LOOP, message))
            attempt.redirects.append(response)
            if len(attempt.redirects) > most:
                message = f"more than {most} redirects, the last one to {target}"
                raise _with(response, FetchError(Reason.REDIRECT_LIMIT, message))
            response = await _hop(attempt, hop, call_next)
            elapsed += response.elapsed
        return replaced(response, elapsed=elapsed)


async def _hop(attempt: Attempt, request: Request, call_next: Next) -> Response:
    attempt.url = request.url
    try:
        response = await call_next(attempt, request)
    except FetchError as error:
        error.hop = len(attempt.redirects) + 1
        raise
    if response.request is attempt.request:
        return response
    return replaced(response, request=attempt.request)


def onward(request: Request, response: Response, *, refresh: str | None = None) -> Request:
    """Return the request for where *response*, a redirect that was not followed, leads.

    *refresh* is where it leads by a Refresh, which is none by its status.
    """
    target = refresh or _target(response)
    origins = {urls.origin_of(url) for url in (request.url, response.url, target)}
    method, headers, body = _carried(request, response.status, same_origin=len(origins) == 1)
    return request.elsewhere(target, method=method, headers=headers, body=body)


def portable_headers(request: Request, *, url: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of *request* that may be sent to *url*: all at its own origin."""
    if urls.origin_of(request.url) == urls.origin_of(url):
        return request.headers
    return _harmless(request.headers)


def loop_message(url: str, *, cookies: bool = False) -> str:
    """Return the message of a `redirect-loop`; *cookies* says that they are kept."""
    hint = "" if cookies else "; perhaps the site needs cookies"
    return f"the redirects lead back to {url}{hint}"


def is_page(response: Response, request: Request, settings: Settings) -> bool:
    """Return whether an answer is one that a callback is given, by its status."""
    accepted = request.options.accept_statuses
    if accepted is None:
        accepted = settings.accept_statuses
    status = response.status
    # A part of a page (206) is none: nobody has asked for it.
    return (200 <= status < 300 and status != 206) or status in accepted


def throttles(response: Response) -> bool:
    """Return whether an answer asks us to wait: 429, or 503 with a Retry-After."""
    return response.status == 429 or (response.status == 503 and "retry-after" in response.headers)


def status_error(response: Response, *, now: datetime) -> FetchError:
    """Return the failure that a response of this status is."""
    error = FetchError(
        Reason.HTTP_STATUS,
        f"HTTP {response.status}",
        status=response.status,
        retry_after=retry_after(response.headers.get("retry-after"), now=now),
    )
    error.response = response
    return error


def _check_cut(response: Response, request: Request, settings: Settings, *, hops: int) -> None:
    """Raise `FetchError` for a page that was cut and may not be."""
    own = request.options
    cuts = settings.truncate if own.truncate is None else own.truncate
    if cuts or not 200 <= response.status < 300:
        return
    most = settings.max_body if own.max_body is None else own.max_body
    if response.truncated in ("coding", "checksum"):
        refusal = FetchError(Reason.PAYLOAD_TRUNCATED, "the body's content coding is cut off")
    else:
        refusal = FetchError(Reason.BODY_TOO_LARGE, f"the body is larger than max_body={most:,}")
    refusal.hop = hops
    raise _with(response, refusal)


def _with(response: Response, error: FetchError) -> FetchError:
    """Return *error*, which knows the answer that led to it."""
    error.response = response
    return error


def _target(response: Response) -> str:
    """Return where a redirect leads; raises `FetchError`."""
    location = response.headers.get("location", "")
    if not location.strip():
        raise FetchError(
            Reason.REDIRECT_INVALID,
            f"status {response.status} without a location",
            status=response.status,
        )
    try:
        target = urls.resolve(response.url, location)
        _check_credentials(response.url, location)
    except FetchError as error:
        if error.reason is not Reason.URL_INVALID:
            raise
        raise FetchError(
            Reason.REDIRECT_INVALID, f"location {error.message}", status=response.status
        ) from None
    return target


def _check_credentials(url: str, location: str) -> None:
    # A link's user and password are left out, but a redirect that hands some
    # out wants them to be used.
    if "@" in location and urls.has_userinfo(url, location):
        raise FetchError(Reason.REFUSED_CREDENTIALS, "the location has a user or a password")


def _next(request: Request, status: int, *, url: str) -> Request:
    """Return the request to make after a redirect to *url* with *status*."""
    same_origin = urls.origin_of(request.url) == urls.origin_of(url)
    method, headers, body = _carried(request, status, same_origin=same_origin)
    hop = request.elsewhere(url, method=method, headers=headers, body=body)
    # Cookies of its own are sent again where it is led back to its origin.
    hop.options = request.options
    return hop


def _carried(
    request: Request, status: int, *, same_origin: bool
) -> tuple[str, tuple[tuple[str, str], ...], bytes | None]:
    """Return the method, the headers and the body that a redirect with *status* takes along."""
    method, body, headers = request.method, request.body, _unconditional(request.headers)
    # RFC 9110, section 15.4, as browsers have always understood it.
    if (status == 303 and method not in ("GET", "HEAD")) or (
        status in (301, 302) and method == "POST"
    ):
        method, body = "GET", None
        headers = tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_BODY)
    if not same_origin:
        headers = _harmless(headers)
    return method, headers, body


def _unconditional(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    # RFC 9110, section 15.4.
    return tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_LAST_VISIT)


def _harmless(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    kept = HARMLESS | _ABOUT_THE_BODY
    return tuple(pair for pair in headers if pair[0].lower() in kept)
