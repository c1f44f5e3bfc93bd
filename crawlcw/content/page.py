"""The Markdown of a response: of its main content, or of its whole <body>."""

from typing import Protocol

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawlcw.content.markdown import Markdown, markdown_of

#: Selectors of the main content of pages, the best first.
_MAIN = ("main", "[role=main]", "article")


class Page(Protocol):
    """The members of a `Response` that this package uses."""

    @property
    def base_url(self) -> str:
        """The base URL of the page's links."""

    @property
    def tree(self) -> LexborHTMLParser:
        """The page's tree."""

    def urljoin(self, href: str) -> str:
        """Return the absolute URL of *href*; raises `FetchError`."""


def page_markdown(page: Page, *, main: bool) -> Markdown:
    """Return the Markdown of a page's main content, or of its whole <body>.

    Raises `ParseRefusedError` for a page without a tree.
    """
    body = page.tree.body
    if body is None:
        return Markdown(text="", hidden=0)
    return markdown_of(
        body,
        base_url=page.base_url,
        urljoin=page.urljoin,
        node_ids=_main_nodes(body) if main else None,
    )


def _main_nodes(body: LexborNode) -> frozenset[int]:
    for query in _MAIN:
        node = body.css_first(query)
        if node is not None:
            return frozenset({node.mem_id})
    return frozenset({body.mem_id})
