"""Reuse of connections, on real sockets."""

import asyncio
import select
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
import uvloop

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch import connector as connector_module
from crawlcw.fetch.connector import Connector, Listener, Site
from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile import server as hostile_server
from tests.hostile.pages import PAGE, PAGES, Exchange, page, response
from tests.hostile.server import HostileServer
from tests.support import needed
from tests.support.site_threads import in_thread
from tests.support.tls_site import make_certificate

SETTINGS = Settings(timeout="2s", read_timeout="1s", connect_timeout="1s")


@page("/cue")
async def _cue(exchange: Exchange) -> object:
    """Answers, and answers again when the next bytes arrive, before reading them."""
    await exchange.send(response(b"asked for"))
    await exchange.reader.read(1)
    await exchange.send(response(b"POISON"))
    await exchange.hang()
    return None


@page("/rest-later")
async def _rest_later(exchange: Exchange) -> object:
    """Answers with too small a Content-Length; the rest comes when the next request does."""
    await exchange.send(response(b"asked for"))
    await exchange.reader.read(1)
    await exchange.send(b"</body></html>\r\n")
    await exchange.hang()
    return None


@page("/goodbye")
async def _goodbye(exchange: Exchange) -> object:
    """Answers, and sends an unsolicited 408."""
    await exchange.send(response(b"asked for"))
    await exchange.taken()
    await exchange.send(response(b"", status="408 Request Timeout"))
    return None


@page("/last")
async def _last(exchange: Exchange) -> object:
    """Says that the connection ends with the answer, and leaves that to the client."""
    await exchange.send(response(headers=b"Connection: close\r\n"))
    await exchange.hang()
    return None


@page("/garbage-behind")
async def _garbage_behind(exchange: Exchange) -> object:
    """Answers in two segments; the second has bytes behind the body."""
    whole = response()
    await exchange.send(whole[:-5])
    await exchange.taken()
    await exchange.send(whole[-5:] + b"no HTTP")
    await exchange.hang()
    return None


class Clock:
    """The connector's clock; *ahead* seconds before the real time."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connector_module, "monotonic", clock)
    return clock


async def get(downloader: AiohttpDownloader, url: str, **options: Any) -> Response:
    return await downloader.fetch(Request(url, **options), url=url)


def connector_of(downloader: AiohttpDownloader) -> Connector:
    return cast("Connector", downloader._connector)


def site_of(downloader: AiohttpDownloader, server: HostileServer) -> Site:
    return connector_of(downloader).site(f"http://127.0.0.1:{server.port}", None)


def idle(downloader: AiohttpDownloader) -> list[Listener]:
    return list(connector_of(downloader)._idle)


async def test_connections_of_a_clean_origin_are_used_again_at_once(
    downloader: AiohttpDownloader, server: HostileServer, clock: Clock
) -> None:
    for _ in range(20):
        assert (await get(downloader, server.url("/ok"))).body == PAGE

    assert server.connections == 1


async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    downloader: AiohttpDownloader, server: HostileServer, clock: Clock
) -> None:
    await get(downloader, server.url("/ok"))
    clock.ahead += 16
    await get(downloader, server.url("/ok"))

    assert server.connections == 2
    while server.open_connections > 1:
        await asyncio.sleep(0)


async def test_a_connection_that_the_server_ends_is_not_used_again(
    downloader: AiohttpDownloader, server: HostileServer, clock: Clock
) -> None:
    for _ in range(3):
        await get(downloader, server.url("/last"))

    assert server.connections == 3


class InTwoWrites(BaseHTTPRequestHandler):
    """Sends the head and the body apart, over a connection with Nagle's algorithm."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


async def test_a_body_behind_its_head_is_not_waited_for_over_a_used_connection() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), InTwoWrites) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        origin = f"127.0.0.1:{server.server_port}"
        async with AiohttpDownloader(SETTINGS, start_origins=[origin]) as downloader:
            pages = [await get(downloader, f"http://{origin}/") for _ in range(20)]
        server.shutdown()
        thread.join()

    # The system acknowledges after 40 ms by itself.
    assert min(page.elapsed.total_seconds() for page in pages[1:]) < 0.03


async def test_bytes_behind_a_body_do_the_page_no_harm(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    assert (await get(downloader, server.url("/garbage-behind"))).body == PAGE


async def test_an_origin_that_spoke_unasked_is_never_asked_over_an_old_connection(
    downloader: AiohttpDownloader, server: HostileServer, clock: Clock
) -> None:
    urls = [server.url("/ok")] * 3 + [server.url("/poison")]
    await asyncio.gather(*(get(downloader, url) for url in urls))
    while server.open_connections > 3:
        await asyncio.sleep(0)
    before = server.connections
    for _ in range(5):
        await get(downloader, server.url("/ok"))

    assert server.connections == before + 5
    assert idle(downloader) == []


@pytest.mark.parametrize("path", ["/two-at-once", "/poison", "/poison-in-part"])
async def test_an_answer_too_many_is_remembered(
    downloader: AiohttpDownloader, server: HostileServer, path: str
) -> None:
    await get(downloader, server.url(path))
    while server.open_connections:
        await asyncio.sleep(0)

    assert not site_of(downloader, server).is_kept


async def test_a_server_that_says_goodbye_may_be_asked_over_other_connections(
    downloader: AiohttpDownloader, server: HostileServer, clock: Clock
) -> None:
    await get(downloader, server.url("/goodbye"))
    (connection,) = idle(downloader)
    while connection.is_connected():
        await asyncio.sleep(0)

    assert site_of(downloader, server).is_kept
    # A request that would not be repeated.
    assert (await get(downloader, server.url("/ok"), method="POST")).body == PAGE


async def test_bytes_that_the_loop_has_not_delivered_yet_are_seen(
    downloader: AiohttpDownloader, server: HostileServer, clock: Clock
) -> None:
    await get(downloader, server.url("/cue"))
    (connection,) = idle(downloader)
    assert connection.transport is not None
    # Simulates a busy loop.
    connection.transport.pause_reading()
    connection.transport.write(b"x")
    while not connection.has_unread():
        await asyncio.sleep(0)

    assert (await get(downloader, server.url("/ok"))).body == PAGE
    assert server.connections == 2
    connection.transport.resume_reading()
    while connection.is_connected():
        await asyncio.sleep(0)
    assert not site_of(downloader, server).is_kept


async def test_the_rest_of_the_last_answer_costs_the_next_request_nothing(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    await get(downloader, server.url("/rest-later"))
    assert (await get(downloader, server.url("/ok"))).body == PAGE
    assert not site_of(downloader, server).is_kept


async def test_a_request_that_may_not_be_repeated_fails_behind_the_rest_of_the_last_answer(
    downloader: AiohttpDownloader, server: HostileServer
) -> None:
    await get(downloader, server.url("/rest-later"))
    with pytest.raises(FetchError) as caught:
        await get(downloader, server.url("/ok"), method="POST")

    assert caught.value.reason is Reason.PROTOCOL
    assert server.counts["/ok"] <= 1


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("POST", 1)])
async def test_a_connection_that_ends_before_the_request_has_a_name(
    method: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(writer)
        writer.close()

    async def late(connector: Connector, *arguments: Any) -> Listener:
        opened = await open_connection(connector, *arguments)
        while opened.transport is not None:
            await asyncio.sleep(0)
        return opened

    open_connection = Connector._open
    monkeypatch.setattr(Connector, "_open", late)
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listening:
        origin = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with AiohttpDownloader(SETTINGS, start_origins=[origin]) as downloader:
            with pytest.raises(FetchError) as caught:
                await get(downloader, f"http://{origin}/", method=method)

    assert caught.value.reason is Reason.DISCONNECTED
    assert len(made) == times


async def test_an_answer_that_comes_before_the_request_of_a_new_connection_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example, an overloaded server refuses at once."""
    has_come = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"busy", status="503 Busy"))
        await reader.read()
        writer.close()

    async def late(connector: Connector, *arguments: Any) -> Listener:
        opened = await open_connection(connector, *arguments)
        await has_come.wait()
        return opened

    def noted(listener: Listener, data: bytes) -> None:
        data_received(listener, data)
        has_come.set()

    open_connection, data_received = Connector._open, Listener.data_received
    monkeypatch.setattr(Connector, "_open", late)
    monkeypatch.setattr(Listener, "data_received", noted)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        origin = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with AiohttpDownloader(SETTINGS, start_origins=[origin]) as downloader:
            refused = await get(downloader, f"http://{origin}/")

    assert (refused.status, refused.body) == (503, b"busy")


async def test_a_connection_that_opens_while_all_are_closed_is_closed_too(
    downloader: AiohttpDownloader, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closing(connector: Connector, *arguments: Any) -> object:
        made = await create(connector, *arguments)
        await connector.close()
        return made

    create = Connector._create_connection
    monkeypatch.setattr(Connector, "_create_connection", closing)
    with pytest.raises(FetchError) as caught:
        await get(downloader, server.url("/ok"))

    assert caught.value.reason is Reason.DISCONNECTED
    while server.open_connections:
        await asyncio.sleep(0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_all_of_this_holds_over_tls(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    clock: Clock,
    processes: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed.program("openssl")
    make_certificate(tmp_path / "certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate")
    cue = threading.Event()
    processes.callback(cue.set)

    async def twice(exchange: Exchange) -> None:
        await exchange.send(response(b"asked for"))
        await asyncio.to_thread(cue.wait)
        await exchange.send(response(b"POISON"))
        await exchange.hang()

    async def crawled(served: HostileServer) -> tuple[int, int, bytes, Site]:
        settings = replace(SETTINGS, insecure=True)
        async with AiohttpDownloader(settings, start_origins=[served.origin]) as downloader:
            base = f"https://{served.origin}"
            for _ in range(5):
                await get(downloader, f"{base}/ok")
            reused = served.connections
            await get(downloader, f"{base}/twice")
            (connection,) = idle(downloader)
            assert connection.transport is not None
            cue.set()
            # Simulates a busy loop.
            select.select([connection.transport.get_extra_info("socket").fileno()], [], [])
            # A request that would not be repeated.
            body = (await get(downloader, f"{base}/ok", method="POST", body=b"x")).body
            while connection.is_connected():
                await asyncio.sleep(0)
            return reused, served.connections, body, connector_of(downloader).site(base, None)

    monkeypatch.setitem(PAGES, "/twice", twice)
    with (
        in_thread(hostile_server.running(tls=context)) as served,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        reused, connections, body, site = runner.run(crawled(served))

    assert (reused, connections, body) == (1, 2, PAGE)
    assert not site.is_kept
