"""Plain servers on threads of the test's own process, by the standard library."""

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self


class PlainHandler(BaseHTTPRequestHandler):
    """Answers by `get` and `post` with pages of a known length, and logs nothing."""

    def do_GET(self) -> None:  # the name that the base class calls
        self.get()

    def do_POST(self) -> None:  # likewise
        self.post()

    def get(self) -> None:
        raise NotImplementedError

    def post(self) -> None:
        raise NotImplementedError

    def reply(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        """Send *text* as a page; *headers* are added to its own, or replace them."""
        body = text.encode()
        fields = {"Content-Type": "text/html", "Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in {**fields, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


class PlainSite:
    """A server that answers by *handler*, from the start to the end of a block."""

    def __init__(
        self, handler: type[PlainHandler], *, address: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._server = _Server((address, port), handler)
        self.url = f"http://{address}:{self._server.server_port}/"
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
