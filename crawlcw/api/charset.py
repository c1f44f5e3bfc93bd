"""Which encoding a page is in, as browsers choose it.

The order is that of the WHATWG encoding and HTML standards: byte order mark,
Content-Type, <meta> in the first 1024 bytes, then UTF-8 where the bytes are
UTF-8, else windows-1252. Only encodings of the standard's list are ever used:
Python knows others (`punycode`, `utf-7`, `unicode_escape`) that are slow enough
to stop the crawl or that make control characters out of plain ASCII.
"""

import codecs
import re

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding

_META_PREFIX = 1024

#: Python's names of the WHATWG encodings; what is not here is not used.
_NAMES = """
    utf-8 utf-16-le utf-16-be ibm866 iso8859-2 iso8859-3 iso8859-4 iso8859-5 iso8859-6 iso8859-7
    iso8859-8 iso8859-10 iso8859-13 iso8859-14 iso8859-15 iso8859-16 koi8-r koi8-u mac-roman cp874
    cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 mac-cyrillic gbk gb18030 big5
    big5hkscs euc-jp iso2022_jp shift_jis cp932 euc-kr cp949
"""
_ALLOWED = frozenset(codecs.lookup(name).name for name in _NAMES.split())
#: Labels that mean another encoding on the web than in Python.
_ALIASES = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "utf-16": "utf-16-le",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "tis-620": "cp874",
    "iso8859-11": "cp874",
}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: In all others a byte below 128 is that character of ASCII, or the end of another but no `<`.
_NOT_ASCII = frozenset({"utf-16-le", "utf-16-be", "iso2022_jp"})
_LABEL = re.compile(r"[A-Za-z0-9_.:()-]{1,40}\Z")


def choose(content_type: str | None, body: bytes) -> str:
    """Return the name of the encoding of *body*: never one that Python cannot decode safely."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return name
    declared = _known(http_content_type_encoding(content_type)) if content_type else None
    if declared is None:
        declared = _known(html_body_declared_encoding(body[:_META_PREFIX]))
        # A page whose <meta> could be read as ASCII is not UTF-16.
        if declared in ("utf-16-le", "utf-16-be"):
            declared = "utf-8"
    return declared or ("utf-8" if _is_utf8(body) else "cp1252")


def named(label: str) -> str | None:
    """Return the name of the encoding that the web means by *label*, None where it knows none."""
    return _known(label)


def has_plain_tags(encoding: str) -> bool:
    """Return whether a `<` of the text is one in the bytes, and the other way round."""
    return encoding not in _NOT_ASCII


def decode(body: bytes, encoding: str) -> str:
    """Return *body* as text, with U+FFFD for what is not of *encoding*."""
    text = body.decode(encoding, "replace")
    return text.removeprefix("\ufeff")


def _known(label: str | None) -> str | None:
    if not label or not _LABEL.match(label):
        return None
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    name = _ALIASES.get(name, name)
    return name if name in _ALLOWED else None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A body that was cut inside a character is still UTF-8, if it had others.
        cut = error.start >= len(body) - 3 and "unexpected end" in error.reason
        return cut and not body[: error.start].isascii()
    return True
