"""Set-Cookie headers and the dates in them, by RFC 6265bis."""

from datetime import UTC, datetime, timedelta

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.fetch.cookies import SiteCookies, cookie_date, cookie_of
from crawlcw.model.identities import Cookie

pytestmark = pytest.mark.quick

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PAGE = yarl.URL("http://www.shop.example/in/cart/1?x=/y")
SAFE = yarl.URL("https://www.shop.example/in/cart/1")


def parsed(header: str, url: yarl.URL = PAGE) -> Cookie | None:
    return cookie_of(header, url, now=NOW)


def sent(*headers: str, url: yarl.URL = PAGE, to: yarl.URL | None = None) -> str:
    """Return the cookies sent to *to* after *url* has set *headers*."""
    jar = SiteCookies()
    jar.keep(headers, url)
    found = jar.sent_to(to or url)
    return "; ".join(f"{name}={value}" if name else value for name, value in found)


@pytest.mark.parametrize(
    ("header", "pair"),
    [
        ("a=b", ("a", "b")),
        (" \ta \t=\t b c \t; Path=/", ("a", "b c")),
        ("a", ("", "a")),
        ("=a", ("", "a")),
        ("=a=b", ("", "a=b")),
        ("a=", ("a", "")),
        ("a==b", ("a", "=b")),
        ('a="b;c"', ("a", '"b')),
        ('"a;b"=c', ("", '"a')),
        ("a b=c,d", ("a b", "c,d")),
        ("a=b; c=d; Secure e; HttpOnly", ("a", "b")),
        ("\u0142=\u00e9", ("\u0142", "\u00e9")),
        ("a=" + 4095 * "b", ("a", 4095 * "b")),
    ],
)
def test_the_name_and_the_value_are_to_the_letter(header: str, pair: tuple[str, str]):
    cookie = parsed(header)

    assert cookie is not None
    assert (cookie.name, cookie.value) == pair


@pytest.mark.parametrize(
    "header",
    ["", " \t", "=", ";", "; a=b", "a=\x00", "a=b\x7f", "a=b; Path=\n/", "a=" + 4096 * "b"],
)
def test_what_is_no_cookie_is_left_out(header: str):
    assert parsed(header) is None


@pytest.mark.parametrize(
    ("attributes", "path"),
    [
        ("", "/in/cart"),
        ("Path=/", "/"),
        ("Path", "/in/cart"),
        ("Path=in", "/in/cart"),
        ("\tpAth\t=\t/x y\t", "/x y"),
        ("Path=/x; Path=/y", "/y"),
        ("Path=/x; Path=", "/in/cart"),
        ('Path="/x"', "/in/cart"),
        ("Path=/" + 1024 * "x", "/in/cart"),
    ],
)
def test_the_path_is_the_last_one_or_the_folder_of_the_page(attributes: str, path: str):
    cookie = parsed(f"a=b; {attributes}")

    assert cookie is not None
    assert cookie.path == path


@pytest.mark.parametrize(
    ("path", "asked", "is_sent"),
    [
        ("/in", "/in", True),
        ("/in", "/in/", True),
        ("/in", "/in?x", True),
        ("/in", "/inner", False),
        ("/in/", "/in", False),
        ("/in/", "/in/x", True),
        ("/In", "/in", False),
        ("/%69n", "/in", False),
    ],
)
def test_a_path_matches_whole_folders(path: str, asked: str, is_sent: bool):
    to = yarl.URL(f"http://www.shop.example{asked}")

    assert sent(f"a=b; Path={path}", to=to) == ("a=b" if is_sent else "")


@pytest.mark.parametrize(
    ("attribute", "domain", "host_only"),
    [
        ("Domain=shop.example", "shop.example", False),
        ("Domain=.SHOP.example", "shop.example", False),
        ("Domain=www.shop.example", "www.shop.example", False),
        ("Domain=", "www.shop.example", True),
        ("Domain=.", "www.shop.example", True),
        ("Domain=shop.example; Domain=", "www.shop.example", True),
    ],
)
def test_a_domain_is_the_host_or_above_it(attribute: str, domain: str, host_only: bool):
    cookie = parsed(f"a=b; {attribute}")

    assert cookie is not None
    assert (cookie.domain, cookie.host_only) == (domain, host_only)


@pytest.mark.parametrize("domain", ["bücher.example", ".BÜCHER.example", "bücher。example"])
def test_a_domain_in_another_script_is_that_of_its_host(domain: str):
    """As in Chromium 156."""
    cookie = parsed(f"a=b; Domain={domain}", yarl.URL("http://www.xn--bcher-kva.example/"))

    assert cookie is not None
    assert (cookie.domain, cookie.host_only) == ("xn--bcher-kva.example", False)


@pytest.mark.parametrize("host", ["[::1]", "[2001:db8::1]", "127.0.0.1"])
def test_an_address_has_no_cookies_for_hosts_below_it(host: str):
    url = yarl.URL(f"http://{host}/")

    cookie = parsed(f"a=b; Domain={host.strip('[]')}", url)

    assert cookie is not None
    assert (cookie.domain, cookie.host_only) == (host.strip("[]"), True)


@pytest.mark.parametrize(
    "domain",
    [
        *("example", "op.example", "x.www.shop.example", "..shop.example", "shop.example."),
        *("127.0.0.1", "ü.shop.example", "shop.example/ü", "ü@shop.example", "ü ü", "\u2024"),
    ],
)
def test_another_domain_is_refused(domain: str):
    assert parsed(f"a=b; Domain={domain}") is None


@pytest.mark.parametrize(
    ("attributes", "after"),
    [
        ("Max-Age=60", timedelta(minutes=1)),
        ("Max-Age=0060", timedelta(minutes=1)),
        ("Max-Age=0", timedelta(0)),
        ("Max-Age=-5", timedelta(0)),
        ("Max-Age=" + 900 * "9", timedelta(days=400)),
        ("Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT", timedelta(minutes=1)),
        ("Max-Age=60; Max-Age=soon", timedelta(minutes=1)),
        ("Expires=Fri, 01 May 2026 13:00:00 GMT", timedelta(hours=1)),
        ("Expires=Fri, 01 May 2026 13:00:00 GMT; Expires=later", timedelta(hours=1)),
        ("Expires=Fri, 01 May 2099 13:00:00 GMT", timedelta(days=400)),
    ],
)
def test_a_cookie_ends_when_it_says(attributes: str, after: timedelta):
    cookie = parsed(f"a=b; {attributes}")

    assert cookie is not None
    assert cookie.expires == NOW + after


@pytest.mark.parametrize(
    "attributes",
    [
        "Max-Age=",
        "Max-Age=-",
        "Max-Age=+5",
        "Max-Age=1.5",
        "Max-Age=\u0661",
        "Expires=0",
        "Expires",
    ],
)
def test_an_end_that_is_none_is_that_of_the_session(attributes: str):
    cookie = parsed(f"a=b; {attributes}")

    assert cookie is not None
    assert cookie.expires is None


@pytest.mark.parametrize(
    "delete",
    [
        "flash=; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
        "flash=deleted; expires=Thu, 01-Jan-1970 00:00:01 GMT; Max-Age=0",
        "flash=; expires=Wednesday, 31-Dec-69 23:59:59 GMT",
        "flash=; Max-Age=-1",
    ],
)
def test_an_end_that_is_over_deletes_a_cookie(delete: str):
    jar = SiteCookies()
    jar.keep(["flash=saved", "sid=1"], PAGE)
    jar.take_changes()
    deletes = "69" not in delete  # two-digit years below 70 are in this century
    jar.keep([delete], PAGE)

    assert ("flash" in dict(jar.sent_to(PAGE))) is not deletes
    assert ("sid" in dict(jar.sent_to(PAGE))) is True
    assert (list(jar.take_changes().values()) == [None]) is deletes


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),
        ("Sunday, 06-Nov-94 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),
        ("Sun Nov  6 08:49:37 1994", (1994, 11, 6, 8, 49, 37)),
        ("1:2:3 4 may 05", (2005, 5, 4, 1, 2, 3)),
        ("6-Nov-69 0:0:0", (2069, 11, 6, 0, 0, 0)),
        ("6-Nov-70 0:0:0", (1970, 11, 6, 0, 0, 0)),
        ("06 November 1994 08:49:37", (1994, 11, 6, 8, 49, 37)),
        ("08:49:37pm 06th NOVEMBRE 1994x", (1994, 11, 6, 8, 49, 37)),
        ("6/Nov/1994;08:49:37", (1994, 11, 6, 8, 49, 37)),
        ("6 Nov 1994 08:49:37 +0300", (1994, 11, 6, 8, 49, 37)),
        ("1994 6 Nov 08:49:37", (1994, 11, 6, 8, 49, 37)),
        ("6 Nov 1994 08:49:37 7 Dec 1995 09:50:38", (1994, 11, 6, 8, 49, 37)),
        ("29 Feb 2024 00:00:00", (2024, 2, 29, 0, 0, 0)),
        ("1 Jan 1601 00:00:00", (1601, 1, 1, 0, 0, 0)),
    ],
)
def test_a_date_is_read_as_browsers_read_it(text: str, date: tuple[int, ...]):
    year, month, day, hour, minute, second = date

    assert cookie_date(text) == datetime(year, month, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "6 Nov 1994", "Nov 1994 08:49:37", "6 1994 08:49:37", "6 Nov 08:49:37",
        "6 Nov 1994 08:49", "006 Nov 1994 08:49:37", "6 Nov 19945 08:49:37", "0 Nov 1994 08:49:37",
        "32 Oct 1994 08:49:37", "30 Feb 2024 00:00:00", "29 Feb 2023 00:00:00",
        "6 Nov 1994 24:00:00", "6 Nov 1994 23:60:00", "6 Nov 1994 23:59:60", "6 Nov 1994 008:49:37",
        "31 Dec 1600 23:59:59", "6 No 1994 08:49:37", "\u0666 Nov 1994 08:49:37",
    ],
)  # fmt: skip
def test_what_is_no_date_is_none(text: str):
    assert cookie_date(text) is None


@given(st.text() | st.text("0123456789:- JanFeb", max_size=30))
def test_no_text_is_more_than_no_date(text: str):
    found = cookie_date(text)

    assert found is None or found.tzinfo is UTC


@given(st.text() | st.text('ab=;," \tDomainPthExpirsSecu.-/0123456789', max_size=60))
def test_no_header_raises_and_none_is_for_another_site(header: str):
    cookie = parsed(header)

    if cookie is not None:
        assert cookie.domain in ("www.shop.example", "shop.example")
        assert (cookie.name + cookie.value).encode()


@pytest.mark.parametrize(
    ("header", "is_kept_safe", "is_kept"),
    [
        ("a=b; Secure", True, False),
        ("__Secure-a=b; Secure", True, False),
        ("__SECURE-a=b", False, False),
        ("__Host-a=b; Secure; Path=/", True, False),
        ("__host-a=b; Secure; Path=/in", False, False),
        ("__Host-a=b; Secure", False, False),
        ("__Host-a=b; Secure; Path=/; Domain=shop.example", False, False),
        ("__Host-a=b; Path=/", False, False),
        ("=__Host-a=b; Secure; Path=/", False, False),
        ("__Secure-a; Secure", False, False),
        ("a=__Secure-b", True, True),
    ],
)
def test_what_is_to_be_secure_came_over_tls(header: str, is_kept_safe: bool, is_kept: bool):
    assert (parsed(header, SAFE) is not None) is is_kept_safe
    assert (parsed(header) is not None) is is_kept


def test_cookies_of_one_name_are_told_apart_by_path_and_domain():
    both = ["a=1; Path=/", "a=2; Path=/in", "a=3; Path=/; Domain=shop.example", "b", "=c"]

    assert sent(*both) == "c; a=2; a=1; a=3"
    assert sent(*both, "a=; Max-Age=0; Path=/; Domain=shop.example") == "c; a=2; a=1"
    assert sent(*both, to=yarl.URL("http://shop.example/")) == "a=3"
