"""Content-Length that is repeated in the head of an answer (RFC 9110, section 8.6).

Equal ones are one: some servers add theirs to that of the program behind them. The parser
of aiohttp refuses such a head, so it is rewritten before; different ones stay refused.
A head that comes in pieces is held back until it is whole, for any of them may have one.
"""

from typing import Any

from aiohttp.client_proto import ResponseHandler

#: A head that is longer is not looked at; its parts are the parser's to bound.
_LONGEST = 1 << 14
_LENGTH = b"\ncontent-length:"
#: What begins an interim response; a further head comes behind it.
_INTERIM = (b"HTTP/1.1 1", b"HTTP/1.0 1")


class HeadHandler(ResponseHandler):
    """The receiving end of a connection; merges lengths that are equal."""

    #: What has come of the head that is awaited; None while none is.
    _head: bytes | None = None

    def set_response_params(self, **options: Any) -> None:
        """Begin with a request; aiohttp calls this before each."""
        self._head = b""
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        """Take the next bytes from the wire."""
        if data and self._head is not None:
            data = self._looked_at(self._head + data)
            if not data:
                self.start_timeout()  # it has not been silent
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let the parser say what is wrong with a head that has no end."""
        head, self._head = self._head, None
        if head:
            super().data_received(head)
        super().connection_lost(exc)

    def _looked_at(self, data: bytes) -> bytes:
        """Return what of *data*, with which an answer begins, may be parsed; keep the rest."""
        begin = 0
        while end := _end(data, begin):
            head = merged(data[begin:end])
            if head is not None:
                data, end = data[:begin] + head + data[end:], begin + len(head)
            if not data.startswith(_INTERIM, begin):
                self._head = None
                return data
            begin = end
        rest = data[begin:]
        is_head = b"HTTP/".startswith(rest[:5]) and len(rest) <= _LONGEST
        self._head = rest if is_head else None
        return data[:begin] if is_head else data


def _end(data: bytes, begin: int) -> int:
    """Return where the head that begins there ends, 0 where it does not."""
    end = data.find(b"\n\r\n", begin)
    bare = data.find(b"\n\n", begin, None if end < 0 else end)
    return bare + 2 if bare >= 0 else end + 3 if end >= 0 else 0


def merged(head: bytes) -> bytes | None:
    """Return a head with one Content-Length for several equal ones, None where there are none."""
    lower = head.lower()
    at = lower.find(_LENGTH)
    if at < 0 or not (
        lower.find(_LENGTH, at + 1) > 0 or b"," in lower[at : lower.find(b"\n", at + 1)]
    ):
        return None
    lines = head.split(b"\n")
    places = [n for n, line in enumerate(lines) if line.lower().startswith(_LENGTH[1:])]
    values = {value.strip() for n in places for value in lines[n].partition(b":")[2].split(b",")}
    value = values.pop()
    # A line that goes on in the next one would go on in another.
    if values or not value.isdigit() or any(line.startswith((b" ", b"\t")) for line in lines):
        return None
    lines[places[0]] = b"Content-Length: %s\r" % value
    return b"\n".join(line for n, line in enumerate(lines) if n not in places[1:])
