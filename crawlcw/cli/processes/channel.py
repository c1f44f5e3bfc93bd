"""Messages between a supervisor and its worker: lines on a socket of their own.

The supervisor sends the number of pages to begin with, then the orders to stop. The worker sends
its states and, where it ends by itself, its exit code. It is no signal, which a worker that is
just starting would die of, and not the worker's stdout, which is the spider's.
"""

import asyncio
import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from crawlcw.model.counters import Counters, EarlyEnd, FinishReason
from crawlcw.model.standstill import Standstill
from crawlcw.telemetry.measures import Measures

#: What is longer is given on in pieces: nobody waits for the end of a line for ever.
_LONGEST_LINE = 1 << 20


def go(max_pages: int | None) -> bytes:
    """Return the word to begin, with the pages that the worker may finish; None: all there are."""
    return b"%d\n" % (max_pages or 0)


def awaited_go(channel: int) -> int | None:
    """Wait for `go` on a descriptor; return its pages, 0: all. None: the supervisor is gone.

    A worker may have been started ahead of need.
    """
    # Unbuffered: what comes after it is for the event loop.
    with suppress(ConnectionError), io.FileIO(channel, closefd=False) as unbuffered:
        line = unbuffered.readline()
        return int(line) if line.endswith(b"\n") else None
    return None


def exit_line(code: int) -> bytes:
    """Return the last line of a worker that ends by itself; one that has not sent it has crashed.

    The exit code of the process does not tell that: a page may end it with any.
    """
    return b'{"exit": %d}\n' % code


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker has counted, and how it is; each takes the place of the last."""

    counters: Counters = field(default_factory=Counters)
    standstill: Standstill | None = None  #: why nothing moves; None while something does
    released: int = 0  #: tasks given back at the end
    finish_reason: FinishReason | None = None  #: why the crawl has ended; None while it has not
    ending: EarlyEnd | None = None  #: why it ends itself; None while it does not
    measures: Measures | None = field(default=None, compare=False)  #: where somebody measures

    def line(self) -> bytes:
        """Return it as it is sent."""
        return json.dumps(asdict(self), default=datetime.isoformat).encode() + b"\n"

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "WorkerState":
        """Return what was sent."""
        fields["counters"] = Counters(**fields["counters"])
        if fields["standstill"] is not None:
            fields["standstill"] = Standstill.of(fields["standstill"])
        if fields["measures"] is not None:
            fields["measures"] = Measures(**fields["measures"])
        if fields["finish_reason"] is not None:
            fields["finish_reason"] = FinishReason(fields["finish_reason"])
        if (end := fields["ending"]) is not None:
            fields["ending"] = EarlyEnd(reason=FinishReason(end["reason"]), detail=end["detail"])
        return cls(**fields)


class Lines(asyncio.Protocol):
    """Gives each line that arrives to *take*, without its end, and what is left at the end."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.ended = asyncio.Event()
        self._take = take
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Give on what is whole by now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line)

    def connection_lost(self, _error: Exception | None) -> None:
        """Give on the rest, and note the end."""
        if self._rest:
            self._take(self._rest)
        self.ended.set()
