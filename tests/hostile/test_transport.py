"""Section 1 of the catalogue: connections that break, stall, drip or announce a wrong length."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.addresses import AddressGuard
from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile.catalogue import WHOLE, gone
from tests.hostile.pages import PAGE, response
from tests.hostile.server import HostileServer
from tests.hostile.single_pages import outcome_of


async def fetched(downloader: AiohttpDownloader, url: str) -> bytes:
    return (await downloader.fetch(Request(url), url=url)).body


async def test_a_request_that_was_cut_off_is_made_again_by_aiohttp_once_at_the_most(
    downloader: AiohttpDownloader, hostile: HostileServer
) -> None:
    """HOSTILE 1.2: an attempt is at most two requests on the wire."""
    for attempts in range(1, 4):
        await outcome_of(downloader, hostile.url("/fin"))

        assert attempts <= hostile.counts["/fin"] <= 2 * attempts


async def test_a_page_that_recovers_is_whole_at_a_later_attempt(
    downloader: AiohttpDownloader, hostile: HostileServer
) -> None:
    """HOSTILE 1.2."""
    url = hostile.url("/fin-then-ok")
    outcomes = [(await outcome_of(downloader, url))[0].reason for _ in range(3)]

    assert outcomes[0] is Reason.DISCONNECTED
    assert outcomes[-1] is None


async def test_waiting_for_others_costs_a_request_nothing(
    hostile: HostileServer,
) -> None:
    """HOSTILE 1.16: more requests at once than aiohttp's own limit, under one deadline."""
    settings = Settings(timeout="5s", read_timeout="600ms")
    async with AiohttpDownloader(settings, start_origins=[hostile.origin]) as downloader:
        bodies = await asyncio.gather(
            *(fetched(downloader, hostile.url("/slow-start")) for _ in range(150))
        )

    assert bodies == [PAGE] * 150


@contextlib.contextmanager
def deaf(count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield a port and addresses at which connections are neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        port = 0
        addresses = [f"127.0.0.{number}" for number in range(2, 2 + count)]
        for address in addresses:
            listener = stack.enter_context(socket.socket())
            listener.bind((address, port))
            listener.listen(0)
            port = listener.getsockname()[1]
            # Fill the accept queue: further connections stay in the handshake.
            for _ in range(2):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((address, port))
        yield port, addresses


@pytest.fixture
def deaf_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host with four addresses that do not answer."""
    with deaf(4) as (port, addresses):

        def look_up(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
                for address in addresses
            ]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        yield f"deaf.example:{port}"


async def test_connecting_has_one_deadline_for_all_addresses_of_a_name(deaf_host: str) -> None:
    """HOSTILE 1.14."""
    settings = Settings(connect_timeout="400ms")
    async with AiohttpDownloader(settings, start_origins=[deaf_host]) as downloader:
        began = perf_counter()
        with pytest.raises(FetchError) as caught:
            await fetched(downloader, f"http://{deaf_host}/")

    assert caught.value.reason is Reason.TIMEOUT_CONNECT
    assert perf_counter() - began < 1


async def test_cancelling_a_connect_is_not_swallowed(
    deaf_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOSTILE 1.19."""
    connecting = asyncio.Event()
    make_socket = AddressGuard.socket

    def made(guard: AddressGuard, address: Any) -> socket.socket:
        connecting.set()
        return make_socket(guard, address)

    monkeypatch.setattr(AddressGuard, "socket", made)
    async with AiohttpDownloader(Settings(), start_origins=[deaf_host]) as downloader:
        task = asyncio.ensure_future(fetched(downloader, f"http://{deaf_host}/"))
        await connecting.wait()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
async def self_signed() -> AsyncIterator[str]:
    """The URL of a page with a self-signed certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Path(__file__).with_name("self_signed.pem"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(headers=b"Connection: close\r\n"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize("insecure", [False, True])
async def test_a_certificate_that_nobody_vouches_for_is_accepted_only_on_request(
    self_signed: str, insecure: bool
) -> None:
    """HOSTILE 1.15."""
    settings = Settings(insecure=insecure)
    origin = self_signed.removeprefix("https://").rstrip("/")
    async with AiohttpDownloader(settings, start_origins=[origin]) as downloader:
        outcome, answer = await outcome_of(downloader, self_signed)

    assert outcome == (WHOLE if insecure else gone(Reason.TLS))
    assert (answer is not None) is insecure


async def test_the_timer_of_a_read_ends_with_it(hostile: HostileServer) -> None:
    """HOSTILE 1.20: a connection that was idle for longer than the read timeout is usable."""
    settings = Settings(read_timeout="300ms")
    async with AiohttpDownloader(settings, start_origins=[hostile.origin]) as downloader:
        await fetched(downloader, hostile.url("/ok"))
        await asyncio.sleep(0.4)  # longer than the read timeout
        body = await fetched(downloader, hostile.url("/ok"))

    assert (body, hostile.connections) == (PAGE, 1)
