"""Times of revisits."""

from datetime import timedelta

import pytest

from crawlcw.errors import SettingsError
from crawlcw.model.visits import NEVER, RevisitPolicy, recurrence, stored
from tests.support.ledgers import visit

pytestmark = pytest.mark.quick

HOUR = 3600.0
ADAPTIVE = RevisitPolicy(
    recurrence="adaptive", shortest=timedelta(hours=1), longest=timedelta(hours=48)
)


def hours(asked, *, before: float | None, changed: bool, policy: RevisitPolicy = ADAPTIVE):
    last = None if before is None else visit(interval=before * HOUR)
    found = policy.interval(asked, last, changed=changed)
    return None if found is None else found.total_seconds() / HOUR


@pytest.mark.parametrize(
    ("before", "changed", "after"),
    [
        (None, True, 24),
        (24, True, 12),
        (24, False, 36),
        (1.5, True, 1),
        (40, False, 48),
        (48, False, 48),
    ],
)
def test_the_interval_follows_the_page_within_the_bounds(before, changed, after):
    assert hours(None, before=before, changed=changed) == after


def test_what_the_request_asks_for_comes_before_the_settings():
    weekly = RevisitPolicy(recurrence=timedelta(hours=168))

    assert hours(None, before=24, changed=True, policy=weekly) == 168
    assert hours(2 * HOUR, before=24, changed=True, policy=weekly) == 2
    assert hours("adaptive", before=24, changed=True, policy=weekly) == 12
    assert hours("never", before=24, changed=True, policy=weekly) is None
    assert hours(None, before=24, changed=True, policy=RevisitPolicy()) is None


@pytest.mark.parametrize("value", ["7d", 90.5, timedelta(days=1), " Adaptive ", NEVER])
def test_a_recurrence_comes_back_from_what_is_stored(value):
    assert recurrence(stored(recurrence(value))) == recurrence(value)


@pytest.mark.parametrize("value", ["often", "", -1, "nan", True])
def test_what_is_no_recurrence_is_refused_in_one_sentence(value):
    with pytest.raises(SettingsError, match="neither a duration such as 12h or 7d, nor adaptive"):
        recurrence(value)
