"""Measured values of a process, which workers send and the supervisor adds up."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from crawlcw.engine.stats import Stats
from crawlcw.model.counters import sum_of
from crawlcw.model.transitions import Event
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Metric

#: Syntax of a label's value. A spider's `FetchError` may have any text as its reason.
_WORD = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}\Z")
_MOST_WORDS = 80
OTHER = "other"

#: Numbers by the value of the metric's label; the empty text if it has none.
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Values of one process since its start, by the names of `metrics`."""

    counters: Mapping[str, Values] = field(default_factory=dict)
    histograms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Numbers of the histograms."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Current values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All exposed values at one moment."""

    totals: Measures  #: of all processes together; the gauges have no label
    gauges: Mapping[str, Values] = field(default_factory=dict)
    """Gauges with a label, by its values."""
    crawls: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """Gauges with the label `name`, by its value and the metrics' names."""


def counted(stats: Stats) -> dict[str, Values]:
    """Return the counters of *stats*, by the metrics' names."""
    outcomes = stats.outcomes
    finished = stats.pages - stats.unchanged
    found: dict[Metric, Values] = {
        metrics.PAGES: {
            "finished": finished,
            "unchanged": stats.unchanged,
            "redirected": outcomes[Event.FINISH] - finished,
            "failed": outcomes[Event.FAIL],
            "given-up": outcomes[Event.GIVE_UP] + outcomes[Event.ABANDON],
        },
        metrics.RESPONSES: _by_class(stats.statuses),
        metrics.FAILURES: words(stats.failures),
        metrics.HOST_FAILURES: words(stats.host_failures),
        metrics.LINKS_DROPPED: words(stats.links_dropped),
        metrics.LEDGER_OPERATIONS: words(stats.ledger_operations),
    }
    plain = {
        metrics.ITEMS: stats.items,
        metrics.ITEMS_DROPPED: sum(stats.items_dropped.values()),
        metrics.RESPONSE_BYTES: stats.bytes,
        metrics.TRUNCATED: stats.truncated,
        metrics.HOSTS_GIVEN_UP: len(stats.hosts_given_up) + stats.more_hosts_given_up,
        metrics.LINKS_ADDED: stats.links_added,
        metrics.CLAIMS: stats.claims,
        metrics.CLAIMS_MISSED: stats.claims_missed,
        metrics.LEASES_LOST: stats.leases_lost,
        metrics.LOOP_STALLS: stats.stalls,
    }
    found |= {metric: {"": number} for metric, number in plain.items()}
    return {metric.name: values for metric, values in found.items()}


def words(counts: Mapping[str, int]) -> dict[str, float]:
    """Return *counts* by label values; invalid or too many values are `other`."""
    found: dict[str, float] = {}
    for name, number in counts.items():
        known = _WORD.match(name) is not None and (name in found or len(found) < _MOST_WORDS)
        word = name if known else OTHER
        found[word] = found.get(word, 0) + number
    return found


def _by_class(statuses: Mapping[int, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for status, number in statuses.items():
        name = f"{status // 100}xx" if 100 <= status < 600 else OTHER
        found[name] = found.get(name, 0) + number
    return found


def together(measured: Iterable[Measures]) -> Measures:
    """Return the sums over all processes, without gauges."""
    counters: dict[str, dict[str, float]] = {}
    histograms: dict[str, list[Sequence[float]]] = {}
    for each in measured:
        for name, values in each.counters.items():
            total = counters.setdefault(name, {})
            for label, number in values.items():
                total[label] = total.get(label, 0) + number
        for name, numbers in each.histograms.items():
            histograms.setdefault(name, []).append(numbers)
    return Measures(
        counters=counters,
        histograms={name: sum_of(each) for name, each in histograms.items()},
    )
