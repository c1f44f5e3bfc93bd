"""States of a session after its logins, as pure decisions."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crawlcw.model.identities import (
    Identity,
    IdentityState,
    LoginPolicy,
    earliest_login,
    is_given_up,
    logged_in,
    login_begun,
    login_deferred,
    login_failed,
    retired,
)

pytestmark = pytest.mark.quick

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
POLICY = LoginPolicy(max_failures=3, base=SECOND, ceiling=60 * SECOND)
NEW = Identity(name="ada")


def begun(identity: Identity = NEW) -> Identity:
    return login_begun(identity, owner="w", now=NOW, lease=60 * SECOND)


def test_a_login_waits_for_the_one_that_is_under_way():
    assert earliest_login(NEW, now=NOW, process_start=NOW) == NOW
    assert earliest_login(begun(), now=NOW, process_start=NOW) == NOW + 60 * SECOND
    assert earliest_login(begun(), now=NOW + 61 * SECOND, process_start=NOW) == NOW + 61 * SECOND


def test_a_ready_session_has_no_owner_and_another_fence():
    ready = logged_in(begun(), cookies={}, headers=(("X", "y"),), origins=("http://a",))

    assert ready.is_ready
    assert (begun().fence, ready.fence) == (1, 2)
    assert (ready.owner, ready.expires, ready.headers) == (None, None, (("X", "y"),))


def test_logins_that_fail_in_a_row_wait_longer_and_are_given_up():
    first = login_failed(begun(), "HTTP 403", now=NOW, policy=POLICY)
    second = login_failed(begun(first), "HTTP 403", now=NOW, policy=POLICY)
    third = login_failed(begun(second), "HTTP 403", now=NOW, policy=POLICY)

    waits = [each.not_before for each in (first, second, third)]
    assert waits == [None, NOW + SECOND, NOW + 2 * SECOND]
    assert [each.given_up for each in (first, second, third)] == [None, None, NOW]
    assert third.reason == "HTTP 403"
    assert is_given_up(third, process_start=NOW)
    assert earliest_login(third, now=NOW, process_start=NOW) is None


def test_a_later_run_tries_again_what_was_given_up():
    lost = login_failed(begun(replace(NEW, failures=2)), "no", now=NOW, policy=POLICY)

    later = NOW + SECOND
    assert not is_given_up(lost, process_start=later)
    again = login_begun(lost, owner="w", now=later, lease=SECOND)
    assert (again.failures, again.given_up) == (0, None)


def test_a_session_that_has_served_pages_is_logged_in_anew_at_once():
    ready = replace(logged_in(begun(), cookies={}), score=5, failures=2)

    out = retired(ready, "HTTP 401", now=NOW, policy=POLICY)

    assert (out.state, out.failures, out.not_before) == (IdentityState.RETIRED, 0, None)
    assert (out.cookies, out.headers, out.reason) == ({}, (), "HTTP 401")


def test_a_login_of_which_nothing_showed_that_it_was_of_use_has_failed():
    ready = logged_in(begun(), cookies={})

    out = retired(ready, "HTTP 401", now=NOW, policy=POLICY)

    assert (out.failures, out.not_before) == (1, None)
    again = retired(logged_in(begun(out), cookies={}), "HTTP 401", now=NOW, policy=POLICY)
    assert (again.failures, again.not_before) == (2, NOW + SECOND)


def test_a_login_that_nobody_is_to_blame_for_counts_nothing():
    put_off = login_deferred(begun(), not_before=NOW + SECOND)

    assert (put_off.failures, put_off.owner, put_off.not_before) == (0, None, NOW + SECOND)


def test_no_representation_has_a_secret():
    secret = Identity(name="a", headers=(("X", "secret"),), data={"password": "secret"})

    assert "secret" not in repr(secret)
