"""What one process counts while it crawls, and the report it ends with."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from crawlcw.errors import FAILURE_REASONS, Reason
from crawlcw.ledger.protocol import Counts
from crawlcw.model.dropped import DroppedLinks, Examples
from crawlcw.model.histogram import Histogram
from crawlcw.model.task import Status
from crawlcw.model.transitions import Event, Settlement

#: Of hosts that were given up, so many are named.
MOST_NAMED = 100


class GivenUpHosts(dict[str, str]):
    """Origins that were given up in this run, and why: the first hundred, and how many more."""

    def __init__(self) -> None:
        super().__init__()
        self.more = 0

    def __setitem__(self, origin: str, reason: str) -> None:
        if origin in self or len(self) < MOST_NAMED:
            super().__setitem__(origin, reason)
        else:
            self.more += 1


@dataclass(slots=True)
class Stats:
    """Counters of one process, since it started. Written by the crawl, read by anyone."""

    started: float = field(default_factory=time.monotonic)
    fetched: int = 0  #: responses received, of whatever status
    bytes: int = 0  #: of decoded bodies
    truncated: int = 0  #: bodies cut at `max_body`, or by their server
    pages: int = 0  #: finished, and recorded
    redirects: int = 0  #: finished tasks whose pages are other ones'
    items: int = 0  #: recorded
    items_by_callback: Counter[str] = field(default_factory=Counter)  #: recorded
    items_dropped: Counter[str] = field(default_factory=Counter)  #: not recorded, by reason
    outcomes: Counter[Event] = field(default_factory=Counter)  #: recorded
    failures: Counter[str] = field(default_factory=Counter)  #: failed attempts by reason
    host_failures: Counter[str] = field(default_factory=Counter)  #: of hosts, not of pages
    hosts_given_up: GivenUpHosts = field(default_factory=GivenUpHosts)  #: origin -> reason
    given_up: int = 0  #: pages ignored because they failed, those of hosts given up included
    over_full: int = 0  #: pages ignored because their hosts had had `max_pages_per_host`
    unwanted: int = 0  #: pages ignored for another reason: out of scope, refused by robots.txt
    statuses: Counter[int] = field(default_factory=Counter)  #: responses by HTTP status
    links_added: int = 0  #: new tasks
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    claims: int = 0
    claims_missed: int = 0
    leases_lost: int = 0  #: results dropped because another worker holds the task now
    stalls: int = 0  #: times that the event loop stood still for a second or more
    longest_stall: float = 0.0  #: seconds
    forgiven: int = 0  #: failures that such times explain
    loop_lag: Histogram = field(default_factory=Histogram)  #: ten times a second
    internal_errors: int = 0  #: of crawlcw itself; each has put a page back
    ledger_operations: Counter[str] = field(default_factory=Counter)  #: asked, by name

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def unchanged(self) -> int:
        """Pages that were visited again and found as they were."""
        return self.outcomes[Event.CONFIRM]

    @property
    def links_dropped(self) -> Counter[str]:
        """Links that were not followed, by reason."""
        return self.dropped.counts

    @property
    def link_examples(self) -> Examples:
        """A few of those links, by reason."""
        return self.dropped.examples

    @property
    def more_hosts_given_up(self) -> int:
        """The number of hosts given up that `hosts_given_up` does not name."""
        return self.hosts_given_up.more

    def record(self, settlement: Settlement) -> None:
        """Count an outcome that the ledger has acknowledged."""
        change = settlement.change
        self.outcomes[change.event] += 1
        if change.items:
            self.items += len(change.items)
            self.items_by_callback[_producer(settlement)] += len(change.items)
        if change.status is Status.FINISHED:
            is_page = change.reason is None
            self.pages += is_page
            self.redirects += not is_page
        elif change.error is not None:
            self.failures[change.error.kind] += 1
            if change.status is Status.IGNORED:
                failed = change.error.kind in FAILURE_REASONS
                self.given_up += failed
                self.unwanted += not failed


def _producer(settlement: Settlement) -> str:
    """Return the name of the callback that yielded the items of an outcome."""
    task = settlement.lease.task
    if settlement.change.status is Status.FINISHED:
        return task.callback
    return task.errback or "on_error"


class FinishReason(StrEnum):
    """Why a crawl, or a worker on tracked tasks, has ended."""

    DRAINED = "drained"  #: nothing is left to do
    MAX_PAGES = "max-pages"  #: as many pages as were allowed are finished
    STOPPED = "stopped"  #: by its user, with time for what was under way
    STOPPED_AT_ONCE = "stopped-at-once"  #: by its user, without
    STOPPED_BY_SPIDER = "stopped-by-spider"  #: `StopCrawl`
    CALLBACK_BROKEN = "callback-broken"  #: a callback has raised for all of its first pages
    FILES_UNWRITABLE = "files-unwritable"  #: a disk is full, or a folder takes no files
    LOGIN_FAILED = "login-failed"  #: no login of a session was of use
    PROXIES_FAILED = "proxies-failed"  #: no proxy works any more
    INTERNAL_ERROR = "internal-error"  #: an error of crawlcw itself on every page that is left
    FAILED = "failed"  #: all of several processes have crashed, or given up


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """Why a crawl ends itself before it is drained."""

    reason: FinishReason
    detail: str  #: what that is due to


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a crawl ended, as far as this process saw it."""

    spider: str
    finish_reason: FinishReason
    elapsed: float  #: seconds
    pages: int  #: finished by this process
    items: int  #: recorded by this process
    released: int  #: tasks given back at the end
    counts: Counts | None  #: of the whole ledger; None where counting took too long, or failed
    failures: Mapping[str, int]  #: failed attempts of this process, by reason
    host_failures: Mapping[str, int]  #: answers, or none, that cost no page an attempt
    links_dropped: Mapping[str, int]  #: links not followed, by reason
    leases_lost: int = 0
    link_examples: Examples = field(default_factory=dict)  #: a few of the links not followed
    items_by_callback: Mapping[str, int] = field(default_factory=dict)  #: recorded by this process
    items_dropped: Mapping[str, int] = field(default_factory=dict)  #: not recorded, by reason
    stalls: int = 0  #: times that an event loop stood still for a second or more
    longest_stall: float = 0.0  #: seconds
    forgiven: int = 0  #: failed attempts that cost nothing, because of such times
    unchanged: int = 0  #: of the pages, those that were visited again and found as they were
    detail: str = ""  #: why, where the spider or its callback ended it
    given_up: int = 0  #: pages ignored in this run because they failed
    hosts_given_up: Mapping[str, str] = field(default_factory=dict)
    """Hosts given up in this run, by their origins, and why; at most a hundred."""
    more_hosts_given_up: int = 0  #: those that are not named
    truncated: int = 0  #: bodies cut at `max_body`, or by their server
    over_full: int = 0  #: pages ignored because their hosts had had `max_pages_per_host`
    redirects: int = 0  #: finished by this process, and no pages of their own
    failed_before: int = 0  #: the ledger's pages that failed, in this run or before
    internal_errors: int = 0  #: of crawlcw itself; each has put a page back
    any_finished: bool | None = None
    """Whether the ledger has a finished page, of this run or before; None: it did not say."""

    @property
    def drained(self) -> bool:
        """Whether nothing is left to do."""
        return self.finish_reason == FinishReason.DRAINED


def failed_pages(reasons: Mapping[str, int]) -> int:
    """Return how many of a ledger's tasks, by their *reasons*, failed and wait for `retry-failed`.

    What is beyond `max_pages_per_host` did not fail, though `retry-failed` brings it back as well.
    """
    failed = FAILURE_REASONS - {Reason.HOST_FULL}
    return sum(number for reason, number in reasons.items() if reason in failed)
