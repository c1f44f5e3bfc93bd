"""Section 2 of the catalogue: violations of HTTP."""

from tests.hostile.pages import KEEP, PAGE, Exchange, chunked, endless, fixed, page, response

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_LINKS = b'<title>an error</title><a href="/from-an-error-page">x</a>'


def _many(count: int, header: bytes = b"X-%d: %d\r\n") -> bytes:
    return b"".join(header % (number, number) for number in range(count))


fixed("/long-header", response(headers=b"Content-Security-Policy: " + b"x" * 20_000 + b"\r\n"))
fixed("/60-kb-header", response(headers=b"X: " + b"x" * 60_000 + b"\r\n"))
fixed("/300-headers", response(headers=_many(300)))
fixed("/2000-headers", response(headers=_many(2000)))
fixed("/header-too-long", response(headers=b"X: " + b"x" * 100_000 + b"\r\n"))
fixed("/name-too-long", response(headers=b"X" * 100_000 + b": x\r\n"))
fixed("/megabyte-of-header", response(headers=b"X: " + b"x" * (1 << 20) + b"\r\n"))
fixed("/reason-too-long", response(status="200 " + "O" * 100_000))
endless("/endless-reason", b"HTTP/1.1 200 ", b"O" * 4096)
endless("/endless-headers", b"HTTP/1.1 200 OK\r\n", b"X-Again: y\r\n" * 100)
endless("/endless-trailers", _CHUNKED + b"4\r\nhalf\r\n0\r\n", b"X-Again: y\r\n" * 100)
endless("/endless-trailer", _CHUNKED + b"4\r\nhalf\r\n0\r\nX: ", b"y" * 4096)
fixed("/trailers", chunked(PAGE, end=b"0\r\nX-Sum: 7\r\n\r\n"), keep=True)
fixed("/8-bit-header", response(headers=b"X-Name: caf\xe9\r\nX-Utf: caf\xc3\xa9\r\n"))
fixed("/escape-in-header", response(headers=b"X-Title: \x1b]0;owned\x07\r\n"))
fixed("/escape-in-reason", response(status="200 \x1b[2Jcleared"))
fixed("/8-bit-reason", response(status="200 Größe"))
fixed("/no-reason", b"HTTP/1.1 200\r\nContent-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE))
fixed("/header-twice", response(headers=b"Vary: A\r\nvary: B\r\n"))
fixed("/empty-header", response(headers=b"X-Empty:\r\n"))
fixed("/bare-lf", response().replace(b"\r\n", b"\n"))
fixed("/leading-crlf", b"\r\n\r\n" + response())
fixed("/folded-header", response(headers=b"X-Folded: one\r\n two\r\n"))
fixed("/nul-header", response(headers=b"X: a\0b\r\n"))
fixed("/bare-cr", response(headers=b"X: a\rb\r\n"))
fixed("/no-colon", response(headers=b"nonsense\r\n"))
fixed("/empty-name", response(headers=b": x\r\n"))
fixed("/space-before-colon", response(headers=b"X : x\r\n"))
fixed("/space-in-name", response(headers=b"X Y: x\r\n"))
fixed("/negative-length", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")
fixed("/length-1e3", b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n" + PAGE)
fixed("/length-plus-4", b"HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\nhalf")
fixed("/length-0x4", b"HTTP/1.1 200 OK\r\nContent-Length: 0x4\r\n\r\nhalf")
fixed("/length-of-2-to-64", b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551621\r\n\r\nhalf")
fixed("/length-in-words", b"HTTP/1.1 200 OK\r\nContent-Length: four\r\n\r\nhalf")
fixed("/empty-length", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n" + PAGE)
fixed("/two-lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nhalf")
fixed("/length-list", b"HTTP/1.1 200 OK\r\nContent-Length: 4, 5\r\n\r\nhalf")
fixed("/same-length-twice", response(headers=b"Content-Length: %d\r\n" % len(PAGE)))
fixed(
    "/same-length-listed",
    b"HTTP/1.1 200 OK\r\nContent-Length: %d, %d\r\n\r\n%s" % (len(PAGE), len(PAGE), PAGE),
)
fixed(
    "/cl-and-te",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nhalf\r\n0\r\n\r\n",
)
fixed("/longer-than-length", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhalf and more")
fixed("/malformed-chunk", _CHUNKED + b"zzz\r\nx\r\n")
fixed("/negative-chunk", _CHUNKED + b"-4\r\nhalf\r\n0\r\n\r\n")
fixed("/chunk-of-2-to-64", _CHUNKED + b"10000000000000005\r\nhalf\r\n0\r\n\r\n")
fixed("/chunk-longer-than-it-says", _CHUNKED + b"4\r\nhalf and more\r\n0\r\n\r\n")
fixed("/chunks-of-bare-lf", _CHUNKED + b"4\nhalf\n0\n\n")
fixed("/chunk-extensions", _CHUNKED + b"4;a=b;c\r\nhalf\r\n0\r\n\r\n", keep=True)
endless("/endless-extension", _CHUNKED + b"4;a=", b"x" * 4096)
endless("/extensions-in-every-chunk", _CHUNKED, b"1;%s\r\nx\r\n" % (b"x" * 4000))
fixed("/tiny-chunks", _CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n", keep=True)
fixed("/200-000-chunks", lambda: _CHUNKED + b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n", keep=True)
for _status in ("000", "099", "600", "999"):
    fixed(f"/status-{_status}", response(status=f"{_status} What"))
for _status in ("abc", "2000", "20", "-200", "2e2"):
    fixed(f"/status-{_status}", response(status=f"{_status} What"))
for _status in ("299", "250"):
    fixed(f"/status-{_status}", response(status=f"{_status} Fine"), keep=True)
for _status in (
    *("300", "400", "401", "402", "403", "405", "406", "407", "408", "410", "411", "416", "418"),
    *("421", "425", "426", "431", "451", "499", "500", "501", "502", "503", "504", "505", "507"),
    *("508", "511", "520", "522", "530", "599"),
):
    fixed(f"/status-{_status}", response(_LINKS, status=f"{_status} Wrong"), keep=True)
fixed("/status-404", response(b"not here", status="404 Not Found"), keep=True)
fixed("/404-with-links", response(_LINKS, status="404 Not Found"), keep=True)
fixed("/status-206", response(status="206 Partial Content"), keep=True)
fixed("/basic-challenge", response(status="401 Who", headers=b"WWW-Authenticate: Basic\r\n"))
fixed("/204-with-body", response(b"surprise", status="204 No Content"), keep=True)
fixed("/204-without-body", b"HTTP/1.1 204 No Content\r\n\r\n", keep=True)
fixed("/205-with-body", response(b"surprise", status="205 Reset Content"), keep=True)
fixed("/304", b"HTTP/1.1 304 Not Modified\r\n\r\n", keep=True)
fixed("/304-with-body", response(status="304 Not Modified"))
fixed(
    "/head", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nContent-Encoding: gzip\r\n\r\n", keep=True
)
fixed("/soft-404", response(b"<title>Not found</title>Sorry, no such page"), keep=True)
fixed("/empty-page", response(b""), keep=True)
fixed("/set-cookie", response(headers=b"Set-Cookie: id=7\r\nSet-Cookie: \x01=\r\n"), keep=True)
fixed(
    "/garbage-cookies",
    response(
        headers=b"Set-Cookie: =;;;=\r\nSet-Cookie: a=b; Expires=Fri, 31 Dec 99999 23:59:59 GMT\r\n"
        b"Set-Cookie: x=\x1b[2J; Domain=co.uk\r\nSet-Cookie: \xff=\xfe; Max-Age=nan\r\n"
        b"Set-Cookie: " + b"y" * 9000 + b"\r\n"
    ),
)
fixed("/300-cookies", response(headers=_many(300, b"Set-Cookie: c%d=%d\r\n")), keep=True)
for _name, _value in {
    "1e20": "1e20",
    "1e309": "1e309",
    "nan": "nan",
    "infinity": "Infinity",
    "negative": "-5",
    "zero": "0",
    "words": "in a while",
    "empty": "",
    "year-9999": "Fri, 31 Dec 9999 23:59:59 GMT",
    "year-99999": "Fri, 31 Dec 99999 23:59:59 GMT",
    "1970": "Thu, 01 Jan 1970 00:00:00 GMT",
    "digits": "9" * 4000,
    "arabic": "١٢",
}.items():
    _headers = b"Retry-After: %s\r\n" % _value.encode()
    fixed(
        f"/retry-after-{_name}",
        response(status="503 Later", headers=_headers),
        keep=True,
    )
fixed("/429-for-ever", response(status="429 Slowly", headers=b"Retry-After: 1\r\n"), keep=True)
fixed("/429-for-an-age", response(status="429 Slowly", headers=b"Retry-After: 99999999\r\n"))
fixed("/429-without-a-time", response(status="429 Slowly"), keep=True)


@page("/429-then-ok")
async def _throttled_once(exchange: Exchange) -> object:
    slowly = response(status="429 Slowly", headers=b"Retry-After: 1\r\n")
    await exchange.send(slowly if exchange.number == 1 else response())
    return KEEP


@page("/500-then-ok")
async def _failing_once(exchange: Exchange) -> object:
    failed = response(status="500 Oops")
    await exchange.send(failed if exchange.number == 1 else response())
    return KEEP


@page("/not-for-head")
async def _not_for_head(exchange: Exchange) -> object:
    """Answers HEAD differently from GET."""
    refused = response(status="405 Method Not Allowed")
    await exchange.send(refused if exchange.method == "HEAD" else response())
    return KEEP
