"""Dates as sitemaps and feeds have them."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

#: Between the hours and minutes of an offset from UTC, which RFC 822 writes without it.
_COLON = re.compile(r"(?<=[+-]\d\d):(?=\d\d\b)")
#: A clock of 12 hours, which `email.utils` would read as one of 24.
_HALF = re.compile(r"\d\s*[AP]M\b", re.IGNORECASE)
_DAY = re.compile(r"(?:[A-Z]+,?\s+)?\d{1,2}[ -][A-Z]{3,9}[ -](?:\d{4}|\d\d)", re.IGNORECASE)


def date_in(text: str) -> datetime | None:
    """Return the moment that *text* names, aware, in UTC, or None.

    It is a W3C date (`2026-01-31`, `2026-01-31T12:00:00Z`) as in sitemaps and Atom, or one
    of RFC 822, as in RSS. Without a zone that RFC 822 knows it is UTC; where only the day is
    known, or the month or the year, it is when that begins.
    """
    span = _span(text.strip()[:64])
    return None if span is None else span[0]


def latest_in(text: str) -> datetime | None:
    """Return the same; where only the day, the month or the year is known, when that ends."""
    span = _span(text.strip()[:64])
    return None if span is None else span[1]


def _span(text: str) -> tuple[datetime, datetime] | None:
    try:
        if found := _of_date(text):
            return found
        moment = _in_utc(datetime.fromisoformat(text))
        return moment, moment
    except (ValueError, OverflowError):
        pass
    if _HALF.search(text):
        return None
    try:
        if _DAY.fullmatch(text):
            begin = parsedate_to_datetime(f"{text} 00:00:00").replace(tzinfo=UTC)
            return begin, begin + timedelta(days=1)
        moment = _in_utc(parsedate_to_datetime(_COLON.sub("", text)))
        return moment, moment
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _of_date(text: str) -> tuple[datetime, datetime] | None:
    """Return when the year, month or day begins and ends that *text* names; None for others."""
    parts = text.split("-")
    if len(text) not in (4, 7, 10) or not text.isascii() or not "".join(parts).isdigit():
        return None
    if [len(part) for part in parts] != [4, 2, 2][: len(parts)]:
        return None
    year, month, day = (*map(int, parts), 0, 0)[:3]
    if len(parts) == 3:
        begin = datetime(year, month, day, tzinfo=UTC)
        return begin, begin + timedelta(days=1)
    begin = datetime(year, month or 1, 1, tzinfo=UTC)
    years, months = divmod(month or 12, 12)
    return begin, datetime(year + years, months + 1, 1, tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
