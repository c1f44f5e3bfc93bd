"""Write metrics in Prometheus's text formats by the optional package prometheus-client."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from crawlcw.model.counters import BOUNDS
from crawlcw.telemetry.metrics import METRICS, Kind, Metric, Snapshot, Values


def render(snapshot: Snapshot, *, accept: str) -> tuple[bytes, str]:
    """Return *snapshot* as text in a format that *accept* allows, and the text's content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Family]:
        # Return no metric names: a registry with only one collector need not check for equal names.
        return ()

    def collect(self) -> Iterator[Family]:
        totals = self._snapshot.totals
        for metric in METRICS.values():
            if metric.has_name_label:
                yield from _crawl_family(metric, self._snapshot.crawls)
                continue
            if metric.kind is Kind.HISTOGRAM:
                if (numbers := totals.histograms.get(metric.name)) is not None:
                    yield _histogram(metric, numbers)
                continue
            values = totals.counters if metric.kind is Kind.COUNTER else self._snapshot.gauges
            metric_values = values.get(metric.name)
            if metric_values is not None:
                yield _value_family(metric, metric_values)


def _crawl_family(metric: Metric, crawls: Mapping[str, Mapping[str, Values]]) -> Iterator[Family]:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for name, values_by_metric in crawls.items():
        for label, value in values_by_metric.get(metric.name, {}).items():
            family.add_metric([name, label][: len(metric.labels)], value)
    if family.samples:
        yield family


def _value_family(metric: Metric, values: Values) -> Family:
    labels = [] if metric.label is None else [metric.label]
    family_class = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = family_class(metric.name, metric.help, labels=labels)
    for label, value in values.items():
        family.add_metric([label] if labels else [], value)
    return family


def _histogram(metric: Metric, numbers: Iterable[float]) -> Family:
    *counts, seconds = numbers
    family = HistogramMetricFamily(metric.name, metric.help)
    total = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric([], buckets, seconds)
    return family
