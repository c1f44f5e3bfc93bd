"""Read the directives in a page's head: a refresh to another page, and rules for robots.

A page declares a directive by a header (Refresh, X-Robots-Tag) or by a <meta> in its head. No
content of a page makes this module fail: it ignores invalid directives.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Self

from selectolax.lexbor import LexborNode

from crawlcw.api import charset, markup
from crawlcw.api.raw_text import ATTRIBUTES, COMMENT, TEXT_ELEMENT
from crawlcw.errors import ParseRefusedError

#: Maximum length of a head in bytes.
LONGEST_HEAD = 1 << 20
#: A page up to its `</head`; a `</head` in a script, a comment or a <meta> does not count.
_UP_TO_HEAD_END = re.compile(
    rb"(?:[^<]++|" + COMMENT + rb"|" + TEXT_ELEMENT + rb"|<meta(?=[\s/])" + ATTRIBUTES + rb""
    rb"|<(?!/head))*+",
    re.IGNORECASE,
)
_NOSCRIPT = re.compile(rb"<noscript(?:[^<]++|<(?!/noscript))*+")
#: Maximum number of digits of a Refresh's delay.
_MAX_DELAY_DIGITS = 9
#: The HTML standard's "shared declarative refresh steps". The pattern never backtracks.
_REFRESH = re.compile(
    r"\s*(\d+|(?=\.))[\d.]*(?:(?=[\s;,])\s*[;,]?\s*(?:url\s*=\s*)?(.*))?",
    re.IGNORECASE | re.DOTALL,
)
#: Directives such as `max-snippet: 20`. The text before their colon is not the name of a robot.
_VALUE_DIRECTIVES = frozenset(
    {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
)
_EVERY_ROBOT = "robots"


@dataclass(frozen=True, slots=True)
class Refresh:
    """A page's Refresh: the URL to which the page sends its reader, and the delay."""

    delay: timedelta
    url: str  #: absolute


@dataclass(frozen=True, slots=True)
class RobotsDirectives:
    """The page's rules for robots, from X-Robots-Tag or from <meta name="robots">."""

    noindex: bool = False  #: not in search results
    nofollow: bool = False  #: do not follow links

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return the rules that the directives in *texts* make."""
        rules = {directive.strip().lower() for directive in texts}
        is_none = "none" in rules
        return cls(is_none or "noindex" in rules, is_none or "nofollow" in rules)


def product_token(user_agent: str) -> str:
    """Return the crawler's name in robots rules: *user_agent* up to its first slash or space."""
    return user_agent.split()[0].partition("/")[0]


def refresh(value: str) -> tuple[timedelta, str] | None:
    """Return the delay and the link of a Refresh; None if the Refresh has no link."""
    match = _REFRESH.match(value)
    delay_text, link = match.groups() if match else ("", None)
    if not link:
        return None
    if link[0] in "\"'":
        link = link[1:].partition(link[0])[0]
    link = link.strip()
    return (timedelta(seconds=int(delay_text[:_MAX_DELAY_DIGITS] or 0)), link) if link else None


def directives(header: str, *, robot: str) -> list[str]:
    """Return the directives of an X-Robots-Tag for the crawler with the name *robot*.

    Directives after the name of a robot (`otherbot: noindex, nofollow`) are only for that robot.
    """
    robot, is_for_robot, rules = robot.lower(), True, list[str]()
    for section in header.lower().split(","):
        name, colon, rule_text = section.partition(":")
        is_named = bool(colon) and name.strip() not in _VALUE_DIRECTIVES
        if is_named:
            is_for_robot = name.strip() in (robot, _EVERY_ROBOT, "*")
        if is_for_robot:
            rules.append(rule_text if is_named else section)
    return rules


class Head:
    """The head of a page; if *is_html* is false, the class only looks for a <base>."""

    def __init__(self, body: bytes, *, encoding: str, is_html: bool = True) -> None:
        if encoding in charset.WITHOUT_PLAIN_TAGS:
            body = charset.decode(body[: 2 * LONGEST_HEAD], encoding).encode(errors="replace")
            encoding = "utf-8"
        end = _UP_TO_HEAD_END.match(body, 0, LONGEST_HEAD)
        self._head_source = body[: end.end() if end else 0]
        self._encoding = encoding
        lower = self._head_source.lower()
        #: Whether the head may have a <base>; a <base> in a <noscript> does not count.
        self.has_base = b"<base" in lower and b"<base" in _NOSCRIPT.sub(b"", lower)
        # Search the head before parsing, because most heads have no refresh and no robots rules.
        self._lower = lower if is_html else b""

    @cached_property
    def refresh(self) -> tuple[timedelta, str] | None:
        """The first <meta http-equiv="refresh"> with a link, as `refresh` reads it."""
        if b"refresh" not in self._lower:
            return None
        refreshes = (refresh(content) for event, _, content in self._metas if event == "refresh")
        return next((target for target in refreshes if target is not None), None)

    @cached_property
    def canonical(self) -> str | None:
        """The link of the first <link rel="canonical"> (RFC 6596), or None."""
        if b"canonical" not in self._lower:
            return None
        for node in self._nodes("link[rel][href]"):
            if "canonical" in _stripped(node, "rel").lower().split():
                return _stripped(node, "href") or None
        return None

    @property
    def referrer_policies(self) -> list[str]:
        """The content of each <meta name="referrer">."""
        if b"referrer" not in self._lower:
            return []
        return [content for _, name, content in self._metas if name == "referrer"]

    def directives(self, *, robot: str) -> list[str]:
        """Return the directives of each <meta> with the name `robots` or *robot*."""
        names = (_EVERY_ROBOT, robot.lower() or _EVERY_ROBOT)
        if names[0].encode() not in self._lower and names[1].encode() not in self._lower:
            return []
        rule_texts = (content for _, name, content in self._metas if name in names)
        return [directive for content in rule_texts for directive in content.split(",")]

    @cached_property
    def _metas(self) -> list[tuple[str, str, str]]:
        """The `http-equiv`, name and content of each <meta>; `http-equiv` is "" in a <noscript>."""
        return [
            (
                "" if is_without_scripts(node) else _stripped(node, "http-equiv").lower(),
                _stripped(node, "name").lower(),
                _stripped(node, "content"),
            )
            for node in self._nodes("meta[content]")
        ]

    def _nodes(self, query: str) -> list[LexborNode]:
        source = charset.decode(self._head_source, self._encoding).encode(errors="replace")
        try:
            markup.screen(source)
            # The nodes keep their tree alive.
            return markup.parse_bounded(source).css(query)
        except ParseRefusedError:
            return []


def _stripped(node: LexborNode, attribute: str) -> str:
    return (node.attributes.get(attribute) or "").strip()


def is_without_scripts(node: LexborNode) -> bool:
    """Return whether a node is in a <noscript>, which counts only in browsers without scripts."""
    ancestor = node.parent
    while ancestor is not None and ancestor.tag != "noscript":
        ancestor = ancestor.parent
    return ancestor is not None
