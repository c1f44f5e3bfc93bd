"""Slow clients of `crawlcw serve`: they are disconnected, and healthy ones are served."""

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from crawlcw.server import serving as server
from crawlcw.server.connections import Connections, Deadlines
from tests.support.servers import Client, ServerProcess, error_of, impatient, served

HEADERS, BODY, IDLE = 1.0, 1.5, 2.0
#: Tolerance for a busy machine, and a second for reading the last answer.
LATE = 3.0
#: Seconds between two bytes of a client that drips.
DRIP = 0.2
HALF = b"POST /claim_task HTTP/1.1\r\nHost: localhost\r\nContent-Ty"
HEAD = (
    b"POST /claim_task HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100000\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Slow:
    """A kind of slow client, and the deadline for its connection."""

    says: bytes
    drips: bytes = b""
    within: float = HEADERS
    told: bytes = b""  #: the server's last answer


KINDS = {
    "silent": Slow(b""),
    "half a header": Slow(HALF),
    "a header that drips": Slow(HALF, drips=b"x"),
    "a body that never comes": Slow(HEAD, within=BODY, told=b"HTTP/1.1 408 "),
    "a body that drips": Slow(HEAD, drips=b" ", within=BODY, told=b"HTTP/1.1 408 "),
    "a body that is refused and drips": Slow(
        # Bytes after an answer may be the next request.
        HEAD.replace(b"json", b"text"),
        drips=b" ",
        told=b"HTTP/1.1 415 ",
    ),
    "a connection that is kept": Slow(
        b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n", within=IDLE, told=b"HTTP/1.1 200 "
    ),
}


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


class SlowClient:
    """A connection that keeps the server waiting until it is closed."""

    def __init__(self, kind: Slow) -> None:
        self.kind = kind
        self.said = b""
        self.lasted = 0.0

    async def run(self, address: str, connected: asyncio.Event) -> None:
        """Connect, and wait until the server has ended the connection."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
        writer.write(self.kind.says)
        connected.set()
        dripping = asyncio.create_task(self._drip(writer))
        try:
            # The server resets a connection with unread data.
            with suppress(ConnectionError):
                while found := await reader.read(1000):
                    self.said += found
            self.lasted = loop.time() - began
        finally:
            dripping.cancel()
            writer.transport.abort()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        while self.kind.drips:
            await asyncio.sleep(DRIP)
            writer.write(self.kind.drips)


class Crowd:
    """Slow clients, all connected."""

    def __init__(self, clients: list[SlowClient], tasks: list[asyncio.Task[None]]) -> None:
        self.clients = clients
        self._tasks = tasks

    async def shown_out(self) -> None:
        """Wait until all connections are closed."""
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def crowd(address: str, kinds: Iterable[Slow]) -> AsyncIterator[Crowd]:
    """Open a slow connection for each of the *kinds*, and end them with the block."""
    clients = [SlowClient(kind) for kind in kinds]
    connected = [asyncio.Event() for _ in clients]
    tasks = [
        asyncio.create_task(client.run(address, event))
        for client, event in zip(clients, connected, strict=True)
    ]
    try:
        await asyncio.gather(*(event.wait() for event in connected))
        yield Crowd(clients, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def slowest_answer(address: str, *, number: int) -> float:
    """Send requests on a kept connection and on new ones in turn; return the longest wait."""
    loop = asyncio.get_running_loop()
    longest = 0.0
    async with aiohttp.ClientSession() as kept:
        for n in range(number):
            async with AsyncExitStack() as closed:
                own = await closed.enter_async_context(aiohttp.ClientSession())
                began = loop.time()
                answer = await Client(own if n % 2 else kept, address).post(
                    "/create_task", key=str(n)
                )
                longest = max(longest, loop.time() - began)
            assert answer == (200, {"new": 1, "existing": 0, "rejected": []})
    return longest


async def test_300_slow_clients_keep_no_healthy_one_out(sqlite_url: str, processes: ExitStack):
    process = ServerProcess(processes, sqlite_url, "--port", "0")
    process.ready()

    kinds = itertools.islice(itertools.cycle(KINDS.values()), 300)
    async with crowd(process.address, kinds):
        longest = await slowest_answer(process.address, number=20)
    code, _, log = await asyncio.to_thread(process.stop, signal.SIGTERM)

    assert longest < 1.0
    assert code == 0
    assert log.count("\n") == 1
    assert "WARNING all 256 connections are in use (--max-connections)" in log


@pytest.mark.thorough
@pytest.mark.representative("a header that drips")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_a_slow_client_is_shown_out_at_its_deadline(
    sqlite_url: str, processes: ExitStack, kind: Slow
):
    program = impatient(headers=HEADERS, body=BODY, idle=IDLE)
    process = ServerProcess(processes, sqlite_url, "--port", "0", program=program)
    process.ready()

    async with crowd(process.address, [kind] * 30) as slow:
        await slow.shown_out()
    code, _, log = await asyncio.to_thread(process.stop, signal.SIGTERM)

    assert (code, log) == (0, "")
    for each in slow.clients:
        assert kind.within - 0.1 <= each.lasted <= kind.within + LATE
        assert each.said.startswith(kind.told)
        assert bool(each.said) == bool(kind.told)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["half a header", "a body that drips"])
async def test_the_deadlines_are_10_s_for_headers_and_30_s_for_a_body(
    sqlite_url: str, processes: ExitStack, kind: str
):
    process = ServerProcess(processes, sqlite_url, "--port", "0")
    process.ready()
    within = {"half a header": 10.0, "a body that drips": 30.0}[kind]

    async with crowd(process.address, [KINDS[kind]] * 300) as slow:
        longest = await slowest_answer(process.address, number=40)
        await slow.shown_out()

    assert longest < 1.0
    lasted = [each.lasted for each in slow.clients if each.lasted > within - 0.1]
    # Some were disconnected at once: there are more clients than places.
    assert len(lasted) > 150
    assert max(lasted) < within + LATE


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))


async def test_where_all_places_are_taken_the_longest_awaited_has_to_go(sqlite_url: str):
    async with served(sqlite_url, max_connections=3) as (client, _):
        port = port_of(client.address)
        kept = await asyncio.open_connection("127.0.0.1", port)
        await ask(*kept)
        silent = await asyncio.open_connection("127.0.0.1", port)
        last = await asyncio.open_connection("127.0.0.1", port)
        # A new request starts a new deadline.
        await ask(*kept)
        new = await asyncio.open_connection("127.0.0.1", port)
        await ask(*new)

        assert await silent[0].read() == b""
        for each in (kept, last, new):
            await ask(*each)
        for _, writer in (kept, silent, last, new):
            writer.close()


async def test_what_is_worked_on_is_never_ended_for_another(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
):
    async with served(sqlite_url, max_connections=2) as (client, tracker):
        under_way, go_on = asyncio.Semaphore(0), asyncio.Event()
        counts = tracker.ledger.queries.counts

        async def slowly():
            under_way.release()
            await go_on.wait()
            return await counts()

        tracker.ledger.queries.counts = slowly  # type: ignore[method-assign]
        asked = [asyncio.create_task(client.get("/stats")) for _ in range(2)]
        for _ in asked:
            await under_way.acquire()
        async with aiohttp.ClientSession() as third:
            refused = [await Client(third, client.address).get("/stats") for _ in range(3)]
            async with third.get(f"{client.address}/stats") as response:
                again = response.headers["Retry-After"]
            go_on.set()
            answered = [await each for each in asked]
            at_last = await Client(third, client.address).get("/stats")

    assert [status for status, _ in refused] == [503] * 3
    assert error_of(refused[0]).startswith("the server has no free connection")
    assert again == "1"
    assert [status for status, _ in answered] == [200] * 2
    assert at_last[0] == 200
    (line,) = [each for each in caplog.messages if "connections are in use" in each]
    assert line.endswith(
        "0 waiting connections were closed for new ones, and 1 new ones were refused"
    )


async def test_an_answer_that_nobody_takes_is_not_kept(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "DEADLINES", Deadlines(idle=0.3))
    async with served(sqlite_url) as (client, _):
        size = 8_000_000
        large = BytesIO(b'{"key": "a", "data": {"x": "%s"}}' % (b"y" * size))
        assert (await client.send("/create_task", large))[0] == 200
        await client.http.close()
        forgotten = asyncio.Event()
        ended = Connections.forget

        def noticed(*arguments: Any) -> None:
            ended(*arguments)
            forgotten.set()

        monkeypatch.setattr(Connections, "forget", noticed)
        with socket.create_connection(("127.0.0.1", port_of(client.address))) as greedy:
            greedy.sendall(b"GET /task/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(forgotten.wait(), 20)

            taken = 0
            while found := await asyncio.to_thread(greedy.recv, size):
                taken += len(found)

        assert taken < size


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_worth_a_line(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
):
    async with served(sqlite_url) as (client, _):
        for said in (HEAD, HEAD.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(client.address))
            writer.write(said.replace(b"Host", b"Expect: 100-continue\r\nHost"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"no chunk\r\n")
            writer.close()
            await writer.wait_closed()
        assert (await client.get("/stats"))[0] == 200

    assert caplog.messages == []


async def test_a_process_that_may_open_few_files_takes_fewer_connections(
    sqlite_url: str, processes: ExitStack
):
    process = ServerProcess(processes, sqlite_url, "--port", "0", files=180)
    process.ready()

    async with crowd(process.address, [KINDS["silent"]] * 300):
        longest = await slowest_answer(process.address, number=10)
    code, _, log = await asyncio.to_thread(process.stop, signal.SIGTERM)

    assert longest < 1.0
    assert code == 0
    files, full = log.splitlines()
    assert "may open 180 files, so the limit of connections is 52, not 256" in files
    assert "WARNING all 52 connections are in use" in full


def test_a_process_that_may_open_hardly_any_file_says_so(sqlite_url: str, processes: ExitStack):
    code, out, log = ServerProcess(processes, sqlite_url, files=100).result()

    assert (code, out) == (2, "")
    assert log == (
        "crawlcw: this process may open 100 files, but the server needs 144: raise the limit "
        "(ulimit -n)\n"
    )
