"""HTTP statuses, parsed from settings."""

import pytest

from crawlcw.errors import SettingsError
from crawlcw.model.retry import format_statuses, statuses

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (404, (404,)),
        ([410, 404, 404], (404, 410)),
        (range(500, 503), (500, 501, 502)),
        ("404, 500-502", (404, 500, 501, 502)),
        (["404", "410-411"], (404, 410, 411)),
        ("none", ()),
        ((), ()),
    ],
)
def test_statuses_are_read_however_they_are_written(written, found):
    assert statuses(written) == found
    assert statuses(format_statuses(found)) == found


@pytest.mark.parametrize(
    "wrong", [99, 600, True, 404.0, "404;410", "600-610", [None], None, {}.keys]
)
def test_what_names_no_status_is_refused(wrong):
    with pytest.raises(
        SettingsError, match="is not a list of HTTP statuses: write numbers from 100 to 599"
    ):
        statuses(wrong)


def test_neighbours_are_shown_as_a_span():
    assert format_statuses([500, 404, 501, 502]) == "404,500-502"
