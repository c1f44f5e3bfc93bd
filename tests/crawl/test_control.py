"""Commands to running crawls: read from the ledger, and obeyed."""

from datetime import UTC, datetime, timedelta

import pytest

from crawlcw.api.settings import Settings
from crawlcw.crawl.control import Control, check
from crawlcw.errors import SettingsError
from crawlcw.model.durations import iso_time

pytestmark = pytest.mark.quick
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_where_nothing_is_written_down_nothing_was_told():
    assert Control.of({}) == Control()
    assert Control().applied(Settings(delay="3s")) == Settings(delay="3s")
    assert not Control().stops(NOON)
    assert Control().fields() == {"paused": None, "set": {}}


def test_what_is_written_down_is_read():
    moment = iso_time(NOON)
    control = Control.of({"paused": moment, "stopped": moment, "fed": "a", "delay": "2s"})

    assert control == Control(paused=NOON, stopped=NOON, fed="a", settings={"delay": "2s"})
    assert control.fields() == {"paused": "2026-01-01T12:00:00Z", "set": {"delay": "2s"}}
    assert control.applied(Settings(concurrency=7)) == Settings(concurrency=7, delay="2s")


def test_a_stop_is_for_crawls_that_began_before_it():
    control = Control(stopped=NOON)

    assert control.stops(NOON - timedelta(hours=1))
    assert control.stops(NOON)
    assert not control.stops(NOON + timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"paused": "yes"}, "paused='yes', which is not a time"),
        ({"stopped": 3}, "stopped=3, which is not a time"),
        ({"paused": "2026-01-01T12:00:00"}, "which is not a time"),
        ({"concurrency": "none"}, "concurrency"),
    ],
)
def test_what_somebody_wrote_by_hand_is_named(written: dict, said: str):
    with pytest.raises(SettingsError, match=said):
        Control.of(written)


def test_only_what_a_crawl_follows_can_be_set():
    check({"delay": "1s", "concurrency": "5", "per_host_concurrency": "0"})
    with pytest.raises(SettingsError, match="'lease' takes effect only at the start of a crawl"):
        check({"lease": "1m"})
    with pytest.raises(SettingsError, match="'lese' is not a setting"):
        check({"lese": "1m"})
