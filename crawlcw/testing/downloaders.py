"""Contract tests for a custom downloader.

    class TestMine(DownloaderContract):
        def downloader(self, default):
            return Mine(default)

Each test starts its own server on 127.0.0.1 and its own event loop, so that any test
runner can run them.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import ClassVar

from crawlcw.api.attempt import Downloader
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError
from crawlcw.fetch.transport import AiohttpDownloader

_LIMIT = 64 << 10
#: Timeout in seconds, far above the duration of any test.
_ENOUGH = 20.0
_MANY = 40
_PAGE = b"<p>a page</p>"
_Check = Callable[[Downloader, str], Awaitable[None]]


class DownloaderContract:
    """Base class of the tests; derive from it and define `downloader`. See `Downloader`.

    `settings` are those of the default downloader: `max_body` is 64 KiB, `read_timeout`
    one second.
    """

    settings: ClassVar[Settings] = Settings(max_body=_LIMIT, read_timeout="1s")

    def downloader(self, default: Downloader) -> Downloader:
        """Return the downloader to test, like `Spider.downloader`."""
        return default

    def test_a_page_arrives_whole(self) -> None:
        """The response has status, headers by lower-case name, body, URL and duration."""

        async def check(downloader: Downloader, origin: str) -> None:
            request = Request(f"{origin}/page")
            response = await downloader.fetch(request, url=request.url)
            assert isinstance(response, Response), "fetch() returns a crawlcw.Response"
            assert (response.status, response.body) == (200, _PAGE)
            assert response.headers.get("x-kind") == "Plain", "headers have lower-case names"
            assert response.url == request.url
            assert response.truncated is None, "nothing was cut off"
            assert response.elapsed.total_seconds() >= 0

        self._run(check)

    def test_the_url_is_the_one_that_is_given(self) -> None:
        """After a redirect *url* differs from the request's URL: the downloader fetches *url*."""

        async def check(downloader: Downloader, origin: str) -> None:
            url = f"{origin}/page"
            response = await downloader.fetch(Request(f"{origin}/status/500"), url=url)
            assert (response.status, response.url) == (200, url)

        self._run(check)

    def test_method_headers_and_body_are_sent(self) -> None:
        """The server receives method, headers and body of the request."""

        async def check(downloader: Downloader, origin: str) -> None:
            url = f"{origin}/echo"
            request = Request(url, method="PUT", headers={"X-Own": "mine"}, body=b"\x00\xff")
            response = await downloader.fetch(request, url=url)
            assert response.status == 200
            heard = response.json()
            assert heard["method"] == "PUT"
            assert heard["headers"].get("x-own") == "mine"
            assert heard["body"] == "00ff"

        self._run(check)

    def test_every_status_is_an_answer(self) -> None:
        """No status is an error: the crawl decides about it."""

        async def check(downloader: Downloader, origin: str) -> None:
            for status in (201, 204, 301, 404, 429, 500, 503):
                url = f"{origin}/status/{status}"
                response = await downloader.fetch(Request(url), url=url)
                assert response.status == status

        self._run(check)

    def test_a_redirect_is_returned_and_not_followed(self) -> None:
        """The crawl follows redirects: the target may be out of scope, or disallowed."""

        async def check(downloader: Downloader, origin: str) -> None:
            url = f"{origin}/redirect"
            response = await downloader.fetch(Request(url), url=url)
            assert (response.status, response.url) == (302, url)
            assert response.headers.get("location") == "/page"

        self._run(check)

    def test_a_packed_body_is_unpacked(self) -> None:
        """`Content-Encoding` is decoded."""

        async def check(downloader: Downloader, origin: str) -> None:
            url = f"{origin}/gzip"
            assert (await downloader.fetch(Request(url), url=url)).body == _PAGE

        self._run(check)

    def test_a_body_over_the_limit_is_cut_and_says_so(self) -> None:
        """The limit also holds for decoded bodies: a few bytes may decode to many."""

        async def check(downloader: Downloader, origin: str) -> None:
            for url in (f"{origin}/large", f"{origin}/bomb"):
                response = await downloader.fetch(Request(url), url=url)
                assert len(response.body) <= _LIMIT, "no more than max_body is kept"
                assert response.truncated, "`truncated` says why the body is not whole"

        self._run(check)

    def test_what_goes_wrong_is_a_fetch_error(self) -> None:
        """Refused connection, closed connection, incomplete body, timeout."""

        async def check(downloader: Downloader, origin: str) -> None:
            refused = "http://127.0.0.1:1/"
            for url in (refused, *(f"{origin}/{path}" for path in ("nothing", "cut", "silence"))):
                try:
                    await downloader.fetch(Request(url), url=url)
                except FetchError:
                    continue
                raise AssertionError(f"{url} is no answer, and no FetchError was raised")

        self._run(check)

    def test_a_cancellation_passes_through(self) -> None:
        """The crawl cancels an attempt to end it."""

        async def check(downloader: Downloader, origin: str) -> None:
            url = f"{origin}/silence"
            fetching = asyncio.create_task(downloader.fetch(Request(url), url=url))
            await asyncio.sleep(0.05)
            fetching.cancel()
            with suppress(asyncio.CancelledError):
                await fetching
            assert fetching.cancelled(), "the cancellation was caught"
            response = await downloader.fetch(Request(f"{origin}/page"), url=f"{origin}/page")
            assert response.body == _PAGE, "and the downloader still works"

        self._run(check)

    def test_many_at_once_get_their_own_answers(self) -> None:
        """Many fetchers use the downloader concurrently."""

        async def check(downloader: Downloader, origin: str) -> None:
            urls = [f"{origin}/number/{number}" for number in range(_MANY)]
            answers = await asyncio.gather(
                *(downloader.fetch(Request(url), url=url) for url in urls)
            )
            assert [answer.body for answer in answers] == [b"%d" % n for n in range(_MANY)]
            assert [answer.url for answer in answers] == urls

        self._run(check)

    def test_it_may_be_closed_unused_and_twice(self) -> None:
        """`close` is called in every state."""

        async def check(downloader: Downloader, _: str) -> None:
            await downloader.close()

        self._run(check)

    def _run(self, check: _Check) -> None:
        asyncio.run(asyncio.wait_for(self._checked(check), _ENOUGH))

    async def _checked(self, check: _Check) -> None:
        async with _serving() as port:
            await self._check_at(port, check)

    async def _check_at(self, port: int, check: _Check) -> None:
        places = [f"127.0.0.1:{port}", "127.0.0.1:1"]
        default = AiohttpDownloader(self.settings, start_origins=places)
        try:
            tested = self.downloader(default)
            try:
                await check(tested, f"http://127.0.0.1:{port}")
            finally:
                await tested.close()
        finally:
            await default.close()


@asynccontextmanager
async def _serving() -> AsyncIterator[int]:
    """Serve within the block; yield the port. All connections end with the block."""
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        try:
            await _answer(reader, writer)
        except asyncio.CancelledError:
            pass  # at the end of the block
        finally:
            answering.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await asyncio.sleep(0)  # lets the loop close the connections


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request, and close the connection."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.strip().split("\r\n")
        method, path, _ = line.split(" ")
        headers = {n.lower(): v.strip() for n, _, v in (each.partition(":") for each in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if path == "/silence":
            await reader.read()  # until the client closes
        else:
            heard = {"method": method, "headers": headers, "body": body.hex()}
            writer.write(_content(path, json.dumps(heard).encode()))
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def _content(path: str, heard: bytes) -> bytes:
    match path.strip("/").split("/"):
        case ["page"]:
            return _http(_PAGE, "X-Kind: Plain")
        case ["echo"]:
            return _http(heard)
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
