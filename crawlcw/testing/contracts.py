"""Test that a custom downloader or a custom layer behaves as a crawl expects.

    class TestMine(DownloaderContract):
        def downloader(self, default):
            return Mine(default)

    class TestMyLayer(LayerContract):
        def layer(self):
            return MyLayer()

Each test has its own event loop, so that any test runner can run the tests. Each test of a
downloader starts its own server on 127.0.0.1.
"""

import asyncio
import gzip
import json
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial, update_wrapper
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

from crawlcw.api.attempt import (
    Attempt,
    Downloader,
    Layer,
    Next,
    Purpose,
    Session,
    check_layers,
    layer_name,
)
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model import urls
from crawlcw.model.identities import Identity

_LIMIT = 64 << 10
#: The timeout of a test in seconds, far above the duration of any test.
_TIMEOUT_S = 20.0
_REQUESTS = 40
_PAGE = b"<p>a page</p>"
_URL = "http://site.example/page"


def contract_test(check: Callable[..., Awaitable[None]]) -> Callable[[Any], None]:
    """Return a test method without arguments that calls the contract's `_run` with *check*."""

    def test(contract: Any) -> None:
        coroutine = contract._run(partial(check, contract))  # noqa: SLF001  # `_run` belongs to this file
        asyncio.run(asyncio.wait_for(coroutine, _TIMEOUT_S))

    update_wrapper(test, check)
    del vars(test)["__wrapped__"]  # pytest must not read the arguments of `check` as fixtures
    return test


class DownloaderContract:
    """Base class of a downloader's tests: a subclass defines `downloader`. See `Downloader`.

    `settings` are the settings of the default downloader: `max_body` is 64 KiB, and `read_timeout`
    is one second.
    """

    settings: ClassVar[Settings] = Settings(max_body=_LIMIT, read_timeout="1s")

    def downloader(self, default: Downloader) -> Downloader:
        """Return the downloader to test; it may use *default*, as in `Spider.downloader`."""
        return default

    @contract_test
    async def test_a_page_arrives_complete(self, downloader: Downloader, origin: str) -> None:
        """The response has the status, headers by lower-case name, the body and the URL."""
        request = Request(f"{origin}/page")
        response = await downloader.fetch(request, url=request.url)
        assert isinstance(response, Response), "fetch() returns a crawlcw.Response"
        assert (response.status, response.body) == (200, _PAGE)
        assert response.headers.get("x-kind") == "Plain", "headers have lower-case names"
        assert response.url == request.url
        assert response.truncated is None, "nothing was cut off"
        assert response.elapsed.total_seconds() >= 0

    @contract_test
    async def test_the_url_argument_is_fetched(self, downloader: Downloader, origin: str) -> None:
        """The downloader fetches *url*; after a redirect, *url* is not the request's URL."""
        url = f"{origin}/page"
        response = await downloader.fetch(Request(f"{origin}/status/500"), url=url)
        assert (response.status, response.url) == (200, url)

    @contract_test
    async def test_method_headers_and_body_are_sent(
        self, downloader: Downloader, origin: str
    ) -> None:
        """The server receives the method, the headers and the body of the request."""
        url = f"{origin}/echo"
        request = Request(url, method="PUT", headers={"X-Own": "mine"}, body=b"\x00\xff")
        response = await downloader.fetch(request, url=url)
        assert response.status == 200
        echo = response.json()
        assert echo["method"] == "PUT"
        assert echo["headers"].get("x-own") == "mine"
        assert echo["body"] == "00ff"

    @contract_test
    async def test_every_status_is_a_response(self, downloader: Downloader, origin: str) -> None:
        """The downloader returns a response of any status, and the crawl decides about errors."""
        for status in (201, 204, 301, 404, 429, 500, 503):
            url = f"{origin}/status/{status}"
            response = await downloader.fetch(Request(url), url=url)
            assert response.status == status

    @contract_test
    async def test_a_redirect_is_returned_and_not_followed(
        self, downloader: Downloader, origin: str
    ) -> None:
        """The downloader returns a redirect, whose target may be out of scope or disallowed."""
        url = f"{origin}/redirect"
        response = await downloader.fetch(Request(url), url=url)
        assert (response.status, response.url) == (302, url)
        assert response.headers.get("location") == "/page"

    @contract_test
    async def test_a_compressed_body_is_decoded(self, downloader: Downloader, origin: str) -> None:
        """`Content-Encoding` is decoded."""
        url = f"{origin}/gzip"
        assert (await downloader.fetch(Request(url), url=url)).body == _PAGE

    @contract_test
    async def test_a_body_over_the_limit_is_truncated(
        self, downloader: Downloader, origin: str
    ) -> None:
        """`max_body` limits the decoded body, because a few compressed bytes may become many."""
        for url in (f"{origin}/large", f"{origin}/bomb"):
            response = await downloader.fetch(Request(url), url=url)
            assert len(response.body) <= _LIMIT, "the body is at most max_body"
            assert response.truncated, "`truncated` says why the body is not whole"

    @contract_test
    async def test_a_failure_raises_fetch_error(self, downloader: Downloader, origin: str) -> None:
        """`FetchError` for a refused or closed connection, an incomplete body, and a timeout."""
        refused_url = "http://127.0.0.1:1/"
        for url in (refused_url, *(f"{origin}/{path}" for path in ("nothing", "cut", "silence"))):
            try:
                await downloader.fetch(Request(url), url=url)
            except FetchError:
                continue
            raise AssertionError(f"{url} has no valid response, but fetch() raised no FetchError")

    @contract_test
    async def test_a_cancellation_passes_through(self, downloader: Downloader, origin: str) -> None:
        """If the crawl cancels a fetch, the fetch ends and the downloader still works."""
        url = f"{origin}/silence"
        fetch_task = asyncio.create_task(downloader.fetch(Request(url), url=url))
        await asyncio.sleep(0.05)
        fetch_task.cancel()
        with suppress(asyncio.CancelledError):
            await fetch_task
        assert fetch_task.cancelled(), "fetch() caught the cancellation"
        response = await downloader.fetch(Request(f"{origin}/page"), url=f"{origin}/page")
        assert response.body == _PAGE, "and the downloader still works"

    @contract_test
    async def test_concurrent_requests_get_their_own_responses(
        self, downloader: Downloader, origin: str
    ) -> None:
        """Many concurrent requests through one downloader get the right responses."""
        urls = [f"{origin}/number/{number}" for number in range(_REQUESTS)]
        responses = await asyncio.gather(*(downloader.fetch(Request(url), url=url) for url in urls))
        assert [response.body for response in responses] == [b"%d" % n for n in range(_REQUESTS)]
        assert [response.url for response in responses] == urls

    @contract_test
    async def test_it_can_be_closed_unused_and_twice(self, downloader: Downloader, *_: str) -> None:
        """A crawl may close a downloader that it has never used, or close a downloader twice."""
        await downloader.close()

    async def _run(self, check: Callable[[Downloader, str], Awaitable[None]]) -> None:
        async with AsyncExitStack() as exit_stack:
            port = exit_stack.enter_context(_serving())
            origins = [f"127.0.0.1:{port}", "127.0.0.1:1"]
            default = AiohttpDownloader(self.settings, start_origins=origins)
            exit_stack.push_async_callback(default.close)
            tested_downloader = self.downloader(default)
            exit_stack.push_async_callback(tested_downloader.close)
            await check(tested_downloader, f"http://127.0.0.1:{port}")


class _Server(ThreadingHTTPServer):
    request_queue_size = 2 * _REQUESTS  # a shorter queue would refuse new connections


@contextmanager
def _serving() -> Iterator[int]:
    """Run a test server in threads within a `with` block, and yield its port."""
    with _Server(("127.0.0.1", 0), _RequestHandler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


class _RequestHandler(BaseHTTPRequestHandler):
    """Sends one response, and closes the client's connection."""

    def _respond(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        with suppress(ConnectionError):
            body = self.rfile.read(int(headers.get("content-length", "0")))
            if self.path == "/silence":
                self.rfile.read()  # until the client closes
            echo = {"method": self.command, "headers": headers, "body": body.hex()}
            self.wfile.write(_content(self.path, json.dumps(echo).encode()))

    do_GET = do_PUT = _respond  # noqa: N815  # http.server calls methods of these names

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _content(path: str, echo: bytes) -> bytes:
    match path.strip("/").split("/"):
        case ["page"]:
            return _http(_PAGE, "X-Kind: Plain")
        case ["echo"]:
            return _http(echo)
        case ["status", number]:
            bodiless = number == "204"
            return _http(b"" if bodiless else b"<p>so", status=number)
        case ["number", number]:
            return _http(number.encode())
        case ["redirect"]:
            return _http(b"", "Location: /page", status="302")
        case ["gzip"]:
            return _http(gzip.compress(_PAGE), "Content-Encoding: gzip")
        case ["large"]:
            return _http(b"x" * 4 * _LIMIT)
        case ["bomb"]:
            return _http(gzip.compress(bytes(64 * _LIMIT)), "Content-Encoding: gzip")
        case ["cut"]:
            return _http(_PAGE)[:-3]
        case _:
            return b""


def _http(body: bytes, *headers: str, status: str = "200") -> bytes:
    fields = (f"HTTP/1.1 {status} So", "Content-Type: text/html", *headers)
    head = "\r\n".join((*fields, f"Content-Length: {len(body)}", "Connection: close", "", ""))
    return head.encode() + body


class LayerContract:
    """Base class of a layer's tests: a subclass defines `layer`. See `Layer`."""

    def layer(self) -> Layer:
        """Return the layer to test."""
        raise NotImplementedError("return the layer to test")

    def test_it_is_a_layer(self) -> None:
        """A layer is an object, not a class, with an `async` method of three arguments."""
        check_layers([self.layer()], type(self).__name__)

    @contract_test
    async def test_concurrent_requests_get_their_own_responses(self, layer: Layer) -> None:
        """Each of many concurrent requests through a layer gets its own response."""

        async def next_layer(_: Attempt, request: Request) -> Response:
            await asyncio.sleep(0.001 * (hash(request.url) % 5))
            return Response(request.url, request=request, body=request.url.encode())

        async def check_request(number: int) -> None:
            url = f"{_URL}/{number}"
            response = await _response_of(layer, url, next_layer)
            if response is not None:
                path = urls.parse(response.url).path
                assert path == urls.parse(url).path, "the response to another request"

        await asyncio.gather(*map(check_request, range(_REQUESTS)))

    @contract_test
    async def test_it_requests_the_same_origin_only(self, layer: Layer) -> None:
        """A layer sends no request to another origin, which has its own robots.txt and secrets."""
        requested_urls: list[str] = []

        async def next_layer(_: Attempt, request: Request) -> Response:
            requested_urls.append(request.url)
            return Response(request.url, request=request, body=b"<p>a page</p>")

        await _response_of(layer, _URL, next_layer)
        assert {urls.origin_of(url) for url in requested_urls} <= {urls.origin_of(_URL)}

    @contract_test
    async def test_the_task_keeps_its_request(self, layer: Layer) -> None:
        """A layer does not change an attempt's first request, because a retry repeats it."""

        async def next_layer(_: Attempt, request: Request) -> Response:
            return Response(request.url, request=request)

        first_request = Request(_URL, headers={"X-Own": "mine"})
        sent_request = first_request.retargeted(first_request.url, headers=first_request.headers)
        await _result(layer(Attempt(request=first_request), sent_request, next_layer))
        assert (first_request.url, dict(first_request.headers)) == (_URL, {"X-Own": "mine"})

    @contract_test
    async def test_a_failure_stays_a_failure(self, layer: Layer) -> None:
        """After a failure a layer returns a response or raises an allowed exception."""

        async def next_layer(_: Attempt, request: Request) -> Response:
            raise FetchError(Reason.CONNECT, f"{request.url} cannot be reached")

        await _response_of(layer, _URL, next_layer)

    @contract_test
    async def test_a_cancellation_passes(self, layer: Layer) -> None:
        """If the crawl cancels an attempt, the layer ends and does not catch the cancellation."""
        started = asyncio.Event()

        async def next_layer(_: Attempt, request: Request) -> Response:  # noqa: ARG001  # required by the type `Next`
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        layer_task = asyncio.ensure_future(_response_of(layer, _URL, next_layer))
        start_waiter = asyncio.ensure_future(started.wait())
        await asyncio.wait([layer_task, start_waiter], return_when=asyncio.FIRST_COMPLETED)
        start_waiter.cancel()
        if not layer_task.done():
            layer_task.cancel()
            await asyncio.wait([layer_task])
            assert layer_task.cancelled(), "the layer caught the cancellation"

    @contract_test
    async def test_a_cache_keeps_sessions_apart(self, layer: Layer) -> None:
        """Warn if the layer answers a session's request with the page of another session.

        A page may have the data of the logged-in user. The key of the layer's cache must use
        `attempt.session`.
        """
        requested_sessions: list[str] = []

        async def next_layer(attempt: Attempt, request: Request) -> Response:
            assert attempt.session is not None
            requested_sessions.append(attempt.session.identity.name)
            return Response(request.url, request=request, body=b"<p>a page</p>")

        for name in ("first", "second"):
            session = Session(identity=Identity(name=name), jar=None)
            await _response_of(layer, _URL, next_layer, session=session)
        if requested_sessions == ["first"]:
            warnings.warn(
                f"{layer_name(layer)} mixes sessions: it answered a request of one session with "
                "the response for another session",
                stacklevel=2,
            )

    async def _run(self, check: Callable[[Layer], Awaitable[None]]) -> None:
        await check(self.layer())


async def _response_of(
    layer: Layer, url: str, next_layer: Next, *, session: Session | None = None
) -> Response | None:
    """Return a layer's response for *url*; None if the layer raises an allowed exception."""
    request = Request(url)
    attempt = Attempt(request=request, purpose=Purpose.PAGE, session=session)
    return await _result(layer(attempt, request.retargeted(url), next_layer))


async def _result(pending_response: Awaitable[Response]) -> Response | None:
    try:
        response = await pending_response
    except (FetchError, Defer, StopCrawl):
        return None
    assert isinstance(response, Response), "a layer returns a crawlcw.Response"
    return response
