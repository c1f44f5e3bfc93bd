"""The last visit of a page, and when the next one is to be. No I/O.

The next visit asks whether the page has changed, by the server's own marks (its
validators), and by a digest of its body, for servers that give none.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from crawlcw.errors import SettingsError
from crawlcw.model.durations import duration
from crawlcw.model.page_value import page_value

#: As often as the page changes.
ADAPTIVE = "adaptive"
#: Not even where the settings say when.
NEVER = "never"

#: How long after a visit the next one is to be, `ADAPTIVE` or `NEVER`.
Recurrence = timedelta | str

#: Of a page that was seen once it is not known how often it changes.
_FIRST = timedelta(days=1)
_GROWTH = 1.5


@page_value(frozen=True, slots=True, kw_only=True)
class Visit:
    """The state of a page when it was last answered well."""

    time: datetime  #: of the answer, a 304 included
    changed: datetime  #: of the last answer that was another one than before
    interval: float | None = None  #: seconds until the next visit, where there is to be one
    etag: str | None = None  #: as the server wrote it
    last_modified: str | None = None  #: as the server wrote it
    digest: str | None = None  #: of the body; None: it is not whole, or was no page of its own


def recurrence(value: timedelta | float | str) -> Recurrence:
    """Return when to visit a page again as it is meant by a user; raises `SettingsError`."""
    word = value.strip().lower() if isinstance(value, str) else None
    if word in (ADAPTIVE, NEVER):
        return word
    try:
        return duration(value)
    except SettingsError:
        raise SettingsError(
            f"{value!r} is neither a duration such as 12h or 7d, nor {ADAPTIVE}, nor {NEVER}"
        ) from None


def stored(value: Recurrence) -> float | str:
    """Return a recurrence as a plain value; `recurrence` reads it."""
    return value.total_seconds() if isinstance(value, timedelta) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisitPolicy:
    """The settings about further visits of pages that are finished."""

    recurrence: Recurrence = NEVER
    shortest: timedelta = timedelta(hours=1)  #: of the intervals that follow a page's changes
    longest: timedelta = timedelta(days=30)  #: likewise

    def interval(
        self, asked: float | str | None, before: Visit | None, *, changed: bool
    ) -> timedelta | None:
        """Return how long after a visit the next one is to be; None: none is.

        *asked* is the request's own option instead of the settings', *before* the visit
        before this one. By the page's own rate the interval is halved where it has
        *changed*, and grows by half where it has not, within the bounds.
        """
        wanted = self.recurrence if asked is None else recurrence(asked)
        if isinstance(wanted, timedelta):
            return wanted
        if wanted == NEVER:
            return None
        last = None if before is None else before.interval
        if last is None:
            found = _FIRST
        else:
            found = timedelta(seconds=last / 2 if changed else last * _GROWTH)
        return min(max(found, self.shortest), self.longest)
