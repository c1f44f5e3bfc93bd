"""Find the main content of a page, and its title, author, date and language.

Title, author and date come from JSON-LD (schema.org), from <meta> with the names of Open Graph,
Dublin Core and scholarly indexes, and from the elements that HTML and microdata have for them. A
page may contradict itself, so each value has an order of its sources.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from selectolax.lexbor import LexborNode

from crawlcw.content import page as pages
from crawlcw.content.choice import main_content
from crawlcw.errors import FetchError

_TITLES = ("og:title", "twitter:title", "dc.title", "citation_title")
_AUTHORS = ("author", "article:author", "parsely-author", "dc.creator", "citation_author", "byl")
_DATES = (
    "article:published_time",
    "og:article:published_time",
    "datepublished",
    "parsely-pub-date",
    "pubdate",
    "publication_date",
    "citation_publication_date",
    "dc.date.issued",
    "dc.date",
    "date",
)
_DESCRIPTIONS = ("description", "og:description", "twitter:description", "dc.description")
_DAY = re.compile(
    r"(?<!\d)((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?![\d:])"
)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8})*")
#: The separator of the title of a page and the name of its site.
_BEFORE_SITE = re.compile(r"\s[|\u2013\u2014\u00b7\u00bb:-]\s")
_WORD = re.compile(r"\w+")
_MAX_NAMES = 20
_MAX_LENGTH = 1000


class ArticlePage(pages.Page, Protocol):
    """The members of a `Response` that `article_of` uses."""

    @property
    def meta(self) -> Mapping[str, str]:
        """The content of each <meta> by its name."""

    def jsonld(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the page's JSON-LD objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """The main content of a page, with its title, author, date and language.

    A value is None if the page does not have it. Each string is one line of at most 1,000
    characters, except `text` and `markdown`.
    """

    title: str | None
    author: str | None  #: several names are joined by `, `
    date: str | None  #: the day of publication, such as `2026-03-31`
    language: str | None  #: a language tag (BCP 47), such as `en-GB`
    description: str | None
    text: str  #: the main content as plain text, a line for each block
    markdown: str  #: the main content, as `Response.markdown` returns it
    links: tuple[str, ...]  #: the absolute addresses of the links in the main content, each once
    images: tuple[str, ...]  #: the absolute addresses of its images, each once


def article_of(page: ArticlePage) -> Article:
    """Return the article of a page; raises `ParseRefusedError` for a page without a tree."""
    root, body, metas, things = page.tree.root, page.tree.body, page.meta, page.jsonld()
    content = None if body is None else main_content(body)
    nodes = [] if body is None or content is None else list(_chosen(body, content.node_ids))
    language = root.attributes.get("lang") if root is not None else None
    return Article(
        title=_title(page, things),
        author=_author(page, things),
        date=_date(page, things),
        language=_language(language, metas.get("og:locale"), metas.get("content-language")),
        description=_first(map(metas.get, _DESCRIPTIONS)),
        text="" if content is None else content.text,
        markdown=pages.written(page, content=content).text,
        links=_addresses(page, nodes, "a[href]", ("href",)),
        images=_addresses(page, nodes, "img", ("data-src", "data-original", "src")),
    )


def _title(page: ArticlePage, things: list[dict[str, Any]]) -> str | None:
    """Return the <h1> if the page's titles confirm it, else a title without the site's name."""
    whole = _first(_texts(page, "head title"))
    title = _first(map(page.meta.get, _TITLES)) or whole
    # The sign of a link to the heading is no part of the title.
    heading = _first(text.rstrip("¶ ") for text in _texts(page, "h1"))
    words = _words(heading)
    if words.strip() and words in _words(f"{title} {whole}"):
        return heading
    headline = _first(thing.get("headline") for thing in things)
    return headline or (title and _BEFORE_SITE.split(title, maxsplit=1)[0]) or heading


def _author(page: ArticlePage, things: list[dict[str, Any]]) -> str | None:
    names_by_id = {
        id_: thing.get("name") for thing in things if isinstance(id_ := thing.get("@id"), str)
    }
    for thing in things:
        authors = thing.get("author")
        members = authors[:_MAX_NAMES] if isinstance(authors, list) else [authors]
        names = (_first([_name(member, names_by_id)]) for member in members)
        if found := ", ".join(dict.fromkeys(filter(None, names))):
            return found
    metas = (name for name in map(page.meta.get, _AUTHORS) if name and "://" not in name)
    return _first(metas) or _first(_texts(page, "[rel~=author], [itemprop~=author]"))


def _name(author: object, names_by_id: Mapping[str, object]) -> object:
    if isinstance(author, dict):
        id_ = author.get("@id")
        author = author.get("name") or (names_by_id.get(id_) if isinstance(id_, str) else None)
    return None if isinstance(author, str) and "://" in author else author


def _date(page: ArticlePage, things: list[dict[str, Any]]) -> str | None:
    def sources() -> Iterator[object]:
        yield from (thing.get("datePublished") for thing in things)
        yield from map(page.meta.get, _DATES)
        for query in ("[itemprop~=datePublished]", "time[datetime]"):
            if (node := page.tree.css_first(query)) is not None:
                attributes = node.attributes
                yield attributes.get("datetime") or attributes.get("content")

    days = (_DAY.search(source[:_MAX_LENGTH]) for source in sources() if isinstance(source, str))
    return next(("-".join(day.groups()) for day in days if day is not None), None)


def _language(*sources: str | None) -> str | None:
    tags = (_LANGUAGE.fullmatch(source.strip()) for source in sources if source)
    return next((tag[0].replace("_", "-") for tag in tags if tag is not None), None)


def _texts(page: ArticlePage, query: str) -> Iterator[str]:
    return (node.text() for node in page.tree.css(query)[:_MAX_NAMES])


def _first(values: Iterable[object]) -> str | None:
    """Return the first value that is a string and not empty, on one line."""
    lines = (" ".join(value[:_MAX_LENGTH].split()) for value in values if isinstance(value, str))
    return next(filter(None, lines), None)


def _words(text: str | None) -> str:
    return f" {' '.join(_WORD.findall((text or '').lower()))} "


def _chosen(body: LexborNode, node_ids: frozenset[int]) -> Iterator[LexborNode]:
    """Yield the elements of *node_ids* in document order."""
    pending = [body.first_child]
    while pending:
        node = pending.pop()
        if node is None:
            continue
        pending.append(node.next)
        if node.mem_id not in node_ids:
            pending.append(node.first_child)
        elif node.is_element_node:
            yield node


def _addresses(
    page: ArticlePage, nodes: list[LexborNode], query: str, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the absolute addresses of the elements that match *query*, in or among *nodes*."""
    found: dict[str, None] = {}
    tag = query.partition("[")[0]
    for chosen in nodes:
        for node in [chosen] * (chosen.tag == tag) + chosen.css(query):
            attributes = node.attributes
            for address in filter(None, map(attributes.get, names)):
                try:
                    found[page.urljoin(address)] = None
                    break
                except FetchError:
                    continue  # such as `data:` of an image that a script loads
    return tuple(found)
