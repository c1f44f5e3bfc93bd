"""Text that rewrites terminals, forges lines and breaks formats, and a site with it."""

import json

from tests.hostile.raw_server import response

#: Terminal escape sequences (title, clipboard, clear, a link), C1, NUL, bidirectional marks,
#: line ends of all kinds, markup, formats, a formula, the name of an emoji.
EVIL = (
    "\x1b]8;;http://evil.example/\x1b\\link\x1b]8;;\x07\0\u200f\u061c"
    "\x1b[2J\x1b]0;pwned\x07\x1b]52;c;cHduZWQ=\x07\x9b31m\x9d0;x\x9c\x7f\x08\u202e\u2066\x85FORGED"
    "\u2028FORGED\u2029FORGED\x0bFORGED\x0cFORGED\rFORGED\r\nFORGED 2026-01-01T00:00:00Z INFO\n"
    "[/x] [bold]FORGED[/bold] %s %(x)s %n {0.__class__} {} =cmd|'/c calc'!A0 :smile: \ufeff"
    "\U000e0001"
)
#: Where a NUL or the end of a line would end the header, or the answer.
_IN_A_HEADER = EVIL.translate(dict.fromkeys(map(ord, "\0\r\n"))).encode()

SPIDER = '''\
import logging

from crawlcw import Request, Settings, Spider, StopCrawl


class Hostile(Spider):
    """Records what it is told to, word for word."""

    name = "hostile"
    settings = Settings(
        auto_throttle=False, max_retry=1, backoff_base="1ms", backoff_max="1ms",
        host_backoff_base="1ms", host_backoff_max="1ms", host_max_failures=1000,
    )

    def __init__(self, start_url="http://127.0.0.1:9/"):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        text = response.text
        if response.url.endswith("/stop"):
            raise StopCrawl(text)
        yield {"title": text, text: [text, {text: text}], "etag": response.headers.get("etag")}
        logging.getLogger("hostile").warning("%s", text)
        for number, node in enumerate(response.css("a")):
            yield response.follow(node, self.follow, context={text: text, "n": number})
        yield from response.follow_all("a")
        for link in (text, "http://" + text, "mailto:" + text, "/ok?" + text, "//" + text):
            yield response.follow(link, self.follow, context={text: text})
            yield Request(link)

    def follow(self, response):
        text = response.context.get("n")
        if "raise" in response.url:
            raise ValueError(response.text)
        if "json" in response.url:
            yield response.json()
            return
        for number in range(400 if "many" in response.url else 1):
            yield {"title": response.text, "headers": dict(response.headers), "number": number}

    def on_error(self, request, error):
        yield {"error": str(error), "request": repr(request)}
'''

#: A use case whose results, errors and log lines are made from the tasks of `evil`.
USE_CASE = """\
import logging

from crawlcw.tracking import UseCase

evil = UseCase("evil", max_retry=1)


@evil.stage
async def todo(execution):
    logging.getLogger("evil").warning("%s %s", execution.key, execution.data)
    if "raise" in execution.key:
        raise ValueError(execution.key)
    return {execution.key: execution.data, "key": execution.key}
"""


def _raw(status_line: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n" % (status_line, len(body))
    return head + headers + b"Connection: close\r\n\r\n" + body


def _json() -> bytes:
    deep: object = EVIL
    for _ in range(300):
        deep = {EVIL: [deep]}
    value = {
        "lone \ud800": "\udfff \ud800",
        "nul \0": "\0",
        "": {"$where": 1, "a.b": 2, "$ref": "x", "$id": 3, "_id": {"$set": {"status": 50}}},
        "deep": deep,
        "large": [2**63, -(2**63) - 1, 10**4000, 1e308],
    }
    return json.dumps(value).encode()


_PATHS = (
    *("/raise", "/reason", "/type", "/coding", "/location", "/protocol", "/header", "/json"),
    *("/many", "/many?x=[/x]&y=%1b%5b2J%0aFORGED&z=%s{0}", "/refresh"),
)

SITE = {
    "/robots.txt": response(
        b"User-agent: *\nDisallow:\nSitemap: http://x/" + _IN_A_HEADER + b"\nCrawl-delay: 0"
    ),
    "/": response(
        (EVIL + "".join(f'<a href="{p}">x</a>' for p in (*_PATHS, "/" + EVIL))).encode(),
        headers=b"Content-Type: text/html; charset=utf-8\r\nETag: " + _IN_A_HEADER + b"\r\n",
    ),
    "/stop": response(EVIL.encode(), headers=b"Content-Type: text/html; charset=utf-8\r\n"),
    "/raise": response(EVIL.encode() * 1000),
    "/reason": _raw(b"404 " + _IN_A_HEADER),
    "/type": _raw(b"200 OK", b"Content-Type: audio/" + _IN_A_HEADER + b"\r\n"),
    "/coding": _raw(b"200 OK", b"Content-Encoding: " + _IN_A_HEADER + b"\r\n", b"x"),
    "/location": _raw(b"302 Found", b"Location: http://[" + _IN_A_HEADER + b"\r\n"),
    "/refresh": _raw(b"200 OK", b"Refresh: 0; url=http://" + _IN_A_HEADER + b"\r\n", b"x"),
    "/protocol": EVIL.encode() + b"\r\n\r\n",
    "/header": _raw(b"200 OK", b"X-Evil: " + _IN_A_HEADER + b"\xff\xfe\r\n", b"x"),
    "/json": response(_json(), headers=b"Content-Type: application/json\r\n"),
    "/many": response(EVIL.encode()),
    # The lines of a body are shown as lines, so no line end is part of it.
    "/line": response(EVIL.replace("\n", " ").encode()),
}
