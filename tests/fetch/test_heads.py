"""Heads of responses: repeated Content-Length and interim responses, whole and in pieces."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.transport import AiohttpDownloader

SETTINGS = Settings(read_timeout="300ms")


@asynccontextmanager
async def serving(pieces: Sequence[bytes], *, hangs: bool = False) -> AsyncIterator[str]:
    """Answer each request with *pieces*; the client usually reads each before the next is sent."""
    connections: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in pieces:
                    writer.write(piece)
                    # Both ends run in this loop. Pieces that arrive together give the same result.
                    for _ in range(20):
                        await asyncio.sleep(0)
                if hangs:
                    await asyncio.Event().wait()
                if b"close" in pieces[-1]:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # for the transports


async def fetched(
    pieces: Sequence[bytes], *, times: int = 1, hangs: bool = False, **options: Any
) -> Response:
    async with (
        serving(pieces, hangs=hangs) as origin,
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as downloader,
    ):
        for _ in range(times):
            request = Request(f"http://{origin}/", **options)
            response = await downloader.fetch(request, url=request.url)
        return response


TWICE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: b\r\ncontent-length: 4\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [TWICE + b"page"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4, 4\r\n\r\npage"],
        [b"HTTP/1.1 200 OK\nContent-Length: 4\nContent-Length:4\n\npage"],
        [b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + TWICE + b"page"],
        [b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" * 9, b"HTTP/1.1 102 \r\n\r\n", TWICE, b"page"],
        [b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 20", TWICE[11:] + b"page"],
        [TWICE[:30], TWICE[30:], b"page"],
        [TWICE[:-20], TWICE[-20:-2], TWICE[-2:] + b"pa", b"ge"],
        [TWICE[place : place + 1] for place in range(len(TWICE))] + [b"page"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"page"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Content-Length: 5, 4\r\n\r\npage"],
    ],
)
async def test_equal_lengths_are_one_however_they_come(pieces: list[bytes]) -> None:
    response = await fetched(pieces, times=3)

    assert (response.status, response.body) == (200, b"page")
    assert response.headers["content-length"] == "4"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 103 Early\r\nLink: " + b"a" * (1 << 15), b"\r\n\r\n", TWICE, b"page"],
        [b"\r\nHTTP/1.1 103 Early\r\n\r\n", TWICE, b"page"],
        [b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" * (1 << 12)],
    ],
    ids=["too long to be looked at", "behind a line", "too many"],
)
async def test_an_interim_response_is_never_the_answer(pieces: list[bytes]) -> None:
    with pytest.raises(FetchError) as caught:
        await fetched(pieces)

    assert caught.value.reason in (Reason.HTTP_STATUS, Reason.PROTOCOL)


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4, 5\r\n",
        b"Content-Length: 4\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: +4\r\nContent-Length: +4\r\n",
        b"Content-Length: 4\r\nContent-Length:\r\n 4\r\n",
        b"Content-Length: 4\r\nX-A: b\r\nContent-Length: 4\r\n 5\r\n",
    ],
)
async def test_any_others_are_refused(head: bytes) -> None:
    with pytest.raises(FetchError) as caught:
        await fetched([b"HTTP/1.1 200 OK\r\n" + head + b"\r\npage"])

    assert caught.value.reason is Reason.PROTOCOL


@pytest.mark.parametrize(
    ("pieces", "hangs", "reason"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Connection: close"], False, None),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"], True, Reason.TIMEOUT_READ),
        ([b"no HTTP\r\n"], True, Reason.PROTOCOL),
    ],
    ids=["hangs up", "is silent", "no HTTP"],
)
async def test_a_head_without_its_end_fails_as_ever(
    pieces: list[bytes], hangs: bool, reason: Reason | None
) -> None:
    with pytest.raises(FetchError) as caught:
        await fetched(pieces, hangs=hangs)

    assert caught.value.reason in ([reason] if reason else [Reason.DISCONNECTED, Reason.PROTOCOL])


@pytest.mark.parametrize(
    "head",
    [
        b"201 Created\r\nLocation: /other",
        b"301 Moved Permanently",
        b"404 Not Found\r\nContent-Type: image/png",
    ],
)
async def test_the_body_of_any_status_that_leads_nowhere_is_read(head: bytes) -> None:
    response = await fetched([b"HTTP/1.1 " + head + b"\r\nContent-Length: 4\r\n\r\npage"])

    assert response.body == b"page"


@pytest.mark.parametrize(
    ("name", "values", "joined"),
    [
        (b"Location", [b"/a", b"/b"], "/a"),
        (b"X-Robots-Tag", [b"noindex", b"bot: nofollow"], "noindex, bot: nofollow"),
        (b"X-Robots-Tag", [b"bot: nofollow", b"noindex"], "noindex, bot: nofollow"),
        (b"Content-Type", [b"image/png", b"text/html;a", b"x"], "text/html;a"),
        (b"Content-Type", [b"text/html;charset=big5", b"text/html"], 'text/html;charset="big5"'),
    ],
)
async def test_a_header_that_comes_twice(name: bytes, values: list[bytes], joined: str) -> None:
    lines = b"".join(b"%b: %b\r\n" % (name, value) for value in values)

    response = await fetched([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + lines + b"\r\n"])

    assert response.headers[name.decode().lower()] == joined
