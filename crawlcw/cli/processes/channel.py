"""Exchange messages between a supervisor and its worker, as lines on a separate socket.

The supervisor sends the orders to stop, each with its grace. The worker sends its states and, at
an orderly end, its exit code. Orders are not signals, because a signal would kill a worker during
its start. States do not use stdout, because stdout is the spider's.
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

#: Longer lines are passed on in pieces, so that memory stays bounded.
_LONGEST_LINE = 1 << 20


def exit_line(code: int) -> bytes:
    """Return the last line of an orderly end; a worker that has not sent it has crashed.

    The exit code of the process is not proof, because the spider's code may exit with any code.
    """
    return b'{"exit": %d}\n' % code


def code_of(reason: FinishReason | None) -> int:
    """Return the exit code of a worker that has ended in order."""
    return INTERRUPTED if reason is FinishReason.STOPPED_AT_ONCE else OK


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """Counters and condition of a worker; each state replaces the previous state."""

    counters: Counters = field(default_factory=Counters)
    idle_reason: IdleReason | None = None  #: the reason why the crawl waits; None: it progresses
    released: int = 0  #: tasks released at the end
    finish_reason: FinishReason | None = None  #: None: the crawl has not ended
    ending: EarlyEnd | None = None  #: the reason of an early end; None: there is none
    measures: Measures | None = field(default=None, compare=False)  #: None: without metrics

    def line(self) -> bytes:
        """Return the state as a line to send."""
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
    """Passes received lines to *take*, without line ends; an incomplete line only at the end."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.closed = asyncio.Event()
        self._take = take
        self._remainder = b""

    def data_received(self, data: bytes) -> None:
        """Pass on the complete lines."""
        *lines, self._remainder = (self._remainder + data).split(b"\n")
        if len(self._remainder) > _LONGEST_LINE:
            lines.append(self._remainder)
            self._remainder = b""
        for line in lines:
            self._take(line)

    def connection_lost(self, _error: Exception | None) -> None:
        """Pass on an incomplete line, and note the end."""
        if self._remainder:
            self._take(self._remainder)
        self.closed.set()
