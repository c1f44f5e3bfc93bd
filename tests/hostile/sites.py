"""Plain web servers on threads, which log every request."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

#: Status, headers and body of an answer.
Answer = tuple[int, dict[str, str], str]


@dataclass
class Asked:
    """One request, as its server received it."""

    path: str
    headers: dict[str, str]  #: by lower-case name


@dataclass
class Site:
    """A running server."""

    port: int
    asked: list[Asked] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers_at(self, path: str) -> list[dict[str, str]]:
        return [each.headers for each in self.asked if each.path == path]


@contextmanager
def site(answer: Callable[[Asked], Answer]) -> Iterator[Site]:
    """Run a server on a usual port of web servers; `/robots.txt` is a 404 and is not logged."""
    running: Site

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.path, headers)
            running.asked.append(asked)
            none: Answer = (404, {}, "")
            status, fields, body = none if self.path == "/robots.txt" else answer(asked)
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", **fields}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = _listening(Handler)
    running = Site(server.server_address[1])
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listening(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    for port in range(8400, 9000):
        with suppress(OSError):
            return ThreadingHTTPServer(("127.0.0.1", port), handler)
    raise OSError("no free port between 8400 and 8999")
