"""A relay that adds the round-trip time of a distant server.

    python -m tests.support.delaying_relay PORT ROUND_TRIP_IN_MS

Prints the port to connect to. All bytes arrive half a round trip later, in both
directions. The first bytes of a connection arrive a whole round trip later still,
for the opening of the connection. Ends at SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import cast

import uvloop


class _Side(asyncio.Protocol):
    """One end of a relayed connection; received bytes go to the other end after a delay."""

    def __init__(self, delay: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._extra = 0.0
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._late(lambda to: to.write(data))

    def eof_received(self) -> None:
        self._late(lambda to: to.close())

    def connection_lost(self, error: Exception | None) -> None:
        self._late(lambda to: to.close())

    def _late(self, act: Callable[[asyncio.Transport], None]) -> None:
        delay, self._extra = self._delay + self._extra, 0.0

        def now() -> None:
            if self.other is not None and self.other.transport is not None:
                act(self.other.transport)

        self._loop.call_later(delay, now)


class _Near(_Side):
    """The end towards the client."""

    def __init__(self, port: int, delay: float) -> None:
        super().__init__(delay)
        self._port = port
        self._extra = 2 * delay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        far = _Side(self._delay)
        far.other = self
        await self._loop.create_connection(lambda: far, "127.0.0.1", self._port)
        self.other = far


async def _relay(port: int, delay: float) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await loop.create_server(lambda: _Near(port, delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(_relay(int(sys.argv[1]), float(sys.argv[2]) / 2_000))
