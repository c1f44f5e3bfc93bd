"""Reasons why a crawl waits, as shown in the progress line."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.model.idle_reason import IdleReason, Rests, merged

pytestmark = pytest.mark.quick

NOW = datetime(2026, 5, 4, 20, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def two_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the machine's time zone to UTC+2."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-2")
        time.tzset()
        yield
    time.tzset()


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def test_one_host_that_rests_is_named_by_its_end_and_its_reason():
    rests = Rests()
    rests.note("a.example:80", rest_end=at(10), cause="429, Retry-After")

    assert rests.idle_reason(NOW).sentence() == "1 host rests until 22:40: 429, Retry-After"


def test_of_several_hosts_the_first_to_be_asked_again_is_named():
    rests = Rests()
    rests.note("a.example:80", rest_end=at(30), cause="connect")
    rests.note("b.example:80", rest_end=at(10), cause="429, Retry-After")
    rests.note("c.example:80", rest_end=at(20), cause="connect")

    assert rests.idle_reason(NOW).sentence() == (
        "3 hosts rest, the first until 22:40: 429, Retry-After"
    )


def test_a_network_that_is_away_explains_everything_else():
    rests = Rests()
    rests.note("a.example:80", rest_end=at(10), cause="connect")
    rests.network_down_since = at(1)

    down = "the network has been down since 22:31; trying again"
    assert rests.idle_reason(NOW).sentence() == down


def test_what_waits_for_others_or_for_its_time_says_so():
    assert IdleReason(others_have_tasks=True).sentence() == "waiting for other workers"
    assert IdleReason(start=True).sentence() == "waiting for the next request of start()"
    assert IdleReason(ends_at=at(10)).sentence() == "nothing is due before 22:40"
    assert IdleReason().sentence() == ""


def test_programs_get_the_times_in_utc():
    resting = IdleReason(hosts=12, ends_at=at(10), cause="429, Retry-After")

    assert resting.fields() == {
        "sentence": "12 hosts rest, the first until 22:40: 429, Retry-After",
        "hosts_resting": 12,
        "ends_at": "2026-05-04T20:40:00Z",
        "cause": "429, Retry-After",
    }
    assert IdleReason(down_since=at(1)).fields() == {
        "sentence": "the network has been down since 22:31; trying again",
        "network_down_since": "2026-05-04T20:31:00Z",
    }


def test_a_crawl_moves_while_one_of_its_workers_does():
    assert (
        merged([IdleReason(others_have_tasks=True), None, IdleReason(hosts=1, ends_at=at(1))])
        is None
    )
    assert merged([]) is None


def test_workers_that_stand_still_together_say_what_most_of_it_is():
    resting = IdleReason(hosts=2, ends_at=at(10), cause="429")
    later = IdleReason(hosts=1, ends_at=at(20), cause="connect")
    not_due = IdleReason(ends_at=at(5))

    assert merged([IdleReason(others_have_tasks=True), later, resting, not_due]) == IdleReason(
        hosts=3, ends_at=at(10), cause="429", others_have_tasks=True
    )
    assert merged([resting, IdleReason(down_since=at(2))]) == IdleReason(
        down_since=at(2), hosts=2, ends_at=at(10), cause="429"
    )


HOSTS = st.sampled_from("abcd")
MINUTES = st.integers(1, 20)
STEPS = st.one_of(
    st.tuples(st.just("note"), HOSTS, MINUTES),
    st.tuples(st.just("look"), st.just(""), MINUTES),
)


@given(st.lists(STEPS, max_size=60))
def test_it_tells_how_many_rest_and_the_first_end_whatever_came_before(steps):
    rests = Rests()
    ends: dict[str, int] = {}
    for step, host, minutes in steps:
        if step == "note":
            rests.note(host, rest_end=at(minutes), cause=f"why {minutes}")
            ends[host] = max(minutes, ends.get(host, 0))
        else:
            # Time may run backwards here; forgotten rests stay forgotten.
            ends = {name: end for name, end in ends.items() if end > minutes}
            first = min(ends.values(), default=None)

            assert rests.idle_reason(at(minutes)) == (
                IdleReason()
                if first is None
                else IdleReason(hosts=len(ends), ends_at=at(first), cause=f"why {first}")
            )


def test_proxies_that_all_rest_are_why_nothing_moves():
    rests = Rests()
    rests.note("a.example", rest_end=NOW + timedelta(minutes=1), cause="429")
    rests.proxies_away = lambda: (90.0, "the proxy http://gate:1 cannot be reached")

    found = rests.idle_reason(NOW)

    assert found.ends_at == NOW + timedelta(seconds=90)
    assert found.sentence().startswith("no proxy is usable until ")
    assert found.sentence().endswith(": the proxy http://gate:1 cannot be reached")
    assert found.fields()["proxies"] == "the proxy http://gate:1 cannot be reached"
    rests.network_down_since = NOW
    assert rests.idle_reason(NOW).sentence().startswith("the network has been down")


def test_a_crawl_waits_for_new_pages_only_if_all_workers_do():
    waiting = IdleReason(new_pages=True)

    assert waiting.sentence() == "waiting for new pages (`crawlcw add`)"
    assert merged([waiting, waiting]) == waiting
    assert merged([waiting, IdleReason(others_have_tasks=True)]) == IdleReason(
        others_have_tasks=True
    )
