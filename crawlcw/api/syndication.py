"""Read the records of feeds (RSS 0.9x, 1.0 and 2.0, and Atom), and dates of feeds and sitemaps.

This module reads only the fields that a crawl needs. The library feedparser knows many more fields,
but builds a tree of the whole feed, and needs sgmllib3k, a library without a maintainer. feedparser
would also be a second XML parser, and has no limits.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import urljoin

from crawlcw.api.xml_records import BASE, Record, joined, records, text_pieces
from crawlcw.errors import FetchError, Reason, XmlError
from crawlcw.model import urls

#: The root elements of feeds, and the names of their entries.
RECORDS = {
    "rss": frozenset({"item"}),
    "rdf": frozenset({"item"}),
    "feed": frozenset({"entry"}),
}
#: The colon between hours and minutes of a UTC offset; dates of RFC 822 have no such colon.
_COLON = re.compile(r"(?<=[+-]\d\d):(?=\d\d\b)")
#: A time of a 12-hour clock, which `email.utils` would read as a 24-hour time.
_TWELVE_HOUR_TIME = re.compile(r"\d\s*[AP]M\b", re.IGNORECASE)
_DATE_WITHOUT_TIME = re.compile(
    r"(?:[A-Z]+,?\s+)?\d{1,2}[ -][A-Z]{3,9}[ -](?:\d{4}|\d\d)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """An entry (article) of a feed."""

    link: str  #: the entry's URL, joined to any `xml:base`; may be relative or ""
    id: str = ""  #: the entry's unique id; `link` if the feed has no id
    title: str = ""
    published: datetime | None = None  #: aware; else `updated`
    updated: datetime | None = None  #: aware; else `published`
    summary: str = ""  #: text or HTML


class Page(Protocol):
    """A response whose body is a feed."""

    url: str
    headers: Mapping[str, str]
    body: bytes


def feed_of(page: Page) -> list[FeedEntry]:
    """Return the entries of an RSS or Atom feed, in the feed's order, with absolute links.

    An incomplete feed gives its complete entries. Raises `XmlError` if the body is not a feed, has
    no complete entry, or is harmful.
    """
    feed_entries: list[FeedEntry] = []
    pieces = text_pieces(page.body, content_type=page.headers.get("content-type"))
    try:
        for record in records(pieces, names_by_root=RECORDS, label="feed"):
            entry = entry_of(record)
            with suppress(FetchError):  # `follow` drops and counts such a link
                link = urls.resolve(page.url, entry.link) if entry.link else ""
                entry = replace(entry, link=link)
            feed_entries.append(entry)
    except XmlError as error:
        if not feed_entries or error.reason is Reason.XML_UNSAFE:
            raise
    return feed_entries


def entry_of(record: Record) -> FeedEntry:
    """Return a record of a feed as a `FeedEntry`."""
    identity = record.text("id", "guid")
    link = _link(record)
    published = date_in(record.text("published", "pubdate", "dc:date", "issued"))
    updated = date_in(record.text("updated", "atom:updated", "modified", "dcterms:modified"))
    return FeedEntry(
        link=link,
        id=identity or link,
        title=record.text("title", "dc:title"),
        published=published or updated,
        updated=updated or published,
        summary=record.text("summary", "description", "content", "content:encoded"),
    )


def _link(record: Record) -> str:
    """Return the address of an entry. The address is a text in RSS, and an attribute in Atom."""
    for field in record.fields:
        if field.name == "link" and (text := field.text.strip()):
            return _joined_link(record, text, base=field.attributes.get(BASE, ""))
    for field in record.fields:
        is_link = field.name in ("link", "atom:link")
        href = field.attributes.get("href", "").strip()
        if is_link and href and field.attributes.get("rel", "alternate") == "alternate":
            return _joined_link(record, href, base=field.attributes.get(BASE, ""))
    for field in record.fields:
        # By default the text of an RSS <guid> is an address, but many feeds write other text.
        is_address = field.attributes.get("isPermaLink", "true").lower() == "true"
        if field.name == "guid" and is_address and "://" in field.text:
            return field.text.strip()
    about = record.attributes.get("rdf:about", "")  # RSS 1.0
    return about and _joined_link(record, about)


def _joined_link(record: Record, link: str, *, base: str = "") -> str:
    try:
        return urljoin(joined(record.base, base), link)
    except ValueError:
        return link  # `follow` drops and counts it


def date_in(text: str) -> datetime | None:
    """Return the time in *text* as an aware datetime in UTC, or None.

    *text* is a W3C date (`2026-01-31`, `2026-01-31T12:00:00Z`) as in sitemaps and Atom, or a date
    of RFC 822, as in RSS. A time without a known time zone is in UTC. For a day, a month or a year,
    the result is the start of the day, month or year.
    """
    span = _span(text.strip()[:64])
    return None if span is None else span[0]


def latest_in(text: str) -> datetime | None:
    """Return the time in *text*, or the end of the day, month or year if *text* names no time."""
    span = _span(text.strip()[:64])
    return None if span is None else span[1]


def _span(text: str) -> tuple[datetime, datetime] | None:
    try:
        if span := _of_date(text):
            return span
        utc_time = _in_utc(datetime.fromisoformat(text))
        return utc_time, utc_time
    except (ValueError, OverflowError):
        pass
    if _TWELVE_HOUR_TIME.search(text):
        return None
    try:
        if _DATE_WITHOUT_TIME.fullmatch(text):
            day_start = parsedate_to_datetime(f"{text} 00:00:00").replace(tzinfo=UTC)
            return day_start, day_start + timedelta(days=1)
        utc_time = _in_utc(parsedate_to_datetime(_COLON.sub("", text)))
        return utc_time, utc_time
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _of_date(text: str) -> tuple[datetime, datetime] | None:
    """Return the start and end of the year, month or day in *text*; None for any other *text*."""
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
