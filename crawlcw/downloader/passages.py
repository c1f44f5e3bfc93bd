"""The way of one request to its server through a proxy, as the connector makes it.

Which proxy that is, is told by the context of the request, so that the downloaders in
between need not know. aiohttp speaks to HTTP proxies; SOCKS is python-socks' to speak.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from http.cookies import BaseCookie
from typing import TYPE_CHECKING, Any

import yarl
from aiohttp import ClientRequest
from aiohttp.hdrs import COOKIE

from crawlcw.errors import FetchError, ProxyFailedError, Reason, SettingsError
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.typedefs import LooseCookies

#: RFC 1928, section 6: what a SOCKS server says of the host, and not of itself.
_OF_THE_HOST = range(1, 7)


class Stage(IntEnum):
    """How far a request has come."""

    DIALLING = 0  #: there is no connection to the proxy itself
    REACHED = 1  #: there is one, and the proxy has said nothing yet
    GREETED = 2  #: it has said that it speaks SOCKS
    PASSED = 3  #: it says that it has reached the host, or has an answer


@dataclass(slots=True)
class Passage:
    """One request on its way through a proxy."""

    proxy: Proxy
    stage: Stage = Stage.DIALLING
    at_host: bool = False  #: whether it is the host's name that is looked up just now


#: That of the request under way in this context; None: it goes straight to its server.
passage: ContextVar[Passage | None] = ContextVar("passage", default=None)


@contextmanager
def through(proxy: Proxy | None) -> Iterator[None]:
    """Let exchanges in the block go through *proxy*, or straight to their servers."""
    token = passage.set(None if proxy is None else Passage(proxy))
    try:
        yield
    finally:
        passage.reset(token)


class PassingRequest(ClientRequest):
    """A request whose connection is told by its proxy, one that speaks SOCKS as well.

    Its cookies are sent as their jar has them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        on = passage.get()
        # Of an HTTP proxy aiohttp knows.
        self._socks = on.proxy if on is not None and on.proxy.is_socks else None

    def update_cookies(self, cookies: "LooseCookies | None") -> None:
        """Set the `Cookie` header; of a name that the request's own has too, the jar's counts."""
        if not cookies:
            return
        assert isinstance(cookies, BaseCookie), "our own jars are asked alone"
        # aiohttp would sort them, and has no place for two of one name, nor for one without.
        sent = [
            f"{each.key}={each.coded_value}" if each.key else each.coded_value
            for each in cookies.values()
        ]
        names = {each.key for each in cookies.values()}
        given = ";".join(self.headers.popall(COOKIE, ())).split(";")
        own = [pair.strip() for pair in given if pair.partition("=")[0].strip() not in names]
        self.headers[COOKIE] = "; ".join([*filter(None, own), *sent])

    @property
    def connection_key(self) -> "ConnectionKey":
        """What a connection must have been made for to be used for this request."""
        key = super().connection_key
        if self._socks is None:
            return key
        # The user counts too: some proxies have another exit for each.
        return key._replace(
            proxy=yarl.URL(f"{self._socks.scheme}://{self._socks.host}"),
            proxy_headers_hash=hash(self._socks),
        )


def check_installed(proxy: Proxy) -> None:
    """Raise `SettingsError` where nothing is installed that speaks to *proxy*."""
    if proxy.is_socks:
        try:
            import python_socks.async_.asyncio  # noqa: F401  # it is an extra
        except ImportError:
            raise SettingsError(
                f"the proxy {proxy} needs python-socks: pip install 'crawlcw[socks]'"
            ) from None


async def greeted(
    on: Passage, sock: socket.socket, *, host: str, port: int, seconds: float | None
) -> socket.socket:
    """Return *sock*, a connection to a SOCKS proxy, as one to *host*; it is closed on failure.

    Raises `ProxyFailedError` where the proxy refuses us, `FetchError` (`connect`)
    where it says that it cannot reach the host, and `TimeoutError`.
    """
    from python_socks import ProxyError, ProxyType
    from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

    proxy = on.proxy
    # It connects by another proxy, so to speak: the connection is there already.
    reached: Any = _Reached(_Stream(on, sock))
    way = SocksProxy.create(
        proxy_type=ProxyType.SOCKS5,
        host=proxy.host,
        port=proxy.port,
        username=proxy.user,
        password=proxy.password,
        # A name goes as it is: where it is to be looked up here, it is an address by now.
        rdns=True,
        forward=reached,
    )
    try:
        await way.connect(host, port, timeout=seconds)
    except ProxyError as error:
        said = printable(error)
        if error.error_code in _OF_THE_HOST:
            message = f"the proxy {proxy} says: {said}"
            raise FetchError(Reason.CONNECT, message) from error
        refuses = "authenticat" in said.lower()
        raise ProxyFailedError(f"the proxy {proxy} says: {said}", for_good=refuses) from error
    on.stage = Stage.PASSED
    return sock


class _Reached:
    def __init__(self, stream: "_Stream") -> None:
        self._stream = stream

    async def connect(self, **_: Any) -> "_Stream":
        return self._stream


class _Stream:
    """A connection to a SOCKS proxy as python-socks uses one."""

    def __init__(self, on: Passage, sock: socket.socket) -> None:
        self._on = on
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    async def write(self, data: bytes) -> None:
        """Send all of *data*."""
        await self._loop.sock_sendall(self._socket, data)

    async def read_exactly(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(self._socket, size - len(data))
            if not piece:
                raise ConnectionResetError("the proxy hung up")
            data += piece
            self._on.stage = Stage.GREETED
        return data

    async def close(self) -> None:
        """Close the connection."""
        self._socket.close()
