"""Section 3 of the catalogue: contents of pages."""

import gzip
import sys
import zlib
from collections.abc import Callable
from functools import cache

import brotli

from tests.hostile.pages import MIB, PAGE, chunked, endless, fixed, response

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def coded(path: str, body: bytes | Callable[[], bytes], coding: str) -> None:
    headers = b"Content-Encoding: %s\r\n" % coding.encode()

    @cache
    def made() -> bytes:
        return response(body() if callable(body) else body, headers=headers)

    fixed(path, made, keep=True)


def typed(path: str, body: bytes, kind: bytes = b"text/html") -> None:
    fixed(path, response(body, headers=b"Content-Type: %s\r\n" % kind), keep=True)


def shaped(path: str, body: Callable[[], bytes]) -> None:
    """Register a large page of a shape that is hard to parse."""

    @cache
    def made() -> bytes:
        return response(body(), headers=b"Content-Type: text/html\r\n")

    fixed(path, made, keep=True)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@cache
def _zeros() -> bytes:
    return bytes(64 * MIB)


# Codings ----------------------------------------------------------------------

_HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"

coded("/gzip", gzip.compress(PAGE), "gzip")
coded("/x-gzip", gzip.compress(PAGE), "x-GZIP")
coded("/gzip-members", gzip.compress(PAGE[:9]) + gzip.compress(PAGE[9:]), "gzip")
coded("/gzip-and-garbage", gzip.compress(PAGE) + b"\0\0garbage", "gzip")
coded("/deflate", zlib.compress(PAGE), "deflate")
coded("/raw-deflate", raw_deflate(PAGE), "deflate")
coded("/br", brotli.compress(PAGE), "br")
coded("/zstd", zstd.compress(PAGE), "zstd")
coded("/identity", PAGE, "identity")
coded("/stacked", brotli.compress(gzip.compress(PAGE)), "gzip, br")
coded("/truncated-gzip", gzip.compress(PAGE)[:-9], "gzip")
coded("/truncated-br", brotli.compress(PAGE)[:-3], "br")
coded("/truncated-zstd", zstd.compress(PAGE)[:-3], "zstd")
coded("/truncated-deflate", zlib.compress(PAGE)[:-9], "deflate")
coded("/bad-crc", gzip.compress(PAGE)[:-8] + bytes(8), "gzip")
coded("/not-gzip", PAGE, "gzip")
coded("/not-br", PAGE, "br")
coded("/not-zstd", PAGE, "zstd")
coded("/not-deflate", b"\xff" * 99, "deflate")
coded("/unknown-coding", PAGE, "frobnicate")
coded("/dictionary-coding", PAGE, "dcb")
coded("/too-many-codings", PAGE, "gzip, gzip, gzip, gzip")
coded("/nothing-of-gzip", b"", "gzip")
coded("/gzip-bomb", lambda: gzip.compress(_zeros(), 1), "gzip")
coded("/deflate-bomb", lambda: zlib.compress(_zeros(), 1), "deflate")
coded("/br-bomb", lambda: brotli.compress(_zeros(), quality=1), "br")
coded("/zstd-bomb", lambda: zstd.compress(_zeros()), "zstd")
coded("/gzip-gzip-bomb", lambda: gzip.compress(gzip.compress(_zeros(), 1)), "gzip, gzip")
coded("/gzip-of-nothing", lambda: gzip.compress(b"") * 100_000, "gzip")
coded("/gzip-of-1-byte", lambda: gzip.compress(b"x") * 5_000, "gzip")
# The frame header requests a window of 2 GiB.
coded("/zstd-window", b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", "zstd")
fixed(
    "/te-gzip",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(gzip.compress(PAGE)), gzip.compress(PAGE)),
)
fixed(
    "/te-unknown",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: frobnicate, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
)
fixed("/te-identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n" + PAGE)

# Endless pages, and pages without text ----------------------------------------

endless("/endless-title", _HTML + b"<title>", b"title " * 1000)
endless("/endless-comment", _HTML + b"<!--", b"comment " * 1000)
endless("/endless-tag", _HTML + b"<a ", b"x" * 8000)
endless("/endless-script", _HTML + b"<script>", b"if (a<b) { c(); }\n" * 500)
endless("/endless-text", _HTML + b"<title>a tarpit</title>", b"<p>words words words\n" * 400)
endless("/endless-of-links", _HTML, b'<a href="/page-without-end">x</a>\n' * 300)
endless("/video", b"HTTP/1.1 200 OK\r\nContent-Type: Video/mp4\r\n\r\n", b"x" * 1000)
endless("/audio", b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n", b"x" * 1000)
endless("/events", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b"data: x\n\n")
endless(
    "/length-10-to-18",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1%s\r\n\r\n" % (b"0" * 18),
    PAGE * 999,
)

# Charsets ---------------------------------------------------------------------

for _number, _charset in enumerate(
    (
        *("utf-7", "punycode", "unicode_escape", "raw_unicode_escape", "idna", "rot13", "hex"),
        *("undefined", "none-such", "utf-8, gbk", '"', "x" * 5000, "caf\xe9", "base64", "mbcs"),
    )
):
    typed(
        f"/charset-{_number}",
        "<title>gr\xfc\xdfe \\x1b +ADw-script+AD4-</title>".encode(),
        b"text/html; charset=" + _charset.encode("latin-1"),
    )
typed("/wrong-charset", "<title>grüße</title>".encode("latin-1"), b"text/html; charset=utf-8")
typed("/meta-gbk", b"<meta charset=gbk><title>" + "你好".encode("gbk") + b"</title>")
typed("/utf-16-bom", "\ufeff<title>grüße</title>".encode("utf-16-le"))
typed("/utf-16-without-bom", "<title>grüße</title>".encode("utf-16-le"), b"text/html")
typed("/nuls-in-text", b"<title>a\0b</title>\0\0\0")
typed("/escapes-in-title", b"<title>\x1b]0;owned\x07\x1b[2J\xc2\x9b31m</title>")
typed("/surrogates", b"<title>\xed\xa0\x80\xed\xb0\x80</title>")

# False types ------------------------------------------------------------------

typed("/png-as-html", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
typed("/zip-as-html", b"PK\x03\x04" + bytes(range(256)) * 40)
typed("/pdf", b"%PDF-1.7\n" + bytes(range(256)) * 40, b"application/pdf")
typed("/octets", bytes(range(256)) * 40, b"application/octet-stream")
typed("/no-type", PAGE, b"")
typed("/garbage-type", PAGE, b"\x1b[2J;;;=/")
typed("/json-as-html", b'{"a": [1, 2, 3]}')
fixed(
    "/named-attachment",
    response(headers=b"Content-Disposition: attachment; filename=../../../etc/passwd\r\n"),
    keep=True,
)

# Shapes -----------------------------------------------------------------------

shaped("/200-000-divs", lambda: b"<div>" * 200_000)
shaped("/100-000-attributes", lambda: b"<p %s>x" % b" ".join(b"a%d=1" % n for n in range(100_000)))
shaped("/lexbor-340", lambda: b"<a><b>" * 10_000)
shaped("/many-options", lambda: b"<select>" + b"<option>x" * 100_000)
shaped("/open-formatting", lambda: b"<b><i><u>" * 20_000 + b"<p>x" * 2_000)
shaped("/svg-template", lambda: b"<svg><template>" * 5_000 + b"</svg>")
shaped("/nested-tables", lambda: b"<table><tr><td>" * 20_000)
shaped("/odd-comments", lambda: b"<!-->--!><!--->" * 30_000)
shaped("/title-regex-bait", lambda: b"<title" * 130_000)
shaped("/1000-titles", lambda: b"<title>one</title>" * 1_000)
shaped(
    "/100-000-links",
    lambda: b"".join(b"<a href=//example.com/%d>x</a>" % n for n in range(100_000)),
)
shaped("/megabyte-of-href", lambda: b"<title>x</title><a href='/%s'>x</a>" % (b"x" * MIB))
shaped("/dense-tags", lambda: b"<br>" * 400_000)
shaped("/deep-json", lambda: b"[" * 100_000)
shaped("/json-of-a-long-number", lambda: b"9" * 5_000)
typed("/feed-with-entities", b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', b"application/xml")
fixed("/page-in-chunks", chunked(PAGE[:9], PAGE[9:]), keep=True)
