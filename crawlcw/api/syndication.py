"""Records of a feed: RSS 0.9x, 1.0 and 2.0, and Atom.

Only the fields that a crawl needs are read. feedparser knows many more, but it builds a tree
of the whole feed, needs a library without a maintainer (sgmllib3k),
and would be a second parser of XML beside the bounded one.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from urllib.parse import urljoin

from crawlcw.api.dates import date_in
from crawlcw.api.text_pieces import text_pieces
from crawlcw.api.xml_records import BASE, Record, joined, records
from crawlcw.errors import FetchError, Reason, XmlError
from crawlcw.model import urls

#: Roots, and what their entries are called.
RECORDS = {
    "rss": frozenset({"item"}),
    "rdf": frozenset({"item"}),
    "feed": frozenset({"entry"}),
}


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
    published = date_in(record.text("published", "pubDate", "dc:date", "issued"))
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
    # RSS 1.0 names its items so.
    return _based(record, record.attributes.get("rdf:about", ""))


def _based(record: Record, link: str, *, base: str = "") -> str:
    try:
        return urljoin(joined(record.base, base), link)
    except ValueError:
        return link  # `follow` drops and counts it
