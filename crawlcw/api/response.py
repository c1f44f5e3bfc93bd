"""What a callback is given: the page, its tree, and the way to further requests."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawlcw.api import charset, markup
from crawlcw.api.request import Callback, Request
from crawlcw.errors import FetchError, ParseRefusedError, Reason
from crawlcw.model import urls
from crawlcw.model.dropped import DroppedLinks

#: <base> belongs into a page's <head>, which is not longer than this.
_HEAD = 64 * 1024


class Response:
    """A response to *request*, read to its end.

    - `url`: where the page really was, after redirects
    - `headers`: by lower-case name; several of one name are joined by `, `
    - `body`: the decoded bytes; `truncated` says why it is not whole, if it is not
    - `elapsed`: from the first byte sent to the last received, redirects included
    """

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
    ) -> None:
        self.url = url
        self.request = request
        self.status = status
        self.headers: Mapping[str, str] = {k.lower(): v for k, v in (headers or {}).items()}
        self.body = body
        self.elapsed = elapsed
        self.truncated = truncated
        #: Links that `follow_all` has left out, for they cannot be fetched.
        self.dropped = DroppedLinks()

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return len(self.body)

    @property
    def context(self) -> Mapping[str, Any]:
        """What the spider passed along with the request; empty if nothing."""
        return self.request.context or {}

    @cached_property
    def encoding(self) -> str:
        """The encoding of the body, as a browser would choose it."""
        return charset.choose(self.headers.get("content-type"), self.body)

    @cached_property
    def text(self) -> str:
        """The body as text, with U+FFFD for bytes that are not of its encoding."""
        return charset.decode(self.body, self.encoding)

    def json(self) -> Any:
        """Return the body as JSON; raises `ValueError` where it is none."""
        try:
            return json.loads(self.text)
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None

    @cached_property
    def tree(self) -> LexborHTMLParser:
        """The page's tree. Raises `ParseRefusedError` for a page built to hang the parser."""
        markup.screen(self.body)
        if self.encoding == "utf-8":
            return LexborHTMLParser(self.body)
        return LexborHTMLParser(self.text)

    def css(self, query: str) -> list[LexborNode]:
        """Return the nodes that match a CSS selector, in document order."""
        try:
            return self.tree.css(query)
        except SelectolaxError as error:
            raise ValueError(f"{query!r} is not a CSS selector: {error}") from None

    def css_first(self, query: str) -> LexborNode | None:
        """Return the first node that matches a CSS selector, or None."""
        try:
            return self.tree.css_first(query)
        except SelectolaxError as error:
            raise ValueError(f"{query!r} is not a CSS selector: {error}") from None

    @property
    def base_url(self) -> str:
        """What the page's links are relative to: its first usable <base>, else its own URL.

        Raises `ParseRefusedError` where the page has a <base> and is built to hang the parser.
        """
        if isinstance(self._base, FetchError):
            raise self._base
        return self._base

    @cached_property
    def _base(self) -> str | ParseRefusedError:
        # An error is kept as well: each link of the page asks, and a look at a large one is long.
        try:
            return self._base_found()
        except ParseRefusedError as refusal:
            return refusal.with_traceback(None)  # it would keep this response

    def _base_found(self) -> str:
        end = self.body.find(b"</head", 0, _HEAD)
        head = self.body[: end if end >= 0 else _HEAD]
        if b"<base" not in head.lower():
            return self.url
        for node in self.css("base[href]"):
            try:
                return urls.resolve(self.url, node.attributes.get("href") or "")
            except FetchError:
                continue
        return self.url

    def urljoin(self, href: str) -> str:
        """Return the absolute URL of *href*; raises `FetchError` where it is none to fetch."""
        return urls.resolve(self.base_url, href)

    def follow(
        self,
        target: str | LexborNode | None,
        callback: Callback | None = None,
        **options: Any,
    ) -> Request:
        """Return a request for a link: its address, or the node that has it in `href` or `src`.

        *options* are those of `Request`. Nothing that a page holds makes this
        raise: a link that cannot be fetched (`mailto:`, a broken address, a node
        without one, None) becomes a request that the crawl drops and counts.
        """
        try:
            url = self.urljoin(_checked(_address(target), target))
        except FetchError as refusal:
            return Request.refused(_address(target) or "", refusal, callback, **options)
        return Request(url, callback, **options)

    def follow_all(
        self,
        targets: str | Iterable[str | LexborNode | None],
        callback: Callback | None = None,
        **options: Any,
    ) -> Iterator[Request]:
        """Yield a request for each link: a CSS selector's nodes, or the nodes or addresses given.

        Each address once; links that cannot be fetched (`mailto:`, a broken
        address) are left out, and counted in `dropped`.
        """
        nodes = self.css(targets) if isinstance(targets, str) else targets
        seen: set[str] = set()
        # Many addresses of a page differ in their fragments alone: there is no need to resolve
        # all of them. Those that are refused are not among these, and count each.
        resolved: set[str | None] = set()
        for node in nodes:
            address = _address(node)
            target = None if address is None else address.partition("#")[0]
            if target in resolved:
                continue
            try:
                url = self.urljoin(_checked(address, node))
            except FetchError as refusal:
                self.dropped.note(refusal.reason, address or refusal.message)
                continue
            resolved.add(target)
            if url not in seen:
                seen.add(url)
                yield Request(url, callback, **options)

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.url!r}>"


def _checked(address: str | None, target: str | LexborNode | None) -> str:
    """Return the address of *target*; raises `FetchError` where it has none."""
    if address is None:
        where = "" if target is None or isinstance(target, str) else f"<{target.tag}>: "
        raise FetchError(Reason.URL_INVALID, f"{where}no link")
    return address


def _address(target: str | LexborNode | None) -> str | None:
    """Return what stands in the place of a link, if anything does."""
    if target is None or isinstance(target, str):
        return target
    attributes = target.attributes
    href = attributes.get("href")  # which may be empty: a link to the page itself
    return attributes.get("src") if href is None else href
