"""Convert times, and durations as users write them (a timedelta, seconds, `30s`, `1h30m`)."""

import math
import re
from datetime import datetime, timedelta

from crawlcw.errors import SettingsError

_UNIT_LENGTHS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_NUMBER_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_LONGEST_DURATION = timedelta(days=36_500)


def duration(value: timedelta | float | str) -> timedelta:
    """Return *value* as a timedelta between 0 and 100 years.

    Raises `SettingsError` for any other value.
    """
    try:
        length = _parse_duration(value)
    except (AttributeError, OverflowError, TypeError, ValueError):
        # A value of another type (a list in pyproject.toml) causes AttributeError or TypeError.
        length = None
    if length is None or not timedelta(0) <= length <= _LONGEST_DURATION:
        raise SettingsError(
            f"{value!r} is not a duration: write seconds, or a text such as 30s, 5m, 1h30m, 7d"
        )
    return length


def _parse_duration(value: timedelta | float | str) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return timedelta(seconds=value) if math.isfinite(value) else None
    text = value.strip().lower()
    if _NUMBER_WITH_UNIT.sub("", text).strip() == "" and text:
        return sum(
            (float(n) * _UNIT_LENGTHS[u] for n, u in _NUMBER_WITH_UNIT.findall(text)), timedelta(0)
        )
    return timedelta(seconds=float(text))


def format_duration(value: timedelta) -> str:
    """Return *value* as short text: `45 s`, `4 min`, `2 h 10 min`, `3 d 4 h`."""
    seconds = value.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def iso_time(moment: datetime) -> str:
    """Return a UTC time in ISO 8601 format, ending with Z."""
    return moment.isoformat().replace("+00:00", "Z")
