"""Many hosts in a process of their own, with a log of all requests: client, path and time.

    python -m tests.support.many_hosts

On Linux, every 127.x.y.z is a host of its own; all are served at one port. The first
line of input has the hosts, as JSON; the process prints the port when they accept
connections. It answers each further line with the requests that have ended since the
previous line, and the open ones. A line with `heal` makes all hosts answer from then
on. The process ends with its input.

A host's page `/n` links to the pages 20n + 1 to 20n + 20 (`/` is page 0), so 100,000
pages are as cheap as ten, and none is large.
"""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import uvloop

from crawlcw import Settings, Spider
from tests.support.docs import REPOSITORY, path_of

LINKS = 20
_BACKLOG = 1024
#: Another socket may use the port at one of the addresses.
_PORTS_TRIED = 20
#: <asm-generic/socket.h>; Python has no name for it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
#: A linger time of zero makes `close` send a reset.
_NO_LINGER = struct.pack("ii", 1, 0)


class HostsSpider(Spider):
    """One item for each page."""

    name = "hosts"
    settings = Settings(user_agent="crawlcw-test")

    def parse(self, response):
        yield {"path": path_of(response.url)}
        yield from response.follow_all("a[href]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host at one address. `{port}` in links and redirects stands for the port."""

    address: str
    pages: int = 1
    latency: float = 0.0  #: seconds until an answer
    robots: str = ""  #: its robots.txt; none: 404
    links: Sequence[str] = ()  #: on its first page, besides the links to its pages
    moved: Mapping[str, str] = field(default_factory=dict)  #: targets of redirects, by path
    mute: bool = False  #: reads requests and never answers
    resets: bool = False  #: resets every connection
    refuses: bool = False  #: refuses every connection
    silent: bool = False  #: neither accepts nor refuses connections
    most: int = 0  #: limit of answers `within` seconds, others get 429; 0: no limit
    within: float = 0.0
    retry_after: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A request, as the server received it. Times are seconds of the machine's monotonic clock."""

    host: str
    path: str
    agent: str
    arrived: float
    open: int  #: open requests of the host at that time, itself included
    ended: float | None = None  #: time of the answer, or of the client's end; None: open
    status: int | None = None  #: None: not answered


class Served:
    """The served hosts, for use by tests."""

    def __init__(self, server: "subprocess.Popen[str]", hosts: Sequence[Host]) -> None:
        self._server = server
        self._ended: list[Hit] = []
        port = self._line(json.dumps([asdict(host) for host in hosts]))
        #: The politeness key of each host, in the order of the hosts.
        self.names = [f"{host.address}:{port}" for host in hosts]

    def _line(self, line: str) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(line, file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline())

    @property
    def urls(self) -> list[str]:
        """Return the URL of each host's first page."""
        return [f"http://{name}/" for name in self.names]

    def requests(self, names: Sequence[str] | None = None) -> list[Hit]:
        """Return all requests so far in order, or those for the hosts *names*."""
        ended, still_open = self._line("requests")
        self._ended += [Hit(*each) for each in ended]
        found = [*self._ended, *(Hit(*each) for each in still_open)]
        if names is not None:
            wanted = {name.partition(":")[0] for name in names}
            found = [request for request in found if request.host in wanted]
        return sorted(found, key=lambda request: request.arrived)

    def heal(self) -> None:
        """Make all hosts answer from now on."""
        ended, _ = self._line("heal")
        self._ended += [Hit(*each) for each in ended]


@contextmanager
def served(hosts: Sequence[Host]) -> Iterator[Served]:
    """Serve hosts from a process of its own."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.many_hosts"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Served(server, hosts)
    finally:
        server.kill()
        server.communicate()


def addresses(number: int) -> list[str]:
    """Return the first addresses of 127.10.0.0/16."""
    return [f"127.10.{n // 250}.{n % 250 + 1}" for n in range(number)]


class Server:
    """All hosts, and the requests to them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._loop = asyncio.get_running_loop()
        self._hosts = hosts
        self._port = 0
        self._bound: list[tuple[Host, socket.socket]] = []
        self._filling: list[
            socket.socket
        ] = []  #: connections that fill the backlogs of silent hosts
        self._healed = False
        #: Times of the answers that count for the limit, by host.
        self._answered: dict[str, deque[float]] = {}
        self._at_once: Counter[str] = Counter()
        self._open: dict[Connection, Hit] = {}
        self._ended: list[Hit] = []

    def listen(self) -> int:
        """Open all hosts; return their port."""
        self._bind()
        for host, bound in self._bound:
            if not host.refuses:
                self._listen(host, bound)
        return self._port

    def _bind(self) -> None:
        for _ in range(_PORTS_TRIED):
            self._port = 0
            self._bound = []
            with ExitStack() as opened, suppress(OSError):
                for host in self._hosts:
                    bound = opened.enter_context(socket.socket())
                    bound.bind((host.address, self._port))
                    self._port = bound.getsockname()[1]
                    self._bound.append((host, bound))
                opened.pop_all()
                return
        raise OSError("no port is free at all addresses")

    def _listen(self, host: Host, bound: socket.socket) -> None:
        # Inherited by the connections.
        bound.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        bound.setblocking(False)
        if host.silent:
            self._fall_silent(bound)
            return
        bound.listen(_BACKLOG)
        self._loop.add_reader(bound, self._accept, host, bound)

    def _fall_silent(self, bound: socket.socket) -> None:
        # One unaccepted connection fills the backlog; the kernel drops further ones.
        bound.listen(0)
        filling = socket.create_connection(bound.getsockname())
        self._filling.append(filling)

    def heal(self) -> None:
        """Make all hosts answer from now on, except silent ones."""
        self._healed = True
        for host, bound in self._bound:
            if host.refuses:
                self._listen(host, bound)

    def _accept(self, host: Host, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return  # the client has left
        accepted.setblocking(False)
        if host.resets and not self._healed:
            now = time.monotonic()
            self._ended.append(Hit(host.address, "", "", now, 1, now))
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            accepted.close()
            return
        Connection(self, host, accepted)

    def begin(self, connection: "Connection", path: str, agent: str, arrived: float) -> None:
        """Record a request, and answer it."""
        host = connection.host
        self._at_once[host.address] += 1
        at_once = self._at_once[host.address]
        self._open[connection] = Hit(host.address, path, agent, arrived, at_once)
        if host.mute and not self._healed:
            return
        status, answer = self._answer(host, path, arrived)
        if host.latency:
            self._loop.call_later(host.latency, self._finish, connection, status, answer)
        else:
            self._finish(connection, status, answer)

    def _finish(self, connection: "Connection", status: int, answer: bytes) -> None:
        if connection in self._open:
            # Recorded first: the client may send its next request at once.
            self.end(connection, status)
            connection.send(answer)

    def end(self, connection: "Connection", status: int | None) -> None:
        """Record that a connection's request was answered, or that its client has left."""
        request = self._open.pop(connection, None)
        if request is None:
            return
        self._at_once[request.host] -= 1
        begun = astuple(request)[:5]
        self._ended.append(Hit(*begun, time.monotonic(), status))

    def _answer(self, host: Host, path: str, now: float) -> tuple[int, bytes]:
        if host.most and not self._has_room(host, now):
            return _answered(429, "", f"Retry-After: {host.retry_after}\r\n")
        if path == "/robots.txt":
            return _answered(200 if host.robots else 404, host.robots)
        if path in host.moved:
            return _answered(302, "", f"Location: {self._with_port(host.moved[path])}\r\n")
        number = int(path[1:] or 0) if path[1:].isdigit() or path == "/" else host.pages
        if number >= host.pages:
            return _answered(404, "")
        first = LINKS * number + 1
        links = [f"/{n}" for n in range(first, min(first + LINKS, host.pages))]
        links += map(self._with_port, host.links) if number == 0 else ()
        return _answered(200, "".join(f'<a href="{link}">{link}</a>' for link in links))

    def _with_port(self, url: str) -> str:
        return url.replace("{port}", str(self._port))

    def _has_room(self, host: Host, now: float) -> bool:
        answered = self._answered.setdefault(host.address, deque())
        while answered and answered[0] <= now - host.within:
            answered.popleft()
        if len(answered) >= host.most:
            return False
        answered.append(now)
        return True

    def report(self) -> str:
        """Return the requests that have ended since the last report, and the open ones."""
        ended, self._ended = self._ended, []
        still_open = self._open.values()
        return json.dumps([[astuple(r) for r in ended], [astuple(r) for r in still_open]])


class Connection:
    """One keep-alive connection; every request is a GET without a body."""

    def __init__(self, server: Server, host: Host, accepted: socket.socket) -> None:
        self.host = host
        self._server = server
        self._socket = accepted
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._loop.add_reader(accepted, self._read)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(1 << 16, 256)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._server.end(self, None)
            return
        arrived = _arrival(ancillary)
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            first, *headers = head.decode("latin-1").split("\r\n")
            agents = [h.partition(":")[2] for h in headers if h.lower().startswith("user-agent:")]
            self._server.begin(self, first.split(" ")[1], agents[0].strip(), arrived)

    def send(self, answer: bytes) -> None:
        """Write an answer, which always fits into the socket's buffer."""
        # If the client has left, the next read shows it.
        with suppress(OSError):
            self._socket.send(answer)


def _arrival(ancillary: list[Any]) -> float:
    """Return the time at which the kernel received the bytes just read."""
    now = time.monotonic()
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return now - (time.time() - (seconds + nanoseconds / 1e9))
    return now


def _answered(status: int, body: str, more: str = "") -> tuple[int, bytes]:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
    return status, f"{head}{more}\r\n{body}".encode()


async def serve() -> None:
    hosts = [Host(**each) for each in json.loads(sys.stdin.buffer.readline())]
    server = Server(hosts)
    print(server.listen(), flush=True)
    ended = asyncio.Event()

    def told() -> None:
        line = os.read(sys.stdin.fileno(), 1 << 10)
        if line == b"heal\n":
            server.heal()
        if line:
            print(server.report(), flush=True)
        else:
            ended.set()

    asyncio.get_running_loop().add_reader(sys.stdin, told)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(serve())
