"""The response that a callback gets: the page, and methods that make further requests."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawlcw.api import markup
from crawlcw.api.document import Document, SavedFile, check, not_css
from crawlcw.api.forms import Form
from crawlcw.api.links import (
    EVERYTHING,
    Domains,
    Extensions,
    LinkFilter,
    Patterns,
    compiled_patterns,
    nodes_within,
    text_matches,
)
from crawlcw.api.page_head import (
    Head,
    Refresh,
    RobotsDirectives,
    directives,
    is_without_scripts,
    refresh,
)
from crawlcw.api.request import Callback, Request
from crawlcw.api.syndication import feed_of
from crawlcw.errors import FetchError, ParseRefusedError, Reason, SpiderError
from crawlcw.model import referrers, urls
from crawlcw.model.counters import DroppedLinks
from crawlcw.model.proxies import Proxy
from crawlcw.model.urls import Location, Refusal
from crawlcw.model.values import FrozenDict

#: The reason for dropped links on a page that asks robots not to follow its links.
NOFOLLOW = "nofollow"
#: The assumed content type of a page without Content-Type.
_HTML = "text/html"
#: The reason for links that `follow_all` drops at the limit; all other reasons are in `Reason`.
TOO_MANY_LINKS = "max-links-per-page"

if TYPE_CHECKING:
    from parsel import Selector

    from crawlcw.content.article import Article
    from crawlcw.items.selectors import Css, JsonLd, XPath

    #: A link, given as its address, as the node with the address, or as None.
    Link = str | LexborNode | Selector | None


Item = TypeVar("Item")


@dataclass(slots=True, eq=False, repr=False)
class PageSession:
    """A session with its `name` ("" if there is no session), and the `data` that its login stored.

    The data is read-only. A callback can store its own values in `Spider.state`.
    """

    name: str = ""
    data: Mapping[str, Any] = field(default_factory=FrozenDict)
    retired: str | None = None  #: why the callback retired the session, if it did

    def retire(self, reason: str = "the callback retired it") -> None:
        """Retire the session, so that the crawl logs it in again or replaces it.

        The crawl records no outcome of this page, and fetches the page again with the new session.
        """
        self.retired = reason

    def __repr__(self) -> str:
        return f"<PageSession {self.name}>"


@dataclass(slots=True)
class Following:
    """How a crawl follows the links of one page."""

    robot: str = ""  #: the crawler's own name in the robots rules of a page
    obey_robots: bool = True  #: whether the crawl obeys the page's `nofollow`
    is_over: bool = False  #: `follow_all` only counts links


class Response(Document):
    """A response to *request*, read to its end.

    - `url`: the final address of the page, after redirects
    - `headers`: by lower-case name; values of the same name are joined by `, `
    - `body`: the decoded bytes
    - `truncated`: why the body is incomplete; None: it is complete
        - `bytes`: crawlcw cut it at `max_body`
        - `coding`: the compressed data ends too early
        - `checksum`: only the checksum of the compressed data is missing
    - `file`: the saved file, for a request with `save_to`; `body` is then empty
    - `elapsed`: the time from the first byte sent to the last byte received, including
      redirects within the attempt; if the file was saved, until its headers arrived
    """

    feed = feed_of
    #: Whether the response is a page for the callback; a hook or a layer may set it. With None, the
    #: status decides.
    is_page: bool | None = None
    #: The values of the Set-Cookie headers of this response alone, one for each header.
    set_cookies: tuple[str, ...] = ()
    #: The reasons of the items that `extract_all` left out; None: `extract` raises errors instead.
    invalid_item_reasons: list[str] | None = None
    #: How often a selector filled a field, by both; "" is no selector. None: it is not counted.
    field_sources: Counter[tuple[str, str]] | None = None
    #: Sends a request of this page's callback, and gets the response whose `fetch` was called; None
    #: outside of a crawl.
    sends: "Callable[[Request, Response], Awaitable[Response]] | None" = None
    #: Whether the crawl prepares the tree of the body for the callback.
    needs_tree: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        request: Request,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        elapsed: timedelta = timedelta(0),
        truncated: str | None = None,
        file: SavedFile | None = None,
    ) -> None:
        self.url = url
        self.request = request
        self.status = status
        raw_headers = headers or {}
        self.headers: Mapping[str, str] = dict(
            zip(map(str.lower, raw_headers), raw_headers.values(), strict=True)
        )
        self.body = body
        self.elapsed = elapsed
        self.truncated = truncated
        self.file = file
        #: The session of the request; its name is "" if the request has no session.
        self.session = PageSession()
        #: The proxy that the response came through; its `str()` has no password. None: no proxy.
        self.proxy: Proxy | None = None
        #: Counts of links that `follow_all` left out, because they are unfetchable or `nofollow`.
        self.dropped = DroppedLinks()
        #: How the crawl follows the links of the page.
        self.following = Following()
        #: The `playwright.async_api.Page` of a page that was rendered in a browser; it is open
        #: until the callback ends.
        self.page: Any = None
        #: The callback of the last `follow` without options, and the request that each link copies.
        self._link_template: tuple[Callback | None, Request] | None = None

    @property
    def context(self) -> Mapping[str, Any]:
        """The values that the spider gave the request as `context`, or an empty mapping."""
        return self.request.context or {}

    @cached_property
    def robots(self) -> RobotsDirectives:
        """The page's rules for robots (`noindex`, `nofollow`), from X-Robots-Tag or a <meta>."""
        # Read `robot` at each call, because the crawl may set `robot` after the head was parsed.
        robot, header = self.following.robot, self.headers.get("x-robots-tag")
        rules = [] if header is None else directives(header, robot=robot)
        rules += self._head.directives(robot=robot)
        return RobotsDirectives.of(rules) if rules else RobotsDirectives()

    @cached_property
    def refresh(self) -> Refresh | None:
        """The delay and the URL of the page's refresh, from a header or a <meta>.

        The refresh is None if its URL cannot be fetched, or if its URL is that of the page.
        """
        if self.file is not None:
            return None  # browsers do not show a saved file, so they ignore its refresh
        header = self.headers.get("refresh")
        target = (None if header is None else refresh(header)) or self._head.refresh
        if target is None:
            return None
        try:
            url = self.urljoin(target[1])
            is_same_page = urls.locate(url).canonical == urls.locate(self.url).canonical
        except FetchError:
            return None
        return None if is_same_page else Refresh(target[0], url)

    @property
    def canonical(self) -> str | None:
        """The absolute URL of the page's <link rel="canonical">, or None (RFC 6596)."""
        href = None if self.file is not None else self._head.canonical
        try:
            return None if href is None else self.urljoin(href)
        except FetchError:
            return None

    @cached_property
    def referrer_policy(self) -> str:
        """The page's Referrer-Policy, from its header or a <meta>, or a browser's default."""
        metas = self._head.referrer_policies if self.file is None else ()
        return referrers.policy_of(self.headers.get("referrer-policy"), metas)

    @cached_property
    def _head(self) -> Head:
        media_type = self.headers.get("content-type", _HTML).lower().lstrip()
        if "+" in media_type and markup.is_xhtml(media_type):
            return Head(self.source(), encoding="utf-8")
        return Head(self.body, encoding=self._charset, is_html=media_type.startswith(_HTML))

    @property
    def base_url(self) -> str:
        """The base URL of the page's links: the first usable <base>, else the page's URL.

        A <base> in a <noscript> does not count, because it is for browsers without scripts.
        Raises `ParseRefusedError` if the page has a <base> and would hang the parser.
        """
        if isinstance(self._resolved_base, ParseRefusedError):
            raise ParseRefusedError(self._resolved_base.message)  # as in `tree`
        return self._resolved_base

    @cached_property
    def _resolved_base(self) -> str | ParseRefusedError:
        if not self._head.has_base:
            return self.url
        try:
            nodes = self._nodes("base[href]")
        except ParseRefusedError as refusal:
            # Cache this error too, because each link of the page needs the base, and checking a
            # large page is slow. Drop the traceback, because it would keep the response in memory.
            return refusal.with_traceback(None)
        for node in nodes:
            if is_without_scripts(node):
                continue
            try:
                return urls.resolve(self.url, node.attributes.get("href") or "")
            except FetchError:
                continue
        return self.url

    def urljoin(self, href: str) -> str:
        """Return the absolute URL of *href*; raises `FetchError` for a URL that cannot be fetched.

        Characters outside of ASCII in the query of *href* use the page's encoding, as in browsers.
        Raises `TypeError` if *href* is not a `str`.
        """
        if not isinstance(href, str):
            kind = type(href).__name__  # type: ignore[unreachable]  # for untyped spiders
            raise TypeError(
                f"urljoin() takes an address, not a {kind}; follow() takes nodes and None"
            )
        # Look for the encoding only if the address is not ASCII, because the search may decode the
        # whole page.
        encoding = "utf-8" if href.isascii() else self._charset
        return urls.resolve(self.base_url, href, encoding=encoding)

    @cached_property
    def _locations(self) -> "_Locations":
        locations = _Locations()
        base = self.base_url if self._head.has_base else self.url
        locations.resolve = urls.resolver(base, encoding=self._charset)
        return locations

    def _location_of(self, address: str | None, target: "Link") -> Location | Refusal:
        """Return the location of *address*, the address of the page's link *target*."""
        if address is None:
            tag_prefix = f"<{target.tag}>: " if isinstance(target, LexborNode) else ""
            return Refusal(Reason.URL_INVALID, f"{tag_prefix}no link")
        try:
            return self._locations[address]
        except ParseRefusedError as refusal:  # of the <base>
            return Refusal(refusal.reason, refusal.message)

    def follow(
        self,
        target: "Link",
        callback: Callback | None = None,
        **options: Any,
    ) -> Request:
        """Return a request for a link: an address, or a node with an address in `href` or `src`.

        *options* are options of `Request`. No content of a page makes `follow` raise. A link that
        cannot be fetched (`mailto:`, a broken address, a node without an address, None) gives a
        request that the crawl drops and counts.
        """
        address = _address(target)
        location = self._location_of(address, target)
        if isinstance(location, Refusal):
            return Request.refused(address or "", location, callback, **options)
        if options:
            return Request(location.url, callback, **options)
        if self._link_template is None or self._link_template[0] != callback:
            # Return only copies of this request, because a spider may change a returned request.
            self._link_template = (callback, Request(location.url, callback))
        return self._link_template[1].with_location(location)

    async def fetch(self, target: "Link | Request") -> "Response":
        """Return the response to a request, or to a GET of a link, whatever its status is.

        Only an `async` callback of this page may call `fetch`. The request passes the same layers
        and hooks as a page, and obeys the scope, robots.txt, and the delay and the slots of its
        host. It uses the page's session, and follows redirects as `max_redirects` says. It has no
        task, so the crawl does not retry it, and counts it as a page for `max_pages`. The wait
        counts for `callback_timeout`. A page may send 100 requests.

        Raises `FetchError` if there is no response; `error.reason` says why. If the callback does
        not handle the error, the page fails as `parse-error`. Raises `SpiderError` outside of a
        crawl, for a request of another session, and for the 101st request.
        """
        if self.sends is None:
            raise SpiderError(
                "response.fetch() works only in the callback of a page that was just fetched"
            )
        request = target if isinstance(target, Request) else self.follow(target)
        return await self.sends(request, self)

    def follow_all(
        self,
        targets: "str | Iterable[Link]",
        callback: Callback | None = None,
        *,
        allow: Patterns = (),
        deny: Patterns = (),
        allow_domains: Domains = (),
        deny_domains: Domains = (),
        extensions: Extensions | None = None,
        deny_extensions: Extensions | bool = False,
        restrict: str | None = None,
        restrict_xpath: str | None = None,
        restrict_text: Patterns = (),
        **options: Any,
    ) -> Iterator[Request]:
        """Return a request for each link: a node of a CSS selector, or a given node or address.

        The result has one request for each address. Links that cannot be fetched (`mailto:`, a
        broken address) are only counted in `dropped`. If the setting `obey_robots` is on, all links
        of a page with `nofollow` are only counted. An `<a>` without `href` is not a link.

        - *allow*, *deny*: regular expressions; `re.search` in the absolute address must find one of
          *allow*, and none of *deny*.
        - *allow_domains*, *deny_domains*: hosts, with their subdomains, that the address must have,
          and must not have.
        - *extensions*: the file extensions that the address may have (`""`: no extension).
        - *deny_extensions*: the file extensions that the address must not have; True means media,
          archives and other files that are not pages.
        - *restrict*: a CSS selector; only links inside of its matches count.
        - *restrict_xpath*: the same by an XPath expression, with parsel (extra `xpath`).
        - *restrict_text*: regular expressions; `re.search` in the link's text must find one.
        """
        link_filter = EVERYTHING
        filters = (allow, deny, allow_domains, deny_domains, extensions, deny_extensions)
        if filters != ((), (), (), (), None, False):
            link_filter = LinkFilter.of(
                allow=allow,
                deny=deny,
                allow_domains=allow_domains,
                deny_domains=deny_domains,
                extensions=extensions,
                deny_extensions=deny_extensions,
            )
        nodes: Iterator[Link]
        if isinstance(targets, str):
            if restrict_xpath is not None:
                nodes = self._links_within(restrict_xpath, targets, restrict)
            else:
                matches = self._nodes(targets)
                nodes = iter(
                    matches if restrict is None else nodes_within(matches, self._nodes(restrict))
                )
        elif restrict is not None or restrict_xpath is not None:
            raise ValueError(
                "follow_all(restrict=...) works only with a CSS selector, not with nodes"
            )
        else:
            nodes = iter(targets)
        if restrict_text:
            nodes = text_matches(nodes, compiled_patterns("restrict_text", restrict_text))
        return self._requests(nodes, link_filter, callback, options)

    def _links_within(
        self, restrict_xpath: str, css: str, restrict: str | None
    ) -> "Iterator[Selector]":
        """Return the links that match a CSS selector inside the matches of an XPath expression."""
        if restrict is not None:
            raise ValueError("follow_all() takes restrict= or restrict_xpath=, not both")
        # A node of lexbor has no place in parsel's tree, so parsel selects the links as well.
        for region in self.selector.xpath(restrict_xpath):
            for link in region.css(css):
                if "href" in link.attrib or "src" in link.attrib:
                    yield link

    def _requests(
        self,
        nodes: "Iterator[Link]",
        link_filter: LinkFilter,
        callback: Callback | None,
        options: Mapping[str, Any],
    ) -> Iterator[Request]:
        """Yield the requests that `follow_all` returns."""
        if self.following.obey_robots and self.robots.nofollow:
            for node in nodes:
                self.dropped.note(NOFOLLOW, _address(node) or "")
            return
        seen_urls: set[str] = set()
        # Resolve each address only once, whatever its fragment is. Refused addresses are not in
        # `seen_addresses`, because each refusal must be counted.
        seen_addresses: set[str] = set()
        # Check the options only for the first link, because all links have the same options.
        link_template: Request | None = None
        for node in nodes:
            if type(node) is LexborNode:  # `_address` inlined: a page has hundreds of links
                attributes = node.attrs
                address = attributes.get("href")
                if address is None:
                    address = attributes.get("src")
                    # An <a> without an address is not a link (HTML, 4.5.1).
                    if address is None and node.tag == "a":
                        continue
            else:
                address = _address(node)
            if address in seen_addresses:
                continue
            target = "" if address is None else address.partition("#")[0]
            if address is not None and target in seen_addresses:
                continue
            if self.following.is_over:
                self.dropped.note(TOO_MANY_LINKS, address or "")
                # Only count the remaining links, because checking hundreds of thousands of links
                # would block the event loop.
                self.dropped.counts[TOO_MANY_LINKS] += sum(1 for _ in nodes)
                return
            location = self._location_of(address, node)
            if isinstance(location, Refusal):
                self.dropped.note(location.reason, address or location.message)
                continue
            seen_addresses.add(target)
            url = location.url
            if url not in seen_urls and (link_filter is EVERYTHING or link_filter.passes(url)):
                seen_urls.add(url)
                # Yield only copies of the template, because a spider may change a yielded request.
                link_template = link_template or Request(url, callback, **options)
                yield link_template.with_location(location)

    def extract(self, item_class: type[Item]) -> Item:
        """Return the page's item: an object of a class with selectors in its annotations.

        *item_class* is a dataclass, an attrs or pydantic class, or a TypedDict. Raises
        `InvalidItemError` if a required field has no value, or a value has a wrong type. If
        `invalid_items` of the spider is "item", the result stands for the invalid item instead:
        crawlcw drops and counts it if the callback yields it.
        """
        from crawlcw.items import plans  # few spiders use it

        item: Item = plans.extract(self, item_class)
        return item

    def extract_all(
        self, item_class: type[Item], blocks: "str | Css | JsonLd | XPath"
    ) -> list[Item]:
        """Return an item for each block: a match of a CSS selector, or of another selector.

        Raises errors in the same way as `extract`. If `invalid_items` of the spider is "item",
        crawlcw drops and counts the invalid items.
        """
        from crawlcw.items import plans  # few spiders use it

        return plans.extract_all(self, item_class, blocks)

    def markdown(self, main: bool = True) -> str:
        """Return the page as Markdown: its main content, or its whole <body> if *main* is false.

        The result is CommonMark with GFM's tables, task lists, footnotes and alerts; it ends with a
        line feed if it is not empty. Links are absolute. Text that the page hides is left out.
        Raises `ValueError` if the response is not HTML, and `ParseRefusedError` for the same pages
        as `tree`.
        """
        from crawlcw.content import page  # few spiders use it

        self._check_html("markdown")
        return page.page_markdown(self, main=main).text

    def article(self) -> "Article":
        """Return the page's main content with its title, author, date, language, links and images.

        The values are from JSON-LD, <meta>, Open Graph and the page's text; a missing value is
        None. Raises errors in the same way as `markdown`.
        """
        from crawlcw.content.article import article_of  # few spiders use it

        self._check_html("article")
        return article_of(self)

    def _check_html(self, method: str) -> None:
        if not self.is_html:
            kind = self.headers.get("content-type", "no markup")
            raise ValueError(f"{method}() needs an HTML page: {self.url} is {kind}")

    @cached_property
    def _tree_with_owners(self) -> LexborHTMLParser:
        if self.trees is not None:
            check(self.trees.refusal)
        source = markup.with_form_owners(self.source())
        markup.screen(source)
        return markup.parse_bounded(source)

    def form(
        self,
        css: str = "form",
        callback: Callback | None = None,
        *,
        click: "str | Literal[False] | None" = None,
        **options: Any,
    ) -> Form:
        """Return the first form that matches a CSS selector, ready to fill in and submit.

        `Form.submit` returns a request with *callback* and with *options* of `Request`. *click* is
        a CSS selector of the button to click; None clicks the first button, False clicks none.
        Raises `ValueError` if the page has no such form, and `ParseRefusedError` without a tree.
        """
        try:
            node = self._tree_with_owners.css_first(css)
        except SelectolaxError as error:
            raise not_css(css, error) from None
        if node is None:
            raise ValueError(f"the page has no form {css!r}")
        if node.tag != "form":
            raise ValueError(f"{css!r} is a <{node.tag}>, not a form")
        return Form(
            node=node,
            page_url=self.url,
            base_url=self.base_url,
            encoding=self._charset,
            callback=callback,
            click=click,
            options=options,
        )

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.url!r}>"


class _Locations(dict[str, Location | Refusal]):
    """Caches the location of each link address on a page, so that equal links are resolved once."""

    resolve: Callable[[str], Location | Refusal]

    def __missing__(self, address: str) -> Location | Refusal:
        target, mark, _ = address.partition("#")
        # `resolve` strips only outer spaces, so a space before the fragment is part of the address.
        is_whole = not mark or not target or target[-1] <= " "
        location = self[address] = self.resolve(address) if is_whole else self[target]
        return location


def _address(target: "Link") -> str | None:
    """Return the address of a link, or None if there is no address."""
    if isinstance(target, LexborNode):
        # `attrs` reads only the wanted attributes; `attributes` reads all.
        of_node = target.attrs
        href = of_node.get("href")  # "" means the page itself
        return of_node.get("src") if href is None else href
    if target is None or isinstance(target, str):
        return target
    try:
        root = target.root
    except AttributeError:
        kind = type(target).__name__
        raise TypeError(
            f"follow() takes an address, a node or None, not a {kind}; follow_all() takes many "
            "links"
        ) from None
    if isinstance(root, str):
        return root  # of `//a/@href`
    of_selector = target.attrib
    href = of_selector.get("href")
    return of_selector.get("src") if href is None else href
