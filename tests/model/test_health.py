"""The circuit breakers of origins, proxies and the uplink."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.errors import FetchError, Reason
from crawlcw.model.health import (
    HOST_FAILURES,
    Breaker,
    Cause,
    Marks,
    Origin,
    Policy,
    Uplink,
)

pytestmark = pytest.mark.quick

POLICY = Policy()
GOOD = "http://example.com/good"


def test_a_breaker_opens_at_a_fault_and_closes_at_a_good_answer():
    breaker = Breaker()

    breaker.open(now=10, rest=10)
    breaker.open(now=20, rest=5)

    assert (breaker.failures, breaker.failing_since, breaker.rest_end) == (2, 10, 25)
    breaker.open(now=24, rest=30)
    breaker.open(now=25, rest=1)
    assert breaker.rest_end == 54, "a shorter rest takes nothing from a longer one"
    breaker.close()
    assert (breaker.failures, breaker.failing_since, breaker.rest_end) == (0, None, None)


# --- origins


@dataclass
class Asked:
    """An origin with the refused pages of a process; each step takes a second."""

    origin: Origin = field(default_factory=Origin)
    marks: Marks = field(default_factory=OrderedDict)
    now: float = 100.0
    delay: float = 0.0

    def good(self, *, sent: float | None = None) -> bool:
        self.now += 1
        sent = self.now if sent is None else sent
        return self.origin.answered(self.marks, sent=sent, delay=self.delay)

    def throttled(
        self,
        page: str = "x",
        *,
        sent: float | None = None,
        retry_after: float | None = None,
        is_new: bool = False,
    ) -> Cause | None:
        self.now += 1
        cause = self.origin.throttled(
            self.marks,
            page.encode(),
            FetchError(Reason.HTTP_STATUS, retry_after=retry_after),
            url=f"http://example.com/{page}",
            sent=self.now if sent is None else sent,
            now=self.now,
            may_probe=True,
            is_new=is_new,
        )
        if cause is Cause.ORIGIN:
            self.now -= 1  # the same answer
            self.fault(Reason.HTTP_STATUS, sent=sent, retry_after=retry_after)
        return cause

    def fault(
        self,
        reason: Reason = Reason.CONNECT,
        *,
        sent: float | None = None,
        retry_after: float | None = None,
        policy: Policy = POLICY,
        other_responds: bool = False,
    ) -> int:
        self.now += 1
        return self.origin.fault(
            FetchError(reason, retry_after=retry_after),
            sent=self.now if sent is None else sent,
            now=self.now,
            policy=policy,
            other_responds=other_responds,
        )


def state(origin: Origin) -> str:
    if origin.given_up is not None:
        return "dead"
    if origin.failures:
        return "open"
    return "closed" if origin.probe is None else "half-open"


def known() -> Asked:
    """An origin with a known good page."""
    asked = Asked()
    asked.good()
    asked.origin.learned(GOOD, size=100)
    return asked


def test_the_first_refusal_makes_an_origin_with_a_good_page_half_open():
    asked = known()

    assert asked.throttled() is None

    assert (state(asked.origin), asked.origin.failures) == ("half-open", 0)


def test_without_a_good_page_it_opens():
    asked = Asked()

    assert asked.throttled() is Cause.ORIGIN

    assert (state(asked.origin), asked.origin.failures) == ("open", 1)


def test_where_the_probe_is_answered_the_page_pays_at_its_next_refusal():
    asked = known()
    asked.throttled()

    assert not asked.good()

    assert state(asked.origin) == "closed"
    assert [asked.throttled() for _ in range(3)] == [Cause.PAGE] * 3


def test_where_the_probe_fails_the_page_pays_nothing():
    asked = known()
    asked.throttled(retry_after=40)

    asked.fault(Reason.HTTP_STATUS, retry_after=3)

    assert state(asked.origin) == "open"
    assert asked.origin.rest_end == asked.now + 40, "the longest rest that any answer asked for"
    asked.good()
    assert asked.throttled() is None


@pytest.mark.parametrize(("delay", "pages", "limited"), [(0, 2, False), (0, 3, True), (1, 1, True)])
def test_a_limit_is_likely_where_there_is_a_delay_or_many_are_refused_at_once(
    delay: float, pages: int, limited: bool
):
    asked = known()
    asked.delay = delay
    for number in range(pages):
        asked.throttled(f"{number}")

    assert asked.good() is limited
    # That excuse holds once for a page: the next refusal costs it an attempt.
    assert asked.throttled("0") is (None if limited else Cause.PAGE)
    asked.good()
    assert asked.throttled("0") is Cause.PAGE


@pytest.mark.parametrize(("is_new", "limited"), [(True, True), (False, False)])
def test_after_the_rest_of_a_new_host_two_refused_pages_show_a_limit(is_new: bool, limited: bool):
    """A host at its rate limit always answers the good page after a rest."""
    asked = known()
    for page in ("1", "2"):
        asked.throttled(page, retry_after=3, is_new=is_new)

    assert asked.good() is limited


def test_without_a_good_page_a_page_pays_where_another_was_answered_since():
    asked = Asked()
    asked.throttled()
    asked.good()

    assert [asked.throttled() for _ in range(2)] == [Cause.PAGE, Cause.PAGE]


@pytest.mark.parametrize("most", [1, 5])
def test_a_name_that_has_refused_pages_is_there_for_an_hour_and_all_its_failures(most: int):
    asked, policy = known(), replace(POLICY, max_failures=most)
    asked.origin.resolved = False
    asked.throttled()

    asked.fault(Reason.DNS_NXDOMAIN, policy=policy)
    asked.now += 3600
    for _ in range(most - 2):
        asked.fault(Reason.DNS_NXDOMAIN, policy=policy)
    assert state(asked.origin) == "open"
    asked.fault(Reason.DNS_NXDOMAIN, policy=policy)

    assert state(asked.origin) == "dead"


@pytest.mark.parametrize(
    ("reason", "good_at", "most", "needed"),
    [
        (Reason.CONNECT, None, 5, 2),
        (Reason.CONNECT, None, 1, 1),
        (Reason.CONNECT, 1.0, 5, 5),
        (Reason.HTTP_STATUS, None, 5, 5),
        (Reason.ROBOTS_UNAVAILABLE, None, 5, 5),
    ],
)
def test_a_port_beside_an_origin_that_answers_is_given_up_after_two_failures_to_connect(
    reason: Reason, good_at: float | None, most: int, needed: int
):
    asked, policy = Asked(Origin(good_at=good_at)), replace(POLICY, max_failures=most)

    for _ in range(needed):
        assert state(asked.origin) in ("closed", "open")
        asked.fault(reason, policy=policy, other_responds=True)

    assert state(asked.origin) == "dead"


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["good", "page"]), st.integers(0, 5)),
        st.tuples(st.just("refused"), st.integers(0, 5)),
        st.tuples(st.just("fault"), st.sampled_from(sorted(HOST_FAILURES))),
    ),
    max_size=60,
)


@given(steps=steps, seconds=st.floats(0, 100))
def test_whatever_comes_state_and_fields_agree(steps, seconds):
    asked = Asked()
    for what, detail in steps:
        asked.now += seconds
        match what:
            case "good":
                asked.good(sent=asked.now - detail)
            case "page":
                asked.origin.learned(f"http://example.com/{detail}", size=1)
            case "refused":
                asked.throttled(f"{detail}", sent=asked.now - detail)
            case "fault":
                asked.fault(detail)
        origin = asked.origin
        assert origin.failures == 0 or origin.probe is None
        assert origin.given_up is None or origin.failures > 0
        assert 0 <= origin.unresolved <= origin.failures
        if state(origin) == "open":
            assert origin.failures - origin.unresolved < POLICY.max_failures
        # Such a page ends: at the latest, its third refusal after an answer costs it an attempt.
    asked.fault()
    while asked.origin.given_up is None:
        asked.fault()


@given(steps=steps)
def test_a_page_that_is_always_refused_pays_at_the_latest_at_its_third_refusal(steps):
    """Its origin answers the good page; earlier refusals of other pages do not matter."""
    asked = known()
    for what, detail in steps:
        if what == "refused":
            asked.throttled(f"{detail}")
            asked.good()
    causes = []
    for _ in range(3):
        causes.append(asked.throttled("y"))
        asked.good()

    assert causes[-1] is Cause.PAGE


# --- the uplink


def answered_by(*hosts: str, now: float = 0.0) -> Uplink:
    uplink = Uplink()
    for host in hosts:
        uplink.answered(now=now)
        uplink.learned(host, f"http://{host}/")
    return uplink


def fails(
    uplink: Uplink,
    host: str = "x",
    *,
    sent: float,
    now: float,
    reason: Reason = Reason.CONNECT,
    page: bytes | None = None,
) -> Cause | None:
    return uplink.failed(host, reason, started_at=sent, now=now, page=page)


def test_a_failure_while_no_host_answers_is_checked_and_all_wait_for_that():
    uplink = answered_by("a", "b")

    assert fails(uplink, sent=1, now=3) is None
    assert fails(uplink, "y", sent=0, now=3) is None
    assert fails(uplink, "a", sent=0, now=3) is None, "however few others there are to ask"

    assert uplink.is_blocked
    assert [*uplink.good_pages] == ["a", "b"], "the latest good page is last"


def test_where_a_good_page_answers_the_failure_counts():
    uplink = answered_by("a", "b")
    fails(uplink, sent=1, now=3)

    uplink.answered(now=3.5)

    assert fails(uplink, sent=1, now=3.5) is Cause.ORIGIN
    assert not uplink.is_blocked


def test_without_an_answer_failures_before_the_next_answer_count_for_the_uplink():
    uplink = answered_by("a", "b")
    fails(uplink, sent=3, now=4)
    uplink.unanswered(now=5)

    assert fails(uplink, sent=3, now=5) is Cause.UPLINK
    uplink.answered(now=9)
    assert fails(uplink, sent=8, now=11, reason=Reason.TIMEOUT_READ) is Cause.UPLINK
    assert fails(uplink, sent=9.5, now=9.9, reason=Reason.TIMEOUT_READ) is Cause.ORIGIN


def test_a_failure_during_which_another_host_answered_counts():
    uplink = answered_by("a", "b", now=5)

    assert fails(uplink, sent=4, now=6) is Cause.ORIGIN
    assert not uplink.is_blocked


@pytest.mark.parametrize("hosts", [(), ("a",), ("x", "a")])
def test_without_two_other_hosts_to_ask_failures_count(hosts: tuple[str, ...]):
    assert fails(answered_by(*hosts), sent=1, now=3) is Cause.ORIGIN
    assert fails(answered_by(*hosts, now=2), sent=1, now=3, page=b"1") is Cause.ORIGIN


@pytest.mark.parametrize("reason", [Reason.TLS, Reason.HTTP_STATUS, Reason.PROTOCOL])
def test_what_only_a_server_can_do_says_that_the_uplink_is_there(reason: Reason):
    assert fails(answered_by("a", "b"), sent=1, now=3, reason=reason) is Cause.ORIGIN


def test_a_page_is_deferred_once_for_a_silence_that_was_over_before_it_was_checked():
    uplink = answered_by("a", "b")
    uplink.answered(now=10)

    read = Reason.TIMEOUT_READ
    assert fails(uplink, sent=5, now=11, reason=read, page=b"1") is Cause.UPLINK
    assert fails(uplink, sent=5, now=11, reason=read, page=b"1") is Cause.ORIGIN
    assert fails(uplink, sent=5, now=11) is Cause.ORIGIN, "without a page, the failure counts"
    uplink.answered(now=10.8)
    assert fails(uplink, sent=10.5, now=11, reason=read, page=b"2") is Cause.ORIGIN


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.floats(0, 900)), max_size=60))
def test_dead_hosts_come_to_their_end_where_a_good_page_answers(failures: list[tuple[str, float]]):
    """Each failure counts after a check of the uplink, at most one check a second."""
    uplink = answered_by("a", "b")
    now, checks = 0.0, 0
    for host, pause in failures:
        now += pause
        cause = fails(uplink, host, sent=now, now=now)
        if cause is None:
            checks += 1
            uplink.answered(now=now)
            cause = fails(uplink, host, sent=now, now=now)
        assert cause is Cause.ORIGIN

    assert checks <= now + 1
