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

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.downloader.credentials import HARMLESS
from crawlcw.downloader.memory_budget import attempt_deadline
from crawlcw.downloader.protocol import Downloader
from crawlcw.downloader.routes import one_route
from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls
from crawlcw.model.retry import retry_after

#: Says whether a URL may be requested, by raising `FetchError` where not.
Admit = Callable[[str], Awaitable[None]]

REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: What is said of a page that a client has; it says nothing of where a redirect leads.
_ABOUT_THE_LAST_VISIT = frozenset({"if-none-match", "if-modified-since"})
_ABOUT_THE_BODY = frozenset({"content-type", "content-encoding", "content-language"})


async def attempt(
    request: Request,
    *,
    downloader: Downloader,
    settings: Settings,
    admit: Admit | None = None,
    follows: Callable[[str], bool] | None = None,
    cookies: bool = False,
) -> Response:
    """Return the response that *request* leads to, redirects followed.

    A redirect to a URL for which *follows* returns false is returned as it is, see
    `onward`, and so is one that is a page itself, see `is_page`.

    *cookies* says that they are kept. *admit* is asked about the target of every
    redirect before it is requested; the first URL is the caller's to admit. All of
    it, *admit* too, takes at most the request's timeout, less the time that a body
    waits for memory.
    `Response.url` is where the last redirect has led, `Response.request` is
    *request* itself, and `elapsed` is the sum of all hops. Raises `FetchError`.
    """
    own = request.options.timeout
    seconds = settings.timeout.total_seconds() if own is None else own
    with one_route() as way:
        try:
            async with asyncio.timeout(seconds) as deadline:
                token = attempt_deadline.set(deadline)
                try:
                    return await _followed(
                        request,
                        downloader=downloader,
                        admit=admit,
                        follows=follows,
                        settings=settings,
                        cookies=cookies or settings.cookies,
                    )
                finally:
                    attempt_deadline.reset(token)
        except TimeoutError:
            if not deadline.expired():
                raise
            message = f"no response within {seconds:g} s"
            late = FetchError(Reason.TIMEOUT_TOTAL, message)
            late.deadline = own
            late.proxy = way.proxy
            raise late from None


def onward(request: Request, response: Response, *, refresh: str | None = None) -> Request:
    """Return the request for where *response*, a redirect that was not followed, leads.

    *refresh* is where it leads by a Refresh, which is none by its status.
    """
    target = refresh or _target(response)
    origins = {urls.origin_of(url) for url in (request.url, response.url, target)}
    hop = _next(request, response.status, same_origin=len(origins) == 1)
    return request.elsewhere(target, method=hop.method, headers=hop.headers, body=hop.body)


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


async def _followed(
    request: Request,
    *,
    downloader: Downloader,
    admit: Admit | None,
    follows: Callable[[str], bool] | None,
    settings: Settings,
    cookies: bool,
) -> Response:
    url, hop = request.url, request
    elapsed = timedelta(0)
    visits = Counter({(hop.method, url): 1})
    # A server that sets a cookie often sends the visitor back for the page.
    allowed_visits = 2 if cookies else 1
    for hops in itertools.count(1):
        try:
            response = await downloader.fetch(hop, url=url)
        except FetchError as error:
            error.hop = hops
            raise
        elapsed += response.elapsed
        response.request = request
        if response.status not in REDIRECTS or is_page(response, request, settings):
            break
        try:
            target = _target(response)
        except FetchError as error:
            error.hop = hops + 1  # the host has answered
            raise _with(response, error) from None
        if follows is not None and not follows(target):
            break
        hop = _next(hop, response.status, same_origin=urls.origin_of(url) == urls.origin_of(target))
        url = target
        visits[hop.method, url] += 1
        if visits[hop.method, url] > allowed_visits:
            raise _with(
                response, FetchError(Reason.REDIRECT_LOOP, loop_message(url, cookies=cookies))
            )
        if hops > settings.max_redirects:
            message = f"more than {settings.max_redirects} redirects, the last one to {url}"
            raise _with(response, FetchError(Reason.REDIRECT_LIMIT, message))
        if admit is not None:
            try:
                await admit(url)
            except FetchError as error:
                error.hop = hops + 1
                raise _with(response, error) from error.__cause__
    if response.truncated:
        _check_cut(response, request, settings, hops=hops)
    response.request = request
    response.elapsed = elapsed
    return response


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


def _next(request: Request, status: int, *, same_origin: bool) -> Request:
    """Return the request to make after a redirect with *status*."""
    method, body, headers = request.method, request.body, _unconditional(request.headers)
    # RFC 9110, section 15.4, as browsers have always understood it.
    if (status == 303 and method not in ("GET", "HEAD")) or (
        status in (301, 302) and method == "POST"
    ):
        method, body = "GET", None
        headers = tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_BODY)
    if not same_origin:
        headers = _harmless(headers)
    if method == request.method and headers == request.headers:
        return request
    return request.elsewhere(request.url, method=method, headers=headers, body=body)


def _unconditional(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    # RFC 9110, section 15.4.
    return tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_LAST_VISIT)


def _harmless(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    kept = HARMLESS | _ABOUT_THE_BODY
    return tuple(pair for pair in headers if pair[0].lower() in kept)
