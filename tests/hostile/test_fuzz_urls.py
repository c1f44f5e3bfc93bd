"""Any text as a URL: it is refused, or it leads to the host that the scope check saw."""

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import yarl
from aiohttp.connector import AddrInfoType
from hypothesis import example
from hypothesis import strategies as st

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.addresses import AddressGuard, AddressRefusedError
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model import urls
from crawlcw.model.urls import Location, locate, name_of, resolve
from tests.support.fuzzing import UNSEEN, URL_PIECES, fuzzed, soup

_SPACE = "".join(map(chr, range(33)))
REASONS = {
    Reason.URL_INVALID,
    Reason.URL_TOO_LONG,
    Reason.REFUSED_ADDRESS,
    Reason.REFUSED_SCHEME,
}
texts = soup(URL_PIECES + UNSEEN)
addresses = st.one_of(
    texts,
    texts.map(lambda text: f"http://{text}"),
    texts.map(lambda text: f"//{text}"),
    texts.map(lambda text: f"//{text}@example.com/"),
    texts.map(lambda text: f"http://user:password@{text}"),
    texts.map(lambda text: f"http://example.com{text}"),
    texts.map(lambda text: f"https://example.com/a{text}"),
    texts.map(lambda text: f"https://{text}.example.com:8080/?b=2&a=1"),
)


def located(url: str) -> Location | None:
    try:
        return locate(url)
    except FetchError as error:
        refused = error
    assert refused.reason in REASONS
    return None


def resolved(base: str, href: str) -> str | None:
    try:
        return resolve(base, href)
    except FetchError as error:
        refused = error
    assert refused.reason in REASONS
    return None


def assert_is_canonical(location: Location) -> None:
    """Check the guarantees of a `Location`."""
    for url in (location.url, location.canonical):
        assert url.isascii()
        assert url.isprintable()
        assert not set(url) & set(" #<>")
        assert "\\" not in url.partition("?")[0]
        parsed = yarl.URL(url, encoded=True)
        assert (parsed.raw_user, parsed.raw_password) == (None, None)
        assert parsed.scheme in ("http", "https")
        assert parsed.port is not None
        assert 0 < parsed.port < 65536
    again = locate(location.url)
    assert again == location
    assert locate(location.canonical).canonical == location.canonical


def _port(url: yarl.URL) -> str:
    return "" if url.is_default_port() else f":{url.port}"


def assert_leads_to_its_host(location: Location) -> None:
    """Check that every URL parser finds the host that the scope check finds."""
    target = urls.parse(location.url)  # as the downloader does
    name = urls.name_of(location.host)
    shown = f"[{target.raw_host}]" if ":" in (target.raw_host or "") else target.raw_host
    assert shown is not None
    assert shown.rstrip(".") == name
    assert f"{shown.rstrip('.')}{_port(target)}" == locate(location.canonical).host == location.host
    # A second parser, for both forms.
    for url in (location.url, location.canonical):
        other = urlsplit(url)
        assert (other.hostname or "").rstrip(".") == name.strip("[]")
        assert (other.port or {"http": 80, "https": 443}[other.scheme]) == target.port
    assert urls.origin_of(location.url) == str(target.origin())
    assert urls.in_scope(location.host, frozenset({name}))
    assert not urls.in_scope(location.host, frozenset({"other.example", "xample.com"}))


@fuzzed(url=addresses, quick=150, thorough=3000)
@example(url="http://[v1.a]u:p@")
@example(url="http://\N{FRACTION SLASH}.EXAMPLE.com/")
@example(url="http://example.com~EXAMPLE.com\N{IDEOGRAPHIC FULL STOP}/")
@example(url="http://[2606:4700::1111%25any text]/")
@example(url="http://0\N{TWO DOT LEADER}/")
@example(url="http://127.0.0.1\N{HORIZONTAL ELLIPSIS}/")
def test_any_text_is_refused_or_has_one_canonical_form_and_one_host(url: str) -> None:
    location = located(url)
    if location is not None:
        assert_is_canonical(location)
        assert_leads_to_its_host(location)


@fuzzed(
    base=addresses, href=addresses, padding=st.sampled_from([0, 1990]), quick=100, thorough=2000
)
@example(base="http://example.com/a/b?q=1", href="//", padding=0)
@example(base="http://example.com/a/b?q=1", href="http:?q", padding=0)
@example(base="http://example.com/%0A%3F%23%5C%40/b", href="c", padding=1990)
@example(base="http://example.com/", href="//[v1.a]u:p@", padding=0)
@example(base="http://example.org/", href="http://example.com #", padding=0)
@example(base="http://example.org/", href="+%3a", padding=0)
def test_any_link_on_any_page_is_refused_or_an_address(base: str, href: str, padding: int) -> None:
    page = located(f"{base}?{padding * 'x'}") or locate("http://example.com/a/b")

    url = resolved(page.url, href)
    location = located(url) if url is not None else None

    # Percent-encoding may have made the URL too long; no other URL is refused.
    if location is not None:
        assert location.url == url
        assert_is_canonical(location)
        assert_leads_to_its_host(location)
        assert resolved(page.url, url) == location.url
        # A link to another host names that host.
        link = href.partition("#")[0].strip(_SPACE)
        named = [located(link), located(f"{urls.scheme_of(page.url)}:{link}")]
        assert location.host in {page.host, *(each.host for each in named if each is not None)}


@fuzzed(given=st.lists(addresses, min_size=5, max_size=5), quick=20, thorough=300)
def test_a_connection_is_made_to_the_host_in_the_address_and_to_no_other(given: list[str]) -> None:
    locations = [location for url in given if (location := located(url)) is not None]

    *asked, last = asyncio.run(asked_for([*locations, locate("http://a.example/")]))

    for location, names in zip(locations, asked, strict=True):
        name = name_of(location.host)
        assert names in (set(), {name.strip("[]")}, {name + "."}), location
    # The test is valid only if it sees the names.
    assert last == {"a.example"}


async def asked_for(locations: list[Location]) -> list[set[str]]:
    """Return the names that are resolved and the addresses that are connected to, for each."""
    asked: list[set[str]] = []

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        asked[-1].add(host)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    def connect(_: AddressGuard, address: AddrInfoType) -> Any:
        asked[-1].add(str(address[4][0]))
        raise AddressRefusedError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", look_up)
        patched.setattr(AddressGuard, "socket", connect)
        async with AiohttpDownloader(Settings()) as downloader:
            for location in locations:
                asked.append(set())
                with pytest.raises(FetchError):
                    await downloader.fetch(Request(location.url), url=location.url)
    return asked
