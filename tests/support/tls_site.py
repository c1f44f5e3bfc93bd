"""A TLS site in a process of its own, which counts the cost of connections.

    python -m tests.support.tls_site CERTIFICATE PAGES

Prints its port. Page `/pages/N` links to ten pages from `/pages/10N+1` on, so all are
reachable from the first. At SIGTERM it prints one line of JSON, a `Tally`.
"""

import asyncio
import json
import resource
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import uvloop

_TEXT = "The quick brown fox jumps over the lazy dog. " * 100


@dataclass(slots=True)
class Tally:
    """Connections and requests of the site."""

    handshakes: int = 0
    pages: int = 0
    first: float = 0.0  #: monotonic time of the first request for a page
    last: float = 0.0
    cpu: float = 0.0  #: CPU seconds of this process

    @property
    def pages_a_second(self) -> float:
        return (self.pages - 1) / (self.last - self.first)


def make_certificate(path: Path) -> None:
    """Write a self-signed certificate for 127.0.0.1, and its key, into one file."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-keyout", str(path), "-out", "-"]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    with path.open("a") as file:
        file.write(made.stdout)


class _Connection(asyncio.Protocol):
    def __init__(self, tally: Tally, pages: int) -> None:
        self._tally = tally
        self._pages = pages
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Over TLS, this is called after the handshake.
        # uvloop's transports do not inherit from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._tally.handshakes += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            self._transport.write(self._answer(head.split(b" ", 2)[1].decode()))

    def _answer(self, target: str) -> bytes:
        if not target.startswith("/pages/"):
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        self._tally.last = time.monotonic()
        self._tally.first = self._tally.first or self._tally.last
        self._tally.pages += 1
        number = int(target.removeprefix("/pages/"))
        children = range(10 * number + 1, min(10 * number + 11, self._pages))
        links = "".join(f'<a href="/pages/{n}">{n}</a>' for n in children)
        body = f"<title>{target}</title>{links}<p>{_TEXT}</p>".encode()
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _serve(certificate: str, pages: int) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    tally, ended = Tally(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await loop.create_server(
        lambda: _Connection(tally, pages), "127.0.0.1", 0, ssl=context
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    used = resource.getrusage(resource.RUSAGE_SELF)
    tally.cpu = used.ru_utime + used.ru_stime
    print(json.dumps(asdict(tally)), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], int(sys.argv[2])))
