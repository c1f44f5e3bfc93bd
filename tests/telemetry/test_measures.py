"""Metrics as numbers, and in Prometheus's text format."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import crawlcw
from crawlcw.engine.stats import Stats
from crawlcw.model.transitions import Event
from crawlcw.telemetry import metrics
from crawlcw.telemetry.exposition import render
from crawlcw.telemetry.meter import Meter
from crawlcw.telemetry.metrics import Measures, Snapshot, by_label, counters_of, sum_measures
from tests.support.ledgers import make_lease

pytestmark = pytest.mark.quick


def samples(snapshot: Snapshot) -> dict[str, float]:
    text, content_type = render(snapshot, accept="text/plain")
    assert content_type.startswith("text/plain; version=")
    return {
        sample.name + "".join(f"{{{k}={v}}}" for k, v in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_each_outcome_of_a_page_is_counted_once():
    stats = Stats(pages=7, items=3, unchanged=1)
    # Two of the nine finished tasks are redirects, and one page was unchanged.
    stats.outcomes.update({Event.FINISH: 8, Event.CONFIRM: 1, Event.FAIL: 4, Event.GIVE_UP: 2})
    stats.outcomes[Event.ABANDON] = 1

    assert counters_of(stats)[metrics.PAGES.name] == {
        "finished": 6,
        "unchanged": 1,
        "redirected": 2,
        "failed": 4,
        "given-up": 3,
    }


def test_no_label_has_a_value_that_comes_from_outside():
    stats = Stats()
    stats.failures["http://secret.example/\x1b[31m"] = 2
    stats.failures["connect"] = 1
    stats.statuses.update({200: 1, 299: 1, 999: 1, 7: 1})

    assert counters_of(stats)[metrics.FAILURES.name] == {"other": 2, "connect": 1}
    assert counters_of(stats)[metrics.RESPONSES.name] == {"2xx": 2, "other": 2}
    assert len(by_label({f"reason-{n}": 1 for n in range(10_000)})) <= 81


def test_the_measures_of_all_workers_are_added_up_whether_they_live_or_not():
    one = Measures(counters={"a": {"x": 1}}, histograms={"h": [1, 2]}, gauges={"g": 5})
    other = Measures(counters={"a": {"x": 2, "y": 3}, "b": {"": 4}}, histograms={"h": [0, 1]})

    assert sum_measures([one, other]) == Measures(
        counters={"a": {"x": 3, "y": 3}, "b": {"": 4}}, histograms={"h": [1, 3]}
    )


def test_a_meter_times_each_step_and_counts_what_is_in_flight():
    meter = Meter()
    lease = make_lease()

    with meter.fetch(lease) as seen:
        seen.record_response(status=200, size=1)
        during = meter.measures(Stats(), leased_tasks=0, resting_hosts=0)
    with pytest.raises(TimeoutError), meter.fetch(lease):
        raise TimeoutError
    with meter.parse(lease, "parse"), meter.commit([lease]):
        pass

    measures = meter.measures(Stats(), leased_tasks=0, resting_hosts=0)
    assert {name: sum(each[:-1]) for name, each in measures.histograms.items()} == {
        metrics.FETCH.name: 2,
        metrics.PARSE.name: 1,
        metrics.COMMIT.name: 1,
        metrics.LOOP_LAG.name: 0,
    }
    assert during.gauges[metrics.IN_FLIGHT.name] == 1
    assert measures.gauges[metrics.IN_FLIGHT.name] == 0
    assert measures.counters[metrics.CPU.name][""] > 0


def test_the_text_is_what_prometheus_client_itself_reads():
    stats = Stats(pages=2, items=5)
    stats.outcomes[Event.FINISH] = 2
    totals = Meter().measures(stats, leased_tasks=0, resting_hosts=0)
    gauges = {metrics.IN_FLIGHT.name: {"1": 3.0}, metrics.INFO.name: {"books": 1.0}}

    found = samples(Snapshot(totals=totals, gauges=gauges))

    assert found["crawlcw_pages_total{outcome=finished}"] == 2
    assert found["crawlcw_items_total"] == 5
    assert found["crawlcw_requests_in_flight{worker=1}"] == 3
    assert found["crawlcw_info{name=books}"] == 1
    assert found["crawlcw_fetch_duration_seconds_bucket{le=+Inf}"] == 0
    assert found["crawlcw_fetch_duration_seconds_count"] == 0


@pytest.mark.parametrize("metric", metrics.METRICS.values(), ids=lambda each: each.name)
def test_a_name_follows_the_conventions(metric: metrics.Metric):
    assert re.fullmatch(r"crawlcw(_[a-z]+)+", metric.name)
    assert not metric.name.endswith("_total")
    # https://prometheus.io/docs/practices/naming/: base units as suffixes, spelt out.
    assert not re.search(r"_(ms|milliseconds|minutes|kb|megabytes|percent)(_|$)", metric.name)
    assert metric.query_name.endswith("_total") == (metric.kind is metrics.Kind.COUNTER)
    assert metric.kind is not metrics.Kind.HISTOGRAM or metric.name.endswith("_seconds")
    assert metric.help.endswith(".")


def test_the_guide_has_every_metric_as_it_is():
    guide = Path(crawlcw.__file__).parent / "guide" / "watching.md"
    row = re.compile(r"^\| `(crawlcw_\w+)` \| (\w+) \| ?([\w, ]*?) ?\| (.+) \|$", re.MULTILINE)
    rows = row.findall(guide.read_text())

    assert rows == [
        (metric.query_name, metric.kind, ", ".join(metric.labels), metric.help)
        for metric in metrics.METRICS.values()
    ]
