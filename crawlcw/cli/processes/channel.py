"""What a supervisor and a worker have to say to each other, on a socket of their own.

The worker says what it has counted, the supervisor when to begin and to stop, each in lines.
It is no signal, which a worker that is just starting would die of, and not the
worker's stdout, which is the spider's. Whose lines come to their end is gone.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum

from crawlcw.engine.stats import EarlyEnd, FinishReason, Report, Stats
from crawlcw.model.dropped import Examples, merged
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


class Order(StrEnum):
    """What a supervisor tells a worker. To say the same again changes nothing."""

    STOP = "stop"
    STOP_NOW = "stop-now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one worker has counted since it started; each account takes the place of the last."""

    pages: int = 0
    redirects: int = 0
    items: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    host_failures: Mapping[str, int] = field(default_factory=dict)
    links_dropped: Mapping[str, int] = field(default_factory=dict)
    link_examples: Examples = field(default_factory=dict)
    items_by_callback: Mapping[str, int] = field(default_factory=dict)
    items_dropped: Mapping[str, int] = field(default_factory=dict)
    leases_lost: int = 0
    given_up: int = 0
    over_full: int = 0
    hosts_given_up: Mapping[str, str] = field(default_factory=dict)
    more_hosts_given_up: int = 0
    standstill: Standstill | None = None  #: why nothing moves; None while something does
    stalls: int = 0
    longest_stall: float = 0.0
    forgiven: int = 0
    truncated: int = 0
    unchanged: int = 0
    internal_errors: int = 0
    released: int = 0
    finish_reason: FinishReason | None = None  #: why the crawl has ended; None while it has not
    ending: FinishReason | None = None  #: why it ends itself; None while it does not
    detail: str = ""  #: what that is due to
    measures: Measures | None = field(default=None, compare=False)  #: where somebody measures

    @classmethod
    def of(
        cls,
        counted: Stats | Report,
        *,
        standstill: Standstill | None = None,
        released: int = 0,
        finish_reason: FinishReason | None = None,
        ending: EarlyEnd | None = None,
        measures: Measures | None = None,
    ) -> "Account":
        """Return the account of a crawl that runs, or has ended."""
        return cls(
            pages=counted.pages,
            redirects=counted.redirects,
            items=counted.items,
            failures=dict(counted.failures),
            host_failures=dict(counted.host_failures),
            links_dropped=dict(counted.links_dropped),
            link_examples=merged([counted.link_examples]),
            items_by_callback=dict(counted.items_by_callback),
            items_dropped=dict(counted.items_dropped),
            leases_lost=counted.leases_lost,
            given_up=counted.given_up,
            over_full=counted.over_full,
            hosts_given_up=dict(counted.hosts_given_up),
            more_hosts_given_up=counted.more_hosts_given_up,
            standstill=standstill,
            stalls=counted.stalls,
            longest_stall=counted.longest_stall,
            forgiven=counted.forgiven,
            truncated=counted.truncated,
            unchanged=counted.unchanged,
            internal_errors=counted.internal_errors,
            released=released,
            finish_reason=finish_reason,
            ending=None if ending is None else ending.reason,
            detail="" if ending is None else ending.detail,
            measures=measures,
        )

    def line(self) -> bytes:
        """Return the account as it is sent."""
        return json.dumps(asdict(self), default=datetime.isoformat).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "Account":
        """Return the account that was sent; raises `ValueError` for a part of one."""
        fields = json.loads(line)
        if fields["standstill"] is not None:
            fields["standstill"] = Standstill.of(fields["standstill"])
        if fields["measures"] is not None:
            fields["measures"] = Measures(**fields["measures"])
        for name in ("finish_reason", "ending"):
            if fields[name] is not None:
                fields[name] = FinishReason(fields[name])
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
