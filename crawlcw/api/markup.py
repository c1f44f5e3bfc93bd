"""Which pages the HTML parser must not be given.

A few shapes keep lexbor busy for minutes (lexbor issue 340; deep nesting; one
tag with thousands of attributes), and a thread that parses cannot be stopped.
They are recognised by their bytes beforehand, in linear time; a page with few
tags costs one count.
"""

import re
from itertools import accumulate

from crawlcw.errors import ParseRefusedError

#: The limits keep the worst known shape under half a second.
MAX_NESTING = 2_000
MAX_OPEN_FORMATTING = 500
MAX_ATTRIBUTES = 10_000
MAX_OPTIONS = 5_000
_LONG_TAG = 64 * 1024
_CHUNK = 4096
#: No shape of this many bytes takes longer than half a second.
_HARMLESS = 8 * 1024
#: Fewer tags than this left open take under half a second, whatever they are.
_SUSPICIOUS = 1_500

#: Tags that are always closed: nothing but these nests deeply on a page that
#: means well. `p` and `li` need no end tag, `br` has none.
_WRAPPER = re.compile(
    rb"<(/?)(?:div|span|section|article|ul|ol|dl|table|blockquote|center|main|nav|header|footer|"
    rb"aside|form|fieldset|figure|details|svg|g|math|template|object|select|button|label|ins|del|"
    rb"sub|sup|q|cite|var|kbd|samp|mark|abbr)(?=[\s>/])",
    re.IGNORECASE,
)
#: Tags that the parser opens again in every block until they are closed.
_FORMATTING = re.compile(
    rb"<(/?)(?:a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)(?=[\s>/])", re.IGNORECASE
)
_OPTION = re.compile(rb"<option", re.IGNORECASE)
_TAG = re.compile(rb"<[A-Za-z/]")
_STEP = {b"": 1, b"/": -1}


def screen(body: bytes) -> None:
    """Raise `ParseRefusedError` for a body that would take the parser minutes."""
    if len(body) <= _HARMLESS:
        return
    if len(body) > _LONG_TAG:
        _screen_attributes(body)
    if body.count(b"<") <= _SUSPICIOUS:
        return
    if len(_OPTION.findall(body)) > MAX_OPTIONS:
        raise ParseRefusedError(f"over {MAX_OPTIONS} options")
    if not _may_be_deep(body):
        return
    if _deepest(_WRAPPER, body) > MAX_NESTING:
        raise ParseRefusedError(f"over {MAX_NESTING} tags inside one another")
    if _deepest(_FORMATTING, body) > MAX_OPEN_FORMATTING:
        raise ParseRefusedError(f"over {MAX_OPEN_FORMATTING} formatting tags left open")


def _screen_attributes(body: bytes) -> None:
    for part in body.split(b">"):
        if len(part) > _LONG_TAG:
            start = _TAG.search(part)
            tag = part[start.start() :] if start else b""
            # Not its length: a picture written into an attribute is long and harmless.
            if len(tag) > _LONG_TAG and len(tag.split(None, MAX_ATTRIBUTES + 1)) > MAX_ATTRIBUTES:
                raise ParseRefusedError(f"a tag of over {MAX_ATTRIBUTES} attributes")


def _may_be_deep(body: bytes) -> bool:
    """Return whether so many tags are left open that it is worth reading them one by one."""
    left_open = 0
    for start in range(0, len(body), _CHUNK):
        chunk = body[start : start + _CHUNK]
        left_open += chunk.count(b"<") - 2 * chunk.count(b"</")
        if left_open > _SUSPICIOUS:
            return True
    return False


def _deepest(tags: re.Pattern[bytes], body: bytes) -> int:
    return max(accumulate(_STEP[slash] for slash in tags.findall(body)), default=0)
