"""Cookies go back to the site that set them, and nothing in a Set-Cookie fails a page."""

import logging

import pytest
import yarl

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.cli.terminal import logs
from crawlcw.fetch import cookies
from crawlcw.fetch.cookies import MOST_COOKIES, SiteCookies
from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile.pages import KEEP, Exchange, page, response
from tests.hostile.server import HostileServer, running
from tests.support.attempts import Layered, attempt, session

SETTINGS = Settings(cookies=True)
#: HOSTILE 2.18, and other malformed cookies.
GARBAGE = (
    b"",
    b"=",
    b";;;;",
    b"=nameless",
    b"a",
    b"a\x01b=\x02; Path=\x03",
    b'"quoted=1; Expires="',
    b"year=1; Expires=Fri, 31 Dec 99999 23:59:59 GMT",
    b"year=1; Expires=Thu, 99 Foo -1 99:99:99 GMT",
    b"age=1; Max-Age=99999999999999999999999999",
    b"age=1; Max-Age=nan",
    b"bytes=\xff\xfe\xfd; Domain=\xff",
    b"domain=1; Domain=.",
    b"domain=1; Domain=[::1",
    b"domain=1; Domain=xn--\xf0",
    b"path=1; Path=" + b"/a" * 20_000,
    b"large=" + b"x" * 60_000,
    b"__Host-a=1; Domain=example.com",
)


@page("/cookies-of-every-kind")
async def _garbage(exchange: Exchange) -> object:
    lines = b"".join(b"Set-Cookie: %s\r\n" % line for line in GARBAGE)
    await exchange.send(response(headers=lines + b"Set-Cookie: good=1\r\n"))
    return KEEP


@page("/host-cookie")
async def _host_cookie(exchange: Exchange) -> object:
    await exchange.send(response(headers=b"Set-Cookie: secret=1; Path=/\r\n"))
    return KEEP


@page("/in/flash")
async def _flash(exchange: Exchange) -> object:
    lines = (
        b"z=1; Path=/",
        b"flash=saved; Path=/",
        b"sid=2; Path=/in",
        b"sid=1; Path=/",
        b"nameless",
        b'a="x;y"',
    )
    headers = b"".join(b"Set-Cookie: %s\r\n" % line for line in lines)
    await exchange.send(response(headers=headers))
    return KEEP


@page("/in/flashed")
async def _flashed(exchange: Exchange) -> object:
    gone = b"Set-Cookie: flash=; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    await exchange.send(response(headers=gone))
    return KEEP


def sent(jar: SiteCookies, url: str) -> dict[str, str]:
    return dict(jar.sent_to(yarl.URL(url)))


def set_by(url: str, *headers: str) -> SiteCookies:
    jar = SiteCookies()
    jar.keep(headers, yarl.URL(url))
    return jar


@pytest.mark.parametrize(
    ("setter", "domain", "other"),
    [
        ("http://a.co.uk/", "co.uk", "http://b.co.uk/"),
        ("http://a.co.uk/", ".CO.UK", "http://b.co.uk/"),
        ("http://a.co.uk/", "uk", "http://b.co.uk/"),
        ("http://mine.github.io/", "github.io", "http://yours.github.io/"),
        ("http://a.b.kawasaki.jp/", "b.kawasaki.jp", "http://c.b.kawasaki.jp/"),
        ("http://a.xn--55qx5d.cn/", "xn--55qx5d.cn", "http://b.xn--55qx5d.cn/"),
        ("http://a.intranet/", "intranet", "http://b.intranet/"),
        ("http://evil.example/", "bank.example", "http://bank.example/"),
        ("http://1.2.3.4/", "3.4", "http://3.4/"),
        ("http://1.2.3.4/", "2.3.4", "http://9.2.3.4/"),
        ("http://a.example./", "example.", "http://b.example./"),
    ],
)
async def test_a_domain_of_many_owners_gets_no_cookie(setter: str, domain: str, other: str) -> None:
    jar = set_by(setter, f"a=1; Domain={domain}; Path=/")

    assert sent(jar, other) == {}
    assert sent(set_by(other, "a=1; Path=/"), other) == {"a": "1"}, "one of its own is kept"


@pytest.mark.parametrize(
    ("host", "domain"), [("github.io", "github.io"), ("127.0.0.1", "127.0.0.1"), ("x", "x")]
)
async def test_a_host_that_names_itself_keeps_its_cookie(host: str, domain: str) -> None:
    jar = set_by(f"http://{host}/", f"a=1; Domain={domain}")

    assert sent(jar, f"http://{host}/") == {"a": "1"}
    assert sent(jar, f"http://sub.{host}/") == {}


async def test_a_site_shares_cookies_with_all_of_its_hosts() -> None:
    jar = set_by("http://www.example.co.uk/", "a=1; Domain=example.co.uk; Path=/")

    assert sent(jar, "http://shop.example.co.uk/") == {"a": "1"}
    assert sent(jar, "https://example.co.uk/") == {"a": "1"}


async def test_another_port_is_another_origin() -> None:
    jar = set_by("http://127.0.0.1:8001/", "a=1")

    assert sent(jar, "http://127.0.0.1:8001/") == {"a": "1"}
    assert sent(jar, "http://127.0.0.1:8002/") == {}
    assert sent(jar, "http://127.0.0.1/") == {}


async def test_what_came_over_tls_goes_back_over_tls() -> None:
    jar = set_by("https://example.com/", "a=1")

    assert sent(jar, "https://example.com/") == {"a": "1"}
    assert sent(jar, "http://example.com/") == {}


async def test_garbage_costs_no_page_and_no_good_cookie(
    hostile: HostileServer,
) -> None:
    async with AiohttpDownloader(SETTINGS, start_origins=[hostile.origin]) as downloader:
        url = hostile.url("/cookies-of-every-kind")
        first = await downloader.fetch(Request(url), url=url)
        again = await downloader.fetch(Request(url), url=url)

    assert (first.status, again.status) == (200, 200)
    assert "good=1" in hostile.seen_headers["/cookies-of-every-kind"]["cookie"]
    assert len(hostile.seen_headers["/cookies-of-every-kind"]["cookie"]) < 1000


async def test_the_log_of_a_crawl_has_no_line_for_each_bad_cookie(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    logs.set_up("debug", environment={})
    logging.captureWarnings(False)

    jar = set_by("http://example.com/", "quoted\x01=1", "=", "b=1; Domain=c.example", "a=1")

    assert len(jar.all()) == 1
    assert capsys.readouterr().err == ""


async def test_a_jar_that_raises_costs_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("a cookie that nobody thought of")

    monkeypatch.setattr(cookies, "cookie_of", fails)

    assert set_by("http://example.com/", "a=1").all() == {}


async def test_cookies_are_bounded_for_each_host_and_in_all() -> None:
    jar = SiteCookies()
    many = [f"c{n}=1" for n in range(200)]
    for port in range(8000, 8030):
        jar.keep(many, yarl.URL(f"http://example.com:{port}/"))

    assert len(sent(jar, "http://example.com:8029/")) <= 180
    assert len(jar.all()) <= MOST_COOKIES
    for number in range(50):
        jar.keep(many, yarl.URL(f"http://h{number}.example/"))
    assert len(jar.all()) <= MOST_COOKIES


async def test_a_server_gets_the_header_that_a_browser_sends(hostile: HostileServer) -> None:
    async with AiohttpDownloader(SETTINGS, start_origins=[hostile.origin]) as downloader:
        for path in ("/in/flash", "/in/flashed", "/in/ok"):
            url = hostile.url(path)
            await downloader.fetch(Request(url, headers={"Cookie": "z=0; own=1"}), url=url)

    seen = {path: hostile.seen_headers[path]["cookie"] for path in ("/in/flashed", "/in/ok")}
    assert seen == {
        "/in/flashed": 'own=1; sid=2; nameless; a="x; z=1; flash=saved; sid=1',
        "/in/ok": 'own=1; sid=2; nameless; a="x; z=1; sid=1',
    }


async def test_a_requests_own_cookie_counts_before_all_of_its_name(hostile: HostileServer) -> None:
    jar = SiteCookies()
    set_by_server = ["a=1; Path=/", "a=2", "b=3"]
    url = hostile.url("/in/own")
    jar.keep(set_by_server, yarl.URL(url))
    async with AiohttpDownloader(Settings(), start_origins=[hostile.origin]) as downloader:
        somebody = Layered(over=downloader, session=session(jar=jar))
        await somebody.fetch(Request(url, cookies={"a": "4"}), url=url)

    assert hostile.seen_headers["/in/own"]["cookie"] == "b=3; a=4"


async def test_a_requests_own_cookies_are_for_its_origin_and_without_others(
    hostile: HostileServer,
) -> None:
    async with running() as other:
        back = other.url(f"/to?302,{hostile.url('/ok')}")
        request = Request(hostile.url(f"/to?302,{back}"), cookies={"own": "1"})
        origins = [hostile.origin, other.origin]
        async with AiohttpDownloader(SETTINGS, start_origins=origins) as downloader:
            for each in (Request(hostile.url("/host-cookie")), request):
                await attempt(each, downloader=downloader, settings=SETTINGS)

    (elsewhere,) = other.seen_headers.values()
    assert "cookie" not in elsewhere
    assert hostile.seen_headers["/ok"]["cookie"] == "own=1"


async def test_a_server_on_another_port_sees_no_cookie(hostile: HostileServer) -> None:
    async with running() as other:
        origins = [hostile.origin, other.origin]
        async with AiohttpDownloader(SETTINGS, start_origins=origins) as downloader:
            for url in (hostile.url("/host-cookie"), other.url("/ok"), hostile.url("/ok")):
                await downloader.fetch(Request(url), url=url)

    assert hostile.seen_headers["/ok"]["cookie"] == "secret=1"
    assert "cookie" not in other.seen_headers["/ok"]
