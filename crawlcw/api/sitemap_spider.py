"""A spider that finds its pages in sitemaps.

    class Docs(SitemapSpider):
        name = "docs"
        sitemap_urls = ["https://example.com/sitemap.xml"]

        def parse(self, response):
            yield {"title": response.css_first("h1").text()}

Each sitemap is a task like a page. The next run reads the sitemaps again, and fetches a page again
if the page's `lastmod` is later than the crawl's last visit of the page. A sitemap may be XML,
plain text or a feed, with or without gzip, as sitemaps.org allows. The spider reads a sitemap piece
by piece, so that 50,000 entries are never in memory together.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, islice
from typing import Any
from urllib.parse import urlsplit

from protego import Protego

from crawlcw.api import syndication
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider, callback_named, check_kind, check_urls, entry_urls, url_list
from crawlcw.api.syndication import latest_in
from crawlcw.api.xml_records import LARGEST, Record, records, text_pieces
from crawlcw.errors import FetchError, Reason, SpiderError, XmlError
from crawlcw.model import urls
from crawlcw.model.visits import NEVER

#: Maximum number of entries in one sitemap, as sitemaps.org sets it.
MAX_ENTRIES = 50_000
#: Maximum number of nested sitemap indexes. Some sites nest them, although sitemaps.org forbids it.
MAX_NESTED = 3
#: The priority of sitemaps, which are fetched before pages.
_PRIORITY = 10
_ROBOTS_TXT = "/robots.txt"
_DEFAULT_PATH = "/sitemap.xml"
_SITEMAP = "sitemap"
_INDEX = "sitemapindex"
#: Elements that are entries. Some generators confuse <url> and <sitemap>, or write only <loc>.
_ENTRY_TAGS = frozenset({"url", _SITEMAP, "loc"})
_RECORDS = {
    "urlset": _ENTRY_TAGS,
    _INDEX: _ENTRY_TAGS,
    **syndication.RECORDS,
}
_LINE = re.compile(r"\r\n?|\n")
#: Maximum length of a line. URLs are shorter, and the reader drops the rest of a longer line.
_LONGEST_LINE = 1 << 14
_LONGEST_ROBOTS_TXT = 512 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SitemapEntry:
    """A page or a sitemap that a sitemap lists."""

    url: str  #: the URL as the sitemap has it; may be relative or invalid
    is_sitemap: bool = False  #: whether the entry is a sitemap, not a page
    lastmod: datetime | None = None  #: aware; the end of the day if the sitemap gives only a day
    changefreq: str = ""
    priority: float | None = None
    alternates: Mapping[str, str] = field(default_factory=dict)  #: language -> URL


class SitemapSpider(Spider):
    """A spider that begins with sitemaps, and with start URLs if it has any.

    A sitemap is XML, plain text, RSS or Atom; gzip is unpacked. The crawl drops and counts all
    entries after the first 50,000 of a file, entries inside of more than three nested indexes, and
    URLs out of scope.
    """

    #: Sitemaps, indexes of sitemaps, or robots.txt files that name sitemaps. If the list is empty,
    #: the spider reads the robots.txt of the start URLs' hosts. If a robots.txt names no sitemap,
    #: the spider requests `/sitemap.xml`.
    sitemap_urls: Iterable[str] = ()
    #: Pairs of a regular expression and a callback. The first expression found in the URL chooses
    #: the callback of the page; a page that matches no expression is not fetched.
    sitemap_rules: Sequence[tuple[str, str | Callable[..., Any]]] = (("", "parse"),)
    #: Regular expressions; a sitemap that an index lists is read if an expression matches its URL.
    sitemap_follow: Sequence[str] = ("",)
    #: Whether to also fetch the pages in other languages (hreflang) that a sitemap's entry names.
    sitemap_alternate_links: bool = False

    async def start(self) -> AsyncIterator[Request]:
        """Yield the requests for the start URLs and for the sitemaps."""
        async for request in super().start():
            yield request
        if self.sitemap_urls:
            for url in self.sitemap_urls:
                yield self.sitemap_request(url)
            return
        origins = dict.fromkeys(urls.origin_of(url) for url in self.start_urls)
        for origin in origins:
            yield self.sitemap_request(origin + _ROBOTS_TXT)

    def sitemap_filter(self, entries: Iterator[SitemapEntry]) -> Iterable[SitemapEntry]:
        """Return the wanted *entries* of a sitemap; a spider overrides this method to drop entries.

        Write the method as a generator, so that the entries are never in memory together.
        """
        return entries

    def sitemap_request(
        self, url: str, *, nesting: int = 0, changed: datetime | None = None
    ) -> Request:
        """Return the request for a sitemap.

        Each run reads the sitemap. If *changed* is given, a run reads the sitemap only if the last
        visit was before *changed*. *nesting* is the number of indexes that led to the sitemap.
        """
        return Request(
            url,
            self.parse_sitemap,
            errback=self.sitemap_error,
            context={"nesting": nesting},
            priority=_PRIORITY,
            max_body=LARGEST,
            truncate=True,
            changed=changed,
            each_run=changed is None,
            revisit=NEVER,
            browser=False,
        )

    @url_list
    def parse_sitemap(self, response: Response) -> Iterator[Request]:
        """Yield the requests for the URLs that a sitemap or a robots.txt lists."""
        nesting = int(response.context.get("nesting", 0))
        if urlsplit(response.url).path == _ROBOTS_TXT:
            sitemap_urls = sitemaps_of_robots_txt(response.text)
            for address in sitemap_urls or [_DEFAULT_PATH]:
                if (url := _absolute_url(response, address)) is not None:
                    yield self.sitemap_request(url, nesting=nesting)
            return
        content_type = response.headers.get("content-type")
        is_cut = response.truncated not in (None, "checksum")
        listed_entries = entries(response.body, content_type=content_type, is_cut=is_cut)
        selected = iter(self.sitemap_filter(listed_entries))
        for entry in islice(selected, MAX_ENTRIES):
            yield from self._requests(response, entry, nesting=nesting)
        for entry in selected:
            response.dropped.note("max-urls-per-sitemap", entry.url)
        if response.truncated == "coding":
            raise XmlError(Reason.PAYLOAD_TRUNCATED, "its compressed content is incomplete")
        if is_cut:
            raise XmlError(Reason.DOCUMENT_TOO_LARGE, f"it has more than {LARGEST >> 20} MiB")

    def sitemap_error(self, request: Request, error: FetchError) -> Any:
        """Request `/sitemap.xml` if robots.txt is missing; pass other failures to `on_error`."""
        parts = urlsplit(request.url)
        if parts.path == _ROBOTS_TXT and error.status is not None and error.status < 500:
            return self.sitemap_request(f"{parts.scheme}://{parts.netloc}{_DEFAULT_PATH}")
        return self.on_error(request, error)

    def _requests(
        self, response: Response, entry: SitemapEntry, *, nesting: int
    ) -> Iterator[Request]:
        if entry.is_sitemap:
            if nesting >= MAX_NESTED:
                response.dropped.note("max-sitemap-nesting", entry.url)
                return
            url = _absolute_url(response, entry.url)
            if url is not None and any(
                re.search(follow_pattern, url) for follow_pattern in self.sitemap_follow
            ):
                yield self.sitemap_request(url, nesting=nesting + 1, changed=entry.lastmod)
            return
        addresses = [entry.url]
        if self.sitemap_alternate_links:
            addresses += entry.alternates.values()
        for text in addresses:
            url = _absolute_url(response, text)
            callback = None if url is None else self._callback_of(url)
            if url is not None and callback is not None:
                yield Request(url, callback, changed=entry.lastmod)

    def _callback_of(self, url: str) -> str | None:
        for pattern, callback in self.sitemap_rules:
            if re.search(pattern, url):
                return _callback_name(callback)
        return None


def _absolute_url(response: Response, url: str) -> str | None:
    """Return the absolute URL of an entry; count an unfetchable URL and return None."""
    if url.startswith(("http://", "https://")):
        return url  # the crawl drops the URL later if it is invalid
    try:
        return urls.resolve(response.url, url)
    except FetchError as refusal:
        response.dropped.note(refusal.reason, url)
        return None


def _callback_name(callback: str | Callable[..., Any]) -> str:
    return callback if isinstance(callback, str) else callback.__name__


@entry_urls.register
def _(spider: SitemapSpider) -> list[str]:
    return [*spider.start_urls, *spider.sitemap_urls]


@check_kind.register
def _(spider: SitemapSpider) -> None:
    kind = type(spider).__name__
    for name in ("sitemap_urls", "sitemap_follow"):
        if isinstance(getattr(spider, name), str):
            raise SpiderError(f"{kind}.{name} is a single text: write a list")
    if type(spider).start is SitemapSpider.start and not entry_urls(spider):
        raise SpiderError(f"{kind} has neither sitemap_urls nor start_urls")
    check_urls(spider, "sitemap_urls")
    try:
        for pattern, callback in spider.sitemap_rules:
            callback_named(spider, _callback_name(callback))
            re.compile(pattern)
    except (ValueError, TypeError, AttributeError) as error:
        raise SpiderError(
            f"{kind}.sitemap_rules: write pairs of a regular expression and a callback: {error}"
        ) from None
    except re.error as error:
        raise SpiderError(f"{kind}.sitemap_rules: {pattern!r}: {error}") from None
    for pattern in spider.sitemap_follow:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise SpiderError(f"{kind}.sitemap_follow: {pattern!r}: {error}") from None


def entries(
    body: bytes, *, content_type: str | None = None, is_cut: bool = False
) -> Iterator[SitemapEntry]:
    """Yield the entries of a sitemap in order; *is_cut* says that the end of *body* is missing.

    If the sitemap cannot be read to its end, yields the entries before the error, then raises
    `XmlError`.
    """
    text_chunks = text_pieces(body, content_type=content_type)
    start = ""
    for piece in text_chunks:
        start += piece
        if start.strip():
            break
    all_pieces = chain([start], text_chunks)
    if start.lstrip().startswith("<"):
        record, entry_count = None, 0
        for record in records(all_pieces, names_by_root=_RECORDS, label="sitemap"):
            for entry in _entries_of(record):
                entry_count += 1
                yield entry
        if record is not None and not entry_count:
            raise XmlError(Reason.PARSE_ERROR, "none of its entries has an address")
    else:
        end = [] if is_cut else ["\n"]  # a line that was cut off is not a whole URL
        for line in _lines(chain(all_pieces, end)):
            yield SitemapEntry(url=line)


def sitemaps_of_robots_txt(text: str) -> list[str]:
    """Return the sitemaps that a robots.txt names, without duplicates."""
    lines = text[:_LONGEST_ROBOTS_TXT].splitlines()
    # Parse only the sitemap lines, because protego would copy each group's rules for each of its
    # user agents.
    sitemap_lines = (line for line in lines if line.lstrip()[:4].lower() == "site")
    return list(dict.fromkeys(Protego.parse("\n".join(sitemap_lines)).sitemaps))


def _entries_of(record: Record) -> Iterator[SitemapEntry]:
    """Yield the entries of a record; a <url> may have no <loc> or several."""
    if record.name not in _ENTRY_TAGS:
        of_feed = syndication.entry_of(record)
        addresses, entry = [of_feed.link], SitemapEntry(url="", lastmod=of_feed.updated)
    else:
        addresses = [element.text.strip() for element in record.fields if element.name == "loc"]
        addresses = addresses or [record.content.strip()]
        entry = SitemapEntry(
            url="",
            is_sitemap=record.name == _SITEMAP or record.root == _INDEX,
            lastmod=latest_in(record.text("lastmod")),
            changefreq=record.text("changefreq").lower(),
            priority=_number(record.text("priority")),
            alternates=dict(_alternates(record)),
        )
    for url in filter(None, addresses):
        yield replace(entry, url=url)


def _alternates(record: Record) -> Iterator[tuple[str, str]]:
    for element in record.fields:
        if element.name.rpartition(":")[2] == "link":
            attributes = element.attributes
            if attributes.get("rel", "").lower() == "alternate" and (
                url := attributes.get("href", "")
            ):
                yield attributes.get("hreflang", ""), url


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the complete lines that are not empty; raises `XmlError` for text without URLs."""
    unfinished_line = ""
    is_first = True
    for piece in pieces:
        *lines, unfinished_line = _LINE.split(unfinished_line + piece)
        unfinished_line = unfinished_line[:_LONGEST_LINE]
        for raw_line in lines:
            line = raw_line.strip()[:_LONGEST_LINE]
            if not line:
                continue
            if "://" in line:
                is_first = False
                yield line
            elif is_first:
                raise XmlError(
                    Reason.PARSE_ERROR, "it is not a sitemap: neither XML nor a list of URLs"
                )
