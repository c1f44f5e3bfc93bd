"""Decide which elements a browser does not show, by the tag and its attributes alone.

Hidden text is a way to give orders to agents that read a page. No stylesheet is evaluated, so text
that a stylesheet hides passes, except the text of well-known classes for screen readers.
"""

import re
from collections.abc import Mapping

#: Classes for text that only screen readers read: those of Bootstrap, Tailwind, WordPress, Drupal.
_SCREEN_READER_CLASSES = frozenset(
    """
    sr-only visually-hidden visuallyhidden screen-reader-text screen-reader-only element-invisible
    sr-only-focusable visually-hidden-focusable u-visually-hidden a11y-hidden hidden-visually
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
#: The patterns take linear time for each style.
_ZERO = r"[+-]?(?:0++\.?0*+|\.0++)(?![\d.])(?:%|[a-z]++)?"
_HIDING = re.compile(
    r"(?:^|;)(?:display:none|visibility:(?:hidden|collapse)|content-visibility:hidden"
    rf"|(?:opacity|font-size|zoom|scale):{_ZERO}(?=;|!|$)"
    r"|(?:left|right|top|bottom|text-indent):-\d{3,}|margin-(?:left|top):-(?:\d{4,}|\d{3}r?em)"
    r"|clip:rect\((?:[01](?:px)?[ ,]*){4}\)|clip-path:(?:inset\((?:[5-9]\d|100)%|circle\(0)"
    r"|(?:color|-webkit-text-fill-color):transparent)"
    rf"|scale[xy3d]*\({_ZERO}[,)]|translate[xy3d]*\([^;()]*-\d{{4,}}"
)
_ZERO_SIZE = re.compile(rf"(?:^|;)(?:max-)?(?:height|width):(?:[01]px|{_ZERO})(?=;|!|$)")
_COLOUR = re.compile(r"(?:^|;)color:([^;!]+)")
_BACKGROUND = re.compile(r"(?:^|;)background(?:-color)?:([^;!]+)")
_RGB = re.compile(r"rgba?\((\d+)[ ,]+(\d+)[ ,]+(\d+)(?:[ ,/]+1(?:\.0+)?)?\)")
_NAMED = {"white": "#ffffff", "black": "#000000"}
_COMMENT = re.compile(r"/\*.*?(?:\*/|$)", re.DOTALL)
_ESCAPE = re.compile(r"\\([0-9a-f]{1,6})\s?|\\(.)")
_SPACE = re.compile(r"\s*([:;,()])\s*|\s+")


def is_hidden(tag: str, attributes: Mapping[str, str | None]) -> bool:
    """Return whether the tag and the attributes of an element hide it in a browser."""
    if "hidden" in attributes and (attributes["hidden"] or "").lower() != "until-found":
        return True
    if (attributes.get("aria-hidden") or "").lower() == "true" or "popover" in attributes:
        return True
    if tag == "dialog" and "open" not in attributes:
        return True
    classes = attributes.get("class")
    if classes and not _SCREEN_READER_CLASSES.isdisjoint(classes.split()):
        return True
    style = attributes.get("style")
    return bool(style) and _hides(style or "")


def _hides(style: str) -> bool:
    plain = _COMMENT.sub("", style.lower())
    if "\\" in plain:
        plain = _ESCAPE.sub(_unescaped, plain)
    plain = _SPACE.sub(lambda match: match[1] or " ", plain).strip()
    if _HIDING.search(plain):
        return True
    if "overflow:hidden" in plain and _ZERO_SIZE.search(plain):
        return True
    colour, background = _COLOUR.search(plain), _BACKGROUND.search(plain)
    return (
        colour is not None
        and background is not None
        and _normal_colour(colour[1]) == _normal_colour(background[1])
    )


def _unescaped(match: re.Match[str]) -> str:
    """Return the character of a CSS escape."""
    if match[1] is None:
        return match[2]
    code_point = int(match[1], 16)
    return chr(code_point).lower() if 0 < code_point < 0x110000 else ""


def _normal_colour(colour: str) -> str:
    colour = colour.strip()
    if (rgb := _RGB.fullmatch(colour)) is not None:
        return "#" + "".join(f"{min(int(part[:4]), 255):02x}" for part in rgb.groups())
    if len(colour) == 4 and colour[0] == "#":
        return "#" + "".join(digit * 2 for digit in colour[1:])
    return _NAMED.get(colour, colour)
