"""How connections are made and kept.

A connection that has spoken out of turn must not answer the next request: its
bytes would be stored as another page. Nothing in HTTP/1.1 tells a late answer
from a right one, so an idle connection rests for a while before it is used
again, and whatever arrives in that time ends it.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from aiohttp import ClientRequest, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

from crawlcw.downloader.addresses import AddressGuard

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.tracing import Trace

#: Late answers came within 50 ms of the first where they were measured.
REST = 0.25
_KEEPALIVE = 15.0
#: Less than aiohttp's own limit, so that what passes here passes there.
_OLDEST = _KEEPALIVE - 1.0
#: Should descriptors run out before, the downloader closes what is idle.
_IDLE_IN_TOTAL = 1_000
_RESOLVER_THREADS = 32
#: Of one request. Two are usual (103 Early Hints); some servers send them for ever.
_MAX_INTERIM = 100


class Sending:
    """The sending of one request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with it: it is written at once, though uvloop sends when it has come round."""
        #: When it was sent, by the monotonic clock, and never earlier than it was.
        self.at = monotonic()
        loop.call_soon(self._sent)

    def _sent(self) -> None:
        self.at = monotonic()


#: That of the request under way in this context.
sending: ContextVar[Sending] = ContextVar("sending")


class RestingConnector(TCPConnector):
    """A connector that reuses only connections which have been silent for `REST` seconds.

    *idle_per_host* bounds how many connections to one host rest. Every reuse
    takes one that has rested, so a host is asked over old connections at most
    `idle_per_host / REST` times a second, and over new ones beyond that.
    """

    def __init__(
        self, *, guard: AddressGuard, resolver: AbstractResolver, idle_per_host: int, verify: bool
    ) -> None:
        super().__init__(
            limit=0,
            resolver=resolver,
            socket_factory=guard.socket,
            ssl=verify,
            ttl_dns_cache=30,
            keepalive_timeout=_KEEPALIVE,
        )
        self._factory = cast("partial[ResponseHandler]", partial(_Listener, loop=self._loop))
        self._idle_per_host = idle_per_host
        #: All idle connections, the longest idle first. It may name some that
        #: aiohttp has closed meanwhile; they come up first, and are passed over.
        self._idle: OrderedDict[ResponseHandler, ConnectionKey] = OrderedDict()

    def close_idle(self) -> None:
        """Close all idle connections, which gives their descriptors back."""
        while self._idle:
            self._close_longest_idle()

    async def connect(
        self,
        req: ClientRequest,
        traces: list["Trace"],
        timeout: ClientTimeout,  # noqa: ASYNC109  # aiohttp names it
    ) -> Connection:
        """Return a connection for a request, which is sent at once."""
        connection = await super().connect(req, traces, timeout)
        sending.set(Sending(self._loop))
        return connection

    # aiohttp has no public hook for these two, nor for `_factory`; tests/
    # test_downloader.py fails if it stops calling them.

    async def _get(self, key: "ConnectionKey", traces: list[Any]) -> Connection | None:
        idle = self._conns.get(key)
        if idle is None:
            return None
        now = monotonic()
        while idle:
            # The one that has rested longest is first.
            protocol, since = idle[0]
            if protocol.should_close or not protocol.is_connected() or now - since > _OLDEST:
                idle.popleft()
                self._idle.pop(protocol, None)
                protocol.close()
                continue
            if now - since < REST:
                return None
            self._idle.pop(protocol, None)
            cast("_Listener", protocol).rest(resting=False)
            return await super()._get(key, traces)
        del self._conns[key]
        return None

    def _release(
        self, key: "ConnectionKey", protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        idle = self._conns.get(key)
        full = idle is not None and len(idle) >= self._idle_per_host
        super()._release(key, protocol, should_close=should_close or full)
        if protocol.transport is not None and not self.closed:
            self._idle[protocol] = key
            cast("_Listener", protocol).rest(resting=True)
            if len(self._idle) > _IDLE_IN_TOTAL:
                self._close_longest_idle()

    def _close_longest_idle(self) -> None:
        protocol, key = self._idle.popitem(last=False)
        idle = self._conns.get(key)
        if idle and idle[0][0] is protocol:
            idle.popleft()
            protocol.close()
            if not idle:
                del self._conns[key]


class _Listener(ResponseHandler):
    """The receiving end of a connection; hangs up on a server that talks while nobody asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.resting = False
        self._interim = 0

    def data_received(self, data: bytes) -> None:
        # aiohttp calls this without data when the last body has been taken.
        if data and self.resting:
            # Not one byte is kept: a server could send them for as long as
            # the connection stands.
            self.close()
            return
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        if data[0].code < 200 and self._too_many_interim():
            if self.transport is not None:
                self.transport.close()
            self.set_exception(HttpProcessingError(message="interim responses without end"))
            return
        super().feed_data(data, size)

    def rest(self, *, resting: bool) -> None:
        self.resting = resting
        self._interim = 0

    def _too_many_interim(self) -> bool:
        self._interim += 1
        return self._interim > _MAX_INTERIM


class NameResolver(AbstractResolver):
    """Looks names up in threads of its own, each look-up for *patience* seconds at most.

    The loop's own threads would not do: uvloop has four of them, and a few
    dead names keep them all busy.
    """

    def __init__(self, *, patience: float) -> None:
        self._patience = patience
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="crawlcw-dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of *host*; raises `socket.gaierror`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience):
                return await loop.run_in_executor(self._threads, _look_up, host, port, family)
        except TimeoutError:
            message = f"no answer within {self._patience:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, message) from None

    async def close(self) -> None:
        """Stop looking up; a thread that waits for the DNS is left to end by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    try:
        found = socket.getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except UnicodeError:
        # A label of more than 63 characters: no such name can exist.
        raise socket.gaierror(socket.EAI_NONAME, "not a name the DNS could hold") from None
    return list(_results(host, port, found))


def _results(host: str, port: int, found: list[Any]) -> Iterator[ResolveResult]:
    for family, _, protocol, _, address in found:
        yield ResolveResult(
            hostname=host,
            host=address[0],
            port=port,
            family=family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
