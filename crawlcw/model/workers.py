"""A process that works on a ledger."""

from dataclasses import dataclass, field
from datetime import datetime

from crawlcw.model.counters import Counters
from crawlcw.model.rates import Vitals


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that works on the ledger."""

    name: str  #: its leases' tokens are `name:n`
    machine: str  #: what machine it runs on; the same text for all processes there
    pid: int
    birth: str  #: tells the process from a later one with its pid
    started: datetime
    heartbeat: datetime  #: when it last said that it lives
    host: str = ""  #: the machine's name, for people
    idle: bool = False  #: whether it has no host to ask, though there is work
    counters: Counters = field(default_factory=Counters)
    vitals: Vitals | None = None  #: its state as it was shown last; None: not yet
