"""One attempt at a request: from its URL, over redirects, to a response or a `FetchError`.

The redirects are followed here and not by the HTTP client, because every hop
is a new decision: whether its URL is in scope, whether robots.txt allows it,
and what of the request may travel there.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import yarl

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.retry import retry_after

#: Says whether a URL may be requested, by raising `FetchError` where not.
Admit = Callable[[str], Awaitable[None]]

REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: What of a user's headers may be told to another server. Any other may be a
#: key: X-API-Key is as secret as Authorization.
_HARMLESS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"}
)
_ABOUT_THE_BODY = frozenset({"content-type", "content-encoding", "content-language"})


async def attempt(
    request: Request,
    *,
    downloader: Downloader,
    settings: Settings,
    admit: Admit | None = None,
    stays: Callable[[str], bool] | None = None,
) -> Response:
    """Return the response that *request* leads to, redirects followed.

    A redirect to a URL that *stays* says no to is returned as it is, see
    `onward`.

    *admit* is asked about the target of every redirect before it is requested;
    the first URL is the caller's to admit. All of it, *admit* too, takes at
    most `settings.timeout`.
    `Response.url` is where the last redirect has led, `Response.request` is
    *request* itself, and `elapsed` is the sum of all hops. Raises `FetchError`.
    """
    try:
        async with asyncio.timeout(settings.timeout.total_seconds()) as deadline:
            return await _followed(
                request, downloader=downloader, admit=admit, stays=stays, settings=settings
            )
    except TimeoutError:
        if not deadline.expired():
            raise
        message = f"no response within {settings.timeout.total_seconds():g} s"
        raise FetchError(Reason.TIMEOUT_TOTAL, message) from None


def onward(request: Request, response: Response) -> Request:
    """Return the request for where *response*, a redirect that was not followed, leads."""
    target = _target(response)
    same_origin = _origin(request.url) == _origin(response.url) == _origin(target)
    hop = _next(request, response.status, same_origin=same_origin)
    return Request(
        target,
        request.callback,
        method=hop.method,
        headers=hop.headers,
        body=hop.body,
        context=request.context,
        priority=request.priority,
        errback=request.errback,
    )


def throttles(response: Response) -> bool:
    """Return whether an answer asks us to wait: 429, or 503 with a Retry-After."""
    return response.status == 429 or (response.status == 503 and "retry-after" in response.headers)


def status_error(response: Response, *, now: datetime) -> FetchError:
    """Return the failure that a response of this status is."""
    return FetchError(
        Reason.HTTP_STATUS,
        f"HTTP {response.status}",
        status=response.status,
        retry_after=retry_after(response.headers.get("retry-after"), now=now),
    )


async def _followed(
    request: Request,
    *,
    downloader: Downloader,
    admit: Admit | None,
    stays: Callable[[str], bool] | None,
    settings: Settings,
) -> Response:
    url, hop = request.url, request
    elapsed = timedelta(0)
    visits = Counter({(hop.method, url): 1})
    # A server that sets a cookie often sends the visitor back for the page.
    allowed_visits = 2 if settings.cookies else 1
    for hops in itertools.count(1):
        try:
            response = await downloader.fetch(hop, url=url)
        except FetchError as error:
            error.hop = hops
            raise
        elapsed += response.elapsed
        if response.status not in REDIRECTS:
            break
        target = _target(response)
        if stays is not None and not stays(target):
            break
        hop = _next(hop, response.status, same_origin=_origin(url) == _origin(target))
        url = target
        visits[hop.method, url] += 1
        if visits[hop.method, url] > allowed_visits:
            raise FetchError(Reason.REDIRECT_LOOP, _loop_message(url, settings))
        if hops > settings.max_redirects:
            message = f"more than {settings.max_redirects} redirects, the last one to {url}"
            raise FetchError(Reason.REDIRECT_LIMIT, message)
        if admit is not None:
            try:
                await admit(url)
            except FetchError as error:
                error.hop = hops + 1
                raise
    response.request = request
    response.elapsed = elapsed
    return response


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
        _check_credentials(location)
    except FetchError as error:
        if error.reason is not Reason.URL_INVALID:
            raise
        raise FetchError(
            Reason.REDIRECT_INVALID, f"location {error.message}", status=response.status
        ) from None
    return target


def _check_credentials(location: str) -> None:
    # A link's user and password are left out, but a redirect that hands some
    # out wants them to be used.
    if "@" in location:
        # Resolved it has been already, so this parses.
        given = yarl.URL("".join(location.split()))
        if given.raw_user is not None or given.raw_password is not None:
            raise FetchError(Reason.REFUSED_CREDENTIALS, "the location has a user or a password")


def _next(request: Request, status: int, *, same_origin: bool) -> Request:
    """Return the request to make after a redirect with *status*."""
    method, body, headers = request.method, request.body, request.headers
    # RFC 9110, section 15.4, as browsers have always understood it.
    if (status == 303 and method not in ("GET", "HEAD")) or (
        status in (301, 302) and method == "POST"
    ):
        method, body = "GET", None
        headers = tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_BODY)
    if not same_origin:
        kept = _HARMLESS | _ABOUT_THE_BODY
        headers = tuple(pair for pair in headers if pair[0].lower() in kept)
    if method == request.method and headers == request.headers:
        return request
    return Request(request.url, request.callback, method=method, headers=headers, body=body)


def _origin(url: str) -> yarl.URL:
    return yarl.URL(url).origin()


def _loop_message(url: str, settings: Settings) -> str:
    hint = "" if settings.cookies else "; perhaps the site needs cookies"
    return f"the redirects lead back to {url}{hint}"
