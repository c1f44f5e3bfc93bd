"""Framing of answers: heads, lengths and chunks as browsers read them, whole and in pieces."""

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
async def serving(
    pieces: Sequence[bytes], *, hangs: bool = False, opened: list[None] | None = None
) -> AsyncIterator[str]:
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
                if b"close" in b"".join(pieces):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(answer(reader, writer)))
        if opened is not None:
            opened.append(None)

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
        [b"HTTP/1.1 103 Early\r\nLink: " + b"a" * (1 << 15), b"\r\n\r\n", TWICE, b"page"],
        [b"\r\nHTTP/1.1 103 Early\r\n\r\n", TWICE, b"page"],
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


async def test_interim_responses_without_end_are_refused() -> None:
    with pytest.raises(FetchError) as caught:
        await fetched([b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" * (1 << 12)])

    assert caught.value.reason is Reason.PROTOCOL


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4, 5\r\n",
        b"Content-Length: 4\r\nContent-Length:\r\n",
        b"Content-Length: 4\r\nX-A: b\r\nContent-Length: 4\r\n 5\r\n",
    ],
)
async def test_different_lengths_are_refused(head: bytes) -> None:
    with pytest.raises(FetchError, match="two different values of Content-Length") as caught:
        await fetched([b"HTTP/1.1 200 OK\r\n" + head + b"\r\npage"])

    assert caught.value.reason is Reason.PROTOCOL


HEAD = b"HTTP/1.1 200 OK\r\n%b\r\n"
CHUNKED = HEAD % b"Transfer-Encoding: chunked\r\n"
SHORT = HEAD % b"%b\r\nContent-Length: 4\r\n" + b"page"
PAGE = b"4\r\npage\r\n0\r\n\r\n"
#: Heads that break a rule; their connection is not used again. Chromium 156 reads each.
MENDED: dict[str, tuple[bytes, dict[str, str]]] = {
    "a blank before the colon": (SHORT % b"Server : x", {"server": "x"}),
    "a length with one": (HEAD % b"Content-Length : 4\r\n" + b"page", {"content-length": "4"}),
    "a coding with one": (HEAD % b"Transfer-Encoding : chunked\r\n" + PAGE, {}),
    "a blank in a name": (SHORT % b"Bad Header: x", {}),
    "no colon": (SHORT % b"no header", {}),
    "no name": (SHORT % b": x", {}),
    "markup": (SHORT % b"<meta foo>: x", {}),
    "a name of UTF-8": (SHORT % "Größe: 1".encode(), {}),
    "a bad line that is folded": (SHORT % b"no header\r\n Content-Length: 3", {}),
    "a bare CR": (SHORT % b"X: a\rb", {"x": "a b"}),
    "chunks and a length": (
        HEAD % b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n" + PAGE,
        {"transfer-encoding": "chunked"},
    ),
    "a length and chunks": (
        HEAD % b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n" + PAGE,
        {},
    ),
    "two lengths and chunks": (
        HEAD % b"Content-Length: 4\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n" + PAGE,
        {},
    ),
    "a length and no coding": (
        HEAD % b"Transfer-Encoding: identity\r\nContent-Length: 4\r\n" + b"page",
        {"content-length": "4"},
    ),
    "a length that is folded": (
        HEAD % b"Content-Length: 4\r\nContent-Length:\r\n 4\r\n" + b"page",
        {},
    ),
    "chunked is not the last coding": (
        HEAD % b"Transfer-Encoding: chunked, identity\r\n" + PAGE,
        {},
    ),
    "chunks of bare LF": (CHUNKED + b"2\npa\n2\nge\n0\n\n", {}),
    "a bare LF behind a size": (CHUNKED + b"4\npage\r\n0\r\n\r\n", {}),
    **{
        f"a length of {value.decode()!r}": (
            HEAD % b"Connection: close\r\nContent-Length: %b\r\n" % value + b"page",
            {"connection": "close"},
        )
        for value in (b"", b"-5", b"1e3", b"+2", b"0x2", b"two", b"18446744073709551621")
    },
}
#: Answers that have ended before their bytes have, as RFC 9112, section 6.3, says.
BEHIND = {
    "bytes behind a length": SHORT % b"X: a" + b"</body>",
    "a NUL behind a length": SHORT % b"X: a" + b"\0",
    "half an answer behind a length": SHORT % b"X: a" + b"HTTP/1.1 200 OK\r\nCont",
    "an answer behind a length": SHORT % b"X: a" + SHORT % b"X: b",
    "bytes behind a length with a blank": HEAD % b"Content-Length : 4\r\n" + b"page and more",
    "bytes behind chunks": CHUNKED + PAGE + b"<!-- -->",
    "half an answer behind chunks": CHUNKED + PAGE + b"HTTP/1.1 20",
}
ALLOWED = {
    "empty lines before it": b"\r\n\n" + SHORT % b"X: a",
    "an extension with blanks": CHUNKED + b"2; a=x\r\npa\r\n2 ;a = x\r\nge\r\n0\r\n\r\n",
    "an extension of bytes": CHUNKED + b'4;a="x;\r\xff"\r\npage\r\n0;x\r\n\r\n',
    "a size with zeros and blanks": CHUNKED + b"%b4 \t\r\npage\r\n00\r\n\r\n" % (b"0" * 20),
    "trailers that are none": CHUNKED + b"4\r\npage\r\n0\r\nno trailer\r\nX: y\r\n\r\n",
}


def _pieces(*answers: bytes, by_byte: bool = True) -> list[list[bytes]]:
    """Return each answer whole, in two pieces, and byte by byte."""
    found = []
    for answer in answers:
        third = len(answer) // 3
        found += [[answer], [answer[:third], answer[third:]]]
        if by_byte:
            found.append([answer[place : place + 1] for place in range(len(answer))])
    return found


async def fetched_twice(pieces: Sequence[bytes]) -> tuple[list[Response], int]:
    """Return the responses to two requests, and the number of their connections."""
    opened: list[None] = []
    async with (
        serving(pieces, opened=opened) as origin,
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as downloader,
    ):
        request = Request(f"http://{origin}/")
        responses = [await downloader.fetch(request, url=request.url) for _ in range(2)]
        return responses, len(opened)


@pytest.mark.parametrize("name", MENDED)
async def test_an_answer_that_breaks_a_rule_is_read_as_browsers_do(name: str) -> None:
    answer, headers = MENDED[name]
    for pieces in _pieces(answer):
        responses, connections = await fetched_twice(pieces)

        assert [response.body for response in responses] == [b"page", b"page"]
        assert headers.items() <= responses[0].headers.items()
        assert not {"bad header", "größe", "<meta foo>", ""} & responses[0].headers.keys()
        assert connections == 2


@pytest.mark.parametrize("name", BEHIND)
async def test_bytes_behind_the_end_of_an_answer_are_never_a_part_of_one(name: str) -> None:
    for pieces in _pieces(BEHIND[name], by_byte=False):
        responses, connections = await fetched_twice(pieces)

        assert [response.body for response in responses] == [b"page", b"page"]
        assert connections == 2


@pytest.mark.parametrize(
    ("status", "method"),
    [(b"204 No Content", "GET"), (b"304 Not Modified", "GET"), (b"200 OK", "HEAD")],
)
@pytest.mark.parametrize("sent", [b"Content-Length: 4\r\n\r\npage", CHUNKED[17:] + PAGE])
async def test_an_answer_that_has_no_body_ends_with_its_head(
    status: bytes, method: str, sent: bytes
) -> None:
    response = await fetched(
        [b"HTTP/1.1 %b\r\n" % status + sent], times=2, method=method, accept_statuses=(204, 304)
    )

    assert (response.status, response.body) == (int(status[:3]), b"")


@pytest.mark.parametrize("name", ALLOWED)
async def test_what_http_allows_or_all_read_alike_keeps_the_connection(name: str) -> None:
    for pieces in _pieces(ALLOWED[name]):
        responses, connections = await fetched_twice(pieces)

        assert [response.body for response in responses] == [b"page", b"page"]
        assert connections == 1


@pytest.mark.parametrize("end", [b"0\r\n", b"0", b"0\r\nX-Connection: close", b"0;close"], ids=repr)
async def test_a_body_is_whole_once_its_last_chunk_has_begun(end: bytes) -> None:
    head = HEAD % b"Transfer-Encoding: chunked\r\nConnection: close\r\n"
    for pieces in _pieces(head + b"4\r\npage\r\n" + end):
        assert (await fetched(pieces)).body == b"page"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"4\r\npage\r\n", Reason.PAYLOAD_TRUNCATED),
        (b"4\r\npage\r\n10", Reason.PAYLOAD_TRUNCATED),
        (b"4\r\npa", Reason.PAYLOAD_TRUNCATED),
        (b"4\r\npage0\r\n\r\n", Reason.PROTOCOL),
        (b"0x4\r\npage\r\n0\r\n\r\n", Reason.PROTOCOL),
        (b"+4\r\npage\r\n0\r\n\r\n", Reason.PROTOCOL),
        (b"\r\npage\r\n0\r\n\r\n", Reason.PROTOCOL),
        (b"10000000000000004\r\npage\r\n0\r\n\r\n", Reason.PROTOCOL),
        (b"4;" + b"x" * (1 << 15), Reason.PROTOCOL),
        (b"0\r\n" + b"X: y\r\n" * (1 << 14), Reason.HEADER_TOO_LARGE),
    ],
)
async def test_half_a_body_and_what_is_no_chunk_are_refused(body: bytes, reason: Reason) -> None:
    head = HEAD % b"Transfer-Encoding: chunked\r\nConnection: close\r\n"
    for pieces in _pieces(head + body, by_byte=len(body) < 100):
        with pytest.raises(FetchError) as caught:
            await fetched(pieces)

        assert caught.value.reason is reason


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
