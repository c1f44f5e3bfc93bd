"""The Markdown of a response: of its main content, or of its whole <body>."""

from typing import Protocol

from selectolax.lexbor import LexborHTMLParser

from crawlcw.content.choice import MainContent, main_content
from crawlcw.content.markdown import Markdown, markdown_of


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
    return written(page, content=main_content(body) if main and body is not None else None)


def written(page: Page, *, content: MainContent | None) -> Markdown:
    """Return the Markdown of a page's main *content*, or of its whole <body>."""
    body = page.tree.body
    if body is None:
        return Markdown(text="", hidden=0)
    return markdown_of(
        body,
        base_url=page.base_url,
        urljoin=page.urljoin,
        node_ids=None if content is None else content.node_ids,
        shown_ids=frozenset() if content is None else content.shown_ids,
    )
