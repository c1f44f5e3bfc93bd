"""Convert a page's tree to Markdown.

The result is CommonMark with the tables, task lists, footnotes, alerts and struck text of GFM. The
module reads the page's tree alone: no stylesheet, no script, no network. It has no recursion, and
its time and memory grow linearly with the page.
"""

from dataclasses import dataclass

from selectolax.lexbor import LexborNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Markdown:
    """A page as Markdown."""

    text: str  #: without outer white space; it ends with a line feed if it is not empty
    hidden: int  #: how many parts with text were left out because a browser does not show them


def markdown_of(
    root: LexborNode,
    *,
    base_url: str,
    encoding: str = "utf-8",
    kept: frozenset[int] | None = None,
) -> Markdown:
    """Return the Markdown of *root*, an element such as <body>, and everything inside of it.

    - *base_url*: the absolute URL that the page's links are relative to (`response.base_url`)
    - *encoding*: the page's encoding, which browsers use for the queries of links
    - *kept*: the `mem_id` of each node to write; None writes all of *root*. A node in *kept* is
      written with everything inside of it, so leave out a node that contains unwanted nodes, and
      name its wanted children instead. Structure around the kept nodes (lists, quotes, tables) is
      written, but no text outside of them. A <nav> is not written, even inside of a kept node.

    Text that the page hides is left out and counted, inside of a kept node as well.
    """
    raise NotImplementedError
