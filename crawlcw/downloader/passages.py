"""The way of one request to its server through a proxy, as the connector makes it.

aiohttp speaks to HTTP proxies; SOCKS is python-socks' to speak.
"""

import asyncio
import socket
from typing import Any

from crawlcw.downloader.hop import Hop, Stage
from crawlcw.errors import FetchError, ProxyFailedError, Reason, SettingsError
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

#: RFC 1928, section 6: what a SOCKS server says of the host, and not of itself.
_OF_THE_HOST = range(1, 7)


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
    on: Hop, proxy: Proxy, sock: socket.socket, *, host: str, port: int, seconds: float | None
) -> socket.socket:
    """Return *sock*, a connection to a SOCKS proxy, as one to *host*; it is closed on failure.

    Raises `ProxyFailedError` where the proxy refuses us, `FetchError` (`connect`)
    where it says that it cannot reach the host, and `TimeoutError`.
    """
    from python_socks import ProxyError, ProxyType
    from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

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

    def __init__(self, on: Hop, sock: socket.socket) -> None:
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
