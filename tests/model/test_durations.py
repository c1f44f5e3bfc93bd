"""Durations, parsed from settings and printed for users."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.errors import SettingsError
from crawlcw.model.durations import duration, format_duration

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (timedelta(seconds=5), 5),
        (5, 5),
        (0, 0),
        (2.5, 2.5),
        ("0", 0),
        ("30", 30),
        ("1.5", 1.5),
        ("30s", 30),
        ("250ms", 0.25),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604800),
        ("1w", 604800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1 H 30 M ", 5400),
        ("1.5h", 5400),
        ("1s500ms", 1.5),
    ],
)
def test_a_duration_is_read(written: timedelta | float | str, seconds: float):
    assert duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "soon",
        "5 parsecs",
        "s",
        "30s5",
        "5s,",
        "-5",
        "-5s",
        -1,
        timedelta(seconds=-1),
        "nan",
        "inf",
        "1e400",
        float("nan"),
        float("inf"),
        True,
        "101y",
        "40000d",
        10**400,
        "9" * 400 + "d",
        None,
        [],
        b"5s",
    ],
)
def test_what_is_no_duration_is_one_clear_error(written: object):
    with pytest.raises(SettingsError, match="is not a duration: write seconds, or a text such as"):
        duration(written)  # type: ignore[arg-type]  # users do


@given(st.text(alphabet="0123456789.hmsd -e", max_size=12))
def test_any_text_is_a_duration_or_a_settings_error(text: str):
    try:
        found = duration(text)
    except SettingsError:
        return

    assert timedelta(0) <= found <= timedelta(days=36_500)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (2.25, "2.2 s"),
        (45, "45 s"),
        (119, "119 s"),
        (240, "4 min"),
        (7140, "119 min"),
        (7800, "2 h 10 min"),
        (47 * 3600, "47 h 0 min"),
        (76 * 3600, "3 d 4 h"),
    ],
)
def test_a_duration_is_spoken_shortly(seconds: float, text: str):
    assert format_duration(timedelta(seconds=seconds)) == text
