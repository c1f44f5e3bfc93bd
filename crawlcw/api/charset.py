"""Choose a page's encoding as browsers do, and decode its bytes.

The encoding comes from the first of these sources that the page has, as in the WHATWG standards:
byte order mark, Content-Type, the first <meta> that names an encoding. A page without these sources
is UTF-8 if its bytes are valid UTF-8, else windows-1252. A <meta> counts only in HTML; an XML
declaration counts in HTML and in XML. JSON with valid UTF-8 bytes is UTF-8 (RFC 8259, section 8.1).

This module uses the names (in lower case) and the tables of the Encoding Standard, because Python's
codecs differ: `euc_jp` lacks the characters of NEC and IBM, which most Japanese pages have.
Encodings that only Python knows (`punycode`, `unicode_escape`) may be slow enough to block the
crawl. `python_name` returns the nearest codec, for users.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

import endec
import webencodings

from crawlcw.api.raw_text import ATTRIBUTES, COMMENT, TEXT_ELEMENT

#: Number of bytes that a browser searches for a <meta> before it begins to parse.
_PRESCAN_BYTES = 1024
#: Number of bytes to search for a <meta> after these, which makes a browser parse again.
_LATEST = 1 << 20

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)
#: Encodings in which the byte 0x3C (`<`) may mean another character. In an encoding outside of this
#: set, a byte below 128 is an ASCII character, or it ends a multi-byte character.
WITHOUT_PLAIN_TAGS = frozenset({"utf-16le", "utf-16be", "iso-2022-jp", "replacement"})
#: Encodings in which a character may have several bytes.
_MULTI_BYTE = WITHOUT_PLAIN_TAGS | {
    *("utf-8", "gbk", "gb18030", "big5", "euc-jp", "shift_jis", "euc-kr")
}
#: Maximum number of bytes that a decoder keeps while it waits for the end of a tag or a line. The
#: decoder cuts a longer text at any byte, because the text could fill the memory.
_LONGEST_RUN = 1 << 20
#: Python's codecs for three encodings. The Encoding Standard decodes GBK as GB 18030; Python has no
#: codec for `replacement` and `x-user-defined`.
_PYTHON_CODECS = {"gbk": "gb18030", "replacement": "ascii", "x-user-defined": "ascii"}
#: Labels that mean a different encoding in a <meta> or an XML declaration. For example a page
#: cannot be UTF-16 if its label is readable as ASCII.
_IN_PAGE = {"utf-16le": "utf-8", "utf-16be": "utf-8", "x-user-defined": "windows-1252"}
#: The escape byte of ISO-2022-JP. Text in this encoding is also valid UTF-8, because all of its
#: bytes are below 128.
_ESCAPE = b"\x1b"
_LONGEST_LABEL = 40
#: A parameter of a Content-Type; a quoted value may contain text that looks like parameters.
_TYPE_PARAMETER = re.compile(
    r";[ \t\r\n]*+([^;=]*+)(?:=(?:\"((?:[^\"\\]|\\.)*+)\"?+[^;,]*+|([^;,]*+)))?+"
)
#: One value of a Content-Type that was sent more than once: its type, and its parameters.
_CONTENT_TYPE_VALUE = re.compile(r"\s*+([^;,]*+)((?:[^,\"]++|\"(?:[^\"\\]|\\.)*+\"?+)*+)")
_TYPE = re.compile(r"(?!\*/\*)[\w!#$%&'*+.^`|~-]++/[\w!#$%&'*+.^`|~-]++", re.ASCII)
#: Content types with which a body may be HTML; a body without a type may be HTML too.
_HTML = frozenset({"text/html", "application/octet-stream", "unknown/unknown"})
_META = rb"<meta(?=[\s/])(?P<meta>" + ATTRIBUTES + rb")"
_OTHER_TAGS = rb"</?+[a-z]" + ATTRIBUTES + rb"|<[!/?][^>]*+"
#: A pattern for "prescan a byte stream to determine its encoding" (HTML standard). It finds a
#: <meta> in a script too.
_META_OR_TAG = re.compile(b"|".join((COMMENT, _META, _OTHER_TAGS)), re.IGNORECASE)
#: A pattern that finds a <meta> as a parser does, and skips the text of scripts.
_META_OUTSIDE_TEXT = re.compile(
    b"|".join((COMMENT, _META, TEXT_ELEMENT, _OTHER_TAGS)), re.IGNORECASE
)
_ATTRIBUTE = re.compile(
    rb"([^\s/>][^\s/>=]*+)\s*+(?:=\s*+(?:\"([^\"]*+)\"?+|'([^']*+)'?+|([^\s>]*+)))?+"
)
#: The HTML standard's "extract a character encoding from a meta element".
_IN_CONTENT = re.compile(rb"charset\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s;\"']*))", re.IGNORECASE)
_XML = re.compile(rb"\s*+<\?xml(?=\s)[^>]*?\sencoding\s*=\s*[\"']([^\"'>]*)", re.IGNORECASE)


def choose(content_type: str | None, body: bytes, *, is_xml: bool = False) -> str:
    """Return the name of the encoding of *body*; if *is_xml* is true, *body* is XML."""
    for byte_order_mark, name in _BOMS:
        if body.startswith(byte_order_mark):
            return name
    kind, declared = _of_header(content_type)
    if is_xml:
        kind = "xml"
    if declared is None and kind == "html":
        declared = _of_metas(_META_OR_TAG, body[:_PRESCAN_BYTES])
    if (
        declared is None
        and kind in ("html", "xml")
        and (xml := _XML.match(body, 0, _PRESCAN_BYTES))
    ):
        declared = _of_page(xml[1])
    if declared is not None and kind != "json":
        return declared
    is_utf8 = True
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A body that was cut inside of a character is UTF-8 if its valid part is not ASCII.
        is_cut = error.start >= len(body) - 3 and "unexpected end" in error.reason
        is_utf8 = is_cut and not body[: error.start].isascii()
    if is_utf8 and kind == "json":
        return "utf-8"
    # A body of valid UTF-8 bytes is UTF-8 or ISO-2022-JP, whatever a <meta> declares.
    if kind in ("html", "xml") and (not is_utf8 or _ESCAPE in body):
        declared = _of_metas(_META_OUTSIDE_TEXT, body[:_LATEST])
    return declared or ("utf-8" if is_utf8 else "windows-1252")


#: Maximum length of the attributes if the cache stores a <meta>.
_SHORT_META = 200


@lru_cache(256)
def named(label: str) -> str | None:
    """Return the name of the encoding that browsers mean by *label*, None for an unknown *label*.

    The function knows the labels of the Encoding Standard and the results of `python_name`.
    """
    if not label.isascii() or len(label) > _LONGEST_LABEL:
        return None
    encoding = webencodings.lookup(label)
    return _web_names().get(label.strip().lower()) if encoding is None else str(encoding.name)


@cache
def python_name(name: str) -> str:
    """Return Python's name of the codec that is nearest to an encoding."""
    return _PYTHON_CODECS.get(name) or str(webencodings.lookup(name).codec_info.name)


@cache
def _web_names() -> dict[str, str]:
    return {python_name(name): name for name in webencodings.LABELS.values()}


def decode(body: bytes, encoding: str) -> str:
    """Return *body* as text, with U+FFFD for bytes that are invalid in *encoding*."""
    if encoding == "utf-8":
        return body.decode("utf-8", "replace").removeprefix("\ufeff")
    if (table := _table(encoding)) is not None:
        return codecs.charmap_decode(body, "strict", table)[0]
    return endec.decode(body, encoding, "replace", bom="strip")


def decoded(pieces: Iterable[bytes], encoding: str) -> Iterator[str]:
    """Decode a body that comes in *pieces*, and yield its text."""
    if encoding.startswith("utf-"):
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield from map(decoder.decode, pieces)
        yield decoder.decode(b"", final=True)
        return
    # The library endec keeps no state between calls, so each piece must end with a complete
    # character.
    cut_marks = (b"\x1b(B",) if encoding == "iso-2022-jp" else (b">", b"\n")
    buffer = bytearray()
    for piece in pieces:
        ends = (position + len(mark) for mark in cut_marks if (position := piece.rfind(mark)) >= 0)
        end = max(ends, default=0 if len(buffer) < _LONGEST_RUN else len(piece))
        if end:
            yield decode(bytes(buffer) + piece[:end], encoding)
            buffer.clear()
        buffer += piece[end:]
    yield decode(bytes(buffer), encoding)


@cache
def _table(encoding: str) -> str | None:
    """Return the characters of all 256 bytes; Python decodes by them faster than by endec."""
    if encoding in _MULTI_BYTE:
        return None
    return endec.decode(bytes(range(256)), encoding, "replace", bom="ignore")


def content_type(header: str) -> str:
    """Return the type that browsers choose from a Content-Type with several values.

    The last valid value of the Content-Type counts (Fetch, "extract a MIME type"). If the last
    value has no charset, the charset of an earlier value of the same type counts.
    """
    chosen_type = essence = charset = ""
    for match in _CONTENT_TYPE_VALUE.finditer(header):
        kind, parameters = match[1].strip().lower(), match[2]
        if not _TYPE.fullmatch(kind):
            continue
        chosen_type, label = f"{kind}{parameters}", _charset(parameters)
        if kind != essence:
            essence, charset = kind, label
        elif charset and not label:
            chosen_type += f';charset="{charset}"'
    return chosen_type or header


def _charset(parameters: str) -> str:
    """Return the first charset among the parameters of a Content-Type."""
    for name, quoted, token in _TYPE_PARAMETER.findall(parameters):
        if name.lower() == "charset":
            return str(quoted or token).strip()
    return ""


@lru_cache(64)  # a site's pages often send the same header
def _of_header(header: str | None) -> tuple[str, str | None]:
    """Return a body's kind ("html", "xml", "json" or "") and the charset of its Content-Type."""
    header = content_type(header) if header and "," in header else header or ""
    kind, mark, parameters = header.partition(";")
    kind = kind.strip().lower()
    encoding = named(_charset(mark + parameters))
    if kind in _HTML or not _TYPE.fullmatch(kind):
        return "html", encoding
    subtype = kind.rpartition("/")[2].rpartition("+")[2]
    return (subtype if subtype in ("xml", "json") else ""), encoding


def _of_metas(tags: re.Pattern[bytes], source: bytes) -> str | None:
    """Return the encoding of the first <meta> that names an encoding."""
    for match in tags.finditer(source):
        attributes = match["meta"]
        if not attributes:
            continue
        # Cache short attributes, because all pages of a site have the same <meta>.
        of_meta = _of_meta if len(attributes) <= _SHORT_META else _of_meta.__wrapped__
        if (name := of_meta(attributes)) is not None:
            return name
    return None


@lru_cache(256)
def _of_meta(attributes: bytes) -> str | None:
    values_by_name: dict[bytes, bytes] = {}
    for name, *values in _ATTRIBUTE.findall(attributes):
        values_by_name.setdefault(name.lower(), b"".join(values))
    label = values_by_name.get(b"charset")
    if label is None and values_by_name.get(b"http-equiv", b"").strip().lower() == b"content-type":
        in_content = _IN_CONTENT.search(values_by_name.get(b"content", b""))
        label = in_content and (in_content[1] or in_content[2] or in_content[3])
    return _of_page(label) if label else None


def _of_page(label: bytes) -> str | None:
    name = named(label.decode("latin-1"))
    return None if name is None else _IN_PAGE.get(name, name)
