import json
from datetime import UTC, datetime

import pytest

from crawlcw.api.settings import Settings
from crawlcw.cli.processes.channel import Lines, WorkerState
from crawlcw.cli.processes.supervisor import shares
from crawlcw.engine.stats import Stats
from crawlcw.model.counters import Counters, FinishReason, merged_reason
from crawlcw.model.idle_reason import IdleReason


def test_a_state_arrives_as_it_was_sent():
    stats = Stats(pages=3, items=4, leases_lost=1)
    stats.failures["timeout-read"] += 2
    stats.dropped.note("refused-scope", "http://b.example/")
    stats.hosts_given_up["https://a.example"] = "connect"
    resting = IdleReason(hosts=2, ends_at=datetime(2026, 5, 4, 20, 40, tzinfo=UTC), cause="429")
    counters = stats.snapshot()
    state = WorkerState(
        counters=counters, idle_reason=resting, released=6, finish_reason=FinishReason.STOPPED
    )

    assert WorkerState.of(json.loads(state.line())) == state
    assert counters.failures == {"timeout-read": 2}
    assert counters.links_dropped == {"refused-scope": 1}
    assert counters.link_examples == {"refused-scope": ["http://b.example/"]}


def test_lines_are_given_on_when_they_are_whole_and_the_rest_at_the_end():
    taken = []
    lines = Lines(taken.append)

    lines.data_received(b"one\ntw")
    lines.data_received(b"o\n\nthr")
    before = taken[:]
    lines.connection_lost(None)

    assert before == [b"one", b"two", b""]
    assert taken[3:] == [b"thr"]
    assert lines.closed.is_set()


def test_counters_of_several_workers_add_up():
    counters = [
        Counters(
            pages=1,
            items=2,
            failures={"dns": 1},
            host_failures={"tls": 1},
            links_dropped={"trap": 3},
            link_examples={"trap": ["a", "b"]},
            longest_stall=2.0,
        ),
        Counters(
            pages=10,
            items=20,
            failures={"tls": 2, "dns": 4},
            link_examples={"trap": ["b", "c", "d"]},
            leases_lost=7,
            longest_stall=1.0,
        ),
    ]

    total = sum(counters, Counters())

    assert (total.pages, total.items, total.leases_lost, total.longest_stall) == (11, 22, 7, 2.0)
    assert list(total.failures.items()) == [("dns", 5), ("tls", 2)]
    assert total.host_failures == {"tls": 1}
    assert total.links_dropped == {"trap": 3}
    assert total.link_examples == {"trap": ["a", "b", "c"]}


def test_of_the_hosts_given_up_by_several_workers_a_hundred_are_named():
    one = Counters(hosts_given_up={f"http://a{n}.example": "dns" for n in range(60)})
    two = Counters(
        hosts_given_up={f"http://b{n}.example": "dns" for n in range(60)}, more_hosts_given_up=3
    )

    total = one + two

    assert (len(total.hosts_given_up), total.more_hosts_given_up) == (100, 23)


@pytest.mark.parametrize(
    ("reasons", "is_empty", "reason"),
    [
        (["drained", "drained"], True, "drained"),
        # Another process has added tasks.
        (["drained", "drained"], False, "drained"),
        (["drained", "max-pages"], True, "drained"),
        (["drained", "max-pages"], False, "max-pages"),
        # It is unknown whether all seeds were added.
        (["max-pages", "max-pages"], True, "max-pages"),
        (["drained", None], True, "drained"),
        (["drained", None], False, "failed"),
        (["max-pages", None], False, "max-pages"),
        ([None, None], True, "failed"),
        (["drained", "stopped"], True, "stopped"),
        (["stopped", None, "max-pages"], False, "stopped"),
        (["stopped", "stopped-at-once"], False, "stopped-at-once"),
    ],
)
def test_why_the_crawl_ended_follows_from_why_its_workers_did(reasons, is_empty, reason):
    assert merged_reason(reasons, is_empty=is_empty) == reason


@pytest.mark.parametrize(
    ("limits", "processes", "each"),
    [
        ({}, 3, [{}, {}, {}]),
        ({"max_pages": 11}, 3, [{"max_pages": 3}, {"max_pages": 4}, {"max_pages": 4}]),
        ({"max_items": 1}, 5, [{"max_items": 1}]),
        (
            {"max_pages": 9, "max_items": 2},
            3,
            [{"max_pages": 4, "max_items": 1}, {"max_pages": 5, "max_items": 1}],
        ),
    ],
)
def test_the_shares_of_the_workers_add_up_to_the_limits(limits, processes, each):
    assert shares(Settings(**limits), processes) == each
