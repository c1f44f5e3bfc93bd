"""Records of a feed: RSS 0.9x, 1.0 and 2.0, and Atom; dates as feeds and sitemaps have them.

Only the fields that a crawl needs are read. feedparser knows many more, but it builds a tree
of the whole feed, needs a library without a maintainer (sgmllib3k),
and would be a second parser of XML beside the bounded one.
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

#: Roots, and what their entries are called.
RECORDS = {
    "rss": frozenset({"item"}),
    "rdf": frozenset({"item"}),
    "feed": frozenset({"entry"}),
}
#: Between the hours and minutes of an offset from UTC, which RFC 822 writes without it.
_COLON = re.compile(r"(?<=[+-]\d\d):(?=\d\d\b)")
#: A clock of 12 hours, which `email.utils` would read as one of 24.
_HALF = re.compile(r"\d\s*[AP]M\b", re.IGNORECASE)
_DAY = re.compile(r"(?:[A-Z]+,?\s+)?\d{1,2}[ -][A-Z]{3,9}[ -](?:\d{4}|\d\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """One entry of a feed."""

    link: str  #: where it leads, by `xml:base` where there is one: it may be relative, or empty
    id: str = ""  #: what tells it from all others; its link where it says nothing
    title: str = ""
    published: datetime | None = None  #: aware
    updated: datetime | None = None  #: aware; when it was published, where it says nothing
    summary: str = ""  #: its text, which may be HTML


class Page(Protocol):
    """The source of a feed: a response."""

    url: str
    headers: Mapping[str, str]
    body: bytes


def feed_of(page: Page) -> list[FeedEntry]:
    """Return the entries of an RSS or Atom feed, in its order, their links absolute.

    One that breaks off has the entries that are whole. Raises `XmlError` where the body is
    no such feed, has no whole entry, or is built to do harm.
    """
    found: list[FeedEntry] = []
    pieces = text_pieces(page.body, content_type=page.headers.get("content-type"))
    try:
        for record in records(pieces, of=RECORDS, what="feed"):
            entry = entry_of(record)
            with suppress(FetchError):  # `follow` drops and counts such a link
                link = urls.resolve(page.url, entry.link) if entry.link else ""
                entry = replace(entry, link=link)
            found.append(entry)
    except XmlError as error:
        if not found or error.reason is Reason.XML_UNSAFE:
            raise
    return found


def entry_of(record: Record) -> FeedEntry:
    """Return the entry in a record of a feed."""
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
    """Return where an entry leads: RSS has it as text, Atom as an attribute."""
    for each in record.fields:
        if each.name == "link" and (text := each.text.strip()):
            return _based(record, text, base=each.attributes.get(BASE, ""))
    for each in record.fields:
        is_link = each.name in ("link", "atom:link")
        href = each.attributes.get("href", "").strip()
        if is_link and href and each.attributes.get("rel", "alternate") == "alternate":
            return _based(record, href, base=each.attributes.get(BASE, ""))
    for each in record.fields:
        # That of RSS is an address unless it says that it is none, and often is none.
        is_address = each.attributes.get("isPermaLink", "true").lower() == "true"
        if each.name == "guid" and is_address and "://" in each.text:
            return each.text.strip()
    about = record.attributes.get("rdf:about", "")  # RSS 1.0 names its items so
    return about and _based(record, about)


def _based(record: Record, link: str, *, base: str = "") -> str:
    try:
        return urljoin(joined(record.base, base), link)
    except ValueError:
        return link  # `follow` drops and counts it


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
