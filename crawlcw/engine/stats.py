"""Counters of the work of one process, and instruments that time each step of a page."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from crawlcw.errors import FAILURE_REASONS
from crawlcw.model.counters import MAX_NAMED, Counters, DroppedLinks, Histogram
from crawlcw.model.task import Lease, Status
from crawlcw.model.transitions import Event, Settlement


@dataclass(slots=True, kw_only=True)
class Stats(Counters):
    """Counters of one process since the process started; only its crawl changes the counters."""

    started_at: float = field(default_factory=time.monotonic)
    items_by_callback: Counter[str] = field(default_factory=Counter)
    items_dropped: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    host_failures: Counter[str] = field(default_factory=Counter)
    hosts_given_up: dict[str, str] = field(default_factory=dict)
    links_dropped: Counter[str] = field(default_factory=Counter)
    link_examples: dict[str, list[str]] = field(default_factory=dict)
    dropped: DroppedLinks = field(init=False)  #: `links_dropped` and `link_examples`
    outcomes: Counter[Event] = field(default_factory=Counter)  #: recorded outcomes
    unwritten_pages: int = 0  #: number of finished pages that the ledger has not yet recorded
    unwritten_items: int = 0  #: number of items that the ledger has not yet recorded
    unwanted: int = 0  #: number of ignored pages without a failure, such as pages out of scope
    statuses: Counter[int] = field(default_factory=Counter)  #: responses by HTTP status
    links_added: int = 0  #: new tasks
    claims: int = 0
    claims_missed: int = 0
    loop_lag: Histogram = field(default_factory=Histogram)  #: event loop's lag in seconds
    ledger_operations: Counter[str] = field(default_factory=Counter)  #: sent operations, by name

    def __post_init__(self) -> None:
        self.dropped = DroppedLinks(self.links_dropped, self.link_examples)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    def snapshot(self) -> Counters:
        """Return a copy of the counters; its mappings begin with their largest numbers."""
        return Counters() + self

    def host_given_up(self, origin: str, reason: str) -> None:
        """Count a given-up origin; the counters name only the first hundred origins."""
        if origin in self.hosts_given_up or len(self.hosts_given_up) < MAX_NAMED:
            self.hosts_given_up[origin] = reason
        else:
            self.more_hosts_given_up += 1

    def count_unwritten(self, settlements: Iterable[Settlement], *, written: bool = False) -> None:
        """Add *settlements* to the counts of unwritten pages and items (subtract if *written*)."""
        step = -1 if written else 1
        for settlement in settlements:
            change = settlement.change
            is_page = change.status is Status.FINISHED and change.reason is None
            self.unwritten_pages += step * is_page
            self.unwritten_items += step * len(change.items or ())

    def record(self, settlement: Settlement) -> None:
        """Count an outcome that the ledger has acknowledged."""
        change = settlement.change
        self.outcomes[change.event] += 1
        self.unchanged += change.event is Event.CONFIRM
        if change.items:
            task = settlement.lease.task
            is_finished = change.status is Status.FINISHED
            self.items += len(change.items)
            callback_name = task.callback if is_finished else task.errback or "on_error"
            self.items_by_callback[callback_name] += len(change.items)
        if change.status is Status.FINISHED:
            is_page = change.reason is None
            self.pages += is_page
            self.redirects += not is_page
        elif change.error is not None:
            self.failures[change.error.kind] += 1
            if change.status is Status.IGNORED:
                has_failed = change.error.kind in FAILURE_REASONS
                self.given_up += has_failed
                self.unwanted += not has_failed


class Step(Protocol):
    """A step in progress."""

    def record_response(self, *, status: int, size: int) -> None:
        """Note a response: its HTTP status, and the bytes of its decoded body."""

    def record_failure(self, reason: str) -> None:
        """Record that the step failed, for one of the reasons of `errors.Reason`."""


#: If a crawl has no instruments, each step uses this empty context manager.
NO_STEP: AbstractContextManager[Step | None] = nullcontext()


class Instruments(Protocol):
    """Observer of each step. A step has failed if an exception leaves its `with` block."""

    def fetch(self, lease: Lease) -> AbstractContextManager[Step]:
        """Return the context manager around one attempt at a page."""

    def parse(self, lease: Lease, callback: str) -> AbstractContextManager[Step]:
        """Return the context manager around a callback."""

    def commit(self, leases: Sequence[Lease]) -> AbstractContextManager[Step]:
        """Return the context manager around the write of the links and outcomes of *leases*."""
