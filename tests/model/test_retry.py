"""Retries: the decision for another attempt, and its time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.errors import POLICY_REASONS, Reason
from crawlcw.model.retry import RetryPolicy, backoff, retry_after

pytestmark = pytest.mark.quick

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_backoff_doubles_until_the_ceiling():
    waits = [backoff(n, base=SECOND, ceiling=5 * SECOND) for n in (1, 2, 3, 4)]

    assert waits == [n * SECOND for n in (1, 2, 4, 5)]


@given(st.integers(), st.timedeltas(timedelta(0), timedelta(days=1)))
def test_backoff_never_overflows(attempt: int, base: timedelta):
    assert backoff(attempt, base=base, ceiling=timedelta(hours=1)) <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("reason", "status", "attempts"),
    [
        (Reason.CONNECT, None, 3),
        (Reason.PARSE_ERROR, None, 1),
        (Reason.ROBOTS_UNAVAILABLE, None, 3),
        (Reason.DNS_TEMPORARY, None, 3),
        (Reason.DNS_NXDOMAIN, None, 2),
        (Reason.TLS, None, 1),
        (Reason.PARSE_KILLED, None, 1),
        (Reason.HTTP_STATUS, 503, 3),
        (Reason.HTTP_STATUS, 429, 3),
        (Reason.HTTP_STATUS, 522, 3),
        (Reason.HTTP_STATUS, 404, 1),
        (Reason.HTTP_STATUS, 501, 1),
        (Reason.HTTP_STATUS, None, 1),
        *((reason, None, 1) for reason in sorted(POLICY_REASONS)),
    ],
)
def test_how_often_a_failure_is_tried(reason: Reason, status: int | None, attempts: int):
    policy = RetryPolicy(max_retry=3)

    made = 1
    while policy.tries_again(reason, attempt=made, status=status):
        made += 1

    assert made == attempts


def test_with_one_attempt_allowed_nothing_is_tried_again():
    policy = RetryPolicy(max_retry=1)

    assert not any(policy.tries_again(r, attempt=1, status=503) for r in Reason)


@pytest.mark.parametrize(
    ("chance", "asked", "seconds"),
    [
        (0.0, None, 0),
        (0.5, None, 10),
        (0.5, 3.0, 10),
        (0.5, 30.0, 30),
        (0.0, 1e9, 3600),
        (0.99, 0.0, 19.8),
    ],
)
def test_the_wait_is_jittered_and_at_least_what_was_asked_for(chance, asked, seconds):
    """HOSTILE 8.7."""
    wait = RetryPolicy().wait(3, chance=chance, retry_after=asked)

    assert wait == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("99999999999999999999", 3600.0),
        ("4000", 3600.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 00:01:00 -0000", 60.0),
        ("Thu, 01 Jan 2026 02:01:00 +0200", 60.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", 3600.0),
        (None, None),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("²", None),
        ("Thu, 99 Foo 99999 99:99:99 GMT", None),
        ("Thu, 01 Jan 0000 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 00:01:00 +9999999", None),
    ],
)
def test_retry_after_is_read_or_ignored(header: str | None, seconds: float | None):
    assert retry_after(header, now=NOW) == seconds


@given(st.text() | st.from_regex(r"\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ [+-]?\d*"))
def test_retry_after_is_bounded_whatever_the_server_says(header: str):
    """HOSTILE 2.16."""
    seconds = retry_after(header, now=NOW)

    assert seconds is None or 0 <= seconds <= 3600
