"""Requests through real proxies of each kind: certificates, refusals, reuse and secrets."""

import asyncio
import errno
import logging
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey, RequestInfo
from aiohttp.http_exceptions import BadHttpMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from crawlcw.api.attempt import Attempt
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxiesAwayError, ProxyFailedError, Reason
from crawlcw.fetch.addresses import Hop, Stage
from crawlcw.fetch.failures import failure_in
from crawlcw.fetch.pipeline import DefaultDownloader
from crawlcw.fetch.proxies import Proxies, ProxyPool
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model.proxies import parse
from tests.support import exit_site
from tests.support.attempts import attempt
from tests.support.exit_site import ExitSite
from tests.support.proxy_servers import ProxyServer, proxies

CERTIFICATES = Path(__file__).parents[1] / "hostile" / "certificates"
TRUSTED = CERTIFICATES / "trusted.pem"
QUICK = {"host_backoff_base": "20ms", "host_backoff_max": "20ms", "connect_timeout": "2s"}
KINDS = ["http", "https", "socks5", "socks5h"]


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust only the tests' certificate authority."""
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)


@pytest.fixture
def site() -> Iterator[ExitSite]:
    with exit_site.served() as running:
        yield running


def proxy_of(kind: str, host: str = "127.0.0.1", **options: Any) -> ProxyServer:
    certificate = TRUSTED if kind == "https" else None
    return ProxyServer(kind, host, certificate=certificate, **options)


@asynccontextmanager
async def through(
    *servers: ProxyServer | str,
    start: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[DefaultDownloader]:
    urls = [each if isinstance(each, str) else each.url for each in servers]
    chosen = Settings(**{**QUICK, "proxies": urls, **settings})
    client = AiohttpDownloader(chosen, start_origins=[start] if start else ())
    downloader = DefaultDownloader(client, proxies=Proxies(ProxyPool(chosen, variables)))
    try:
        yield downloader
    finally:
        await downloader.close()


async def get(downloader: DefaultDownloader, url: str, **options: Any) -> Response:
    return await attempt(
        Request(url, **options), downloader=downloader, settings=Settings(timeout="5s")
    )


async def refusal(downloader: DefaultDownloader, url: str, **options: Any) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await get(downloader, url, **options)
    return caught.value


@pytest.mark.thorough
@pytest.mark.representative("ann")
@pytest.mark.parametrize("login", [None, "ann:p%40ss w"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_page_comes_through_each_kind_of_proxy(
    kind: str, login: str | None, site: ExitSite, authority: None
):
    proxy = proxy_of(kind, login=login and "ann:p@ss w")
    with proxies(proxy):
        url = f"{kind}://{login + '@' if login else ''}127.0.0.1:{proxy.port}"
        async with through(url, start=site.url[7:]) as downloader:
            response = await get(downloader, f"{site.url}/p/0")

    assert (response.status, response.text) == (200, "<p>0")
    assert str(response.proxy) == url.replace(f"{login}@", "***@")
    assert proxy.asked == [f"127.0.0.1:{site.port}"]
    assert not any(b"pass" in head.lower() for head in proxy.heads)


@pytest.mark.thorough
@pytest.mark.representative("socks5h")
@pytest.mark.parametrize("kind", KINDS)
async def test_tls_is_with_the_site_whatever_the_proxy(kind: str, authority: None):
    proxy = proxy_of(kind)
    with proxies(proxy), exit_site.served(certificate=TRUSTED) as site:
        async with through(proxy, start=site.url[8:]) as downloader:
            response = await get(downloader, f"{site.url}/p/0")

    assert response.text == "<p>0"
    assert not any(b"/p/0" in head for head in proxy.heads), "the proxy must not see the requests"


@pytest.mark.thorough
@pytest.mark.representative("https")
@pytest.mark.parametrize("kind", KINDS)
async def test_another_name_in_the_certificate_of_a_site_is_refused_behind_a_proxy(
    kind: str, authority: None
):
    proxy = proxy_of(kind)
    with proxies(proxy), exit_site.served(certificate=CERTIFICATES / "wrong_name.pem") as site:
        async with through(proxy, start=site.url[8:]) as downloader:
            error = await refusal(downloader, f"{site.url}/p/0")

    assert error.reason is Reason.TLS
    assert "IP address mismatch" in error.message
    assert error.proxy is not None
    assert site.visits == []


async def test_a_proxy_whose_own_certificate_is_wrong_is_told_no_password(site: ExitSite):
    proxy = ProxyServer("https", "127.0.0.1", certificate=TRUSTED, login="ann:pass")
    with proxies(proxy):
        async with through(proxy, start=site.url[7:], host_max_failures=1) as downloader:
            error = await refusal(downloader, f"{site.url}/p/0")

    assert isinstance(error, ProxiesAwayError)
    assert "certificate is not trusted" in error.message
    assert proxy.heads == []


@pytest.mark.parametrize("kind", ["http", "socks5h"])
async def test_a_name_is_looked_up_by_the_proxy(kind: str, site: ExitSite):
    proxy = proxy_of(kind, names={"shop.test": f"127.0.0.1:{site.port}"})
    with proxies(proxy):
        async with through(proxy) as downloader:
            response = await get(downloader, "http://shop.test/p/0")

    assert response.text == "<p>0"
    assert proxy.asked == ["shop.test:80"]
    assert not any(b"authorization" in head.lower() for head in proxy.heads)


async def test_the_site_behind_a_socks_proxy_is_not_told_the_login():
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        there = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        proxy = proxy_of("socks5h", login="ann:pass", names={"shop.test": there})
        with proxies(proxy):
            async with through(proxy) as downloader:
                await get(downloader, "http://shop.test/p/0")

    assert proxy.logins == ["ann:pass"]
    assert heads[0].startswith(b"GET /p/0 HTTP/1.1\r\n")
    assert b"authorization" not in heads[0].lower()


async def test_with_socks5_a_name_is_looked_up_here_and_checked(site: ExitSite):
    proxy = proxy_of("socks5")
    with proxies(proxy):
        async with through(proxy) as downloader:
            private = await refusal(downloader, "http://localhost/")
            unknown = await refusal(downloader, "http://nowhere.invalid/")

    assert private.reason is Reason.REFUSED_ADDRESS
    assert unknown.reason in (Reason.DNS_NXDOMAIN, Reason.DNS_TEMPORARY)
    assert proxy.asked == []


@pytest.mark.thorough
@pytest.mark.representative("http-2130706433")
@pytest.mark.parametrize(
    "host",
    [
        *("10.1.2.3", "127.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "169.254.169.254"),
        *("localhost", "a.localhost", "127.1", "0x7f.1", "2130706433"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "socks5h"])
async def test_no_proxy_is_asked_for_an_address_that_is_not_public(kind: str, host: str):
    proxy = proxy_of(kind)
    with proxies(proxy):
        async with through(proxy) as downloader:
            error = await refusal(downloader, f"http://{host}/")

    assert error.reason is Reason.REFUSED_ADDRESS
    assert proxy.connections == 0


@pytest.mark.thorough
@pytest.mark.representative("http-http")
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("kind", ["http", "https", "socks5h"])
async def test_a_proxy_that_refuses_the_password_says_so_in_a_clear_sentence(
    kind: str, scheme: str, site: ExitSite, authority: None
):
    proxy = proxy_of(kind, login="ann:right")
    lost: list[str] = []
    with proxies(proxy):
        url = f"{kind}://ann:wr0ng-pass@127.0.0.1:{proxy.port}"
        settings = Settings(**QUICK, proxies=[url])
        pool = ProxyPool(settings)
        pool.on_lost = lost.append
        client = AiohttpDownloader(settings, start_origins=[site.url[7:]])
        downloader = DefaultDownloader(client, proxies=Proxies(pool))
        with pytest.raises(ProxiesAwayError):
            page = f"{site.url}/p/0".replace("http:", f"{scheme}:")
            await get(downloader, page, timeout="20s")
        await downloader.close()

    assert lost
    shown = f"the proxy {kind}://***@127.0.0.1:{proxy.port} "
    assert lost[0].startswith(f"the proxy does not work: {shown}")
    assert ("HTTP 407" in lost[0]) or ("authentication failure" in lost[0])
    assert "wr0ng" not in repr(lost)
    assert site.visits == []


def _untrusted() -> Exception:
    """Return the error of aiohttp for a certificate within a tunnel over TLS."""
    error = aiohttp.ClientOSError("closed")
    error.__cause__ = ssl.SSLCertVerificationError()
    error.__cause__.verify_message = "expired"
    return error


HTTP, SOCKS = "http://127.0.0.1:1", "socks5://127.0.0.1:1"
KEY = ConnectionKey("127.0.0.1", 1, False, True, None, None, None)
DOWN = OSError(errno.ECONNREFUSED, "Connection refused")
ASKED = RequestInfo(URL(HTTP), "CONNECT", CIMultiDictProxy(CIMultiDict()), URL(HTTP))
NO_LOGIN = aiohttp.ClientHttpProxyError(ASKED, (), status=407)


@pytest.mark.parametrize(
    ("proxy", "stage", "error", "message", "otherwise"),
    [
        (
            HTTP,
            0,
            aiohttp.ClientConnectorError(KEY, DOWN),
            "cannot be reached: Connection refused$",
            0,
        ),
        (HTTP, 0, _untrusted(), "cannot be reached: the certificate is not trusted: expired$", 0),
        (HTTP, 0, NO_LOGIN, r"needs a user and a password \(HTTP 407\)", 0),
        ("http://ann:x@127.0.0.1:1", 0, NO_LOGIN, r"rejects its password \(HTTP 407\)", 0),
        (HTTP, 1, TimeoutError(), "accepts connections but does not respond", 1),
        (SOCKS, 1, TimeoutError(), "accepts connections but does not respond", 0),
        (SOCKS, 2, TimeoutError(), "accepts connections but does not respond", 1),
    ],
)
def test_a_failure_of_a_proxy_says_if_it_may_be_the_sites(
    proxy: str, stage: int, error: Exception, message: str, otherwise: int
) -> None:
    attempted = Attempt(request=Request("http://a.example/"))

    found = failure_in(error, Hop(attempted, parse(proxy), stage=Stage(stage)))

    assert isinstance(found, ProxyFailedError)
    assert re.search(message, found.message)
    assert (found.request_failure is not None) == bool(otherwise)


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        (Stage.REACHED, BadHttpMessage("Bad header")),  # its site has spoken
        (Stage.PASSED, TimeoutError()),
    ],
)
def test_a_failure_behind_a_proxy_is_the_sites(stage: Stage, error: Exception) -> None:
    attempted = Attempt(request=Request("http://a.example/"))

    found = failure_in(error, Hop(attempted, parse(HTTP), stage=stage))

    assert not isinstance(found, ProxyFailedError)
    assert found.message.endswith(f", through the proxy {HTTP}")


async def test_a_407_of_the_site_itself_is_its_answer(authority: None):
    # Through a tunnel, the answer is not the proxy's.
    proxy = proxy_of("http")
    with proxies(proxy), exit_site.served(certificate=TRUSTED, says=407) as site:
        async with through(proxy, start=site.url[8:]) as downloader:
            response = await get(downloader, f"{site.url}/p/0")

    assert response.status == 407


async def test_a_proxy_that_is_down_is_passed_over_and_rests(
    site: ExitSite, caplog: pytest.LogCaptureFixture
):
    dead, alive = proxy_of("http", "127.0.0.2", login="ann:s3cret"), proxy_of("http", "127.0.0.3")
    with proxies(dead, alive):
        dead.die()
        with caplog.at_level(logging.INFO):
            async with through(
                dead, alive, start=site.url[7:], host_backoff_base="1h", host_backoff_max="1h"
            ) as downloader:
                for _ in range(4):
                    assert (await get(downloader, f"{site.url}/p/0")).status == 200

    assert site.exits == {"127.0.0.3": 4}
    rests = [each for each in caplog.messages if "does not use a proxy for" in each]
    assert len(rests) == 1
    assert "http://***@127.0.0.2" in rests[0]
    assert "s3cret" not in caplog.text


@pytest.mark.thorough
@pytest.mark.representative("tls-http")
@pytest.mark.parametrize("kind", ["http", "socks5h"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_connection_is_used_again_for_its_own_proxy_user_and_origin_alone(
    kind: str, tls: bool, authority: None
):
    one, two = proxy_of(kind, "127.0.0.2"), proxy_of(kind, "127.0.0.3")
    certificate = TRUSTED if tls else None
    with proxies(one, two), exit_site.served(certificate=certificate) as site:
        async with through(start=site.url.partition("//")[2]) as downloader:
            for proxy in (one, two, one, two):
                for _ in range(3):
                    await get(downloader, f"{site.url}/p/0", proxy=proxy.url)
            await get(downloader, f"{site.url}/p/0", proxy=one.url.replace("//", "//ann:a@"))
            await get(downloader, f"{site.url}/p/0", proxy="direct")

    assert [each.exit for each in site.visits] == [
        *(3 * ["127.0.0.2"] + 3 * ["127.0.0.3"]) * 2,
        "127.0.0.2",
        "127.0.0.1",
    ]
    # One connection for each proxy, and one for the other user.
    assert (one.connections, two.connections) == (2, 1)


async def test_a_request_may_name_its_own_proxy_and_no_other_stands_for_it(site: ExitSite):
    dead, other = proxy_of("http", "127.0.0.2"), proxy_of("http", "127.0.0.3")
    with proxies(dead, other):
        dead.die()
        async with through(other, start=site.url[7:], host_max_failures=2) as downloader:
            error = await refusal(downloader, f"{site.url}/p/0", proxy=dead.url)

    assert error.reason is Reason.PROXY
    assert site.visits == []


async def test_the_environment_names_proxies_and_hosts_without_one(site: ExitSite):
    proxy = proxy_of("http", "127.0.0.2", names={"shop.test": f"127.0.0.1:{site.port}"})
    with proxies(proxy):
        variables = {"HTTP_PROXY": proxy.url, "no_proxy": "10.0.0.0/8,example.com"}
        async with through(start=site.url[7:], variables=variables) as downloader:
            await get(downloader, "http://shop.test/p/0")
            # Requests to this machine never use a proxy of the environment.
            await get(downloader, f"{site.url}/p/0")

    assert [each.exit for each in site.visits] == ["127.0.0.2", "127.0.0.1"]


async def test_a_proxy_that_cannot_reach_the_host_is_not_to_blame(authority: None):
    for kind in ("http", "socks5h"):
        proxy = proxy_of(kind, "127.0.0.2", names={"gone.test": "127.0.0.1:9"})
        with proxies(proxy):
            async with through(proxy) as downloader:
                error = await refusal(downloader, "https://gone.test/")

        assert error.reason is Reason.CONNECT, kind
        assert str(error.proxy) == proxy.url
        assert proxy.url in error.message


@pytest.mark.parametrize(("reply", "reason"), [(4, Reason.CONNECT), (7, Reason.PROXY)])
async def test_a_reply_of_socks_tells_a_failure_of_the_host_from_one_of_the_proxy(
    reply: int, reason: Reason
):
    proxy = proxy_of("socks5h", says=reply)
    with proxies(proxy):
        async with through(proxy, host_max_failures=1) as downloader:
            error = await refusal(downloader, "http://shop.test/")

    assert error.reason is reason
    assert "socks" in error.message


@pytest.mark.parametrize(
    ("kind", "silence", "settings", "reason"),
    [
        ("http", {"is_silent": True}, {"connect_timeout": "300ms"}, Reason.TIMEOUT_CONNECT),
        ("socks5h", {"is_silent": True}, {"connect_timeout": "300ms"}, Reason.TIMEOUT_CONNECT),
        (
            "http",
            {"hangs": True, "certificate": TRUSTED},
            {"read_timeout": "300ms", "insecure": True},
            Reason.TIMEOUT_READ,
        ),
    ],
    ids=["before TLS", "before TLS, socks", "after TLS"],
)
async def test_a_site_that_is_silent_behind_a_tunnel_is_not_the_proxys_fault(
    kind: str, silence: dict[str, Any], settings: dict[str, Any], reason: Reason
):
    # The proxy has not worked before, but it has answered CONNECT.
    silent = ProxyServer("http", "127.0.0.3", **silence)
    with proxies(silent):
        proxy = proxy_of(kind, "127.0.0.2", names={"silent.test": f"127.0.0.3:{silent.port}"})
        with proxies(proxy):
            async with through(proxy, **settings) as downloader:
                error = await refusal(downloader, "https://silent.test/")

    assert error.reason is reason
    assert str(error.proxy) == proxy.url
