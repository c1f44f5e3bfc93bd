"""The downloader against a server that breaks every rule, on real sockets."""

import asyncio
import errno
import gzip
import socket
import ssl
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import pytest
import yarl
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import AddrInfoType
from aiohttp.http_exceptions import BadHttpMessage

from crawlcw.api.attempt import Attempt, Purpose, Session
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch import connector as connector_module
from crawlcw.fetch import transport as downloader_module
from crawlcw.fetch.addresses import AddressGuard, Hop, current_hop
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.fetch.failures import failure_of
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import parse
from tests import hostile
from tests.hostile.pages import fixed, response
from tests.hostile.server import MIB, PAGE, HostileServer
from tests.support.attempts import attempt

SETTINGS = Settings(timeout="2s", read_timeout="300ms", connect_timeout="1s", max_body="1 MiB")


async def get(downloader: AiohttpDownloader, url: str, **options: Any) -> Response:
    return await downloader.fetch(Request(url, **options), url=url)


async def reason_of(downloader: AiohttpDownloader, url: str) -> Reason:
    """Return the reason why one attempt, with its deadline, fails."""
    with pytest.raises(FetchError) as caught:
        await attempt(Request(url), downloader=downloader, settings=SETTINGS)
    assert len(caught.value.message) <= 500
    assert caught.value.message.isprintable()
    return caught.value.reason


# Responses ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/ok",
        "/close-delimited",
        "/http-1.0",
        "/long-header",
        "/300-headers",
        "/gzip",
        "/x-gzip",
        "/gzip-members",
        "/gzip-and-garbage",
        "/deflate",
        "/raw-deflate",
        "/br",
        "/zstd",
        "/identity",
        "/stacked",
        "/te-gzip",
        "/status-206",
        "/set-cookie",
    ],
)
async def test_a_whole_page_arrives(
    downloader: AiohttpDownloader, server: HostileServer, path: str
) -> None:
    response = await get(downloader, server.url(path))

    assert response.body == PAGE
    assert response.truncated is None
    assert response.url == server.url(path)
    assert timedelta(0) < response.elapsed < timedelta(seconds=1)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/204-and-a-body-later", 204),
        ("/205-with-body", 205),
        ("/304", 304),
        ("/gzip-of-nothing", 200),
    ],
)
async def test_an_answer_without_content_is_empty(
    downloader: AiohttpDownloader, server: HostileServer, path: str, status: int
) -> None:
    response = await get(downloader, server.url(path))

    assert (response.status, response.body) == (status, b"")


async def test_the_answer_to_head_has_no_body(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    response = await get(downloader, server.url("/head"), method="HEAD")

    assert (response.status, response.body) == (200, b"")


async def test_an_error_page_is_a_response(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    response = await get(downloader, server.url("/status-404"))

    assert (response.status, response.body) == (404, b"not here")


async def test_the_framing_of_each_answer_is_bounded(
    downloader: AiohttpDownloader,
    server: HostileServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector_module, "_MAX_FRAMING", 150_000)
    for _ in range(3):
        await get(downloader, server.url("/tiny-chunks"))

    assert server.connections == 1
    endless = server.url("/extensions-in-every-chunk")
    assert await reason_of(downloader, endless) is Reason.PROTOCOL


async def test_headers_are_text_by_lower_case_name(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    coded = await get(downloader, server.url("/8-bit-header"))
    twice = await get(downloader, server.url("/header-twice"))
    many = await get(downloader, server.url("/300-headers"))

    assert (coded.headers["x-name"], coded.headers["x-utf"]) == ("café", "café")
    assert twice.headers["vary"] == "A, B"
    assert len(many.headers) == 200


async def test_the_request_is_sent_as_the_spider_made_it(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    await get(downloader, server.url("/ok"), method="POST", body=b"body", headers={"X-Key": "7"})

    sent = server.seen_headers["/ok"]
    assert server.seen_bodies["/ok"] == b"body"
    assert sent["x-key"] == "7"
    assert sent["user-agent"] == SETTINGS.user_agent
    assert sent["accept-encoding"] == "gzip, deflate, br, zstd"


# Cut bodies --------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/endless-body",
        "/gzip-bomb",
        "/deflate-bomb",
        "/br-bomb",
        "/zstd-bomb",
        "/gzip-gzip-bomb",
        "/length-10-to-18",
    ],
)
async def test_a_body_over_the_limit_is_cut_there(server: HostileServer, path: str) -> None:
    settings = Settings(read_timeout="10s", max_body="256 KiB")
    async with AiohttpDownloader(settings, start_origins=[server.origin]) as downloader:
        # The server makes the page at the first request, which needs more memory.
        await get(downloader, server.url(path))
        tracemalloc.start()
        try:
            response = await get(downloader, server.url(path))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert len(response.body) == 256 << 10
    assert response.truncated == "bytes"
    assert peak < 8 * MIB


LARGE = b"<p>" * (1 << 18)
fixed("/large", response(LARGE))


@pytest.mark.parametrize("within", [True, False])
async def test_a_large_body_takes_memory_until_the_end_of_its_page(
    downloader: AiohttpDownloader, server: HostileServer, within: bool
) -> None:
    request = Request(server.url("/large"))
    trying, budget = Attempt(request=request), downloader.memory
    async with trying:
        if within:
            assert (await downloader.exchange(trying, request)).body == LARGE
            assert budget.used == len(LARGE)
    assert budget.used == 0

    # A response that outlives its page holds no memory.
    await downloader.exchange(trying, request)
    assert budget.used == 0


fixed("/large-and-cut-off", response(LARGE)[:-1])


fixed(
    "/large-and-reset",
    response(gzip.compress(LARGE), headers=b"Content-Encoding: gzip\r\n"),
    reset=True,
)


async def test_no_deadline_runs_while_a_body_waits_for_memory(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    held = await downloader.memory.take(downloader.memory.limit)
    asyncio.get_running_loop().call_later(0.4, held.shrink, 0)
    request = Request(server.url("/large"))

    # Longer than the read timeout, too.
    async with asyncio.timeout(10) as deadline, Attempt(request=request) as trying:
        trying.deadline.timeout = deadline
        end = deadline.when()
        begun = perf_counter()
        response = await downloader.exchange(trying, request)
        took = perf_counter() - begun

        assert end is not None
        waited = (deadline.when() or 0.0) - end
        assert waited >= 0.3
    assert response.body == LARGE
    assert response.elapsed.total_seconds() <= took - waited


# Failures ----------------------------------------------------------------------

#: The server of a connection that could not be made.
KEY = ConnectionKey("a.example", 443, True, True, None, None, None)


async def test_a_refused_type_has_the_status_of_its_answer(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    with pytest.raises(FetchError) as caught:
        await get(downloader, server.url("/video"))

    assert (caught.value.reason, caught.value.status) == (Reason.CONTENT_TYPE, 200)
    assert caught.value.message == "video/mp4 is not text: add it to `accept_types` to read it"


_TYPES = {"picture": "image/png", "archive": "application/zip", "film": "video/mp4"}
for _name, _type in _TYPES.items():
    fixed(f"/{_name}", response(b"PK\3\4", headers=f"Content-Type: {_type}\r\n".encode()))


@pytest.mark.parametrize("name", _TYPES)
async def test_a_robots_txt_is_read_whatever_its_type(
    name: str, downloader: AiohttpDownloader, server: HostileServer
) -> None:
    request = Request(server.url(f"/{name}"))

    async with Attempt(request=request, purpose=Purpose.ROBOTS) as robots:
        assert (await downloader.exchange(robots, request)).body == b"PK\3\4"


async def test_a_refused_connection_is_named(downloader: AiohttpDownloader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with AiohttpDownloader(SETTINGS, start_origins=[f"127.0.0.1:{port}"]) as opened:
        with pytest.raises(FetchError) as caught:
            await get(opened, f"http://127.0.0.1:{port}/")

    assert (caught.value.reason, caught.value.port_closed) == (Reason.CONNECT, True)
    unreachable = aiohttp.ClientConnectorError(KEY, OSError(errno.EHOSTUNREACH, "no route"))
    assert not failure_of(unreachable).port_closed


async def test_plain_http_where_tls_was_expected_is_named(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    """HOSTILE 1.15."""
    assert await reason_of(downloader, f"https://{server.origin}/ok") is Reason.TLS


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "no such name"), Reason.DNS_NXDOMAIN),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), Reason.DNS_TEMPORARY),
        (UnicodeError("label too long"), Reason.DNS_NXDOMAIN),
    ],
)
async def test_names_that_are_not_found_are_told_from_those_not_found_now(
    downloader: AiohttpDownloader,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    reason: Reason,
) -> None:
    """HOSTILE 1.12."""

    def fail(*args: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    assert await reason_of(downloader, "http://nowhere.example/") is reason


@pytest.mark.parametrize(
    ("connect_timeout", "patience", "possible"),
    [
        # On a busy machine both have passed.
        ("100ms", 5.0, {Reason.DNS_TEMPORARY, Reason.TIMEOUT_CONNECT}),
        ("60s", 0.05, {Reason.DNS_TEMPORARY}),
    ],
)
async def test_names_without_an_answer_keep_neither_other_threads_nor_the_end_waiting(
    monkeypatch: pytest.MonkeyPatch, connect_timeout: str, patience: float, possible: set[Reason]
) -> None:
    monkeypatch.setattr(connector_module, "_NAME_PATIENCE", patience)
    over = threading.Event()

    def look_up(*_: object, **__: object) -> None:
        over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        async with AiohttpDownloader(Settings(connect_timeout=connect_timeout)) as downloader:
            names = [f"http://{n}.example/" for n in range(40)]
            reasons = await asyncio.gather(*(reason_of(downloader, name) for name in names))
            await asyncio.wait_for(asyncio.to_thread(int), 5)
    finally:
        over.set()

    assert set(reasons) <= possible


async def test_a_look_up_has_a_deadline_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HOSTILE 1.12, 8.5."""

    def stuck(*args: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    settings = Settings(connect_timeout="100ms")
    async with AiohttpDownloader(settings) as downloader:
        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", stuck)
        assert await reason_of(downloader, "http://slow.example/") is Reason.DNS_TEMPORARY


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (aiohttp.ConnectionTimeoutError(), Reason.TIMEOUT_CONNECT),
        (aiohttp.SocketTimeoutError(), Reason.TIMEOUT_READ),
        (TimeoutError(), Reason.TIMEOUT_READ),
        (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), Reason.DISCONNECTED),
        (aiohttp.ClientConnectionError("Connection closed"), Reason.DISCONNECTED),
        (RuntimeError("Connection closed."), Reason.DISCONNECTED),
        (RuntimeError("something else"), Reason.INTERNAL),
        (aiohttp.ClientPayloadError("half"), Reason.PAYLOAD_TRUNCATED),
        (aiohttp.InvalidURL("x"), Reason.URL_INVALID),
        (UnicodeEncodeError("idna", "x", 0, 1, "no"), Reason.URL_INVALID),
        (LookupError("x"), Reason.INTERNAL),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ETIMEDOUT, "")), Reason.TIMEOUT_CONNECT),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.EHOSTUNREACH, "")), Reason.CONNECT),
        (BadHttpMessage("Too many headers received"), Reason.HEADER_TOO_LARGE),
        (BadHttpMessage("Bad header"), Reason.PROTOCOL),
        # Of trailers.
        (aiohttp.ClientPayloadError("Got more than 8190 bytes"), Reason.HEADER_TOO_LARGE),
    ],
)
def test_every_exception_becomes_a_fetch_error(error: Exception, reason: Reason) -> None:
    assert failure_of(error).reason is reason


# Connections -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "times"),
    [("GET", "/fin", 2), ("GET", "/rst", 2), ("GET", "/silent", 1), ("POST", "/fin", 1)],
)
async def test_a_request_is_repeated_once_where_its_connection_ends(
    downloader: AiohttpDownloader, server: HostileServer, method: str, path: str, times: int
) -> None:
    with pytest.raises(FetchError):
        await get(downloader, server.url(path), method=method)

    assert server.counts[path] == times


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"per_host_concurrency": 1}, 16),
        ({"per_host_concurrency": 5}, 20),
        ({"per_host_concurrency": 0, "concurrency": 3}, 24),
    ],
)
async def test_only_so_many_connections_to_a_host_rest(
    server: HostileServer, limits: dict[str, int], most: int
) -> None:
    settings = Settings(**limits)
    async with AiohttpDownloader(settings, start_origins=[server.origin]) as downloader:
        await asyncio.gather(*(get(downloader, server.url("/ok")) for _ in range(most + 4)))

        assert len(downloader._connector._idle) == most


@pytest.mark.parametrize("path", ["/silent", "/silent-in-body", "/endless-body"])
async def test_a_cancelled_fetch_leaves_no_connection_behind(
    downloader: AiohttpDownloader, server: HostileServer, path: str
) -> None:
    """HOSTILE 1.19."""
    task = asyncio.ensure_future(get(downloader, server.url(path)))
    while not server.requests:
        await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not downloader._connector._idle
    while server.open_connections:
        await asyncio.sleep(0)
    assert not downloader._connector._acquired


@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE])
async def test_a_lack_of_descriptors_is_waited_out(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, lack: int
) -> None:
    """HOSTILE 1.18."""
    monkeypatch.setattr(downloader_module, "_DESCRIPTOR_PAUSE", 0.0)
    make_socket = AddressGuard.socket
    lacking = [lack]

    def scarce(guard: AddressGuard, address: AddrInfoType) -> socket.socket:
        if server.requests and lacking:
            # Given back by others, as soon as they have their turn.
            asyncio.get_running_loop().call_soon(lacking.clear)
            raise OSError(lack, "too many open files")
        return make_socket(guard, address)

    monkeypatch.setattr(AddressGuard, "socket", scarce)
    origins = [server.origin, f"localhost:{server.port}"]
    async with AiohttpDownloader(SETTINGS, start_origins=origins) as downloader:
        await get(downloader, server.url("/ok"))
        # Another host needs a socket of its own.
        response = await get(downloader, server.url("/ok", host="localhost"))

        assert (response.body, lacking) == (PAGE, [])
        # The idle connection was closed for it.
        assert [each.site.url.host for each in downloader._connector._idle] == ["localhost"]


async def test_a_downloader_is_opened_once_and_closed_with_its_block(server: HostileServer) -> None:
    async with AiohttpDownloader(SETTINGS, start_origins=[server.origin]) as downloader:
        for _ in range(2):
            await downloader.open()
            await get(downloader, server.url("/ok"))
        assert server.connections == 1

    while server.open_connections:
        await asyncio.sleep(0)


async def test_a_users_downloader_sends_requests_of_its_attempt_directly(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    jar = SiteCookies()
    request = Request("http://elsewhere.example/")
    outer = Attempt(request=request, session=Session(identity=Identity(name="a"), jar=jar))
    outer.proxy = parse("http://127.0.0.1:9")
    current_hop.set(Hop(outer))

    response = await downloader.fetch(request, url=server.url("/set-cookie"))

    assert response.request is request
    assert jar.sent_to(yarl.URL(server.url("/")))


# Redirects and addresses -------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_returned_and_not_followed(
    downloader: AiohttpDownloader, server: HostileServer, status: int
) -> None:
    response = await get(downloader, server.url(f"/{status}"))

    assert (response.status, response.headers["location"]) == (status, "/ok")


@pytest.mark.parametrize(
    ("path", "body"), [("/latin-1-location", b"latin-1"), ("/utf-8-location", b"utf-8")]
)
async def test_a_location_is_made_of_its_bytes(
    downloader: AiohttpDownloader, server: HostileServer, path: str, body: bytes
) -> None:
    request = Request(server.url(path))

    response = await attempt(request, downloader=downloader, settings=SETTINGS)

    assert response.body == body


async def test_another_name_of_a_trusted_address_is_refused(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    await get(downloader, server.url("/ok"))

    assert await reason_of(downloader, server.url("/ok", host="localhost")) is (
        Reason.REFUSED_ADDRESS
    )
    assert len(server.requests) == 1


async def test_names_resolved_by_racing_are_checked_too(
    downloader: AiohttpDownloader, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOSTILE 1.13, 5.2, 5.3."""

    def both(host: str, port: int, **options: object) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    url = server.url("/ok", host="rebind.example")

    assert await reason_of(downloader, url) is Reason.REFUSED_ADDRESS
    assert server.connections == 0
    async with AiohttpDownloader(
        SETTINGS, start_origins=[f"rebind.example:{server.port}"]
    ) as trusting:
        assert (await get(trusting, url)).body == PAGE


async def test_allow_private_opens_the_way(server: HostileServer) -> None:
    settings = Settings(allow_private=["127.0.0.1"])
    async with AiohttpDownloader(settings) as downloader:
        assert (await get(downloader, server.url("/ok"))).body == PAGE


async def test_cookies_are_kept_only_on_request(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    """HOSTILE 5.10."""
    settings = Settings(cookies=True)
    request = Request(server.url("/cookie-gate"))
    async with AiohttpDownloader(settings, start_origins=[server.origin]) as keeping:
        response = await attempt(request, downloader=keeping, settings=settings)
    await get(downloader, server.url("/set-cookie"))
    await get(downloader, server.url("/ok"))

    assert response.body == b"inside"
    assert "cookie" not in server.seen_headers["/ok"]


@asynccontextmanager
async def raw_site(
    answer: Callable[[bytes, asyncio.StreamReader], Awaitable[bytes]],
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve answers of *answer* to the heads of requests; yield the origin and the heads."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(await answer(heads[-1], reader))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", heads


_EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def test_the_length_of_a_request_is_counted_and_never_the_users() -> None:
    async def answer(_: bytes, reader: asyncio.StreamReader) -> bytes:
        await reader.readexactly(4)
        return _EMPTY

    wrong = {"Content-Length": "400", "Transfer-Encoding": "chunked", "Host": "other.example"}
    async with (
        raw_site(answer) as (origin, heads),
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as opened,
    ):
        for _ in range(2):
            await get(opened, f"http://{origin}/", method="POST", body=b"body", headers=wrong)

    head = heads[0].lower()
    assert len(heads) == 2
    assert head.count(b"content-length:") == 1
    assert b"\r\ncontent-length: 4\r\n" in head
    assert b"transfer-encoding" not in head
    assert head.count(b"host:") == 1
    assert b"\r\nhost: other.example\r\n" in head


@pytest.mark.parametrize("is_saved", [False, True])
async def test_each_set_cookie_header_is_apart(is_saved: bool, tmp_path: Path) -> None:
    first, second = "a=1; Expires=Wed, 09 Jun 2027 10:18:14 GMT", "caf\u00e9=2"
    head = f"HTTP/1.1 200 OK\r\nSet-Cookie: {first}\r\nset-cookie: {second}\r\n"

    async def answer(_head: bytes, _reader: asyncio.StreamReader) -> bytes:
        return head.encode() + b"Content-Length: 2\r\n\r\nhi"

    async with (
        raw_site(answer) as (origin, _),
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as opened,
    ):
        request = Request(f"http://{origin}/", save_to=str(tmp_path) if is_saved else None)
        response = await opened.fetch(request, url=request.url)

    assert response.set_cookies == (first, second)
    assert response.headers["set-cookie"] == f"{first}, {second}"
    assert (response.file is not None) is is_saved


@pytest.mark.parametrize(
    ("request_", "lines"),
    [
        ({}, []),
        ({"method": "OPTIONS"}, []),
        ({"method": "DELETE"}, ["content-length: 0"]),
        (
            {"method": "POST"},
            ["content-length: 0", "content-type: application/octet-stream"],
        ),
        (
            {"body": b"body"},
            ["content-length: 4", "content-type: application/octet-stream"],
        ),
        (
            {"method": "POST", "body": b"body", "headers": {"Content-Type": "text/plain"}},
            ["content-length: 4", "content-type: text/plain"],
        ),
        ({"headers": {"user-agent": "own"}}, ["user-agent: own"]),
        (
            {"headers": {"Cookie": "a=1; b=1", "X-Key": "7"}, "cookies": {"b": "2"}},
            ["cookie: a=1; b=2", "x-key: 7"],
        ),
    ],
)
async def test_a_request_has_these_headers_once(request_: dict[str, Any], lines: list[str]) -> None:
    async def answer(head: bytes, reader: asyncio.StreamReader) -> bytes:
        await reader.readexactly(4 if b"Content-Length: 4" in head else 0)
        return _EMPTY

    async with (
        raw_site(answer) as (origin, heads),
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as opened,
    ):
        await get(opened, f"http://{origin}/", **request_)

    usual = {
        "user-agent": SETTINGS.user_agent.lower(),
        "accept-encoding": "gzip, deflate, br, zstd",
        "accept": "*/*",
        "host": origin,
    }
    expected = usual | dict(line.split(": ") for line in lines)
    sent = heads[0].decode().lower().split("\r\n")[1:-2]
    assert sorted(sent) == sorted(f"{name}: {value}" for name, value in expected.items())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("headers", (("X-One", "1\r\nX-Two: 2"),)),
        ("headers", (("X-One: 1\r\nX-Two", "2"),)),
        ("method", "GET / HTTP/1.1\r\nX-Two: 2\r\n\r\nGET"),
    ],
)
async def test_a_part_of_a_request_that_has_been_made_two_lines_of_is_not_sent(
    part: str, value: object
) -> None:
    async def answer(_: bytes, __: asyncio.StreamReader) -> bytes:
        return _EMPTY

    async with (
        raw_site(answer) as (origin, heads),
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as opened,
    ):
        request = Request(f"http://{origin}/")
        setattr(request, part, value)
        with pytest.raises(FetchError):
            await opened.fetch(request, url=request.url)

    assert heads == []


async def test_a_connection_with_the_rest_of_a_refused_body_is_not_used_again() -> None:
    async def answer(_: bytes, __: asyncio.StreamReader) -> bytes:
        return _EMPTY

    async with (
        raw_site(answer) as (origin, heads),
        AiohttpDownloader(SETTINGS, start_origins=[origin]) as opened,
    ):
        # More than the kernels buffer while the server does not read.
        refused = await get(opened, f"http://{origin}/", method="POST", body=b"x" * (32 << 20))

        assert refused.status == 200
        assert not opened._connector._idle
    assert len(heads) == 1


async def test_a_server_that_does_not_end_tls_delays_no_end() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Path(hostile.__file__).parent / "certificates" / "trusted.pem")
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(1 << 16)
            connection.sendall(_EMPTY.replace(b"OK", b"OK\r\nConnection: close"))
            over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(asyncio.to_thread(serve, listening))
        origin = f"127.0.0.1:{listening.getsockname()[1]}"
        settings = replace(SETTINGS, insecure=True)
        try:
            async with AiohttpDownloader(settings, start_origins=[origin]) as opened:
                await get(opened, f"https://{origin}/")
                async with asyncio.timeout(10):  # TLS waits 30 s for the other end
                    await opened.close()
        finally:
            over.set()
            await serving


async def test_a_server_may_not_be_silent_after_a_large_request() -> None:
    reads = asyncio.Event()

    async def answer(_: bytes, reader: asyncio.StreamReader) -> bytes:
        await asyncio.sleep(0.15)  # it may be slow to read
        reads.set()
        return await reader.read()

    settings = replace(SETTINGS, read_timeout="100ms")
    async with (
        raw_site(answer) as (origin, _),
        AiohttpDownloader(settings, start_origins=[origin]) as opened,
    ):
        with pytest.raises(FetchError) as caught:
            await asyncio.wait_for(
                get(opened, f"http://{origin}/", method="POST", body=b"x" * (32 << 20)), 20
            )
        assert reads.is_set()

    assert caught.value.reason is Reason.TIMEOUT_READ


async def test_a_server_may_be_silent_for_as_long_as_its_page_may_take() -> None:
    async def answer(_: bytes, __: asyncio.StreamReader) -> bytes:
        await asyncio.sleep(0.15)
        return _EMPTY

    settings = replace(SETTINGS, read_timeout="100ms")
    async with (
        raw_site(answer) as (origin, _),
        AiohttpDownloader(settings, start_origins=[origin]) as opened,
    ):
        assert (await get(opened, f"http://{origin}/", timeout="5s")).status == 200
