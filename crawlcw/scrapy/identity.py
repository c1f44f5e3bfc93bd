"""Decide which of a project's requests are the same, as its dupe filter and fingerprinter do."""

import logging
from collections.abc import Container
from dataclasses import dataclass

import scrapy
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from crawlcw.model import urls
from crawlcw.model.sanitize import printable
from crawlcw.model.task import task_id
from crawlcw.model.urls import Location, Refusal

logger = logging.getLogger(__name__)

#: Maximum number of URLs whose identities are kept in memory.
_MAX_CACHED = 100_000
#: Packages whose dupe filters only remember fingerprints, as the ledger does.
_REPLACED_PACKAGES = ("scrapy", "scrapy_redis")


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a request: its fingerprint, its location, and the id of its task."""

    fingerprint: bytes
    location: Location | Refusal
    task_id: bytes | None  #: None for a URL that cannot be fetched


class Identities:
    """The identities of the requests of one project.

    Requests with one fingerprint are one task of the ledger. The fingerprint comes from the
    project's dupe filter if that is a subclass of `RFPDupeFilter`, else from the fingerprinter.
    """

    def __init__(self, crawler: Crawler, known_ids: Container[bytes]) -> None:
        """*known_ids* are the ids of tasks in the ledger."""
        kind = load_object(crawler.settings["DUPEFILTER_CLASS"])
        fingerprinter = crawler.request_fingerprinter
        assert fingerprinter is not None
        #: Whether the project's dupe filter accepts every request.
        self.accepts_all = kind is BaseDupeFilter
        self._stats = crawler.stats
        self._filtered_count = 0
        self._known_ids = known_ids
        self._fingerprint = fingerprinter.fingerprint
        self._filter: RFPDupeFilter | None = None
        self._cache: dict[str, Identity] = {}
        if kind.__module__.partition(".")[0] not in _REPLACED_PACKAGES:
            if issubclass(kind, RFPDupeFilter):
                self._filter = build_from_crawler(kind, crawler)
            else:
                logger.warning(
                    "DUPEFILTER_CLASS %s is not used, because the ledger has the known requests",
                    printable(f"{kind.__module__}.{kind.__qualname__}"),
                    extra={"event": "dupe_filter_replaced"},
                )
        own_fingerprinter = not type(fingerprinter).__module__.startswith("scrapy.")
        #: Whether a GET without a body has one identity for each URL without its fragment.
        self._may_cache = self._filter is None and not own_fingerprinter

    def of(self, request: scrapy.Request) -> Identity:
        """Return the identity of a request."""
        if not self._may_cache or request.method != "GET" or request.body:
            return self._new(request)
        url = request.url.partition("#")[0]  # a fingerprint ignores the fragment
        identity = self._cache.get(url)
        if identity is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            identity = self._cache[url] = self._new(request)
        return identity

    def _new(self, request: scrapy.Request) -> Identity:
        location = urls.located(request.url)
        if self._filter is None:
            fingerprint = self._fingerprint(request)
        else:
            fingerprint = str(self._filter.request_fingerprint(request)).encode()
        if isinstance(location, Refusal):
            return Identity(fingerprint, location, None)
        return Identity(fingerprint, location, task_id(location, fingerprint=fingerprint))

    def is_known(self, request: scrapy.Request, page_ids: set[bytes]) -> bool:
        """Return whether the ledger or the running page has a request; count a known request.

        *page_ids* are the ids of the requests that the running page has yielded.
        """
        if request.dont_filter or self.accepts_all:
            return False
        identity = self.of(request).task_id
        if identity is None or not (identity in page_ids or identity in self._known_ids):
            return False
        self._filtered_count += 1
        return True

    def count_filtered(self) -> None:
        """Add the requests that `is_known` has found to Scrapy's stats, at the end of a page."""
        if self._filtered_count:
            self._stats.inc_value("dupefilter/filtered", self._filtered_count)
            self._filtered_count = 0
