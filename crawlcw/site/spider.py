"""The spider of `crawlcw crawl`: it follows the links of a site, and its sitemaps and llms.txt.

Each request has the home of its site in its context, and the spider state has it for added pages.
So every process knows the scope, also after a crash, although only the first page shows the address
to which the start redirects.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sitemap_spider import SitemapSpider
from crawlcw.api.spider import url_list
from crawlcw.errors import FetchError, Reason, XmlError
from crawlcw.items.specification import Extraction
from crawlcw.model import urls
from crawlcw.model.sanitize import printable
from crawlcw.site.folder import MarkdownFolder
from crawlcw.site.scope import SiteScope, is_same_site

_HOME = "home"
_ROBOTS_TXT, _SITEMAP, _LLMS_TXT = "/robots.txt", "/sitemap.xml", "/llms.txt"
#: Statuses with which a site says that it has no such list.
_MISSING = (400, 401, 403, 404, 410)
#: The address of a link in Markdown.
_MARKDOWN_LINK = re.compile(r"\]\(\s*<?([^)\s<>]+)")
_ARTICLE_FIELDS = (
    *("title", "author", "date", "language", "description", "text", "links", "images"),
)


class SiteSpider(SitemapSpider):
    """Follows the links within the scope, and makes an item of each page.

    Subclasses have the name of the crawl.
    """

    # A redirect of the start may lead to another host; `after_response` refuses the others.
    allowed_hosts = "*"
    invalid_items = "item"

    def __init__(
        self,
        scope: SiteScope,
        *,
        with_lists: bool,
        is_article: bool,
        specification: Mapping[str, Any] | None,
        folder: MarkdownFolder | None,
        main: bool,
    ) -> None:
        """Raises `SpiderError` for an invalid *specification* of items.

        *with_lists*: read sitemaps and llms.txt; *main*: only the main content as Markdown.
        """
        super().__init__()
        self.start_urls = [scope.start]
        self.scope = scope
        self.with_lists = with_lists
        self.is_article = is_article
        self.specification = specification
        self.extraction = None if specification is None else Extraction.of(specification)
        self.folder = folder
        self.main = main

    def options(self) -> dict[str, Any]:
        """Return the options that decide the results of a page, as the ledger stores them."""
        patterns = {"include": self.scope.include, "exclude": self.scope.exclude}
        specification_text = json.dumps(self.specification, sort_keys=True)
        return {
            "start": urls.locate(self.scope.start).url,  # without a password
            **{name: [pattern.pattern for pattern in globs] for name, globs in patterns.items()},
            "markdown": None if self.folder is None else str(self.folder.path),
            "whole": not self.main,
            "article": self.is_article,
            "items": sha256(specification_text.encode()).hexdigest(),
        }

    # The lists of the site's pages come after the first page, which shows the site's home.
    async def start(self) -> AsyncIterator[Request]:
        """Yield the start, with a mark in its context, because only its page shows the home."""
        yield Request(self.scope.start, context={_HOME: ""})

    def _home_of(self, context: Mapping[str, Any] | None) -> str:
        """Return the home for a request; "" for the start, and until the start is parsed."""
        home: str = (context or {}).get(_HOME, self.state.get(_HOME, ""))
        return home

    def before_request(self, request: Request) -> None:
        """Refuse other sites, to which a page may refresh, and which a user may have added."""
        home = self._home_of(request.context)
        if home and not is_same_site(request.url, home):
            raise FetchError(Reason.REFUSED_SCOPE, f"it is not a page of {home}")

    def after_response(self, response: Response) -> None:
        """Refuse redirects to other sites, except those of the start."""
        home, target = self._home_of(response.context), response.headers.get("location")
        if not home or target is None or not 300 <= response.status < 400:
            return
        if not is_same_site(url := response.urljoin(target), home):
            host = urlsplit(url).netloc
            raise FetchError(Reason.REFUSED_SCOPE, f"it redirects to {host}, which is another site")

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield the items of a page, and its links within the site."""
        is_start = response.context.get(_HOME) == ""
        home = self._home_of(response.context)
        if not home:
            home = self.scope.home_at(response.url if is_start else self.scope.start)
        if is_start:
            self.state[_HOME] = home
            if self.with_lists:
                yield from self._lists(home)
        address = self.scope.address_in(home, response.url)
        if not response.is_html or (address is None and not is_start):
            return
        if address is not None:
            yield from self._items(response, address)
        links = response.follow_all("a, area", deny_extensions=True, context={_HOME: home})
        yield from self._inside(links, home)

    def _lists(self, home: str) -> Iterator[Request]:
        """Yield the requests for the lists of a site's pages."""
        origin = home[: home.index("/", len("https://"))]
        yield self._of_list(self.sitemap_request(origin + _ROBOTS_TXT), home)
        yield self._of_list(self.sitemap_request(origin + _LLMS_TXT), home, "parse_llms_txt")

    def _of_list(self, request: Request, home: str, callback: str = "parse_sitemap") -> Request:
        request.callback, request.errback = callback, None
        request.context = {**(request.context or {}), _HOME: home}
        request.options = replace(request.options, accept_statuses=_MISSING)
        return request

    def _inside(self, requests: Iterator[Request], home: str) -> Iterator[Request]:
        """Yield the requests for pages of the site, at the site's own scheme and host."""
        for request in requests:
            url = self.scope.address_in(home, request.url)
            if url is not None:
                request.url = url
                yield request

    @url_list
    def parse_sitemap(self, response: Response) -> Iterator[Request]:
        """Yield requests for the pages and sitemaps that a sitemap or a robots.txt lists."""
        home = response.context[_HOME]
        if response.status in _MISSING:
            if urlsplit(response.url).path == _ROBOTS_TXT:
                sitemap_url = response.urljoin(_SITEMAP)
                yield self._of_list(self.sitemap_request(sitemap_url), home)
            return
        try:
            for request in super().parse_sitemap(response):
                if request.callback == "parse_sitemap":
                    if is_same_site(request.url, home):
                        yield self._of_list(request, home)
                    continue
                request.context = {_HOME: home}
                yield from self._inside(iter((request,)), home)
        except XmlError as error:
            # Many sites send their start page for each missing file.
            self.logger.info("%s: %s", printable(response.url), printable(error))

    @url_list
    def parse_llms_txt(self, response: Response) -> Iterator[Request]:
        """Yield requests for the pages that an llms.txt (https://llmstxt.org) links to."""
        home = response.context[_HOME]
        if response.status in _MISSING or response.is_html:
            return
        # The Markdown of a page is at the page's address with `.md` behind it.
        links_in_text = _MARKDOWN_LINK.finditer(response.text)
        addresses = (match[1].partition("#")[0].removesuffix(".md") for match in links_in_text)
        links = response.follow_all(addresses, deny_extensions=True, context={_HOME: home})
        yield from self._inside(links, home)

    def _items(self, response: Response, url: str) -> Iterator[Any]:
        """Write the Markdown file of the page *url*, and yield the page's items."""
        needs_article = self.is_article or (self.folder is not None and self.main)
        article = response.article() if needs_article else None
        fields = _head_of(response)
        if article is not None:
            fields = {name: getattr(article, name) for name in _ARTICLE_FIELDS}
        row = {"url": url, **fields}
        if self.folder is not None:
            if article is not None and self.main:
                markdown = article.markdown
            else:
                markdown = response.markdown(main=False)
            file_fields = {
                "url": url,
                "title": fields["title"],
                "date": fields.get("date"),
                "language": fields["language"],
                "hash": sha256(markdown.encode()).hexdigest(),
            }
            name = self.folder.write(url, markdown, file_fields)
            row = {**(row if self.is_article else file_fields), "file": name, "markdown": markdown}
        if self.extraction is None:
            yield row
        else:
            yield from self.extraction.items(response)


def _head_of(response: Response) -> dict[str, Any]:
    """Return the fields in the head of a page."""
    title, root = response.css_first("title"), response.css_first("html")
    return {
        "title": None if title is None else " ".join(title.text().split()),
        "description": response.meta.get("description"),
        "language": None if root is None else root.attributes.get("lang"),
    }
