"""Entries of a sitemap: of XML, of plain text or of a feed, packed or not, as sitemaps.org has it.

It is read a piece at a time, so that 50,000 entries are never in memory together.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from crawlcw.api import syndication
from crawlcw.api.dates import latest_in
from crawlcw.api.text_pieces import text_pieces
from crawlcw.api.xml_records import Record, records
from crawlcw.errors import Reason, XmlError

_SITEMAP = "sitemap"
_RECORDS = {
    "urlset": frozenset({"url"}),
    "sitemapindex": frozenset({_SITEMAP}),
    **syndication.RECORDS,
}
_LINE = re.compile(r"\r\n?|\n")
#: Longer than any URL that is fetched: the rest of such a line is not kept.
_LONGEST_LINE = 1 << 14
_OF_ROBOTS_TXT = re.compile(r"^[ \t]*sitemap[ \t]*:[ \t]*(\S+)", re.IGNORECASE | re.MULTILINE)
_LONGEST_ROBOTS_TXT = 512 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SitemapEntry:
    """One entry of a sitemap."""

    url: str  #: as it is written: it may be relative, or none at all
    is_sitemap: bool = False  #: it leads to another sitemap, not to a page
    lastmod: datetime | None = None  #: aware; of a day alone, the end of it
    changefreq: str = ""
    priority: float | None = None
    alternates: Mapping[str, str] = field(default_factory=dict)  #: language -> URL


def entries(
    body: bytes, *, content_type: str | None = None, is_cut: bool = False
) -> Iterator[SitemapEntry]:
    """Yield the entries of a sitemap, in its order; *is_cut*: the body has lost its end.

    Raises `XmlError` where it cannot be read to its end; the entries before that were yielded.
    """
    pieces = text_pieces(body, content_type=content_type)
    begun = ""
    for piece in pieces:
        begun += piece
        if begun.strip():
            break
    whole = chain([begun], pieces)
    if begun.lstrip().startswith("<"):
        for record in records(whole, of=_RECORDS, what="sitemap"):
            entry = _entry(record)
            if entry.url:
                yield entry
    else:
        end = [] if is_cut else ["\n"]  # the first part of a URL is another URL
        for line in _lines(chain(whole, end)):
            yield SitemapEntry(url=line)


def sitemaps_of_robots_txt(text: str) -> list[str]:
    """Return the sitemaps that a robots.txt names, each once."""
    return list(dict.fromkeys(_OF_ROBOTS_TXT.findall(text[:_LONGEST_ROBOTS_TXT])))


def _entry(record: Record) -> SitemapEntry:
    if record.name not in ("url", _SITEMAP):
        of_feed = syndication.entry_of(record)
        return SitemapEntry(url=of_feed.link, lastmod=of_feed.updated)
    return SitemapEntry(
        url=record.text("loc"),
        is_sitemap=record.name == _SITEMAP,
        lastmod=latest_in(record.text("lastmod")),
        changefreq=record.text("changefreq").lower(),
        priority=_number(record.text("priority")),
        alternates=dict(_alternates(record)),
    )


def _alternates(record: Record) -> Iterator[tuple[str, str]]:
    for each in record.fields:
        if each.name.rpartition(":")[2] == "link":
            said = each.attributes
            if said.get("rel", "").lower() == "alternate" and (url := said.get("href", "")):
                yield said.get("hreflang", ""), url


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the whole lines that are not empty; raises `XmlError` where they are no URLs."""
    rest = ""
    is_first = True
    for piece in pieces:
        *lines, rest = _LINE.split(rest + piece)
        rest = rest[:_LONGEST_LINE]
        for each in lines:
            line = each.strip()[:_LONGEST_LINE]
            if not line:
                continue
            if is_first and "://" not in line:
                raise XmlError(Reason.PARSE_ERROR, "it is no sitemap: neither XML nor URLs")
            is_first = False
            yield line
