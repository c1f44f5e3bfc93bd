"""Check a page's markup in linear time before parsing, and make its lexbor and parsel trees.

Some unusual pages keep the parser lexbor busy for minutes (lexbor issue 340; deep nesting; a tag
with thousands of attributes). A page that is almost all tags needs seventy times its size for its
tree. Because a thread that parses cannot be stopped, the crawl parses a *suspicious* page in a
process that it can stop (`crawl.parsing`). Outside of a crawl, a suspicious page is refused. An
ordinary page that looks suspicious costs some milliseconds more. For a page with few tags, the
check only counts the tags.

The text of a page does not always show how much memory its tree needs, and the parser has no limit.
So the operating system limits the memory of a tree, by RLIMIT_DATA of setrlimit(2).

parsel, on libxml2, serves XPath, `::text` and regular expressions. libxml2 is slower than lexbor on
unusual pages, drops deeply nested elements silently, and resolves entities. crawlcw refuses a page
if libxml2 would make a wrong tree. parsel is an optional dependency, imported when a callback first
uses a parsel selector.
"""

import codecs
import os
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, TypeVar

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from crawlcw.api.raw_text import ATTRIBUTES, COMMENT, TEXT_ELEMENT, without_raw_text
from crawlcw.errors import ParseRefusedError, Reason, SpiderError

if TYPE_CHECKING:
    from parsel import Selector

T = TypeVar("T")
Kind = Literal["html", "xml"]

#: Limits of open tags, open formatting tags and options. Within these limits, parsing takes less
#: than half a second.
MAX_NESTING = 2_000
MAX_OPEN_FORMATTING = 500
MAX_OPTIONS = 5_000
#: Limit of <html> and <body>, because a further <body> adds its attributes to the first <body>.
MAX_ROOTS = 2_000
#: Maximum sum of the squared numbers of attributes of all tags. One tag with 10,000 attributes
#: reaches this sum, and 100 tags with 1,000 attributes each reach it too.
MAX_ATTRIBUTE_WORK = 10_000**2
#: Maximum size of a tree in bytes, estimated from the text of its page.
MAX_TREE = 128 << 20
#: The memory limit of a tree in this process, in bytes. MAX_HEAP is above MAX_TREE, because the
#: estimate is too low if the parser opens unclosed formatting tags again in every block.
MAX_HEAP = 2 * MAX_TREE
#: Length in bytes from which a tag's attributes are counted; shorter tags are harmless.
_LONG_TAG = 2048
_CHUNK = 4096
#: Limits in bytes of a body and of its tree. A separate process parses larger pages; parsing a
#: smaller page takes at most 0.2 s.
LARGE = 1 << 20
_LARGE_TREE = 32 << 20
#: Size in bytes of a page whose parsing always takes less than half a second.
HARMLESS = 8 * 1024
#: Number of unclosed tags whose parsing always takes less than half a second.
_SUSPICIOUS_DEPTH = 1_500
#: Number of NULs for which the parser stores 1 MiB of errors.
_MAX_NULS = 1 << 16
#: Parsing up to 4,000 tags takes at most half a second if memory is limited [measured].
_HARMLESS_TAGS = 4_000
#: Limit of the number of tags times the number of open tags, because for many tags the parser
#: searches all open tags. A page of 20,000 open tags makes 4 * 10**8 steps in 0.4 s [measured].
_MAX_STEPS = 250_000_000
#: Limit of the number of tags times the number of different unclosed formatting tags. The parser
#: opens these formatting tags again for each tag. The limit allows 20 unclosed tags in 15,800 tags.
_MAX_REOPENED = 316_000
#: Maximum number of <option>, <html> and <body> in a page, because each further tag costs more.
_MAX_REPEATED = 2_000
#: A body of this size cannot exceed MAX_ATTRIBUTE_WORK, because an attribute takes two bytes.
_FEW_ATTRIBUTES = 20_000
#: Maximum number of bytes that a tag (an element with its text) adds to a tree (measured: 30-230).
_TREE_PER_TAG = 256
#: Bytes that a byte of text or attributes adds to a tree, on most pages.
_TREE_PER_BYTE = 2

#: Tags that harmless pages always close. If a page leaves such a tag open, the tag counts as a
#: nesting level. On harmless pages only these tags nest deeply. `p` and `li` need no end tag, and
#: `br` has none.
_WRAPPER = re.compile(
    rb"<(/?)(?:div|span|section|article|ul|ol|dl|table|blockquote|center|main|nav|header|footer|"
    rb"aside|form|fieldset|figure|details|svg|g|math|template|shadow-root|object|select|button|label|ins|del|"
    rb"sub|sup|q|cite|var|kbd|samp|mark|abbr)(?=[\s>/])",
    re.IGNORECASE,
)
#: Formatting tags, which the parser opens again in every block until it reads their end tag.
_FORMATTING = re.compile(
    rb"<(/?)(?:a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)(?=[\s>/])", re.IGNORECASE
)
#: A pattern with both cases of a letter is three times as fast as IGNORECASE, because the search
#: then starts only at each `<`.
_REPEATED = re.compile(rb"<(?:[oO][pP][tT][iI][oO][nN]|[hH][tT][mM][lL]|[bB][oO][dD][yY])")
#: Matches attributes by a stricter grammar than the standard's, so that the match ends where a
#: parser ends. The pattern's first line is an optimisation.
_ATTRIBUTES = (
    rb"(?: [a-z-]++=\"[^\"<>]*+\")*+"
    rb"(?:[ \t\r\n\f]++(?:[^ \t\r\n\f<>\"'=/]++(?:[ \t\r\n\f]*+=[ \t\r\n\f]*+"
    rb"(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^ \t\r\n\f<>\"'=]++(?=[ \t\r\n\f>])))?+)?+)*+"
)
#: A start tag whose end is certain, so that it can be compared with other tags.
_ALIKE = re.compile(rb"<[a-zA-Z]++" + _ATTRIBUTES)
#: An element that contains only text, with its end tag.
_CLOSED = (
    rb"<(?!option|html|body)(?P<closed>[a-z][a-z0-9]*+)" + _ATTRIBUTES + rb">[^<]*+</(?P=closed)>"
)
_CLOSED_AT_ONCE = re.compile(_CLOSED)
#: Costly tags: options, <html>, <body>, and formatting that the parser opens again in each block.
#: Tags without attributes do not match, because the parser keeps at most three equal open tags. An
#: element that contains only text and closed elements does not match: no parser opens it again. The
#: lookaheads at the pattern's start reject most tags by their first letters.
_COSTLY = re.compile(
    rb"<(?=[bcefhinostuBCEFHINOSTU])(?!span|t[dr])(?:"
    rb"(?P<tag>[bBiIsSuU]|[bB][iI][gG]|[cC][oO][dD][eE]|[eE][mM]|[fF][oO][nN][tT]|[nN][oO][bB][rR]"
    rb"|[sS][mM][aA][lL][lL]|[sS][tT][rR][iI][kK][eE]|[sS][tT][rR][oO][nN][gG]|[tT][tT])"
    rb"(?=[ \t\r\n\f/])(?!" + _ATTRIBUTES + rb">(?:[^<]++|" + _CLOSED + rb")*+</(?P=tag)>)[^>]*+"
    rb"|[oO][pP][tT][iI][oO][nN]|[hH][tT][mM][lL]|[bB][oO][dD][yY])"
)
_MAX_ROUNDS = 3
_TAG = re.compile(rb"<[A-Za-z/]")
_DEPTH_STEP = {b"": 1, b"/": -1}
_BETWEEN_ATTRIBUTES = b" \t\n\f\r/\"'"
_MARKUP_TYPES = ("text/html", "application/xhtml+xml", "text/xml", "application/xml")
_START = 1024
_PAGE = resource.getpagesize()
#: A file of Linux, whose sixth number is the memory that RLIMIT_DATA limits, in memory pages.
_MEMORY_FILE = "/proc/self/statm"
#: Seconds between reads of `_MEMORY_FILE`; more reads would release the GIL more often.
_MEMORY_READ_EVERY = 0.5
_SHADOW = b"shadowrootmode"
_TEMPLATE_OR_TEXT = re.compile(
    COMMENT + rb"|" + TEXT_ELEMENT + rb"|<template(?=[\s/>])(?P<opened>" + ATTRIBUTES + rb")"
    rb"|(?P<closed></template(?=[\s/>]))",
    re.IGNORECASE,
)
#: The attribute that `with_form_owners` adds.
OWNER = "crawlcw-form"
_FORM = re.compile(rb"<(/?)[fF][oO][rR][mM](?=[\s/>])")
_FORM_OR_TEXT = re.compile(
    COMMENT + rb"|" + TEXT_ELEMENT + rb""
    rb"|<(?P<end>/?)(?P<name>form|template|shadow-root|button|input|select)(?=[\s/>])"
    rb"(?P<attributes>" + ATTRIBUTES + rb")|</?[a-z]" + ATTRIBUTES,
    re.IGNORECASE,
)
_TEXTAREA = re.compile(rb"(<textarea)", re.IGNORECASE)
_XML_TYPES = frozenset({"text/xml", "application/xml"})
_XHTML = "application/xhtml+xml"
_CDATA = rb"<!\[CDATA\[(?P<%b>(?:[^\]]++|\](?!\]>))*+)(?:\]\]>)?+"
#: Attributes of XML, whose values are quoted.
_OF_XML = rb"(?:[^<>\"'/=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')|/(?!>))*+"
#: Syntax that HTML reads differently from XML. A comment or CDATA that has no end extends to the
#: page's end.
_XML_ALONE = re.compile(
    rb"<!--(?:[^-]++|-(?!->))*+|<\?(?:[^?]++|\?(?!>))*+|" + _CDATA % b"text" + rb""
    rb"|(?P<start><(?P<code>script|style)(?=[\s>])" + _OF_XML + rb">)"
    rb"(?P<content>(?:[^<]++|" + _CDATA % b"data" + rb"|<(?!/(?P=code)))*+)"
    rb"|<(?P<empty>[a-z_][^\s<>\"'/=]*+)(?P<attributes>(?![^\s/])" + _OF_XML + rb")/>",
    re.IGNORECASE,
)
#: Elements that have no end tag in HTML.
_VOID = frozenset(b"area base br col embed hr img input link meta param source track wbr".split())
_ESCAPED = {b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&apos;": b"'", b"&amp;": b"&"}
_ESCAPE = re.compile(b"|".join(_ESCAPED))
#: XML that declares an entity is refused, because libxml2 may expand 1 KiB of it to 1 GiB.
_ENTITY = b"<!ENTITY"
#: libxml2 drops elements that are nested deeper than 2,048 levels in HTML, or 256 levels in XML.
_HUGE = {"html": True, "xml": False}
_START_TAG = re.compile(rb"<[A-Za-z]")
_END_OF_PAGE = re.compile(rb"</[hH][tT][mM][lL][\s/>]")
_END_OR_TEXT = re.compile(
    COMMENT + rb"|" + TEXT_ELEMENT + rb"|(?P<end></html(?=[\s/>])[^>]*+>?)", re.IGNORECASE
)


def is_markup(content_type: str | None, body: bytes) -> bool:
    """Return whether a body is markup, by its type and its first character."""
    start = body[:_START].removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if start in (b"{", b"["):
        return False  # JSON is often sent as text/html
    kind = (content_type or "").partition(";")[0].strip().lower()
    return start == b"<" or not kind or kind in _MARKUP_TYPES or kind.endswith("+xml")


def is_xhtml(content_type: str | None) -> bool:
    """Return whether a page is XHTML, which browsers parse as XML (HTML standard, 14.2)."""
    return (content_type or "").partition(";")[0].strip().lower() == _XHTML


def xhtml_as_html(body: bytes) -> bytes:
    """Return HTML, in UTF-8, that has the same meaning as *body*, a page of XHTML.

    In HTML an empty `<script/>` has no end, and CDATA is a comment. A page that is not well-formed
    XML is changed as well, because an HTML parser tolerates mistakes.
    """

    def as_html(match: re.Match[bytes]) -> bytes:
        if (name := match["empty"]) is not None:
            tag = b"<" + name + match["attributes"]
            return match[0] if name.lower() in _VOID else tag + b"></" + name + b">"
        if (text := match["text"]) is not None:
            return text.replace(b"&", b"&amp;").replace(b"<", b"&lt;")
        if (content := match["content"]) is None:
            return match[0]
        if match["data"] is None:
            content = _ESCAPE.sub(lambda escape: _ESCAPED[escape[0]], content)
        # `<\/` is the same text in JSON and JavaScript, but `</` could end the script in HTML.
        return match["start"] + content.replace(b"</", b"<\\/")

    return _XML_ALONE.sub(as_html, body)


def prepared(body: bytes) -> bytes:
    """Return a page, in UTF-8, prepared for the parser.

    - Very many NULs are removed, because lexbor stores an error for each NUL. Ten million NULs take
      160 MB; with less memory they take minutes. Browsers also drop NULs from a page's text.
    - Shadow roots become part of the page.
    """
    if b"\0" in body and body.count(b"\0") > _MAX_NULS:
        body = body.translate(None, b"\0")
    return with_open_shadow_roots(body) if _SHADOW in body else body


def with_open_shadow_roots(body: bytes) -> bytes:
    """Return a page, in UTF-8, with a <shadow-root> for each <template shadowrootmode>.

    A browser shows the content of a shadow root as a part of the page. The parser keeps the content
    of a template outside of the page, so selectors would not find the template's links.
    """
    roots: list[bool] = []  # whether each open template is a shadow root

    def rename_template(match: re.Match[bytes]) -> bytes:
        attributes = match["opened"]
        if attributes is not None:
            roots.append(_SHADOW in attributes.lower())
            return b"<shadow-root" + attributes if roots[-1] else match[0]
        if match["closed"] is not None and roots and roots.pop():
            return b"</shadow-root"
        return match[0]

    return _TEMPLATE_OR_TEXT.sub(rename_template, body)


def with_form_owners(body: bytes, *, are_named: bool = True) -> bytes:
    """Return a page, in UTF-8, whose controls name the form that they belong to.

    In browsers a field's form depends on more than the tree (HTML standard, 13.2.6.4.7, "form
    element pointer"). After a `</div>` has closed a form, later fields still belong to the form. A
    form inside of a form does not count. Inside of a <template>, the tree alone decides to which
    form a field belongs. If *are_named* is false, the function names no forms, and only removes
    forms inside of forms.
    """
    count = pointer = templates = 0

    def add_owner(tag: re.Match[bytes]) -> bytes:
        nonlocal count, pointer, templates
        name, is_end = (tag["name"] or b"").lower(), bool(tag["end"])
        if name in (b"template", b"shadow-root"):
            templates = max(0, templates + (-1 if is_end else 1))
        elif name == b"form" and not templates:
            if pointer and not is_end:
                return b""
            count += not is_end
            pointer = 0 if is_end else count
        if not pointer or templates or is_end or not are_named:
            return tag[0]
        owner = b" %b=%d" % (OWNER.encode(), pointer)
        if name:
            return b"<" + name + owner + tag["attributes"]
        return _TEXTAREA.sub(rb"\1" + owner, tag[0], count=1) if _TEXTAREA.match(tag[0]) else tag[0]

    return _FORM_OR_TEXT.sub(add_owner, body)


def tree_size(body: bytes) -> int:
    """Return the estimated bytes of a body's tree; a suspicious body's tree may be larger."""
    return _TREE_PER_TAG * body.count(b"<") + _TREE_PER_BYTE * len(body)


def ordinary_tree_size(body: bytes) -> int | None:
    """Return the estimated size of the tree of an ordinary body in bytes.

    Return None for a large or suspicious body, which a separate process must parse. For most pages
    the function reads the body once, which takes a twelfth of the time of parsing.
    """
    if len(body) > LARGE:
        return None
    tags = body.count(b"<")
    size = _TREE_PER_TAG * tags + _TREE_PER_BYTE * len(body)  # as in `tree_size`
    if (
        size > _LARGE_TREE
        or (len(body) > _FEW_ATTRIBUTES and _attribute_work(body) > MAX_ATTRIBUTE_WORK)
        or (tags > _HARMLESS_TAGS and not _is_ordinary(body, tags))
    ):
        return None
    return size


def _is_ordinary(body: bytes, tags: int) -> bool:
    """Return whether parsing a body of many tags certainly takes less than half a second.

    A pass over the body removes closed elements that contain only text. The next pass removes the
    elements that contained only removed elements.
    """
    is_costly = _is_costly(body, tags)
    open_tags = tags if tags * tags <= _MAX_STEPS else tags - body.count(b"</")
    for _ in range(_MAX_ROUNDS):
        if not is_costly and tags * open_tags <= _MAX_STEPS:
            return True
        body, closed_tags = _CLOSED_AT_ONCE.subn(b"", body)
        open_tags -= closed_tags
        is_costly = is_costly and _is_costly(body, tags)
    return not is_costly and tags * open_tags <= _MAX_STEPS


def _is_costly(body: bytes, tags: int) -> bool:
    """Return whether a body has too many costly tags (see `_COSTLY`).

    *tags* is the number of tags of the whole page. At each tag the parser may repeat all formatting
    tags that are not closed yet.
    """
    costly_tags = [tag[0] for tag in _COSTLY.finditer(body)]
    if len(costly_tags) * tags <= _MAX_REOPENED and len(costly_tags) <= _MAX_REPEATED:
        return False
    count_by_tag = Counter(costly_tags)
    repeated_count = sum(count_by_tag.pop(tag) for tag in [*count_by_tag] if tag[1:].isalpha())
    costly_count = sum(min(n, 3) if _ALIKE.fullmatch(tag) else n for tag, n in count_by_tag.items())
    return costly_count * tags > _MAX_REOPENED or repeated_count > _MAX_REPEATED


def screen(body: bytes, kind: Kind = "html") -> None:
    """Raise `ParseRefusedError` for a body that may take the parser minutes or much memory.

    Tags inside of scripts count only in XML. XML that declares entities is refused.
    """
    if kind == "xml" and _ENTITY in body:
        raise ParseRefusedError("its XML declares entities", reason=Reason.XML_UNSAFE)
    shape = suspicion(body)
    if shape is not None and kind == "html":
        # Remove raw text only from suspicious bodies, because the removal takes several times as
        # long as the check.
        shape = suspicion(without_raw_text(body))
    if shape is None and tree_size(body) > MAX_TREE:
        shape = f"a tree of more than {MAX_TREE >> 20} MiB"
    if shape is not None:
        raise ParseRefusedError(shape)


def suspicion(body: bytes) -> str | None:
    """Return the part of a body that may keep the parser busy for minutes, or None."""
    if len(body) <= HARMLESS:
        return None
    if _attribute_work(body) > MAX_ATTRIBUTE_WORK:
        return "more than 10,000 attributes in a tag, or more than 1,000 in each of many tags"
    open_tags = body.count(b"<") - body.count(b"</")
    if open_tags <= _SUSPICIOUS_DEPTH:
        return None
    shape = _repeated_tag(body, open_tags)
    return _depth(body) if shape is None and _most_left_open(body) > _SUSPICIOUS_DEPTH else shape


def _most_left_open(body: bytes) -> int:
    """Count the open start tags at the end of each chunk, and return the largest count."""
    # Search one byte further for end tags, because a `</` may lie across the end of the chunk.
    open_counts = accumulate(
        body.count(b"<", offset, offset + _CHUNK)
        - 2 * body.count(b"</", offset, offset + _CHUNK + 1)
        for offset in range(0, len(body), _CHUNK)
    )
    return max(open_counts)


def _repeated_tag(body: bytes, open_tags: int) -> str | None:
    """Return the tag that occurs too often among *open_tags* start tags, or None."""
    if open_tags <= MAX_ROOTS or len(_REPEATED.findall(body)) <= MAX_ROOTS:
        return None
    lower_body = body.lower()
    if lower_body.count(b"<option") > MAX_OPTIONS:
        return f"more than {MAX_OPTIONS} options"
    if lower_body.count(b"<html") + lower_body.count(b"<body") > MAX_ROOTS:
        return f"more than {MAX_ROOTS} <html> or <body>"
    return None


def _depth(body: bytes) -> str | None:
    if _deepest_nesting(_WRAPPER, body) > MAX_NESTING:
        return f"more than {MAX_NESTING} tags inside one another"
    if _deepest_nesting(_FORMATTING, body) > MAX_OPEN_FORMATTING:
        return f"more than {MAX_OPEN_FORMATTING} formatting tags left open"
    return None


def _attribute_work(body: bytes) -> int:
    """Return an upper bound of the sum of the squared attribute numbers of all long tags."""
    offset = 0
    while (
        offset < len(body) - _LONG_TAG
        and (end := body.rfind(b">", offset, offset + _LONG_TAG)) >= 0
    ):
        offset = end + 1
    if offset >= len(body) - _LONG_TAG:
        return 0
    work = 0
    for chunk in body.split(b">"):
        if len(chunk) > _LONG_TAG:
            start = _TAG.search(chunk)
            if start is not None and len(chunk) - start.start() > _LONG_TAG:
                tag = chunk[start.start() :]
                # Count separators of attributes, because one long value (a `data:` image) is
                # harmless.
                attributes = len(tag) - len(tag.translate(None, _BETWEEN_ATTRIBUTES))
                work += attributes**2
    return work


def _deepest_nesting(tags: re.Pattern[bytes], body: bytes) -> int:
    return max(accumulate(_DEPTH_STEP[slash] for slash in tags.findall(body)), default=0)


def parse_bounded(source: bytes | str) -> LexborHTMLParser:
    """Return the tree of a page; raises `ParseRefusedError` if the tree takes too much memory."""
    if len(source) <= HARMLESS:
        return LexborHTMLParser(source)
    for exactly in (False, True):
        try:
            return with_memory_limit(MAX_HEAP, lambda: LexborHTMLParser(source), exactly=exactly)
        except (SelectolaxError, MemoryError):  # lack of memory
            pass
    raise ParseRefusedError(f"its tree needs more than {MAX_HEAP >> 20} MiB")


def with_memory_limit(extra_bytes: int, make: Callable[[], T], *, exactly: bool = True) -> T:
    """Return the result of *make*, which may allocate at most *extra_bytes* bytes.

    *make* must handle the lack of memory itself, for example by raising. If *exactly* is false, the
    process's memory may have been measured half a second ago. The limit applies to all threads
    while *make* runs. The memory is not limited in these cases:

    - outside of the main thread, because two threads would restore each other's limit
    - if the system does not report the memory of the process
    - if the process already has a lower limit
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    if exactly:
        _used_memory.cache_clear()
    used_bytes = _used_memory(int(time.monotonic() / _MEMORY_READ_EVERY))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    max_bytes = used_bytes + extra_bytes
    if not used_bytes or any(
        limit != resource.RLIM_INFINITY and limit < max_bytes for limit in (soft, hard)
    ):
        return make()
    resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, hard))
    try:
        return make()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@lru_cache(maxsize=1)
def _used_memory(_: int) -> int:
    """Return the bytes that RLIMIT_DATA counts, or 0 if the system does not report their number."""
    try:
        # Open the file each time, because an inherited open file shows the parent's memory.
        statm = os.open(_MEMORY_FILE, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 128).split()[5]) * _PAGE
    finally:
        os.close(statm)


def kind_of(content_type: str | None) -> Kind:
    """Return whether parsel must parse a page of this content type as HTML or as XML."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    is_xml = kind in _XML_TYPES or (kind.endswith("+xml") and kind != _XHTML)
    return "xml" if is_xml else "html"


def readable_to_end(source: bytes, kind: Kind) -> bytes:
    """Return a page, in UTF-8, changed so that libxml2 reads it to its end.

    libxml2 stops at the first `</html>`, but browsers add later tags to the body. libxml2 also
    accepts a form inside of a form.
    """
    if kind == "html" and (b"", b"") in pairwise(_FORM.findall(source)):
        source = with_form_owners(source, are_named=False)
    end = _END_OF_PAGE.search(source) if kind == "html" else None
    if end is None or _START_TAG.search(source, end.end()) is None:
        return source
    return _END_OR_TEXT.sub(lambda match: b"" if match["end"] else match[0], source)


def selector(source: bytes, *, kind: Kind, url: str) -> "Selector":
    """Return the selector of a page in UTF-8; raises `SpiderError` if parsel is missing."""
    try:
        from parsel import Selector
    except ImportError:
        raise SpiderError(
            "response.xpath() and response.selector need parsel: "
            "install it with `pip install 'crawlcw[xpath]'`"
        ) from None
    # parsel reads an empty body as a missing argument, and a single space as an empty page.
    body = readable_to_end(source, kind) or b" "
    return Selector(body=body, encoding="utf-8", type=kind, base_url=url, huge_tree=_HUGE[kind])
