"""Section 4 of the catalogue: redirects and links."""

from urllib.parse import unquote

from tests.hostile.endpoints.content import typed
from tests.hostile.pages import KEEP, Exchange, endless, fixed, page, redirect, response

for _code in (301, 302, 303, 307, 308):
    redirect(f"/{_code}", b"/ok", status=f"{_code} Elsewhere")
redirect("/loop", b"/loop")
redirect("/loop-by-fragment", b"/loop-by-fragment#x")
redirect("/ping", b"/pong")
redirect("/pong", b"/ping")
redirect("/no-location", None)
redirect("/empty-location", b"")
redirect("/blank-location", b"  ")
redirect("/bad-location", b"http://[")
redirect("/bad-port", b"http://127.0.0.1:99999/")
redirect("/backslash", rb"\\169.254.169.254\latest")
redirect("/to-file", b"file:///etc/passwd")
redirect("/to-data", b"data:text/html,x")
redirect("/to-ftp", b"ftp://127.0.0.1/")
redirect("/to-javascript", b"javascript:alert(1)")
redirect("/to-mailto", b"mailto:a@example.com")
redirect("/with-password", b"http://user:secret@127.0.0.1/")
redirect("/to-disallowed", b"/disallowed")
redirect("/to-another-host", b"http://example.com/")
redirect("/to-metadata", b"http://169.254.169.254/latest/meta-data/")
redirect("/to-an-ssh-port", b"http://127.0.0.1:22/")
redirect("/location-too-long", b"/" + b"x" * 9000)
redirect("/latin-1-location", b"/synspr\xf8ve")
redirect("/utf-8-location", "/synsprøve".encode())
redirect("/quoted-location", b"/a%2Fb%41%7e%zz")
redirect("/to-fragment", b"/ok#part")
redirect("/relative-location", b"ok")
redirect("/to-204", b"/204-without-body")
redirect("/to-404", b"/status-404")
redirect("/to-silent", b"/silent")
endless("/302-with-endless-body", b"HTTP/1.1 302 Found\r\nLocation: /ok\r\n\r\n", b"x" * 1000)
fixed("/synspr%F8ve", response(b"latin-1"), keep=True)
fixed("/synspr%C3%B8ve", response(b"utf-8"), keep=True)
fixed(
    "/two-locations",
    response(b"", status="302 Found", headers=b"Location: /ok\r\nLocation: /loop\r\n"),
    keep=True,
)
fixed("/200-with-location", response(headers=b"Location: /loop\r\n"), keep=True)
fixed("/refresh-to-itself", response(headers=b"Refresh: 0\r\n"), keep=True)
fixed("/refresh-elsewhere", response(headers=b"Refresh: 0; url=/ok\r\n"), keep=True)
for _number in range(50):
    redirect(f"/alias-{_number}", b"/ok")
typed("/meta-refresh", b"<title>x</title><meta http-equiv=refresh content='0;url=/meta-refresh'>")
typed("/meta-refresh-data", b"<meta http-equiv=refresh content='0;url=data:text/html,x'>")
typed("/base-offsite", b"<base href=http://example.com/><title>x</title><a href=x>x</a>")
typed("/base-javascript", b"<base href=javascript:alert(1)><base href=/><a href=ok>x</a>")
typed("/canonical-offsite", b"<link rel=canonical href=http://example.com/><title>x</title>")
typed(
    "/malformed-links",
    b"".join(
        b"<a href='%s'>x</a>" % href
        for href in (
            *(b"http://[", b"http://[::1", b"http://a b/", b"//", b"///", b"http://", b"http:"),
            *(b"http://127.0.0.1:99999/", b"http://127.0.0.1:x/", b"\\\\a\\b", b"http:\\\\a"),
            *(b"http://%00/", b"http://\xff/", b"http://.../", b"mailto:x", b"javascript:1"),
            *(b"tel:1", b"data:,x", b"blob:x", b"about:blank", b"http://user:pass@127.0.0.1/"),
            *(b"http://a" + b"x" * 300, b"?", b"#", b"", b" ", b"\t", b"http://xn--\xff/", b"%"),
            *(b"http://0x7f.1/", b"http://127.1/", b"http://2130706433/", b"//[fe80::1%25eth0]/"),
        )
    ),
)
typed("/growing-path/", b"<title>x</title><a href='more/'>x</a>")
typed("/disallowed", b"<title>nobody asks for this</title>")


@page("/robots.txt")
async def _robots(exchange: Exchange) -> object:
    await exchange.send(response(b"User-agent: *\nDisallow: /disallowed\n"))
    return KEEP


@page("/endless-redirects")
async def _endless_redirects(exchange: Exchange) -> object:
    number = int(exchange.query or 0) + 1
    location = b"Location: /endless-redirects?%d\r\n" % number
    await exchange.send(response(b"", status="302 Found", headers=location))
    return KEEP


@page("/ten-redirects")
async def _ten_redirects(exchange: Exchange) -> object:
    """Answers after the largest number of hops that is allowed."""
    number = int(exchange.query or 0) + 1
    location = b"Location: /ten-redirects?%d\r\n" % number
    moved = response(b"", status="302 Found", headers=location)
    await exchange.send(moved if number <= 10 else response())
    return KEEP


@page("/calendar")
async def _calendar(exchange: Exchange) -> object:
    """Links to the next day."""
    day = int(exchange.query or 0)
    # A short calendar, so that the crawl ends.
    links = b"<a href='/calendar?%d'>x</a>" % (day + 1) if day < 20 else b""
    await exchange.send(response(b"<title>a day</title>" + links))
    return KEEP


@page("/to")
async def _to(exchange: Exchange) -> object:
    """Redirects to the URL in the query, with the status before it."""
    status, _, location = unquote(exchange.target).partition("?")[2].partition(",")
    headers = b"Location: %s\r\n" % location.encode()
    await exchange.send(response(b"", status=f"{status} Elsewhere", headers=headers))
    return KEEP


@page("/cookie-gate")
async def _cookie_gate(exchange: Exchange) -> object:
    if "pass=1" in exchange.headers.get("cookie", ""):
        await exchange.send(response(b"inside"))
    else:
        gate = b"Location: /cookie-gate\r\nSet-Cookie: pass=1\r\n"
        await exchange.send(response(b"", status="302 Found", headers=gate))
    return KEEP
