"""A network of servers and clients, whose links can be cut.

Servers and clients reach each server at an address of the switchboard. It identifies
the caller by the process of its socket: another server, or a client. A cut link is
silent, like a broken network: it refuses no connection, and sent bytes arrive when
it is mended, unless their sender has died by then.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support.listeners import closed

T = TypeVar("T")

#: All callers that are not servers.
CLIENTS = -1
_CHUNK = 1 << 16
_ANSWERS_WITHIN = 20.0


class Switchboard:
    """The addresses of some servers. Its methods may be called in any thread."""

    def __init__(self, ports: Sequence[int], pids: Callable[[], Sequence[int]]) -> None:
        """Serve the servers at *ports*; *pids* returns their current processes."""
        self._ports = ports
        self._pids = pids
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="switchboard")
        self._cut: frozenset[frozenset[int]] = frozenset()
        self._mended = asyncio.Event()
        #: Known connections, with their ends.
        self._calls: dict[asyncio.Task[None], frozenset[int]] = {}
        self._listeners: list[asyncio.Server] = []
        self.ports: list[int] = []

    def start(self) -> None:
        """Listen on a free port of this machine for each server."""
        self._thread.start()
        self._call(self._start())

    def stop(self) -> None:
        """End every call."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, server: int, others: Collection[int]) -> None:
        """Cut both directions between a server and *others*, which may include `CLIENTS`."""
        self._call(self._set(frozenset(frozenset({server, other}) for other in others)))

    def mend(self) -> None:
        """Let all traffic pass again, delayed messages first."""
        self._call(self._set(frozenset()))

    def hang_up(self, server: int) -> None:
        """End the calls of a dead server: its undelivered messages are dropped."""
        self._call(self._hang_up(server))

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_ANSWERS_WITHIN)

    async def _set(self, cut: frozenset[frozenset[int]]) -> None:
        self._cut = cut
        self._mended.set()
        self._mended = asyncio.Event()

    async def _hang_up(self, server: int) -> None:
        ended = [call for call, way in self._calls.items() if server in way]
        for call in ended:
            call.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _start(self) -> None:
        for number in range(len(self._ports)):
            listener = await asyncio.start_server(self._answering(number), "127.0.0.1", 0)
            self._listeners.append(listener)
            self.ports.append(listener.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        for listener in self._listeners:
            await closed(listener)
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.sleep(0)

    def _answering(
        self, server: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            call = self._loop.create_task(self._connect(server, reader, writer))
            self._calls[call] = frozenset()
            call.add_done_callback(self._calls.pop)

        return answer

    async def _connect(
        self, server: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        theirs: asyncio.StreamWriter | None = None
        try:
            caller = self._caller(writer.get_extra_info("peername")[1], self.ports[server])
            way = frozenset({caller, server})
            call = asyncio.current_task()
            assert call is not None
            self._calls[call] = way
            await self._passable(way)
            answers, theirs = await asyncio.open_connection("127.0.0.1", self._ports[server])
            passing = [
                self._loop.create_task(self._pass(way, reader, theirs)),
                self._loop.create_task(self._pass(way, answers, writer)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in passing:
                    each.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        except OSError:
            pass  # the server is away, so the call ends
        finally:
            for end in (writer, theirs):
                if end is not None:
                    end.transport.abort()

    async def _pass(
        self, way: frozenset[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._passable(way)
                writer.write(data)
                await writer.drain()
            # A cut link does not pass the end of a connection either.
            await self._passable(way)

    async def _passable(self, way: frozenset[int]) -> None:
        while way in self._cut:
            await self._mended.wait()

    def _caller(self, port: int, called: int) -> int:
        """Return the server that calls the port *called* from *port* of this machine."""
        inode = _inode(port, called)
        for number, pid in enumerate(self._pids()):
            if f"socket:[{inode}]" in _open_files(pid):
                return number
        return CLIENTS


def _inode(port: int, called: int) -> str | None:
    """Return the inode of the socket that is connected from one port to another."""
    ends = [f"0100007F:{each:04X}" for each in (port, called)]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == ends:
            return fields[9]
    return None


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # the process may have ended
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # or have closed the socket
                yield str(each.readlink())


@contextmanager
def connected(ports: Sequence[int], pids: Callable[[], Sequence[int]]) -> Iterator[Switchboard]:
    """Yield a switchboard before some servers; it ends with the block."""
    switchboard = Switchboard(ports, pids)
    switchboard.start()
    try:
        yield switchboard
    finally:
        switchboard.stop()
