"""Check the keys, stages, data, priorities and delays of tracked tasks."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from crawlcw.api.spider import is_name
from crawlcw.errors import UsageError
from crawlcw.model import values

LONGEST_KEY = 1024
LARGEST_PRIORITY = 1000
#: The largest delay, so that the time after the delay is in the range of datetime.
LONGEST_DELAY = timedelta(days=36_500)
_STAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def key(value: object) -> str:
    """Return *value* if it is a task key (a text of 1 to 1,024 bytes); raises `UsageError`."""
    if not isinstance(value, str):
        raise UsageError(f"a task's key must be text, not {type(value).__name__}: write str(...)")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"the key {value!r} has a lone surrogate: no ledger can store it"
        ) from None
    if not 0 < size <= LONGEST_KEY:
        raise UsageError(
            f"a key must have 1 to {LONGEST_KEY} bytes, but this one has {size}: use its digest, "
            "and put the whole key into the task's data"
        )
    return value


def stage(value: object) -> str:
    """Return *value* if *value* is a valid name of a stage; raises `UsageError`."""
    if not isinstance(value, str) or not _STAGE.fullmatch(value):
        raise UsageError(
            f"{value!r} is not a valid stage name: write a letter, then up to 63 letters, "
            "digits, - or _"
        )
    return value


def use_case(value: object) -> str:
    """Return *value* if *value* is a valid name of a use case; raises `UsageError`."""
    if not isinstance(value, str) or not is_name(value):
        raise UsageError(
            f"{value!r} is not a valid use case name: write a letter, then up to 59 letters, "
            "digits, - or _"
        )
    return value


def data(value: object) -> dict[str, Any]:
    """Return *value*, made storable by `values.clean`; raises `UsageError` if it is no mapping."""
    if not isinstance(value, Mapping):
        raise UsageError(f"a task's data must be a mapping, not {type(value).__name__}")
    clean_data: dict[str, Any] = values.clean(value)
    return clean_data


def priority(value: object) -> int:
    """Return *value* if it is a priority from -1,000 to 1,000; raises `UsageError`."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST_PRIORITY:
        raise UsageError(
            f"a priority must be a whole number from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}, "
            f"not {value!r}"
        )
    return value


def delay(value: object) -> timedelta:
    """Return *value* if it is a delay of at most 100 years; raises `UsageError`."""
    if not isinstance(value, timedelta):
        raise UsageError(
            f"a delay must be a timedelta, not {value!r}: write timedelta(seconds=...)"
        )
    if abs(value) > LONGEST_DELAY:
        raise UsageError(f"a delay must be at most {LONGEST_DELAY.days:,} days, not {value.days:,}")
    return value
