"""Exchange messages between a supervisor and a worker process, as lines on a socket.

The supervisor sends orders to stop, each with a grace period. The worker sends its states and, if
it does not crash, its exit code. Orders are not signals, because a signal would kill a starting
worker. The worker does not send states on stdout, because the spider uses stdout.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from crawlcw.cli.exit_codes import INTERRUPTED, OK
from crawlcw.model.counters import Counters, EarlyEnd, FinishReason
from crawlcw.model.idle_reason import IdleReason
from crawlcw.telemetry.metrics import Measures

#: Maximum number of bytes of a line; longer lines are split, so that memory stays bounded.
_LONGEST_LINE = 1 << 20


def exit_line(code: int) -> bytes:
    """Return the line with the exit code, which a worker sends last unless it has crashed.

    The exit code of the process does not show a crash, because the spider's code may set it.
    """
    return b'{"exit": %d}\n' % code


def code_of(reason: FinishReason | None) -> int:
    """Return the exit code of a worker that ended normally, with the finish reason *reason*."""
    return INTERRUPTED if reason is FinishReason.STOPPED_AT_ONCE else OK


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The counters and the condition of a worker at the time when it sends this state."""

    counters: Counters = field(default_factory=Counters)
    idle_reason: IdleReason | None = None  #: why the crawl waits now, or None
    released: int = 0  #: number of tasks that the worker released at its end
    finish_reason: FinishReason | None = None  #: why the crawl ended, or None before its end
    ending: EarlyEnd | None = None  #: why the crawl ends before all tasks are done, or None
    measures: Measures | None = field(default=None, compare=False)  #: None: without metrics

    def line(self) -> bytes:
        """Return the state as a line of JSON to send."""
        return json.dumps(asdict(self), default=datetime.isoformat).encode() + b"\n"

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "WorkerState":
        """Return the state from the fields of a received line."""
        fields["counters"] = Counters(**fields["counters"])
        if fields["idle_reason"] is not None:
            fields["idle_reason"] = IdleReason.of(fields["idle_reason"])
        if fields["measures"] is not None:
            fields["measures"] = Measures(**fields["measures"])
        if fields["finish_reason"] is not None:
            fields["finish_reason"] = FinishReason(fields["finish_reason"])
        if (early_end := fields["ending"]) is not None:
            fields["ending"] = EarlyEnd(
                reason=FinishReason(early_end["reason"]), detail=early_end["detail"]
            )
        return cls(**fields)


class Lines(asyncio.Protocol):
    """Calls the function *take* with each received line, without the line end."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.closed = asyncio.Event()
        self._take_line = take
        self._incomplete_line = b""

    def data_received(self, data: bytes) -> None:
        """Pass the complete lines in *data* to `take`."""
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        if len(self._incomplete_line) > _LONGEST_LINE:
            lines.append(self._incomplete_line)
            self._incomplete_line = b""
        for line in lines:
            self._take_line(line)

    def connection_lost(self, _error: Exception | None) -> None:
        """Pass an incomplete last line to `take`, and set `closed`."""
        if self._incomplete_line:
            self._take_line(self._incomplete_line)
        self.closed.set()
