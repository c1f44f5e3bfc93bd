"""Redirects and links of hostile pages: HOSTILE section 4, by whole crawls."""

import codecs
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl import robots
from crawlcw.errors import FetchError
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.testing import Replay
from tests.hostile.memory_web import HOME, crawl, links, page, to
from tests.hostile.raw_server import Endless, response, serving
from tests.support.attempts import attempt

GATE = "http://a.example/gate"
PAGE = "http://a.example/page"
OTHER = "http://b.example/"


# Redirects ---------------------------------------------------------------------


async def test_redirects_that_lead_nowhere_come_to_an_end(tmp_path: Path):
    """HOSTILE 4.1: a loop is found at its last page, and hops are counted over all tasks."""
    endless = {f"http://a.example/{n}": to(f"/{n + 1}") for n in range(40)}
    pages = {
        HOME: links("/self", "/there", "/0"),
        "http://a.example/self": to("/self"),
        "http://a.example/there": to("/back"),
        "http://a.example/back": to("/there"),
    }

    crawled = await crawl(pages | endless, tmp_path)

    assert crawled.outcome("http://a.example/self") == "redirect-loop"
    assert crawled.outcome("http://a.example/there") == "finished"
    assert crawled.outcome("http://a.example/back") == "redirect-loop"
    assert crawled.outcome("http://a.example/10") == "redirect-limit"
    assert "http://a.example/11" not in crawled.requested
    # Each page of the loop is requested once.
    assert crawled.requested.count("http://a.example/there") == 1


async def test_every_hop_is_asked_for_scope_and_robots(tmp_path: Path):
    """HOSTILE 4.2: forbidden pages are not requested, not even through redirects."""
    pages = {
        "http://a.example/robots.txt": "User-agent: *\nDisallow: /private",
        HOME: links("/out", "/in"),
        "http://a.example/out": to(OTHER),
        "http://a.example/in": to("/private/1"),
    }

    crawled = await crawl(pages, tmp_path)

    assert crawled.outcome("http://a.example/out") == "refused-scope"
    assert crawled.outcome("http://a.example/in") == "refused-robots"
    assert sorted(crawled.requested) == [HOME, "http://a.example/in", "http://a.example/out"]


@pytest.mark.parametrize(
    ("location", "outcome"),
    [
        pytest.param("file:///etc/passwd", "refused-scheme", id="HOSTILE 4.3 file"),
        pytest.param("data:text/html,x", "refused-scheme", id="HOSTILE 4.3 data"),
        pytest.param("ftp://a.example/", "refused-scheme", id="HOSTILE 4.3 ftp"),
        pytest.param("javascript:alert(1)", "refused-scheme", id="HOSTILE 4.3 javascript"),
        pytest.param("", "redirect-invalid", id="HOSTILE 4.4 empty"),
        pytest.param("http://[", "redirect-invalid", id="HOSTILE 4.5 bracket"),
        pytest.param("http://a.example:99999/", "redirect-invalid", id="HOSTILE 4.5 port"),
        pytest.param("\\\\b.example\\x", "refused-scope", id="HOSTILE 4.8 backslashes"),
        pytest.param("http:\\\\b.example/", "refused-scope", id="HOSTILE 4.8 other host"),
        pytest.param("//b.example\\@a.example", "refused-scope", id="HOSTILE 4.8 disguised"),
        pytest.param("http://u:p@a.example/", "refused-credentials", id="HOSTILE 4.9 password"),
        pytest.param("//u@a.example/", "refused-credentials", id="HOSTILE 4.9 user"),
        pytest.param("///u@a.example/", "refused-credentials", id="HOSTILE 4.9 slashes"),
    ],
)
async def test_a_location_that_is_no_page_says_why(location: str, outcome: str, tmp_path: Path):
    """HOSTILE 4.3, HOSTILE 4.4, HOSTILE 4.5, HOSTILE 4.8, HOSTILE 4.9: no further request."""
    crawled = await crawl({HOME: to(location)}, tmp_path)

    assert crawled.outcome() == outcome
    assert crawled.requested == [HOME]


async def test_a_backslash_is_a_slash_as_browsers_have_it(tmp_path: Path):
    """HOSTILE 4.8: the request goes to the host that the scope check saw."""
    crawled = await crawl({HOME: to("\\\\a.example\\x"), f"{HOME}x": page("moved")}, tmp_path)

    assert crawled.requested == [HOME, f"{HOME}x"]


async def test_a_redirect_without_a_location_is_no_page(tmp_path: Path):
    """HOSTILE 4.4."""
    crawled = await crawl({HOME: Replay(status=302, body="<title>moved</title>")}, tmp_path)

    assert (crawled.outcome(), crawled.items) == ("redirect-invalid", [])


async def test_locations_are_followed_byte_by_byte():
    """HOSTILE 4.6, HOSTILE 4.7: no byte is dropped and no escape rewritten."""
    pages: dict[str, bytes | Endless] = {
        "/latin": response(b"", status="302 Found", headers=b"Location: /syn\xf8ve\r\n"),
        "/syn%F8ve": response(b"latin"),
        "/escaped": response(b"", status="302 Found", headers=b"Location: /%2F%41%7e%c3\r\n"),
        "/%2F%41%7e%c3": response(b"escaped"),
    }
    settings = Settings()

    async with serving(pages) as server:
        origin = f"127.0.0.1:{server.port}"
        async with AiohttpDownloader(settings, start_origins=[origin]) as downloader:
            latin, escaped = [
                await attempt(Request(server.url(path)), downloader=downloader, settings=settings)
                for path in ("/latin", "/escaped")
            ]

    assert latin.body == b"latin"
    assert server.requested[1] == "/syn%F8ve"
    assert escaped.url.startswith(server.url("/%2F"))


async def test_a_cookie_gate_is_named(tmp_path: Path):
    """HOSTILE 4.10."""
    crawled = await crawl({HOME: to(HOME)}, tmp_path)

    (error,) = crawled.records[HOME].errors
    assert (crawled.outcome(), "needs cookies" in error.message) == ("redirect-loop", True)


async def test_the_body_of_a_redirect_is_not_waited_for():
    """HOSTILE 4.11: the body may be endless."""
    moved = b"HTTP/1.1 302 Found\r\nLocation: /ok\r\n\r\n"
    settings = Settings()

    async with serving(
        {"/": Endless(head=moved, again=b"x" * 1000), "/ok": response(b"fine")}
    ) as server:
        origin = f"127.0.0.1:{server.port}"
        async with AiohttpDownloader(settings, start_origins=[origin]) as downloader:
            found = await attempt(
                Request(server.url("/")), downloader=downloader, settings=settings
            )

    assert found.body == b"fine"
    assert server.sent < 20 << 20


# Refresh -----------------------------------------------------------------------


def refreshing(content: str, *, around: str = "{}") -> str:
    meta = f'<meta http-equiv="refresh" content="{content}">'
    return f"<html><head><title>gate</title>{around.format(meta)}</head></html>"


@pytest.mark.parametrize(
    "gate",
    [
        page("<title>gate</title>", refresh="0; url=/page"),
        page(refreshing("0; URL='/page'")),
        page(refreshing("5;/page")),
        page("<head><meta content='1,url=page' HTTP-EQUIV=Refresh></head>"),
        page("<head><base href='http://a.example/'><meta http-equiv=refresh content='0;page'>"),
    ],
)
async def test_a_page_that_sends_its_reader_on_at_once_is_a_redirect(gate: Replay, tmp_path: Path):
    """HOSTILE 4.12: Refresh as a header or as a <meta>."""
    crawled = await crawl({HOME: links("/gate"), GATE: gate, PAGE: page()}, tmp_path)

    assert crawled.pages == [HOME, PAGE]
    assert crawled.outcome(GATE) == "finished"


async def test_a_page_that_sends_its_reader_on_later_is_a_page_with_a_link(tmp_path: Path):
    """HOSTILE 4.12."""
    pages = {HOME: links("/gate"), GATE: page(refreshing("30; url=/page")), PAGE: page()}

    crawled = await crawl(pages, tmp_path)

    assert crawled.pages == [HOME, GATE, PAGE]


@pytest.mark.parametrize(
    "gate",
    [
        page(refreshing("0")),
        page(refreshing("0; url=/gate")),
        page(refreshing("0; url=")),
        page(refreshing("0; url=#top")),
        page(refreshing("0; url=data:text/html,x")),
        page(refreshing("0; url=javascript:alert(1)")),
        page(refreshing("0; url=http://[")),
        page(refreshing("0; url=http://b.example/")),
        page(refreshing("0; url=/private")),
        page(refreshing("0; url=/page", around="<noscript>{}</noscript>")),
        page(refreshing("0; url=/page", around="<!-- {} -->")),
        page(refreshing("0; url=/page", around="<script>'{}'</script>")),
        page(refreshing("1800; url=/logout")),
        page(refreshing("\N{ARABIC-INDIC DIGIT FIVE}; url=x" + "9" * 5000)),
        Replay(headers={"Content-Type": "text/plain"}, body=refreshing("0; url=/page")),
    ],
)
async def test_a_refresh_that_leads_nowhere_leaves_the_page_as_it_is(gate: Replay, tmp_path: Path):
    """HOSTILE 4.12: to itself, to no page, out of scope, disallowed, or not active in the page."""
    robots_txt = "User-agent: *\nDisallow: /private"
    pages = {"http://a.example/robots.txt": robots_txt, HOME: links("/gate"), GATE: gate}

    crawled = await crawl(pages | {PAGE: page()}, tmp_path)

    assert crawled.pages == [HOME, GATE]
    assert crawled.requested == [HOME, GATE]


async def test_pages_that_send_their_readers_to_one_another_are_followed_once(tmp_path: Path):
    """HOSTILE 4.12: a page that refreshes to a known page is a page of its own."""
    pages = {
        HOME: links("/gate", "/page"),
        GATE: page(refreshing("0; url=/page")),
        PAGE: page(refreshing("0; url=/gate")),
    }

    crawled = await crawl(pages, tmp_path)

    assert crawled.pages == [HOME, GATE, PAGE]
    assert sorted(crawled.requested) == [HOME, GATE, PAGE]


async def test_a_chain_of_refreshes_is_as_long_as_one_of_redirects(tmp_path: Path):
    """HOSTILE 4.12."""
    chain = {f"http://a.example/{n}": page(refreshing(f"0; url=/{n + 1}")) for n in range(1, 40)}

    crawled = await crawl({HOME: page(refreshing("0; url=/1"))} | chain, tmp_path, max_redirects=3)

    # The fourth Refresh is no redirect: its page is recorded, and its link is followed.
    assert "http://a.example/3" in crawled.pages
    assert HOME not in crawled.pages


# Links -------------------------------------------------------------------------


async def test_fifty_aliases_are_one_page(tmp_path: Path):
    """HOSTILE 4.13."""
    aliases = {f"http://a.example/alias{n}": to("/page") for n in range(50)}

    crawled = await crawl(
        {HOME: links(*aliases), PAGE: page()} | aliases, tmp_path, per_host_concurrency=50
    )

    assert crawled.pages == [HOME, PAGE]
    assert {crawled.outcome(alias) for alias in aliases} == {"finished"}


@pytest.mark.parametrize(
    ("base", "found"),
    [
        ("<base href='http://b.example/x/'>", "http://b.example/x/one"),
        ("<base href='javascript:alert(1)'>", "http://a.example/one"),
        ("<base href='javascript:1'><base href='/x/'><base href='/y/'>", "http://a.example/x/one"),
        ("<base href='http://['>", "http://a.example/one"),
        ("<base href='http://u:p@a.example/x/'>", "http://a.example/x/one"),
    ],
)
async def test_links_are_relative_to_the_first_base_that_is_an_address(
    base: str, found: str, tmp_path: Path
):
    """HOSTILE 4.14: the scope does not change."""
    crawled = await crawl({HOME: f"<head>{base}</head>{links('one')}"}, tmp_path)

    asked = [url for url in crawled.requested if url != HOME]
    assert asked == ([found] if "a.example" in found else [])
    assert crawled.report.links_dropped == ({} if asked else {"refused-scope": 1})


async def test_a_canonical_link_is_nothing_but_a_link(tmp_path: Path):
    """HOSTILE 4.14: a page keeps the URL of its request."""
    canonical = "<link rel=canonical href='http://b.example/'><title>x</title>"

    crawled = await crawl({HOME: canonical}, tmp_path)

    assert (crawled.pages, crawled.requested) == ([HOME], [HOME])


MALFORMED = [
    *("http://", "http:///", "http://[", "http://[::1", "http://[::g]/", "http://a:b:c/", "//"),
    *("http://a.example:99999/", "http://a.example:-1/", "http://a.example:port/", "http://:80/"),
    *("http://\x00/", "http://a\x00.example/", "http://%/", "http://%00/", "http://a b/", "///x//"),
    *("http://.", "http://..", "http://" + "a" * 300, "http://" + "a." * 200 + "example/"),
    *(
        "\\\\b.example\\x",
        "http:\\\\b.example",
        "http://b.example\\@a.example/",
        "\x00",
        "\x01\x02",
    ),
    *(
        "mailto:x",
        "tel:1",
        "javascript:void(0)",
        "data:,x",
        "blob:x",
        "ftp://a.example/",
        "file:///",
    ),
    *("http://xn--/", "http://xn--a/", "http://\u2028/", "http://\u202e/", "http://\ud800/"),
    *("http://1.2.3.4.5/", "http://256.256.256.256/", "http://0x7f.1/", "http://2130706433/"),
    *("http://\uff11\uff12\uff17.1/", "http://\u2460/", "http://a\u3002b/", "http://[v1.x]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[fe80::1%25eth0]/", "x" * 9000, "http://?", "http://#"),
    *(
        "http:",
        "https:",
        ":",
        "://",
        "?" * 3000,
        "//b.example",
        "http:/b.example",
        "http:b.example",
    ),
    *(
        "http://u:p@b.example/",
        "http://@/",
        "http://@@/",
        "%",
        "%zz",
        "\u202e",
        "\x1b[31m",
        "*",
        "|",
    ),
    *(
        "http://b.example:0/",
        "http://b.example:65536/",
        "http://a.example:\uff18\uff10/",
        "urn:x",
        "about:blank",
    ),
    *("http://[]/", "http://a.example:80:80/", "\ufffe", "intent://x#Intent;end"),
]


async def test_no_malformed_link_takes_its_page_or_another_link_along(tmp_path: Path):
    """HOSTILE 4.15: more than 74 malformed links."""

    class Hrefs(Spider):
        name = "everything"
        start_urls = [HOME]

        def parse(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url}
            if response.url == HOME:
                yield from response.follow_all([*MALFORMED, "/page"])

    crawled = await crawl({HOME: "x", PAGE: "x"}, tmp_path, spider=Hrefs())

    assert len(MALFORMED) > 74
    assert {HOME, PAGE} <= set(crawled.pages)
    assert all(url.startswith(HOME) for url in crawled.requested)
    assert sum(crawled.report.links_dropped.values()) > 50


async def test_pages_without_end_are_left_alone(tmp_path: Path):
    """HOSTILE 4.16: each kind is counted under its reason."""
    grows, repeats, long = "/x" * 21, "/a/b" * 4, "/?q=" + "x" * 2000
    facets = "/?" + "&".join(f"f{n}=1" for n in range(30))

    crawled = await crawl({HOME: links("/1" + grows, repeats, long, facets)}, tmp_path)

    assert crawled.requested == [HOME]
    assert crawled.report.links_dropped == {
        "trap-path-segments": 1,
        "trap-repeated-segment": 1,
        "url-too-long": 1,
        "trap-query-parameters": 1,
    }


async def test_a_tarpit_of_another_host_ends_at_its_number_of_pages(tmp_path: Path):
    """HOSTILE 4.16: limits hold for the pages of one host and for the depth."""
    tarpit = {f"{OTHER}{n}": links(f"/{n + 1}") for n in range(60)}

    class Wide(Spider):
        name = "everything"
        start_urls = [HOME]
        allowed_hosts = ["*"]

        def parse(self, response: Response) -> Iterator[Any]:
            yield {"url": response.url}
            yield from response.follow_all("a")

    pages = {HOME: links(f"{OTHER}0")} | tarpit
    crawled = await crawl(pages, tmp_path, spider=Wide(), max_pages_per_host=20)

    assert len(crawled.requested) == 1 + 20


# Robots directives of pages ------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "noindex", "nofollow"),
    [
        (page(links("/page"), x_robots_tag="nofollow"), False, True),
        (page(refresh="30; url=/page", x_robots_tag="nofollow"), False, True),
        (page(links("/page"), x_robots_tag="noindex"), True, False),
        (page(links("/page"), x_robots_tag="none"), True, True),
        (page(links("/page"), x_robots_tag="CrawlCW: nofollow, noindex"), True, True),
        (page(links("/page"), x_robots_tag="googlebot: nofollow, noindex"), False, False),
        (page(links("/page"), x_robots_tag="googlebot: none, crawlcw: nofollow"), False, True),
        (page(links("/page"), x_robots_tag="unavailable_after: 1 Jan 2020, NoFollow"), False, True),
        (
            page("<head><meta name=robots content='noarchive, NOFOLLOW'>" + links("/page")),
            False,
            True,
        ),
        (page("<head><meta name=ROBOTS content=none></head>" + links("/page")), True, True),
        (page("<head><meta name=crawlcw content=nofollow>" + links("/page")), False, True),
        (page("<head><meta name=googlebot content=none>" + links("/page")), False, False),
        (page("<head><!-- <meta name=robots content=none> -->" + links("/page")), False, False),
        (page("<head><meta name=robots content='index, follow'>" + links("/page")), False, False),
        (
            page("<head><meta name=robots></head>" + links("/page"), x_robots_tag=":,,;:"),
            False,
            False,
        ),
    ],
)
async def test_what_a_page_asks_of_robots_is_heard(
    answer: Replay, noindex: bool, nofollow: bool, tmp_path: Path
):
    """HOSTILE 4.17: `follow_all` obeys nofollow, and noindex is shown."""
    heard = []

    class Listening(Spider):
        name = "everything"
        start_urls = [HOME]

        def parse(self, response: Response) -> Iterator[Any]:
            heard.append((response.robots.noindex, response.robots.nofollow))
            yield from response.follow_all("a", self.other)

        def other(self, response: Response) -> None:
            pass

    crawled = await crawl({HOME: answer, PAGE: page()}, tmp_path, spider=Listening())

    assert heard == [(noindex, nofollow)]
    assert crawled.requested == ([HOME] if nofollow else [HOME, PAGE])
    assert crawled.report.links_dropped == ({"nofollow": 1} if nofollow else {})


async def test_what_a_failed_page_asks_of_robots_is_heard_as_well(tmp_path: Path):
    """HOSTILE 4.17."""

    class Erring(Spider):
        name = "everything"
        start_urls = [HOME]

        def on_error(self, request: Request, error: FetchError) -> Iterator[Any]:
            assert error.response is not None
            yield from error.response.follow_all("a")

    gone = replace(page(links("/page"), x_robots_tag="crawlcw: nofollow"), status=410)
    crawled = await crawl({HOME: gone, PAGE: page()}, tmp_path, spider=Erring())

    assert crawled.requested == [HOME]
    assert crawled.report.links_dropped == {"nofollow": 1}


async def test_the_name_of_a_robot_ends_with_its_header():
    """HOSTILE 4.17: a robot's name applies to the directives of its own header only."""
    tags = b"X-Robots-Tag: otherbot: noindex\r\nX-Robots-Tag: nofollow\r\n"
    settings = Settings()

    async with serving({"/": response(b"x", headers=tags)}) as server:
        origin = f"127.0.0.1:{server.port}"
        async with AiohttpDownloader(settings, start_origins=[origin]) as downloader:
            found = await downloader.fetch(Request(server.url("/")), url=server.url("/"))

    assert (found.robots.noindex, found.robots.nofollow) == (False, True)


async def test_nofollow_is_not_obeyed_where_robots_are_not(tmp_path: Path):
    """HOSTILE 4.17; rel=nofollow is a hint for ranking: it is never obeyed."""
    pages = {
        HOME: page("<head><meta name=robots content=nofollow></head>" + links("/gate")),
        GATE: page("<a rel='nofollow ugc' href=/page>x</a>"),
    }

    crawled = await crawl(pages | {PAGE: page()}, tmp_path, obey_robots=False)

    assert crawled.pages == [HOME, GATE, PAGE]


@pytest.mark.parametrize(("obey", "more"), [(True, []), (False, [PAGE])])
async def test_nofollow_holds_for_where_a_page_sends_its_reader(
    obey: bool, more: list[str], tmp_path: Path
):
    gate = page(refreshing("30; url=/page", around="<meta name=robots content=nofollow>{}"))
    pages = {HOME: links("/gate"), GATE: gate, PAGE: page()}

    crawled = await crawl(pages, tmp_path, obey_robots=obey)

    assert crawled.pages == [HOME, GATE, *more]


# robots.txt ----------------------------------------------------------------------

DENIED = "User-agent: *\nDisallow: /page"
ROBOTS_TXT = "http://a.example/robots.txt"


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        (Replay(status=404, body=DENIED), True),
        (Replay(status=403, body=DENIED), True),
        (Replay(body=DENIED), False),
        (Replay(body=codecs.BOM_UTF8 + DENIED.encode()), False),
        (Replay(body=DENIED.encode("utf-16")), False),
        (Replay(body=codecs.BOM_UTF16_BE + DENIED.encode("utf-16-be")), False),
        (Replay(headers={"Content-Type": "text/html"}, body=f"<html>{DENIED}</html>"), True),
        (Replay(body=b"\xff\xfe" + bytes(range(256))), True),
        (Replay(body="#" * (512 << 10) + "\n" + DENIED), True),
        (Replay(body=DENIED + "\n" + "#" * (512 << 10)), False),
    ],
)
async def test_robots_txt_is_understood_however_it_comes(
    answer: Replay, allowed: bool, tmp_path: Path
):
    """HOSTILE 4.18: 4xx and garbage allow everything; byte order marks and large files parse."""
    pages = {ROBOTS_TXT: answer, HOME: links("/page"), PAGE: page()}

    crawled = await crawl(pages, tmp_path)

    assert crawled.requested == ([HOME, PAGE] if allowed else [HOME])


@pytest.mark.parametrize("failure", [Replay(status=503), Replay(status=500), TimeoutError()])
async def test_nothing_is_asked_for_while_robots_txt_is_unknown(failure: Any, tmp_path: Path):
    """HOSTILE 4.18: 5xx and timeouts pause the host; after further failures it is given up."""
    if isinstance(failure, TimeoutError):
        failure = FetchError(robots.Reason.TIMEOUT_READ, "nothing came")
    once = await crawl({ROBOTS_TXT: [failure, "User-agent: *"], HOME: "x"}, tmp_path)
    (tmp_path / "for ever").mkdir()
    ever = await crawl({ROBOTS_TXT: failure, HOME: "x"}, tmp_path / "for ever")

    assert once.pages == [HOME]
    assert (ever.requested, ever.outcome()) == ([], "host-unreachable")


async def test_robots_txt_is_followed_for_five_hops(tmp_path: Path):
    """HOSTILE 4.18."""
    hops = {f"http://a.example/r{n}": to(f"/r{n + 1}") for n in range(1, 5)}
    pages = {ROBOTS_TXT: to("/r1"), "http://a.example/r5": DENIED, HOME: links("/page")} | hops

    crawled = await crawl(pages, tmp_path)

    assert HOME in crawled.requested
    assert PAGE not in crawled.requested


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("99999999999", 60.0),
        ("1e309", None),
        ("nan", None),
        ("-5", None),
        ("inf", None),
        ("2", 2.0),
    ],
)
def test_a_crawl_delay_is_bounded(said: str, seconds: float | None):
    """HOSTILE 4.18: an invalid delay counts as no delay or as the longest one."""
    delay = robots.parse(f"User-agent: *\nCrawl-delay: {said}".encode(), agent="x").crawl_delay

    assert delay in ((0.0, 60.0) if seconds is None else (seconds,))


def test_robots_rules_with_thousands_of_stars_are_no_burden():
    """HOSTILE 4.19."""
    rules = robots.parse(b"User-agent: *\nDisallow: /" + b"*a" * 2000 + b"$", agent="x")
    began = time.process_time()

    rules.allows("http://a.example/" + "a" * 1900)

    assert time.process_time() - began < 1.0
