"""What one answer may take besides its content: interim responses, framing, silence between them.

aiohttp bounds headers and leaves these to the server: interim responses and extensions
of chunks may come for ever, and after an interim response it waits without a deadline.
"""

from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from crawlcw.downloader.heads import HeadHandler

#: Of one request. Two are usual (103 Early Hints); some servers send them for ever.
_MAX_INTERIM = 100
#: Bytes on the wire that are no content. A body in chunks of a few bytes is mostly that.
_MAX_FRAMING = 1 << 24


class BoundedHandler(HeadHandler):
    """The receiving end of a connection; hangs up on an answer that is nearly all framing."""

    _interim = 0
    _awaits_another = False  #: what came last was an interim response
    _wire = 0

    def set_response_params(self, **options: Any) -> None:
        """Begin with a request; aiohttp calls this before each."""
        self._interim = self._wire = 0
        self._awaits_another = False
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        """Take the next bytes from the wire."""
        self._wire += len(data)
        super().data_received(data)
        if self._wire > _MAX_FRAMING and self._framing() > _MAX_FRAMING:
            self._refuse("more framing than content")
        elif self._awaits_another and self.is_connected():
            # aiohttp's timer has ended with the interim response.
            self.start_timeout()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of a response, an interim one too, from the parser."""
        self._awaits_another = data[0].code < 200 and data[0].code != 101
        if self._awaits_another:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                self._refuse("interim responses without end")
                return
        super().feed_data(data, size)

    def _framing(self) -> int:
        return self._wire - (self._payload.total_bytes if self._payload is not None else 0)

    def _refuse(self, why: str) -> None:
        if self.transport is not None:
            self.transport.close()
        error = HttpProcessingError(message=why)
        if self._payload is not None:
            # The reader of the body would wait until a deadline.
            self._payload.set_exception(error)
        self.set_exception(error)
