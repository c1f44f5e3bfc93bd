"""Define a page's last visit, and compute the time of the page's next visit. No I/O.

The next visit uses the server's validators (ETag, Last-Modified) to check whether the page has
changed. If the server sends no validators, the visit compares digests of the body.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from crawlcw.errors import SettingsError
from crawlcw.model.durations import duration
from crawlcw.model.page_value import page_value

#: The recurrence of a page that is visited about as often as the page changes.
ADAPTIVE = "adaptive"
#: The recurrence of a page that is never visited again, whatever the settings say.
NEVER = "never"

#: How often a page is visited: the time between two visits, or the text `ADAPTIVE` or `NEVER`.
Recurrence = timedelta | str

#: The time between a page's first and second visit, if the recurrence is `ADAPTIVE`.
_FIRST = timedelta(days=1)
_GROWTH = 1.5


@page_value(frozen=True, slots=True, kw_only=True)
class Visit:
    """The last visit of a page, which ended with a good response."""

    time: datetime  #: time of the last good response, which may be a 304
    changed: datetime  #: time of the last response that differed from the previous response
    interval: float | None = None  #: seconds until the next visit; None: no next visit
    etag: str | None = None  #: header ETag of the response
    last_modified: str | None = None  #: header Last-Modified of the response
    digest: str | None = None  #: body's digest; None if the body is cut off or is another task's


def recurrence(value: timedelta | float | str) -> Recurrence:
    """Return the recurrence in a user's *value*, such as `7d`; raises `SettingsError`."""
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
    """Return a recurrence as seconds, `ADAPTIVE` or `NEVER`; `recurrence` converts it back."""
    return value.total_seconds() if isinstance(value, timedelta) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisitPolicy:
    """The settings for repeated visits of finished pages."""

    recurrence: Recurrence = NEVER
    shortest: timedelta = timedelta(hours=1)  #: minimum time between `ADAPTIVE` visits
    longest: timedelta = timedelta(days=30)  #: maximum time between `ADAPTIVE` visits

    def interval(
        self, requested: float | str | None, previous: Visit | None, *, changed: bool
    ) -> timedelta | None:
        """Return the time from a page's current visit to its next visit; None for no next visit.

        *requested* is the option of the page's request, which overrides the settings. *previous* is
        the visit before the current visit. An `ADAPTIVE` interval is halved if *changed* is true,
        and else grows by half. It stays between `shortest` and `longest`.
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
