"""What a page says of itself to its reader: whether to go elsewhere, and what robots may do.

Both are said by a header (Refresh, X-Robots-Tag) or by a <meta> of the page's head. Nothing
here fails on anything that a page holds: what makes no sense says nothing.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

from selectolax.lexbor import LexborNode

from crawlcw.api import charset, markup
from crawlcw.api.raw_text import COMMENT, TEXT_ELEMENT
from crawlcw.errors import ParseRefusedError

#: No head is longer than this; what stands behind it is not looked at.
LONGEST_HEAD = 1 << 20
#: A page until its `</head`, but for one that is text of a script or a comment.
_TO_ITS_END = re.compile(
    rb"(?:[^<]++|" + COMMENT + rb"|" + TEXT_ELEMENT + rb"|<(?!/head))*+", re.IGNORECASE
)
#: Many more seconds than anybody waits for a page.
_DIGITS = 9
#: The HTML standard's "shared declarative refresh steps". It never looks back: no text is slow.
_REFRESH = re.compile(
    r"\s*(\d+|(?=\.))[\d.]*(?:[\s;,]\s*[;,]?\s*(?:url\s*=\s*)?(.*))?", re.IGNORECASE | re.DOTALL
)
#: Directives that have a value themselves: what stands before their colon names no robot.
_WITH_A_VALUE = frozenset(
    {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
)
_EVERY_ROBOT = "robots"


@dataclass(frozen=True, slots=True)
class Refresh:
    """Where a page sends its reader by itself."""

    after: timedelta
    url: str  #: absolute


@dataclass(frozen=True, slots=True)
class RobotsDirectives:
    """What a page asks of robots, by X-Robots-Tag or <meta name="robots">."""

    noindex: bool = False  #: it is not to be shown in search results
    nofollow: bool = False  #: its links are not to be followed

    def __or__(self, other: "RobotsDirectives") -> "RobotsDirectives":
        return RobotsDirectives(self.noindex or other.noindex, self.nofollow or other.nofollow)


#: What most pages ask for.
NO_DIRECTIVES = RobotsDirectives()


def product_token(user_agent: str) -> str:
    """Return what sites call a crawler: the first word of its name, without the version."""
    return user_agent.split()[0].partition("/")[0]


def refresh(value: str) -> tuple[timedelta, str] | None:
    """Return what a Refresh says: after how long, and the link; None where it has no link."""
    found = _REFRESH.match(value)
    seconds, link = found.groups() if found else ("", None)
    if not link:
        return None
    if link[0] in "\"'":
        link = link[1:].partition(link[0])[0]
    link = link.strip()
    return (timedelta(seconds=int(seconds[:_DIGITS] or 0)), link) if link else None


def directives(header: str, *, robot: str) -> RobotsDirectives:
    """Return what an X-Robots-Tag asks of the crawler that is called *robot*.

    What stands behind the name of a robot (`otherbot: noindex, nofollow`) is for that one.
    """
    robot, ours, found = robot.lower(), True, NO_DIRECTIVES
    for part in header.lower().split(","):
        name, colon, rest = part.partition(":")
        word = part
        if colon and name.strip() not in _WITH_A_VALUE:
            ours, word = name.strip() in (robot, _EVERY_ROBOT, "*"), rest
        if ours and word:
            found |= _directive(word)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a page; of what is no HTML it says nothing but whether there may be a <base>."""

    has_base: bool  #: whether there may be a <base>
    refresh: tuple[timedelta, str] | None = None  #: of the first meta with a link, see `refresh`
    robots: RobotsDirectives = NO_DIRECTIVES  #: of the metas named `robots` or as the robot


def read(body: bytes, *, encoding: str, robot: str, is_html: bool = True) -> Head:
    """Return what the head of a page says; *robot* is what pages call this crawler."""
    if encoding in charset.WITHOUT_PLAIN_TAGS:
        body = charset.decode(body[: 2 * LONGEST_HEAD], encoding).encode(errors="replace")
        encoding = "utf-8"
    end = _TO_ITS_END.match(body, 0, LONGEST_HEAD)
    source = body[: end.end() if end else 0]
    # Most heads have none of the words that are looked for, and need not be decoded.
    lower = source.lower()
    has_base = b"<base" in lower
    robot = robot.lower() or _EVERY_ROBOT
    says = b"refresh" in lower or b"robots" in lower or robot.encode() in lower
    if not is_html or not says:
        return Head(has_base=has_base)
    source = charset.decode(source, encoding).encode(errors="replace")
    try:
        markup.screen(source)
        tree = markup.parse_bounded(source)
    except ParseRefusedError:
        return Head(has_base=has_base)
    found = (
        refresh(node.attributes.get("content") or "")
        for node in tree.css("meta[http-equiv][content]")
        if _named(node, "http-equiv") == "refresh" and not _without_scripts(node)
    )
    robots = NO_DIRECTIVES
    for node in tree.css("meta[name][content]"):
        if _named(node, "name") in (_EVERY_ROBOT, robot):
            for word in (node.attributes.get("content") or "").lower().split(","):
                robots |= _directive(word)
    sends = next((each for each in found if each is not None), None)
    return Head(has_base=has_base, refresh=sends, robots=robots)


def _named(node: LexborNode, attribute: str) -> str:
    return (node.attributes.get(attribute) or "").strip().lower()


def _without_scripts(node: LexborNode) -> bool:
    """Return whether only browsers without scripts are told: most send them to an apology."""
    above = node.parent
    while above is not None and above.tag != "noscript":
        above = above.parent
    return above is not None


def _directive(word: str) -> RobotsDirectives:
    match word.strip():
        case "none":
            return RobotsDirectives(noindex=True, nofollow=True)
        case "noindex":
            return RobotsDirectives(noindex=True)
        case "nofollow":
            return RobotsDirectives(nofollow=True)
    return NO_DIRECTIVES
