"""Redirects: limits, checks of each target, and secrets that stay with their origin."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.redirects import is_page, throttles
from crawlcw.model.urls import MAX_LENGTH
from crawlcw.testing.replay import Replay, ReplayDownloader
from tests.support.attempts import attempt

pytestmark = pytest.mark.quick

START = "http://a.example/start"
SECRETS = {
    "Authorization": "Basic xyz",
    "Cookie": "id=7",
    "X-API-Key": "secret",
    "Accept-Language": "de",
    "User-Agent": "mine",
}


def to(location: str | None, *, status: int = 302) -> Replay:
    headers = {} if location is None else {"Location": location}
    return Replay(status=status, headers=headers, elapsed=timedelta(seconds=1))


class Recorder(ReplayDownloader):
    """Downloader that keeps the requests as they would have been sent."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.sent: list[Request] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.sent.append(request)
        return await super().fetch(request, url=url)


async def reason_of(answers: dict[str, Any], **settings: Any) -> Reason:
    with pytest.raises(FetchError) as caught:
        await attempt(
            Request(START), downloader=ReplayDownloader(answers), settings=Settings(**settings)
        )
    return caught.value.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_to_its_end(status: int) -> None:
    downloader = ReplayDownloader(
        {
            START: to("next", status=status),
            "http://a.example/next": to("//b.example/end#part", status=status),
            "http://b.example/end": Replay(body="end", elapsed=timedelta(seconds=1)),
        }
    )
    request = Request(START, context={"kept": True})

    response = await attempt(request, downloader=downloader, settings=Settings())

    assert response.url == "http://b.example/end"
    assert response.body == b"end"
    assert response.request is request
    assert response.elapsed == timedelta(seconds=3)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (None, Reason.REDIRECT_INVALID),
        ("", Reason.REDIRECT_INVALID),
        (" ", Reason.REDIRECT_INVALID),
        ("http://[", Reason.REDIRECT_INVALID),
        ("http://b.example:99999/", Reason.REDIRECT_INVALID),
        ("file:///etc/passwd", Reason.REFUSED_SCHEME),
        ("ftp://b.example/", Reason.REFUSED_SCHEME),
        ("data:text/html,x", Reason.REFUSED_SCHEME),
        ("javascript:alert(1)", Reason.REFUSED_SCHEME),
        ("http://user:password@b.example/", Reason.REFUSED_CREDENTIALS),
        ("//user@b.example/", Reason.REFUSED_CREDENTIALS),
        ("ht\ttp://user@b.example/", Reason.REFUSED_CREDENTIALS),
        ("http://b.example/" + "x" * MAX_LENGTH, Reason.URL_TOO_LONG),
        ("/start", Reason.REDIRECT_LOOP),
        ("#part", Reason.REDIRECT_LOOP),
    ],
)
async def test_a_location_that_leads_nowhere_is_named(location: str | None, reason: Reason) -> None:
    assert await reason_of({START: to(location)}) is reason


async def test_a_loop_is_seen_at_the_second_visit() -> None:
    downloader = ReplayDownloader({START: to("/other"), "http://a.example/other": to(START)})

    with pytest.raises(FetchError, match=r"redirect-loop.*cookies"):
        await attempt(Request(START), downloader=downloader, settings=Settings())

    assert downloader.requested_urls == [START, "http://a.example/other"]


async def test_with_cookies_a_page_may_send_its_visitor_back_once() -> None:
    gate: dict[str, Any] = {START: [to("/set"), "inside"], "http://a.example/set": to(START)}

    response = await attempt(
        Request(START), downloader=ReplayDownloader(gate), settings=Settings(cookies=True)
    )

    assert response.body == b"inside"
    assert await reason_of({START: to(START)}, cookies=True) is Reason.REDIRECT_LOOP
    with pytest.raises(FetchError, match=r"lead back to http://a\.example/start$"):
        await attempt(
            Request(START),
            downloader=ReplayDownloader({START: to(START)}),
            settings=Settings(cookies=True),
        )


@pytest.mark.parametrize(
    ("status", "headers", "page", "waits"),
    [
        (200, {}, True, False),
        (204, {}, True, False),
        (206, {}, False, False),
        (404, {}, False, False),
        (418, {}, True, False),
        (429, {}, False, True),
        (503, {}, False, False),
        (503, {"retry-after": "1"}, False, True),
        (500, {"retry-after": "1"}, False, False),
    ],
)
def test_a_status_is_a_pages_or_asks_for_patience(
    status: int, headers: dict[str, str], page: bool, waits: bool
) -> None:
    request = Request(START)
    response = Response(START, request=request, status=status, headers=headers)

    assert is_page(response, request, Settings(accept_statuses=[418])) is page
    assert throttles(response, Settings().throttle_statuses) is waits


@pytest.mark.parametrize(
    ("answers", "hop"),
    [
        ({START: FetchError(Reason.CONNECT)}, 1),
        ({START: to("/next"), "http://a.example/next": FetchError(Reason.CONNECT)}, 2),
        ({START: to("file:///etc/passwd")}, 2),
        ({START: to("/next"), "http://a.example/next": to(None)}, 3),
        ({START: to("/next"), "http://a.example/next": Replay(truncated="bytes")}, 2),
    ],
)
async def test_a_failure_names_its_hop(answers: dict[str, Any], hop: int) -> None:
    """A host that has answered by a redirect has not failed."""
    with pytest.raises(FetchError) as caught:
        await attempt(
            Request(START),
            downloader=ReplayDownloader(answers),
            settings=Settings(truncate=False),
        )

    assert caught.value.hop == hop


async def test_every_target_is_asked_about_before_it_is_requested() -> None:
    """HOSTILE 4.2."""
    downloader = ReplayDownloader({START: to("/one"), "http://a.example/one": to("/two")})
    asked = []

    async def admit(url: str) -> None:
        asked.append((url, list(downloader.requested_urls)))
        if url.endswith("two"):
            raise FetchError(Reason.REFUSED_ROBOTS)

    with pytest.raises(FetchError, match="refused-robots"):
        await attempt(Request(START), downloader=downloader, settings=Settings(), admit=admit)

    one, two = "http://a.example/one", "http://a.example/two"
    assert asked == [(one, [START]), (two, [START, one])]
    assert downloader.requested_urls == [START, one]


@pytest.mark.parametrize(
    ("method", "status", "then"),
    [
        ("GET", 301, "GET"),
        ("GET", 303, "GET"),
        ("HEAD", 303, "HEAD"),
        ("HEAD", 302, "HEAD"),
        ("POST", 301, "GET"),
        ("POST", 302, "GET"),
        ("POST", 303, "GET"),
        ("PUT", 303, "GET"),
        ("PUT", 302, "PUT"),
        ("POST", 307, "POST"),
        ("POST", 308, "POST"),
    ],
)
async def test_the_method_after_a_redirect(method: str, status: int, then: str) -> None:
    downloader = Recorder({START: to("/next", status=status)})
    body = b"data" if method in ("POST", "PUT") else None
    about_the_body = {"Content-Type": "text/x", "Content-Language": "en", "Content-Location": "/x"}
    request = Request(START, method=method, body=body, headers=about_the_body)

    await attempt(request, downloader=downloader, settings=Settings())

    sent = downloader.sent[-1]
    assert sent.method == then
    assert sent.body == (body if then == method else None)
    # Fetch Standard, HTTP-redirect fetch.
    kept = {pair for pair in sent.headers if pair[0] in about_the_body}
    assert kept == (about_the_body.items() if then == method else set())


@pytest.mark.parametrize(
    "target", ["http://b.example/", "https://a.example/", "http://a.example:8080/"]
)
async def test_secrets_stay_with_the_origin_they_were_given_for(target: str) -> None:
    """HOSTILE 5.9."""
    downloader = Recorder({START: to(target), target: to(START + "2")})

    await attempt(Request(START, headers=SECRETS), downloader=downloader, settings=Settings())

    harmless = {"Accept-Language": "de", "User-Agent": "mine"}
    assert [dict(sent.headers) for sent in downloader.sent] == [SECRETS, harmless, harmless]


async def test_within_an_origin_all_headers_travel() -> None:
    downloader = Recorder({START: to("/next")})

    await attempt(Request(START, headers=SECRETS), downloader=downloader, settings=Settings())

    assert dict(downloader.sent[-1].headers) == SECRETS


class _Never(ReplayDownloader):
    async def fetch(self, request: Request, *, url: str) -> Response:
        return await asyncio.Future()


async def test_an_attempt_ends_at_its_deadline() -> None:
    with pytest.raises(FetchError, match="timeout-total"):
        await attempt(Request(START), downloader=_Never(), settings=Settings(timeout="10ms"))


async def test_a_deadline_of_its_own_counts_for_a_request() -> None:
    with pytest.raises(FetchError, match=r"no response within 0\.01 s") as caught:
        await attempt(Request(START, timeout=0.01), downloader=_Never(), settings=Settings())

    assert caught.value.deadline == 0.01


async def test_cancellation_passes_through() -> None:
    task = asyncio.ensure_future(attempt(Request(START), downloader=_Never(), settings=Settings()))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
