"""Dates as sitemaps and feeds have them."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


def date_in(text: str) -> datetime | None:
    """Return the moment that *text* names, aware, in UTC, or None.

    It is a W3C date (`2026-01-31`, `2026-01-31T12:00:00Z`) as in sitemaps and Atom, or one
    of RFC 822, as in RSS. Without a zone it is UTC; where only the day is known, or the
    month or the year, it is when that begins.
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
    except (ValueError, OverflowError):
        try:
            moment = _in_utc(parsedate_to_datetime(text))
        except (ValueError, OverflowError, TypeError, IndexError):
            return None
    return moment, moment


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
