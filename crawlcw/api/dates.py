"""Dates as sitemaps and feeds have them."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

#: A date with the time of day, and its zone as RFC 822 and its followers write it.
_WITH_TIME = re.compile(
    r"(?P<date>.*?\s|.*?T)(?P<hour>\d{1,2}):(?P<minute>\d\d)(?P<seconds>(?::\d\d(?:\.\d{1,6})?)?)"
    r"\s*(?P<half>[AP]M)?\s*"
    r"(?:(?:GMT|UTC?)?(?P<sign>[+-])(?P<hours>\d{1,2}):?(?P<minutes>\d\d)?|(?P<name>[A-Z]{1,5}))?"
    r"(?:\s*\(.*)?",
    re.IGNORECASE | re.DOTALL,
)
_DAY = re.compile(r"(?:[A-Z]+,?\s+)?\d{1,2}[ -][A-Z]{3,9}[ -](?:\d{4}|\d\d)", re.IGNORECASE)
#: Hours from UTC. RFC 5322, section 4.3: those of North America have a meaning, all others are
#: as good as UTC where nothing else is known of them. Each name here has one meaning on the web.
_HOURS: dict[str, float] = {
    name: hours
    for hours, names in (
        *((-10, "HST"), (-9, "AKST"), (-8, "AKDT PST"), (-7, "MST PDT"), (-6, "CST MDT")),
        *((-5, "EST CDT"), (-4, "EDT AST"), (-3.5, "NST"), (-3, "ADT"), (-2.5, "NDT")),
        *((1, "WEST BST CET MET MEZ"), (2, "CEST MEST MESZ EET SAST"), (3, "EEST MSK")),
        *((5, "PKT"), (7, "WIB ICT"), (8, "HKT SGT AWST"), (9, "JST KST"), (10, "AEST")),
        *((11, "AEDT"), (12, "NZST"), (13, "NZDT")),
    )
    for name in names.split()
}
#: Those that stand for the time of summer and of winter.
_PLACES = {
    "ET": ("America/New_York", "EST"),
    "CT": ("America/Chicago", "CST"),
    "MT": ("America/Denver", "MST"),
    "PT": ("America/Los_Angeles", "PST"),
}


def date_in(text: str) -> datetime | None:
    """Return the moment that *text* names, aware, in UTC, or None.

    It is a W3C date (`2026-01-31`, `2026-01-31T12:00:00Z`) as in sitemaps and Atom, or one
    of RFC 822, as in RSS. Without a zone that is known it is UTC; where only the day is
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
    try:
        if _DAY.fullmatch(text):
            begin = parsedate_to_datetime(f"{text} 00:00:00").replace(tzinfo=UTC)
            return begin, begin + timedelta(days=1)
        moment = _in_utc(_with_zone(text))
        return moment, moment
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _with_zone(text: str) -> datetime:
    """Return the time that a date has, aware if it names a zone; raises as `email.utils` does."""
    found = _WITH_TIME.fullmatch(text)
    if found is None:
        return parsedate_to_datetime(text)
    hour = int(found["hour"])
    if found["half"]:
        hour = hour % 12 + (12 if found["half"].upper() == "PM" else 0)
    time = f"{hour:02}:{found['minute']}{found['seconds'] or ':00'}"
    date = found["date"]
    if date[:4].isdigit():
        moment = datetime.fromisoformat(f"{date}{time}")
    else:
        # It knows some forms only by the part behind the time.
        moment = parsedate_to_datetime(f"{date}{time.partition('.')[0]} GMT")
    if found["sign"]:
        offset = timedelta(hours=int(found["hours"]), minutes=int(found["minutes"] or 0))
        return moment.replace(tzinfo=timezone(-offset if found["sign"] == "-" else offset))
    return moment.replace(tzinfo=_zone((found["name"] or "").upper()))


def _zone(name: str) -> tzinfo:
    if name in _PLACES:
        place, name = _PLACES[name]
        try:
            return ZoneInfo(place)
        except ZoneInfoNotFoundError:
            pass  # a system without a database of zones: it is an hour too early in summer
    return timezone(timedelta(hours=_HOURS.get(name, 0)))


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
