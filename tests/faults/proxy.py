"""A network between crawlcw and its server with losses, delays, repeats and breaks for tests.

It is a TCP proxy in a thread of its own, and reads the necessary parts of the server's
protocol, see `wires`. A `Plan` chooses a `Fault` for a command. Besides, the whole network
can be cut, until it is mended.

It forwards messages byte for byte.
"""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.faults.wires import OWN, Command, MongoWire, PostgresWire, Wire
from tests.support.listeners import closed

T = TypeVar("T")

#: A linger time of zero makes `close` send a reset.
_NO_LINGER = struct.pack("ii", 1, 0)
_ANSWERS_WITHIN = 20.0


class Loss(StrEnum):
    """The part of an exchange that is lost."""

    NOTHING = "nothing"
    REQUEST = "request"  #: the server never receives it
    REPLY = "reply"  #: the server has executed it, and the client gets no reply
    HALF_THE_REPLY = "half the reply"  #: the same, and the connection breaks within the reply


class End(StrEnum):
    """State of the connection after a loss."""

    SILENCE = "silence"  #: half-open: it stays, and passes no more bytes
    CLOSE = "close"
    RESET = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The fault of one command."""

    loss: Loss = Loss.NOTHING
    end: End = End.SILENCE  #: only after a loss
    delay: timedelta = timedelta(
        0
    )  #: before the server gets it, even if the client no longer waits
    until: asyncio.Event | None = None  #: before the server gets it; set by a plan
    keeps: bool = False  #: a copy of the request is kept for `Proxy.deliver`


#: Returns the fault of a command, or None. Called once for each, in the order of arrival.
Plan = Callable[[Command], Fault | None]


class At:
    """Plan that fails one command, after *skip* others like it."""

    def __init__(
        self, fault: Fault, *, name: str | None = None, target: str | None = None, skip: int = 0
    ) -> None:
        """Without *name*, count all commands but the driver's own; *target* is a collection."""
        self._fault = fault
        self._name = name
        self._target = target
        self._skip = skip
        self.struck = threading.Event()  #: set when the command arrives

    def __call__(self, command: Command) -> Fault | None:
        if self.struck.is_set() or not self._is_meant(command):
            return None
        if self._skip:
            self._skip -= 1
            return None
        self.struck.set()
        return self._fault

    def _is_meant(self, command: Command) -> bool:
        if self._target not in (None, command.target):
            return False
        return command.name not in OWN if self._name is None else command.name == self._name


class ByChance:
    """Plan that fails commands at random, the same ones for the same seed."""

    def __init__(
        self, faults: Sequence[Fault], *, rate: float, seed: int, names: Collection[str] = ()
    ) -> None:
        """Fail a share *rate* of the commands in *names*, or of all but the driver's own."""
        self._faults = faults
        self._rate = rate
        self._names = names
        self._random = random.Random(seed)

    def __call__(self, command: Command) -> Fault | None:
        meant = command.name in self._names if self._names else command.name not in OWN
        if not meant or self._random.random() >= self._rate:
            return None
        return self._random.choice(self._faults)


class Proxy:
    """The network, for use by a test. Its methods may be called in any thread."""

    def __init__(self, host: str, port: int, wire: Callable[[], Wire]) -> None:
        """Prepare a proxy for the server at *host* and *port*, which speaks as *wire*."""
        self._server = (host, port)
        self.wire = wire
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy")
        self._links: set[_Link] = set()
        self._plan: Plan | None = None
        self._commands: list[Command] = []
        self._kept: list[bytes] = []
        self._is_cut = False

    def start(self) -> None:
        """Listen on a free port of this machine."""
        self._thread.start()
        self._listener = self._call(asyncio.start_server(self._accepted, "127.0.0.1", 0))
        self.port: int = self._listener.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """End every connection."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def plan(self, plan: Plan | None) -> None:
        """Use *plan* from now on, clear `commands`, and end half-open connections."""
        self._call(self._set_plan(plan))

    def commands(self) -> list[Command]:
        """Return the commands since the last call of `plan`, without the driver's own."""
        return [each for each in self._commands if each.name not in OWN]

    def deliver(self) -> list[dict[str, Any]]:
        """Send the kept requests to a MongoDB, each on its own connection; return the replies."""
        return self._call(self._deliver())

    def cut(self) -> None:
        """Reset all connections, and each new one, until `mend`."""
        self._call(self._cut())

    def mend(self) -> None:
        """End a cut."""
        self._call(self._mend())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_ANSWERS_WITHIN)

    async def _stop(self) -> None:
        await closed(self._listener)
        for link in list(self._links):
            link.stop()
        while self._links:
            await asyncio.gather(*(link.ended.wait() for link in self._links))
        await self._listener.wait_closed()

    async def _set_plan(self, plan: Plan | None) -> None:
        self._plan = plan
        self._commands = []
        self._kept = []
        for link in list(self._links):
            if link.is_abandoned:
                link.stop()

    async def _cut(self) -> None:
        self._is_cut = True
        for link in list(self._links):
            link.reset()

    async def _mend(self) -> None:
        self._is_cut = False

    async def _deliver(self) -> list[dict[str, Any]]:
        kept, self._kept = self._kept, []
        return [await self._exchange(message) for message in kept]

    async def _exchange(self, message: bytes) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(*self._server)
        wire = MongoWire()
        try:
            writer.write(message)
            return wire.body(await wire.reply(reader))
        finally:
            writer.close()
            await writer.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            _reset(writer)
            return
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run(self._server)
        finally:
            self._links.discard(link)
            link.ended.set()

    # --- calls of a link

    def fate(self, command: Command, message: bytes) -> Fault | None:
        """Record a request and return its fault."""
        self._commands.append(command)
        fault = self._plan(command) if self._plan is not None else None
        if fault is not None and fault.keeps:
            self._kept.append(message)
        return fault


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._wire = proxy.wire()
        self._task = asyncio.current_task()
        self._is_mute = False
        self._is_half_open = False
        self.is_abandoned = False  #: the client has left, which the server does not know
        #: The fault of each request without a reply yet, by its number.
        self._waiting: dict[int, Fault | None] = {}
        self._answered = asyncio.Event()
        self.ended = asyncio.Event()

    async def run(self, address: tuple[str, int]) -> None:
        server: asyncio.StreamWriter | None = None
        try:
            reader, server = await asyncio.open_connection(*address)
            replies = asyncio.create_task(self._pass_replies(reader))
            try:
                await self._pass_requests(server)
                # Let the server finish its requests, although the client has left.
                while self._waiting and not replies.done():
                    self._answered.clear()
                    await self._answered.wait()
                if self._is_half_open:
                    self.is_abandoned = True
                    await replies
            finally:
                replies.cancel()
                await asyncio.gather(replies, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has gone, so the link ends
        except asyncio.CancelledError:
            # Cancelled by `stop`: a regular end of this task.
            pass
        finally:
            for writer in (self._writer, server):
                if writer is not None:
                    writer.transport.abort()

    def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def reset(self) -> None:
        _reset(self._writer)
        self.stop()

    async def _pass_requests(self, server: asyncio.StreamWriter) -> None:
        while True:
            message = await self._wire.request(self._reader)
            if not message:
                return
            if self._is_mute:
                continue
            command = self._wire.command(message)
            fault = self._proxy.fate(command, message) if command is not None else None
            if fault is not None:
                # The driver awaits the answer before it sends more on a connection.
                await asyncio.sleep(fault.delay.total_seconds())
                if fault.until is not None:
                    await fault.until.wait()
                if fault.loss is Loss.REQUEST:
                    self._end(fault.end)
                    continue
            self._waiting[self._wire.number(message)] = fault
            server.write(message)

    async def _pass_replies(self, reader: asyncio.StreamReader) -> None:
        try:
            while message := await self._wire.reply(reader):
                self._pass_reply(message)
                self._answered.set()
        finally:
            # The server has gone: close the client's connection after the sent bytes.
            self._answered.set()
            self._writer.close()

    def _pass_reply(self, message: bytes) -> None:
        number, has_more = self._wire.answered(message)
        fault = self._waiting.get(number)
        if not has_more:
            self._waiting.pop(number, None)
        if self._is_mute:
            return
        if fault is None or fault.loss is Loss.NOTHING:
            self._writer.write(message)
            return
        if fault.loss is Loss.HALF_THE_REPLY:
            self._writer.write(message[: len(message) // 2])
        self._end(fault.end)

    def _end(self, end: End) -> None:
        self._is_mute = True
        match end:
            case End.SILENCE:
                self._is_half_open = True
            case End.CLOSE:
                self._writer.close()
            case End.RESET:
                _reset(self._writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with suppress(OSError):  # it may be closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


@contextmanager
def proxied(uri: str) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy to the only server of *uri*, and the URI through the proxy."""
    parts = urlsplit(uri)
    assert parts.hostname is not None
    is_postgres = parts.scheme == "postgresql"
    wire: Callable[[], Wire] = PostgresWire if is_postgres else MongoWire
    proxy = Proxy(parts.hostname, parts.port or 27017, wire)
    proxy.start()
    try:
        credentials, at, _ = parts.netloc.rpartition("@")
        netloc = f"{credentials}{at}127.0.0.1:{proxy.port}"
        query = "sslmode=disable&gssencmode=disable" if is_postgres else parts.query
        yield proxy, urlunsplit(parts._replace(netloc=netloc, query=query))
    finally:
        proxy.stop()
