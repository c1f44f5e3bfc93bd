"""Filter a page's links by URL, extension and position, and detect crawler traps.

In a crawler trap every page links to new pages, for ever. Examples are a relative link that makes
the path longer on each page, and a search with forty filters. `max_depth`, which has no default,
and `max_pages_per_host` limit an endless site with ordinary URLs, such as a calendar.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selectolax.lexbor import LexborNode

from crawlcw.errors import FetchError, Reason
from crawlcw.model import urls

if TYPE_CHECKING:
    from parsel import Selector

Patterns = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]
Extensions = str | Iterable[str]
Domains = str | Iterable[str]

#: Extensions of files that are not pages: Scrapy's list, and some newer extensions.
SKIPPED_EXTENSIONS = frozenset(
    """
    7z 7zip apk bz2 dmg gz iso jar rar tar tar.gz tgz xz zip zst
    ai avif bmp cdr drw dxf eps gif ico jpeg jpg mng pct png ps psp pst svg tif tiff webp
    aac aiff au flac m4a mid mp3 ogg opus ra wav wma
    3gp asf asx avi flv m4v mkv mov mp4 mpg qt rm swf webm wmv
    doc docx epub mobi odg odp ods odt pdf pps ppt pptx xls xlsx
    bat bin cpl css deb eot exe hta js msi msp otf py rb rpm rss sh ttf woff woff2
    """.split()  # noqa: SIM905  # as a list it would be ten times as long
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFilter:
    """A filter of links: a crawl follows only the addresses that meet all given conditions."""

    allow: tuple[re.Pattern[str], ...] = ()  #: one must match
    deny: tuple[re.Pattern[str], ...] = ()  #: none may match
    allow_domains: frozenset[str] = frozenset()  #: allowed hosts, with subdomains; empty: all
    deny_domains: frozenset[str] = frozenset()
    extensions: frozenset[str] | None = None  #: allowed extensions; `""`: no extension
    deny_extensions: frozenset[str] = frozenset()

    @staticmethod
    def of(
        *,
        allow: Patterns = (),
        deny: Patterns = (),
        allow_domains: Domains = (),
        deny_domains: Domains = (),
        extensions: Extensions | None = None,
        deny_extensions: Extensions | bool = False,
    ) -> "LinkFilter":
        """Return a filter from the arguments of `follow_all`; raises `ValueError` for a mistake."""
        if deny_extensions is True:
            denied = SKIPPED_EXTENSIONS
        else:
            denied = _extensions(deny_extensions or ())
        return LinkFilter(
            allow=compiled_patterns("allow", allow),
            deny=compiled_patterns("deny", deny),
            allow_domains=_domains("allow_domains", allow_domains),
            deny_domains=_domains("deny_domains", deny_domains),
            extensions=None if extensions is None else _extensions(extensions),
            deny_extensions=denied,
        )

    def passes(self, url: str) -> bool:
        """Return whether the filter accepts an absolute URL."""
        if self.allow and not any(pattern.search(url) for pattern in self.allow):
            return False
        if self.deny and any(pattern.search(url) for pattern in self.deny):
            return False
        if self.allow_domains or self.deny_domains:
            host = urls.locate(url).host
            if self.allow_domains and not urls.in_scope(host, self.allow_domains):
                return False
            if urls.in_scope(host, self.deny_domains):
                return False
        if self.extensions is None and not self.deny_extensions:
            return True
        extensions = extensions_of(url)
        if self.extensions is not None and not extensions & self.extensions:
            return False
        return not extensions & self.deny_extensions


#: The filter that accepts every link.
EVERYTHING = LinkFilter()


def extensions_of(url: str) -> frozenset[str]:
    """Return the extensions of a URL's path in lower case: `gz` and `tar.gz`; `""` for none."""
    path = url.partition("#")[0].partition("?")[0].partition("://")[2].partition("/")[2]
    parts = path.rpartition("/")[2].lower().split(".")
    if len(parts) == 1:
        return frozenset({""})
    return frozenset({parts[-1], ".".join(parts[-2:])} if len(parts) > 2 else {parts[-1]})


def nodes_within(
    nodes: Iterable[LexborNode], regions: Iterable[LexborNode]
) -> Iterator[LexborNode]:
    """Yield each node of *nodes* that is a region itself, or that a region contains."""
    # Comparing nodes by their address in memory takes linear time even on deep pages.
    is_inside_by_id = {region.mem_id: True for region in regions}
    for node in nodes:
        ancestor: LexborNode | None = node
        passed_ids = []
        while ancestor is not None and ancestor.mem_id not in is_inside_by_id:
            passed_ids.append(ancestor.mem_id)
            ancestor = ancestor.parent
        is_inside = ancestor is not None and is_inside_by_id[ancestor.mem_id]
        is_inside_by_id.update(dict.fromkeys(passed_ids, is_inside))
        if is_inside:
            yield node


def compiled_patterns(name: str, patterns: Patterns) -> tuple[re.Pattern[str], ...]:
    """Return *patterns* as compiled expressions; raises `ValueError` that names the argument."""
    pattern_list = [patterns] if isinstance(patterns, str | re.Pattern) else patterns
    try:
        return tuple(re.compile(pattern) for pattern in pattern_list)
    except (re.error, TypeError) as error:
        raise ValueError(f"{name}={patterns!r} is not a regular expression: {error}") from None


def _domains(name: str, domains: Domains) -> frozenset[str]:
    try:
        names = [domains] if isinstance(domains, str) else list(domains)
        return frozenset(urls.locate(f"http://{domain}/").host for domain in names if domain)
    except (TypeError, FetchError):
        message = f"{name}={domains!r} must be hosts such as shop.example or shop.example:8080"
        raise ValueError(message) from None


def text_matches(
    nodes: "Iterable[LexborNode | Selector | str | None]", patterns: tuple[re.Pattern[str], ...]
) -> "Iterator[LexborNode | Selector | str | None]":
    """Yield each node of *nodes* whose text matches one of *patterns*; an address has no text."""
    for node in nodes:
        if node is None or isinstance(node, str):
            continue
        text = node.text() if isinstance(node, LexborNode) else node.xpath("string()").get("")
        if any(pattern.search(text) for pattern in patterns):
            yield node


def _extensions(extensions: Extensions) -> frozenset[str]:
    names = [extensions] if isinstance(extensions, str) else extensions
    return frozenset(extension.lower().removeprefix(".") for extension in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrapPolicy:
    """The limits of URLs that detect crawler traps; a limit may be None, for no limit."""

    max_length: int | None = 2000  #: characters
    max_path_segments: int | None = 20  #: each slash counts as a path segment
    max_segment_repeats: int | None = 3  #: repeats of a non-empty path segment
    max_query_parameters: int | None = 20  #: parameters are separated by `&` or `;`

    def refusal_reason(self, url: str) -> Reason | None:
        """Return why *url* looks like a trap, or None; *url* is a `Location.canonical`."""
        # Count separators before splitting the URL, because counting is faster.
        if self.max_length is not None and len(url) > self.max_length:
            return Reason.URL_TOO_LONG
        address, _, query = url.partition("?")
        if query and self.max_query_parameters is not None:
            parameters = query.count("&") + query.count(";") + 1
            if parameters > self.max_query_parameters:
                return Reason.TRAP_QUERY_PARAMETERS
        segments = address.count("/") - 2  # do not count the slashes of `https://`
        if self.max_path_segments is not None and segments > self.max_path_segments:
            return Reason.TRAP_PATH_SEGMENTS
        max_repeats = self.max_segment_repeats
        if (
            max_repeats is not None
            and segments > max_repeats
            and _repeats_segments(address.split("/")[3:], max_repeats)
        ):
            return Reason.TRAP_REPEATED_SEGMENT
        return None


def _repeats_segments(segments: list[str], max_repeats: int) -> bool:
    """Return whether any non-empty path segment occurs more than *max_repeats* times."""
    if len(segments) - len(set(segments)) < max_repeats:
        return False
    counts = Counter(segments)
    del counts[""]
    return any(number > max_repeats for number in counts.values())
