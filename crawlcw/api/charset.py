"""Encoding of a page, chosen as by browsers.

The order is that of the WHATWG encoding and HTML standards: byte order mark,
Content-Type, the first <meta> that names an encoding, then UTF-8 if the bytes are valid
UTF-8, else windows-1252. Only encodings of the standard's list are used: Python has
others (`punycode`, `utf-7`, `unicode_escape`) that are slow enough to stop the crawl, or
that decode plain ASCII to control characters.
"""

import codecs
import re
from functools import cache, lru_cache

import webencodings

from crawlcw.api.raw_text import ATTRIBUTES, COMMENT, TEXT_ELEMENT

#: So many bytes a browser waits for before it begins to read, and looks for a <meta> in.
_PREFIX = 1024
#: A browser begins anew where it comes upon a <meta> later; behind this it is not looked for.
_LATEST = 1 << 20

#: The standard decodes GBK as GB 18030, which has more characters.
_LARGER = {"gbk": "gb18030"}
#: In these no page is written: one has no codec, the other makes U+FFFD of a whole page.
_UNUSED = frozenset({"x-user-defined", "replacement"})
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: In all others a byte below 128 is that character of ASCII, or the end of another but no `<`.
WITHOUT_PLAIN_TAGS = frozenset({"utf-16-le", "utf-16-be", "iso2022_jp"})
#: In this one every byte is below 128, and some are no ASCII.
_ESCAPE = b"\x1b"
_LONGEST_LABEL = 40
#: A parameter of a Content-Type; a quoted one may hold what looks like others.
_PARAMETER = re.compile(
    r";[ \t\r\n]*+([^;=]*+)(?:=(?:\"((?:[^\"\\]|\\.)*+)\"?+[^;,]*+|([^;,]*+)))?+"
)
_META = rb"<meta(?=[\s/])(?P<meta>" + ATTRIBUTES + rb")"
_OTHER_TAGS = rb"</?+[a-z]" + ATTRIBUTES + rb"|<[!/?][^>]*+"
#: "Prescan a byte stream to determine its encoding": no text is told from tags.
_PRESCAN = re.compile(b"|".join((COMMENT, _META, _OTHER_TAGS)), re.IGNORECASE)
#: The same, as a parser reads it that comes upon a <meta>.
_SCAN = re.compile(b"|".join((COMMENT, _META, TEXT_ELEMENT, _OTHER_TAGS)), re.IGNORECASE)
_ATTRIBUTE = re.compile(
    rb"([^\s/>][^\s/>=]*+)\s*+(?:=\s*+(?:\"([^\"]*+)\"?+|'([^']*+)'?+|([^\s>]*+)))?+"
)
#: "Extract a character encoding from a meta element".
_IN_CONTENT = re.compile(rb"charset\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s;\"']*))", re.IGNORECASE)
_XML = re.compile(rb"\s*+<\?xml(?=\s)[^>]*?\sencoding\s*=\s*[\"']([^\"'>]*)", re.IGNORECASE)


def choose(content_type: str | None, body: bytes) -> str:
    """Return the name of the encoding of *body*: never one that Python cannot decode safely."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return name
    declared = _of_header(content_type) or _of_metas(_PRESCAN, body[:_PREFIX])
    if declared is None and (found := _XML.match(body, 0, _PREFIX)):
        declared = _of_page(found[1])
    if declared is not None:
        return declared
    is_utf8 = True
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A body that was cut inside a character is still UTF-8, if it had others.
        cut = error.start >= len(body) - 3 and "unexpected end" in error.reason
        is_utf8 = cut and not body[: error.start].isascii()
    # One that is UTF-8 is UTF-8, whatever is said far below.
    if not is_utf8 or _ESCAPE in body:
        declared = _of_metas(_SCAN, body[:_LATEST])
    return declared or ("utf-8" if is_utf8 else "cp1252")


#: Longer attributes of a <meta> are not kept in memory.
_SHORT_META = 200


@lru_cache(256)
def named(label: str) -> str | None:
    """Return the name of the encoding that the web means by *label*, None where it knows none.

    Beside the labels of the web, the names that it returns are known.
    """
    if not label.isascii() or len(label) > _LONGEST_LABEL:
        return None
    found = webencodings.lookup(label)
    if found is None:
        name = label.strip().lower()
        return name if name in _names() else None
    return None if found.name in _UNUSED else _LARGER.get(found.name, found.codec_info.name)


def decode(body: bytes, encoding: str) -> str:
    """Return *body* as text, with U+FFFD for bytes that are not of *encoding*."""
    text = body.decode(encoding, "replace")
    return text.removeprefix("\ufeff")


@cache
def _names() -> frozenset[str]:
    return frozenset(filter(None, map(named, set(webencodings.LABELS.values()))))


@lru_cache(64)  # the pages of a site have the same one
def _of_header(content_type: str | None) -> str | None:
    for name, quoted, token in _PARAMETER.findall(content_type or ""):
        if name.lower() == "charset":
            return named(quoted or token)
    return None


def _of_metas(tags: re.Pattern[bytes], source: bytes) -> str | None:
    """Return the encoding that the first <meta> names that names one."""
    for found in tags.finditer(source):
        attributes = found["meta"]
        if not attributes:
            continue
        # The pages of a site have the same one.
        of_meta = _of_meta if len(attributes) <= _SHORT_META else _of_meta.__wrapped__
        if (name := of_meta(attributes)) is not None:
            return name
    return None


@lru_cache(256)
def _of_meta(attributes: bytes) -> str | None:
    said: dict[bytes, bytes] = {}
    for name, *values in _ATTRIBUTE.findall(attributes):
        said.setdefault(name.lower(), b"".join(values))
    label = said.get(b"charset")
    if label is None and said.get(b"http-equiv", b"").strip().lower() == b"content-type":
        in_content = _IN_CONTENT.search(said.get(b"content", b""))
        label = in_content and (in_content[1] or in_content[2] or in_content[3])
    return _of_page(label) if label else None


def _of_page(label: bytes) -> str | None:
    name = named(label.decode("latin-1"))
    # A page whose <meta> could be read as ASCII is not UTF-16.
    return "utf-8" if name in ("utf-16-le", "utf-16-be") else name
