"""One host that this process may ask, and the phases it goes through (a state machine).

                      robots.txt is known                   its breaker opened
    leased ──> OPENING ──────────────────> SERVING <────────────────────────────> RESTING
                  │  ^                      │   ^         it has answered            │
                  │  └─── leased again ───┐ │   │                                    │
                  └──────────────────> LEAVING ─┘ <──────────────────────────────────┘

A host whose queue is open is SERVING, and no other. While it is LEAVING, what is under
way ends, and then it goes back to the ledger; where it is leased again before that,
it goes on as if it had been away.
"""

import asyncio
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from crawlcw.api.host_limits import HostLimit
from crawlcw.crawl.host_queues import HostQueues
from crawlcw.model.health import SlowStart
from crawlcw.model.hosts import Host, HostLease


class Phase(Enum):
    """What a process does with a host that it holds."""

    OPENING = auto()  #: nothing of it is asked for before its robots.txt is known
    SERVING = auto()  #: its tasks get their turns
    RESTING = auto()  #: after its rest a known good page of it is asked first
    LEAVING = auto()  #: nothing more is begun; it is to be released


#: What may follow each phase.
NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.OPENING: frozenset({Phase.SERVING, Phase.LEAVING}),
    Phase.SERVING: frozenset({Phase.RESTING, Phase.LEAVING}),
    Phase.RESTING: frozenset({Phase.SERVING, Phase.LEAVING}),
    Phase.LEAVING: frozenset({Phase.OPENING, Phase.SERVING}),
}


#: What is to be done about a host follows from these, and from its queue.
_NOTED = frozenset({"lease", "busy", "look", "phase", "unsaved"})
_AT_ONCE = frozenset({"phase", "unsaved"})


@dataclass(slots=True, eq=False, kw_only=True)
class HeldHost:
    """A host that this process may ask."""

    changed: set[str] = field(default_factory=set)  #: gets its name when it is to be looked at
    #: Set where that is to be at once: tasks are to go back, or a state is to be written.
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    state: Host  #: as far as it is known
    lease: HostLease | None  #: None: another process has it and shares it
    limit: HostLimit
    since: float
    answered: int = 0  #: in this slice
    fed: float = 0.0  #: when tasks of it were claimed last
    priority: int = 0  #: of its best task, when its tasks were looked at last
    crawl_delay: float = 0.0  #: what its robots.txt asks for, in seconds
    opened: bool = False  #: whether its robots.txt is known
    busy: bool = False  #: something is done about it in the background
    look: bool = True  #: its due tasks are to be looked at
    phase: Phase = Phase.OPENING  #: changed by `Phases` alone
    lost: set[str] = field(default_factory=set)  #: schemes whose waiting tasks are to be ignored
    unsaved: bool = False  #: the ledger is to know of its state at once
    feed_at: float | None = None  #: from when on its tasks are wanted; None: they are not
    slow_start: SlowStart = field(default_factory=SlowStart)
    quick_at: datetime | None = None
    """When the last request was sent that was answered in good time."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in _NOTED:
            self.changed.add(self.state.name)
            if value and name in _AT_ONCE:
                self.wanted.set()

    @property
    def name(self) -> str:
        """The politeness key."""
        return self.state.name

    @property
    def leaving(self) -> bool:
        """Whether nothing more of it is begun, and it is to be released."""
        return self.phase is Phase.LEAVING

    @property
    def delay(self) -> float:
        """Seconds between the starts of two requests."""
        return max(self.limit.delay, self.crawl_delay, self.state.delay)

    @property
    def allowed(self) -> int:
        """Requests at once; 0: no limit."""
        if self.state.failures:
            return 1  # until it has shown that it is back
        window = self.slow_start.window(finished=self.state.finished)
        return min(self.limit.concurrency, window)


def pace(queues: HostQueues, host: HeldHost, *, now: float) -> None:
    """Set the pace of a host's queue by the host's present limits and health."""
    queues.pace(host.name, delay=host.delay, allowed=host.allowed, now=now)


class Phases:
    """Changes the phases of the held hosts, and opens and closes their queues with them.

    Each method raises `ValueError` where the phase may not follow the host's; where the
    host is in it already, nothing changes.
    """

    def __init__(self, queues: HostQueues) -> None:
        self._queues = queues
        #: The names of the hosts that are RESTING.
        self.resting: set[str] = set()

    def serve(self, host: HeldHost, *, now: float) -> None:
        """Let the host's tasks get their turns."""
        if self._enters(host, Phase.SERVING):
            self._queues.open(host.name, now=now)

    def rest(self, host: HeldHost) -> None:
        """Hold the host's tasks back until one of them was asked for by itself."""
        if self._enters(host, Phase.RESTING):
            self._queues.close(host.name)
            self.resting.add(host.name)

    def leave(self, host: HeldHost) -> None:
        """Begin with nothing more of the host."""
        if self._enters(host, Phase.LEAVING):
            self._queues.close(host.name)

    def resume(self, host: HeldHost, *, now: float) -> None:
        """Go on with a host that was being left, and was leased again before it was gone."""
        if host.opened:
            self.serve(host, now=now)
        else:
            self._enters(host, Phase.OPENING)

    def _enters(self, host: HeldHost, phase: Phase) -> bool:
        """Note the phase; return whether the host was in another one."""
        if phase is host.phase:
            return False
        if phase not in NEXT[host.phase]:
            raise ValueError(f"{host.name} is {host.phase.name}, which {phase.name} cannot follow")
        host.phase = phase
        self.resting.discard(host.name)
        return True

    def forget(self, host: HeldHost) -> None:
        """Note that a host is held no more."""
        self.resting.discard(host.name)


@dataclass(slots=True, kw_only=True)
class PageLimit:
    """The most pages of a host; the hosts that have had them are *full*."""

    most: int | None
    unlimited: Container[str]  #: hosts that it does not hold for
    full: set[str]
    #: Whether all start URLs are known: before that nobody knows the crawl's own hosts.
    seeded: bool = False

    def is_reached(self, state: Host) -> bool:
        """Return whether a host is full."""
        return self.limits(state.name) and state.finished >= (self.most or 0)

    def limits(self, name: str) -> bool:
        """Return whether the pages of a host are to be counted."""
        return self.most is not None and name not in self.unlimited
