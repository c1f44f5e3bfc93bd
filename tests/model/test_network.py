"""Whether it is our own network that is away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.errors import Reason
from crawlcw.model.network import Network

pytestmark = pytest.mark.quick


class Doubted(Network):
    """A network with a log of its doubts."""

    def __init__(self) -> None:
        self.doubts = 0
        super().__init__(on_doubt=self._doubt)

    def _doubt(self) -> None:
        self.doubts += 1


def answered_by(*hosts: str, now: float = 0.0) -> Doubted:
    network = Doubted()
    for host in hosts:
        network.answered(host, now=now, witness=f"http://{host}/")
    return network


def fails(
    network: Network,
    host: str = "x",
    *,
    sent: float,
    now: float,
    reason: Reason = Reason.CONNECT,
    last: bool = False,
) -> bool:
    return network.failed(host, reason, sent=sent, now=now, last=last)


def test_a_failure_while_nobody_answers_puts_the_network_in_doubt_and_does_not_count():
    network = answered_by("a", "b")

    assert fails(network, sent=1, now=2)
    assert (network.in_doubt, network.doubts) == (True, 1)
    assert network.witnesses == [("b", "http://b/"), ("a", "http://a/")]


def test_a_failure_during_which_another_host_answered_counts():
    network = answered_by("a", "b", now=5)

    assert not fails(network, sent=4, now=6)
    assert not network.in_doubt


def test_what_was_under_way_when_the_last_answer_came_is_in_doubt_after_a_silence():
    network = answered_by("a", "b", now=5)

    assert fails(network, sent=4, now=15, reason=Reason.TIMEOUT_READ)


@pytest.mark.parametrize("hosts", [(), ("a",), ("x", "a")])
def test_where_nobody_is_there_to_ask_failures_count(hosts: tuple[str, ...]):
    network = answered_by(*hosts)

    assert not fails(network, sent=1, now=2)
    assert not network.in_doubt


@pytest.mark.parametrize("reason", [Reason.TLS, Reason.HTTP_STATUS, Reason.PROTOCOL])
def test_what_only_a_server_can_do_says_that_the_network_is_there(reason: Reason):
    assert not fails(answered_by("a", "b"), sent=1, now=2, reason=reason)


def test_what_was_sent_before_an_outage_had_ended_does_not_count_whoever_answers_since():
    network = answered_by("a", "b")
    fails(network, sent=3, now=4)
    network.away()
    network.vouch(now=9)
    network.answered("a", now=10)

    assert fails(network, sent=8, now=11, reason=Reason.TIMEOUT_READ)
    assert not fails(network, sent=9.5, now=11, reason=Reason.TIMEOUT_READ)


def test_what_was_under_way_in_a_doubt_is_excused_once_a_minute_for_each_host():
    """An outage may have been over before the witnesses were asked."""
    network = answered_by("a", "b")
    fails(network, sent=3, now=4)
    network.vouch(now=9)
    network.answered("a", now=10)

    assert fails(network, "y", sent=8, now=11, reason=Reason.TIMEOUT_READ)
    assert not fails(network, "y", sent=8, now=11, reason=Reason.TIMEOUT_READ)


def test_any_answer_ends_the_doubt():
    network = answered_by("a", "b")
    fails(network, sent=1, now=2)

    network.answered("c", now=3)

    assert not network.in_doubt
    assert fails(network, sent=2.5, now=3.5), "what was under way meanwhile is excused, once"
    assert not fails(network, sent=2.5, now=3.6)


def test_in_doubt_every_failure_is_left_out():
    network = answered_by("a", "b")
    fails(network, sent=1, now=2)

    assert fails(network, "y", sent=0, now=3)
    assert network.doubts == 1
    assert network.doubted_for(now=12) == 10


def test_once_a_witness_has_answered_a_dead_host_pays_for_itself():
    network = answered_by("a", "b")
    fails(network, sent=1, now=2)
    network.vouch(now=3)

    assert not fails(network, sent=10, now=20)
    assert not fails(network, sent=20, now=30)
    assert fails(network, "y", sent=10, now=40), "the network may have gone away since"


def test_for_the_failure_that_would_end_a_host_a_witness_has_to_answer_once_more():
    network = answered_by("a", "b")
    fails(network, sent=1, now=2)
    network.vouch(now=3)
    assert not fails(network, sent=10, now=11)

    assert fails(network, sent=20, now=21, last=True), "the network may have gone away since"
    network.vouch(now=22)
    assert not fails(network, sent=25, now=26, last=True)


def test_while_others_answer_no_witness_is_asked_however_much_a_failure_costs():
    network = answered_by("a", "b", now=5)

    assert not fails(network, sent=4, now=6, last=True)
    assert not network.in_doubt


def test_a_dead_host_that_is_asked_seldom_pays_for_every_other_failure():
    network = answered_by("a", "b")
    counted = []
    for round_ in range(6):
        now = 100.0 * round_ + 10
        counted.append(not fails(network, sent=now - 10, now=now))
        if network.in_doubt:
            network.vouch(now=now)

    assert counted == [False, True] * 3, "each doubt is about what came since the last answer"


def test_a_port_that_is_silent_says_nothing_of_another_one():
    network = answered_by("a", "b")
    network.failed("x", Reason.TIMEOUT_CONNECT, sent=1, now=2, scheme="https")
    network.vouch(now=3)

    assert fails(network, sent=10, now=20), "asked of its own, and not vouched for"


def test_after_an_hour_of_silence_failures_count_until_somebody_answers():
    network = answered_by("a", "b")
    fails(network, sent=1, now=2)
    network.give_up(now=4000)

    assert not fails(network, sent=9000, now=9001)
    network.answered("a", now=9002)
    assert fails(network, sent=9100, now=9101)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcxyz"), st.floats(0, 30) | st.floats(60, 900)), max_size=60
    )
)
def test_dead_hosts_come_to_their_end_where_a_witness_answers(
    failures: list[tuple[str, float]],
):
    """One of a host's failures within a minute does not count, and never two in a row."""
    network = answered_by("a", "b")
    now = 0.0
    uncounted: dict[str, float] = {}
    last: set[str] = set()
    for host, pause in failures:
        now += pause
        if fails(network, host, sent=now, now=now):
            since = now - uncounted.get(host, -10_000)
            assert since >= (3600 if host in last else 60) - 1e-6
            uncounted[host] = now
            last.add(host)
            network.vouch(now=now)
        else:
            last.discard(host)


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.floats(0, 30) | st.floats(60, 900), st.booleans()),
        max_size=60,
    )
)
def test_a_host_is_never_ended_by_two_failures_without_a_witness_between(
    failures: list[tuple[str, float, bool]],
):
    """And comes to its end all the same: of two failures in a row one counts."""
    network = answered_by("a", "b")
    now = 0.0
    vouched_at = float("-inf")
    failed_at: dict[str, float] = {}
    uncounted: set[str] = set()
    for host, pause, last in failures:
        now += pause
        if fails(network, host, sent=now, now=now, last=last):
            assert host not in uncounted or now - failed_at[host] >= 3600
            uncounted.add(host)
            network.vouch(now=now)
            vouched_at = now
        else:
            uncounted.discard(host)
            fresh = vouched_at >= failed_at.get(host, float("-inf"))
            assert not last or fresh or now - vouched_at < 1
        failed_at[host] = now
