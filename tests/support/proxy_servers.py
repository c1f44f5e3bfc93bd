"""Real proxies for tests: HTTP (CONNECT and absolute-form), the same over TLS, and SOCKS5.

They run in a thread of the tests' own process: crawls of other processes can use them, and
tests can read their logs. A proxy on `127.0.0.N` connects to servers from that address, so
a site can identify the proxy of a request. The proxy resolves names: those in `names`
itself, others by the system.
"""

import asyncio
import base64
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.listeners import closed
from tests.support.site_threads import in_thread

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class ProxyServer:
    """A proxy, and its received requests; only its thread writes the lists."""

    scheme: str
    host: str
    names: Mapping[str, str] = field(default_factory=dict)
    login: str | None = None  #: the `user:password` that it requires
    certificate: Path | None = None
    port: int = 0
    refuses_connect: int | None = None  #: status of the answer to CONNECT
    hangs: bool = False  #: whether it never answers requests
    hangs_up: bool = False  #: whether it greets SOCKS clients and then hangs up
    is_silent: bool = False  #: whether it accepts connections but sends nothing, not even TLS
    answers: bytes | None = None  #: its own answer to HTTP requests
    says: int | None = None  #: the SOCKS reply to each request
    answers_at: str = ""  #: only for URLs with this part
    asked: list[str] = field(default_factory=list)  #: `host:port` of each connection or request
    logins: list[str] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)  #: headers sent to HTTP proxies
    connections: int = 0
    _server: asyncio.Server | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        login = f"{self.login}@" if self.login else ""
        return f"{self.scheme}://{login}{self.host}:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self._server is not None and self._server.is_serving()

    def die(self) -> None:
        """Refuse new connections from now on, and cut open ones."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def revive(self) -> None:
        assert self._loop is not None
        running = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        await asyncio.wrap_future(running)

    async def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = None
        if self.certificate is not None and not self.is_silent:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate)
        handle = self._socks if self.scheme.startswith("socks") else self._http
        self._server = await asyncio.start_server(
            lambda r, w: self._serve(handle, r, w), self.host, self.port, ssl=context
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        await closed(self._server)
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, handle, reader, writer) -> None:  # type: ignore[no-untyped-def]
        self.connections += 1
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if self.is_silent:
                    await asyncio.sleep(3600)
                await handle(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _connect(self, host: str, port: int) -> Streams:
        self.asked.append(f"{host}:{port}")
        place = self.names.get(host, host)
        address, _, other = place.partition(":")
        return await asyncio.open_connection(address, int(other or port), local_addr=(self.host, 0))

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            self.heads.append(head)
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            if self.hangs:
                await asyncio.sleep(3600)
            if not self._may_pass(head):
                writer.write(b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")
                return
            if self.answers is not None and self.answers_at in target:
                writer.write(self.answers)
                return
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                await self._tunnel(host.strip("[]"), int(port), reader, writer)
                return
            await self._pass_on(method, target, head, reader, writer)

    def _may_pass(self, head: bytes) -> bool:
        if self.login is None:
            return True
        wanted = b"Proxy-Authorization: Basic " + base64.b64encode(self.login.encode())
        return wanted.lower() in head.lower()

    async def _tunnel(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.refuses_connect is not None:
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.refuses_connect)
            return
        try:
            there = await self._connect(host, port)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _relay((reader, writer), there)

    async def _pass_on(
        self,
        method: str,
        target: str,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Forward a request in absolute form, each over a connection of its own."""
        url = urlsplit(target)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        try:
            there, back = await self._connect(url.hostname or "", url.port or 80)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        lines = head.split(b"\r\n")[1:]
        kept = [each for each in lines if not _is_hop(each)]
        begin = f"{method} {path} HTTP/1.1".encode()
        back.write(b"\r\n".join([begin, b"Connection: close", *kept]))
        length = next(
            (int(each.split(b":")[1]) for each in lines if each.lower().startswith(b"content-len")),
            0,
        )
        if length:
            back.write(await reader.readexactly(length))
        try:
            # The connection to the client stays open.
            answer = (await _head(there)).split(b"\r\n")
            writer.write(b"\r\n".join(each for each in answer if not _is_hop(each)))
            while data := await there.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            back.transport.abort()

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.login is None:
            writer.write(b"\x05\x00")
        elif 2 not in methods:
            writer.write(b"\x05\xff")
            return
        else:
            writer.write(b"\x05\x02")
            _, size = await reader.readexactly(2)
            user = await reader.readexactly(size)
            (size,) = await reader.readexactly(1)
            given = f"{user.decode()}:{(await reader.readexactly(size)).decode()}"
            self.logins.append(given)
            writer.write(b"\x01\x00" if given == self.login else b"\x01\x01")
            if given != self.login:
                return
        if self.hangs_up:
            return
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = ".".join(str(each) for each in await reader.readexactly(4))
        else:
            (size,) = await reader.readexactly(1)
            host = (await reader.readexactly(size)).decode()
        (port,) = struct.unpack("!H", await reader.readexactly(2))
        bound = b"\x00\x01\x00\x00\x00\x00\x00\x00"
        if self.says is not None:
            writer.write(bytes([5, self.says]) + bound)
            return
        try:
            there = await self._connect(host, port)
        except OSError:
            writer.write(b"\x05\x05" + bound)
            return
        writer.write(b"\x05\x00" + bound)
        await _relay((reader, writer), there)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _is_hop(line: bytes) -> bool:
    """Return whether a header is hop-by-hop."""
    return line.lower().startswith((b"proxy-", b"connection:"))


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _relay(one: Streams, other: Streams) -> None:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        # Close both directions: a half-open tunnel would keep the other side waiting.
        await _closed(writer)

    try:
        await asyncio.gather(pump(one[0], other[1]), pump(other[0], one[1]))
    finally:
        for _, writer in (one, other):
            writer.transport.abort()


@contextmanager
def proxies(*servers: ProxyServer) -> Iterator[None]:
    """Run proxies for the block, each on a port of its own."""
    with in_thread(_listening(servers)):
        yield


@asynccontextmanager
async def _listening(servers: Sequence[ProxyServer]) -> AsyncIterator[None]:
    for each in servers:
        await each._listen()
    yield
    for each in servers:
        await each._close()
