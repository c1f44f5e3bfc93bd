"""What a supervisor and a worker have to say to each other, on a socket of their own.

The worker says what it has counted, the supervisor when to begin and to stop, each in lines.
It is no signal, which a worker that is just starting would die of, and not the
worker's stdout, which is the spider's. Whose lines come to their end is gone.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime

from crawlcw.model.counters import Counters, EarlyEnd, FinishReason
from crawlcw.model.standstill import Standstill
from crawlcw.telemetry.measures import Measures

#: What is longer is given on in pieces: nobody waits for the end of a line for ever.
_LONGEST_LINE = 1 << 20
_LAST_WORD = b"exit "
_GO = b"go"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """What a worker says that ends by itself; who has not said it has crashed.

    No exit code tells that: a page may end the process with any.
    """

    code: int  #: what it exits with

    def line(self) -> bytes:
        """Return it as it is sent."""
        return b"%s%d\n" % (_LAST_WORD, self.code)

    @classmethod
    def read(cls, line: bytes) -> "LastWord | None":
        """Return it, or None for a line that is none; raises `ValueError` for a part of one."""
        return cls(code=int(line[len(_LAST_WORD) :])) if line.startswith(_LAST_WORD) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """What a worker waits for before it begins; it may have been started ahead of need."""

    max_pages: int | None = None  #: how many pages it may finish; None: as many as there are

    def line(self) -> bytes:
        """Return it as it is sent."""
        return b"%s %d\n" % (_GO, self.max_pages) if self.max_pages else b"%s\n" % _GO

    @classmethod
    def awaited(cls, channel: int) -> "Go | None":
        """Wait for it on *channel*, a descriptor; None where the supervisor is gone instead."""
        line = b""
        while not line.endswith(b"\n"):
            # One by one: what comes after it is for the event loop.
            try:
                byte = os.read(channel, 1)
            except ConnectionError:
                return None
            if not byte:
                return None
            line += byte
        pages = line[len(_GO) :].strip()
        return cls(max_pages=int(pages) if pages else None)


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
    def read(cls, line: bytes) -> "WorkerState":
        """Return what was sent; raises `ValueError` for a part of it."""
        fields = json.loads(line)
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
