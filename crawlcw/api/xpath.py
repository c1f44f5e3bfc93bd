"""A page's tree as parsel makes it, for XPath, `::text` and regular expressions.

libxml2 is slower than lexbor at odd pages, cuts deeply nested elements without a word, and
knows entities. So a page is looked at first, and refused where any of that would matter.
parsel is an extra, imported where such a tree is asked for.
"""

import re
from typing import TYPE_CHECKING, Literal

from crawlcw.api import markup
from crawlcw.api.raw_text import COMMENT, TEXT_ELEMENT
from crawlcw.errors import ParseRefusedError, Reason, SpiderError

if TYPE_CHECKING:
    from parsel import Selector

Kind = Literal["html", "xml"]

_XML_TYPES = frozenset({"text/xml", "application/xml"})
_XHTML = "application/xhtml+xml"
#: No entity may be declared: where libxml2 resolves one, a page of 1 KiB has a text of 1 GiB.
_ENTITY = b"<!ENTITY"
#: libxml2 cuts a page of HTML at 2,048 levels, and XML at 256.
_HUGE = {"html": True, "xml": False}
_START_TAG = re.compile(rb"<[A-Za-z]")
_END_OF_PAGE = re.compile(rb"</[hH][tT][mM][lL][\s/>]")
_END_OR_TEXT = re.compile(
    COMMENT + rb"|" + TEXT_ELEMENT + rb"|(?P<end></html(?=[\s/>])[^>]*+>?)", re.IGNORECASE
)


def kind_of(content_type: str | None) -> Kind:
    """Return which of its two parsers parsel is to use, by the type that the server names."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    is_xml = kind in _XML_TYPES or (kind.endswith("+xml") and kind != _XHTML)
    return "xml" if is_xml else "html"


def screen(source: bytes, kind: Kind) -> None:
    """Raise `ParseRefusedError` for a page, in UTF-8, that is not given to libxml2."""
    if kind == "xml" and _ENTITY in source:
        raise ParseRefusedError("its XML declares entities", reason=Reason.XML_UNSAFE)
    markup.screen(source, html=kind == "html")


def whole(source: bytes, kind: Kind) -> bytes:
    """Return a page, in UTF-8, such that libxml2 reads it to its end.

    It stops at the first `</html>`, behind which HTML only goes on with the body.
    """
    end = _END_OF_PAGE.search(source) if kind == "html" else None
    if end is None or _START_TAG.search(source, end.end()) is None:
        return source
    return _END_OR_TEXT.sub(lambda found: b"" if found["end"] else found[0], source)


def selector(source: bytes, *, kind: Kind, url: str) -> "Selector":
    """Return the selector of a page in UTF-8; raises `SpiderError` where parsel is missing."""
    try:
        from parsel import Selector
    except ImportError:
        raise SpiderError(
            "response.xpath(), response.selector and response.form() need parsel: "
            "install it with `pip install 'crawlcw[xpath]'`"
        ) from None
    # parsel takes no body for a missing argument; to it a blank one is an empty page.
    body = whole(source, kind) or b" "
    return Selector(body=body, encoding="utf-8", type=kind, base_url=url, huge_tree=_HUGE[kind])
