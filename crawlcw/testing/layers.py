"""Contract tests for a custom layer.

    class TestMine(LayerContract):
        def layer(self):
            return Mine()

Each test has its own event loop, so that any test runner can run them.
"""

import asyncio
from collections.abc import Awaitable, Callable

from crawlcw.api.attempt import Attempt, Layer, Next, Purpose
from crawlcw.api.own_layers import check
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl
from crawlcw.model import urls

_ENOUGH = 20.0
_URL = "http://site.example/page"
_MANY = 20


class LayerContract:
    """Base class of the tests of a layer; derive from it and define `layer`. See `Layer`."""

    def layer(self) -> Layer:
        """Return the layer to test."""
        raise NotImplementedError("return the layer to test")

    def test_it_is_a_layer(self) -> None:
        """An object, not a class, with an `async` method of three arguments."""
        check([self.layer()], type(self).__name__)

    def test_each_request_gets_the_answer_to_itself(self) -> None:
        """A layer does not mix up concurrent requests."""

        async def below(_: Attempt, request: Request) -> Response:
            await asyncio.sleep(0.001 * (hash(request.url) % 5))
            return Response(request.url, request=request, body=request.url.encode())

        async def one(layer: Layer, number: int) -> None:
            url = f"{_URL}/{number}"
            response = await _asked(layer, url, below)
            if response is not None:
                told = urls.parse(response.url).path
                assert told == urls.parse(url).path, "the answer to another request"

        async def check(layer: Layer) -> None:
            await asyncio.gather(*(one(layer, number) for number in range(_MANY)))

        self._run(check)

    def test_it_asks_at_the_same_origin_only(self) -> None:
        """Another host has other delays, another robots.txt and other secrets."""
        asked: list[str] = []

        async def below(_: Attempt, request: Request) -> Response:
            asked.append(request.url)
            return Response(request.url, request=request, body=b"<p>a page</p>")

        async def check(layer: Layer) -> None:
            await _asked(layer, _URL, below)
            assert {urls.origin_of(url) for url in asked} <= {urls.origin_of(_URL)}

        self._run(check)

    def test_the_task_keeps_its_request(self) -> None:
        """A layer does not change the first request of an attempt, which is used for retries."""

        async def below(_: Attempt, request: Request) -> Response:
            return Response(request.url, request=request)

        async def check(layer: Layer) -> None:
            first = Request(_URL, headers={"X-Own": "mine"})
            attempt = Attempt(request=first)
            copy = first.elsewhere(first.url, headers=first.headers)
            await _result(layer(attempt, copy, below))
            assert (first.url, dict(first.headers)) == (_URL, {"X-Own": "mine"})

        self._run(check)

    def test_a_failure_stays_one(self) -> None:
        """After a failure: a response, another try, or an allowed exception."""

        async def below(_: Attempt, request: Request) -> Response:
            raise FetchError(Reason.CONNECT, f"{request.url} cannot be reached")

        async def check(layer: Layer) -> None:
            await _asked(layer, _URL, below)

        self._run(check)

    def test_a_cancellation_passes(self) -> None:
        """The crawl cancels an attempt to end it."""
        begun = asyncio.Event()

        async def below(_: Attempt, request: Request) -> Response:  # noqa: ARG001  # a `Next`
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def check(layer: Layer) -> None:
            working = asyncio.ensure_future(_asked(layer, _URL, below))
            waiting = asyncio.ensure_future(begun.wait())
            await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait([working])
                assert working.cancelled(), "the layer caught the cancellation"

        self._run(check)

    def _run(self, check: Callable[[Layer], Awaitable[None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(_ENOUGH):
                await check(self.layer())

        asyncio.run(run())


async def _asked(layer: Layer, url: str, below: Next) -> Response | None:
    """Return the response of a layer to a request; None if it raises an allowed exception."""
    request = Request(url)
    attempt = Attempt(request=request, purpose=Purpose.PAGE)
    return await _result(layer(attempt, request.elsewhere(url), below))


async def _result(asked: Awaitable[Response]) -> Response | None:
    try:
        response = await asked
    except (FetchError, Defer, StopCrawl):
        return None
    assert isinstance(response, Response), "a layer returns a crawlcw.Response"
    return response
