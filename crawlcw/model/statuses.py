"""HTTP statuses as users write them: 404, `[404, 410]`, `range(500, 505)`, `404, 500-599`."""

import re
from collections.abc import Iterable, Iterator

from crawlcw.errors import SettingsError

_PART = re.compile(r"(\d{3})(?:\s*-\s*(\d{3}))?")
_KNOWN = range(100, 600)


def statuses(value: int | str | Iterable[int | str]) -> tuple[int, ...]:
    """Return the statuses that *value* names, each once and in order; `none` names none.

    Raises `SettingsError` for anything else.
    """
    try:
        found = set(_read(value))
    except (TypeError, ValueError):
        found = {0}
    if not all(status in _KNOWN for status in found):
        raise SettingsError(
            f"{value!r} are no HTTP statuses: write numbers from 100 to 599, or a text such as "
            "404,500-599"
        )
    return tuple(sorted(found))


def format_statuses(found: Iterable[int]) -> str:
    """Return statuses as a user would write them: `404,500-599`, `none`."""
    spans: list[list[int]] = []
    for status in sorted(found):
        if spans and status == spans[-1][1] + 1:
            spans[-1][1] = status
        else:
            spans.append([status, status])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]
    return ",".join(shown) or "none"


def _read(value: int | str | Iterable[int | str]) -> Iterator[int]:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int):
        yield value
    elif isinstance(value, str):
        yield from _in_text(value)
    else:
        for each in value:
            yield from _read(each)


def _in_text(text: str) -> Iterator[int]:
    if text.strip().lower() in ("", "none"):
        return
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(part)
        yield from range(int(match[1]), int(match[2] or match[1]) + 1)
