"""Counters of one or several processes, and the final report of a crawl. No I/O."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import islice
from typing import Any, Self

from crawlcw.errors import FAILURE_REASONS, Reason
from crawlcw.model.sanitize import printable, redacted
from crawlcw.model.task import Status

#: Maximum number of given-up hosts that a report names.
MAX_NAMED = 100


class FinishReason(StrEnum):
    """Why a crawl, or a worker on tracked tasks, has ended."""

    DRAINED = "drained"  #: no task remains
    MAX_PAGES = "max-pages"  #: the crawl has finished `max_pages` pages
    MAX_ITEMS = "max-items"  #: the crawl has recorded `max_items` items
    STOPPED = "stopped"  #: the user stopped the crawl, with time for the current pages
    STOPPED_AT_ONCE = "stopped-at-once"  #: the user stopped the crawl immediately
    STOPPED_BY_SPIDER = "stopped-by-spider"  #: the spider raised `StopCrawl`
    CALLBACK_BROKEN = "callback-broken"  #: a callback failed for all of its first pages
    FILES_UNWRITABLE = "files-unwritable"  #: a disk is full, or a folder accepts no files
    LOGIN_FAILED = "login-failed"  #: no login of a session worked
    PROXIES_FAILED = "proxies-failed"  #: no proxy works any more
    INTERNAL_ERROR = "internal-error"  #: a bug in crawlcw fails every remaining page
    FAILED = "failed"  #: all worker processes have crashed or given up


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """Why a crawl ends, or has ended, before the ledger is drained."""

    reason: FinishReason
    detail: str  #: the cause, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRule:
    """How a finish reason affects the exit code and the last line of a crawl's output."""

    opening: str = "Stopped"  #: beginning of the crawl's last line
    fault: str = ""  #: text for exit code 3 if `Report.detail` is empty; empty without a fault
    is_complete: bool = False  #: whether given-up hosts and failed pages cause exit code 3


#: Rule for each finish reason. If workers end for different reasons, the crawl's reason is the
#: first of their reasons in this table.
FINISH_RULES: Mapping[FinishReason, FinishRule] = {
    FinishReason.STOPPED_AT_ONCE: FinishRule(opening="Stopped at once"),
    FinishReason.CALLBACK_BROKEN: FinishRule(fault="a callback is broken"),
    FinishReason.FILES_UNWRITABLE: FinishRule(fault="files cannot be saved"),
    FinishReason.LOGIN_FAILED: FinishRule(fault="the login failed"),
    FinishReason.PROXIES_FAILED: FinishRule(fault="no proxy works"),
    FinishReason.INTERNAL_ERROR: FinishRule(fault="a bug in crawlcw"),
    FinishReason.STOPPED_BY_SPIDER: FinishRule(opening="Stopped by the spider", is_complete=True),
    FinishReason.STOPPED: FinishRule(),
    FinishReason.DRAINED: FinishRule(opening="Drained", is_complete=True),
    FinishReason.MAX_PAGES: FinishRule(opening="Stopped at max_pages"),
    FinishReason.MAX_ITEMS: FinishRule(opening="Stopped at max_items"),
    FinishReason.FAILED: FinishRule(opening="Failed"),
}


def merged_reason(reasons: Iterable[FinishReason | None], *, is_empty: bool) -> FinishReason:
    """Return a crawl's finish reason from its workers' *reasons*; None stands for a failed worker.

    *is_empty* says that no task of the crawl remains. The result is `failed` if no worker has a
    reason. If tasks remain, the result is also `failed` when some workers failed and all the other
    workers drained the ledger.
    """
    distinct_reasons = set(reasons)
    # If all workers drained the ledger, all start URLs were added. So a task remains only if one
    # worker ended before another worker released or added the task.
    if not is_empty and distinct_reasons != {FinishReason.DRAINED}:
        distinct_reasons.discard(FinishReason.DRAINED)
    return next(
        (reason for reason in FINISH_RULES if reason in distinct_reasons), FinishReason.FAILED
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of tasks in the ledger."""

    by_status: dict[Status, int] = field(default_factory=dict)
    redirects: int = 0  #: finished tasks whose URL redirects to the page of another task

    def __getitem__(self, status: Status) -> int:
        return self.by_status.get(status, 0)

    @property
    def total(self) -> int:
        """The number of tasks."""
        return sum(self.by_status.values())

    @property
    def without_redirects(self) -> int:
        """Number of tasks, not counting tasks that are known to be redirects."""
        return self.total - self.redirects

    @property
    def pages(self) -> int:
        """Number of finished tasks that are not redirects."""
        # Never return less than 0, because finished tasks and redirects are counted one after the
        # other.
        return max(self[Status.FINISHED] - self.redirects, 0)

    def by_name(self) -> dict[str, int]:
        """Return the numbers by status name, where `finished` counts pages, without redirects."""
        numbers = {status.name.lower(): self[status] for status in Status}
        return numbers | {"finished": self.pages}

    def for_display(self) -> dict[str, int]:
        """Return the numbers by name, in the order of a task's life, with redirects last."""
        numbers = self.by_name()
        status_names = ("todo", "processing", "failed", "finished", "ignored")
        redirects = {"redirects": self.redirects} if self.redirects else {}
        return {name: numbers[name] for name in status_names} | redirects


#: Maximum number of different example links for each reason.
KEPT_EXAMPLES = 3

#: Map from a reason to the first links that were dropped for it, in printable form.
Examples = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class DroppedLinks:
    """Counts dropped links by reason, and keeps the first few different links."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, reason: str, link: str) -> None:
        """Count one dropped link; *link* is the text in the page, which may be anything."""
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        # Clean only the kept links. A page may have thousands of links, and to clean them all would
        # take longer than to filter them.
        if len(examples) < KEPT_EXAMPLES and (example := printable(redacted(link))) not in examples:
            examples.append(example)

    def add(self, other: "DroppedLinks") -> None:
        """Add the counts and the examples of *other*."""
        self.counts.update(other.counts)
        for reason, links in other.examples.items():
            self.examples[reason] = _first_links([*self.examples.get(reason, ()), *links])


def merged_examples(all_examples: Iterable[Examples]) -> dict[str, list[str]]:
    """Return a few example links for each reason, without duplicates."""
    total: dict[str, list[str]] = {}
    for examples in all_examples:
        for reason, links in examples.items():
            total[reason] = _first_links([*total.get(reason, ()), *links])
    return total


def _first_links(links: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(links)][:KEPT_EXAMPLES]


#: Bounds of a histogram in seconds, from the time of a cached response to the longest timeout.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts durations in seconds, in constant memory."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        #: Number of durations up to each of `BOUNDS`; the last number counts longer durations.
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0  #: sum of all durations

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def numbers(self) -> list[float]:
        """Return the counts, followed by the sum of the durations, as one list for `sum_of`."""
        return [*self.counts, self.seconds]


def sum_of(histograms: Iterable[Sequence[float]]) -> list[float]:
    """Return the sum of several histograms, each as a list from `Histogram.numbers`."""
    return [sum(column) for column in zip(*histograms, strict=True)] or Histogram().numbers()


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counters of a process since its start; counters of several processes can be added."""

    pages: int = 0  #: finished pages
    items: int = 0  #: recorded items
    failures: Mapping[str, int] = field(default_factory=dict)  #: failed attempts, by reason
    host_failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failures of hosts, by reason; these failures cost no page an attempt."""
    #: Number of dropped links, by reason.
    links_dropped: Mapping[str, int] = field(default_factory=dict)
    fetched: int = 0  #: responses with any status
    taskless: int = 0  #: responses to requests without a task, see `Response.fetch`
    bytes: int = 0  #: bytes of decoded bodies
    leases_lost: int = 0  #: results dropped because another worker has the lease now
    link_examples: Examples = field(default_factory=dict)  #: a few dropped links, by reason
    items_by_callback: Mapping[str, int] = field(default_factory=dict)  #: recorded items
    items_dropped: Mapping[str, int] = field(default_factory=dict)  #: dropped items, by reason
    stalls: int = 0  #: number of event-loop stalls of a second or more
    longest_stall: float = 0.0  #: seconds
    forgiven: int = 0  #: failed attempts that do not count, because the event loop stalled
    unchanged: int = 0  #: pages that were visited again and had not changed
    given_up: int = 0  #: pages ignored in this run because they failed
    hosts_given_up: Mapping[str, str] = field(default_factory=dict)
    """Map from an origin that this run gave up to the reason, for at most a hundred origins."""
    more_hosts_given_up: int = 0  #: number of given-up origins that `hosts_given_up` leaves out
    truncated: int = 0  #: response bodies cut off at `max_body`, or by the server
    over_full: int = 0  #: pages ignored because their hosts had reached `max_pages_per_host`
    redirects: int = 0  #: finished tasks whose URL redirects to the page of another task
    internal_errors: int = 0  #: errors from bugs in crawlcw, each of which deferred a page

    def __add__(self, other: "Counters") -> "Counters":
        """Return the sum of two counters; its mappings begin with their largest numbers."""
        hosts = {**self.hosts_given_up, **other.hosts_given_up}
        more_hosts = self.more_hosts_given_up + other.more_hosts_given_up
        total: dict[str, Any] = {
            "longest_stall": max(self.longest_stall, other.longest_stall),
            "link_examples": merged_examples([self.link_examples, other.link_examples]),
            "hosts_given_up": dict(islice(hosts.items(), MAX_NAMED)),
            "more_hosts_given_up": more_hosts + max(0, len(hosts) - MAX_NAMED),
        }
        for name in (counter.name for counter in fields(Counters) if counter.name not in total):
            own_value, other_value = getattr(self, name), getattr(other, name)
            if isinstance(own_value, Mapping):
                total[name] = dict((Counter(own_value) + Counter(other_value)).most_common())
            else:
                total[name] = own_value + other_value
        return Counters(**total)


@dataclass(slots=True, kw_only=True)
class Report(Counters):
    """The result of a crawl, with the counters of the processes that this process knows."""

    spider: str
    finish_reason: FinishReason
    elapsed: float  #: seconds
    released: int  #: number of tasks released at the end of the crawl
    counts: Counts | None  #: numbers of the whole ledger; None if the count was too slow or failed
    detail: str = ""  #: why the spider or one of its callbacks ended the crawl
    failed_before: int = 0  #: number of failed pages in the ledger, from this run or earlier runs

    @classmethod
    def of(cls, counters: Counters, **fields_: Any) -> Self:
        """Return a report with *counters*; *fields_* has the fields that `Counters` lacks."""
        values = {counter.name: getattr(counters, counter.name) for counter in fields(Counters)}
        return cls(**values, **fields_)

    @property
    def any_finished(self) -> bool | None:
        """Whether the ledger has a finished page from any run; None means that this is unknown."""
        return self.pages > 0 or (None if self.counts is None else self.counts.pages > 0)

    @property
    def drained(self) -> bool:
        """Whether the crawl ended because no task remains."""
        return self.finish_reason == FinishReason.DRAINED


def failed_pages(reasons: Mapping[str, int]) -> int:
    """Return how many failed tasks `retry-failed` would retry; *reasons* has counts by reason.

    `retry-failed` also retries pages beyond `max_pages_per_host`, but these pages did not fail.
    """
    failure_reasons = FAILURE_REASONS - {Reason.HOST_FULL}
    return sum(number for reason, number in reasons.items() if reason in failure_reasons)
