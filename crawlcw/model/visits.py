"""The last visit of a page, and the time of the next one. No I/O.

The next visit checks whether the page has changed: by the server's validators, or by a
digest of the body if the server sends no validators.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from crawlcw.errors import SettingsError
from crawlcw.model.durations import duration
from crawlcw.model.page_value import page_value

#: Visit a page as often as it changes.
ADAPTIVE = "adaptive"
#: Never visit it again, even if the settings say when.
NEVER = "never"

#: The time from a visit to the next one, `ADAPTIVE` or `NEVER`.
Recurrence = timedelta | str

#: The interval after the first visit, when the rate of changes is still unknown.
_FIRST = timedelta(days=1)
_GROWTH = 1.5


@page_value(frozen=True, slots=True, kw_only=True)
class Visit:
    """The state of a page at its last good response."""

    time: datetime  #: when the response came; it may be a 304
    changed: datetime  #: when a response last differed from the previous response
    interval: float | None = None  #: seconds until the next visit; None: no visit is planned
    etag: str | None = None  #: as the server wrote it
    last_modified: str | None = None  #: as the server wrote it
    digest: str | None = None  #: None: the body is incomplete, or belongs to another page


def recurrence(value: timedelta | float | str) -> Recurrence:
    """Return the recurrence that a user wrote; raises `SettingsError`."""
    keyword = value.strip().lower() if isinstance(value, str) else None
    if keyword in (ADAPTIVE, NEVER):
        return keyword
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
    """The settings about further visits of finished pages."""

    recurrence: Recurrence = NEVER
    shortest: timedelta = timedelta(hours=1)  #: the minimum interval of `ADAPTIVE`
    longest: timedelta = timedelta(days=30)  #: the maximum interval of `ADAPTIVE`

    def interval(
        self, requested: float | str | None, previous: Visit | None, *, changed: bool
    ) -> timedelta | None:
        """Return the time from this visit to the next visit; None if no next visit is planned.

        *requested* is the option of the request, which overrides the settings; *previous* is the
        previous visit. With `ADAPTIVE` the interval is halved if the page has *changed*, and
        grows by half if it has not, within the bounds.
        """
        recurrence_rule = self.recurrence if requested is None else recurrence(requested)
        if isinstance(recurrence_rule, timedelta):
            return recurrence_rule
        if recurrence_rule == NEVER:
            return None
        last_interval = None if previous is None else previous.interval
        if last_interval is None:
            new_interval = _FIRST
        else:
            new_interval = timedelta(
                seconds=last_interval / 2 if changed else last_interval * _GROWTH
            )
        return min(max(new_interval, self.shortest), self.longest)
