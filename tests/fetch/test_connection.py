"""Rests of connections before their reuse, decided without a connection."""

import asyncio
import math
import termios
from collections.abc import AsyncIterator

import pytest
import yarl

from crawlcw.api.attempt import Attempt
from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.fetch import connector as connector_module
from crawlcw.fetch.addresses import AddressGuard, Hop, current_hop
from crawlcw.fetch.connector import (
    CLEAN_ENDPOINTS,
    CLEAN_RESTS,
    REST,
    Connector,
    Listener,
    Site,
    endpoint_of,
)

pytestmark = pytest.mark.quick


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    opened = Connector(Settings(), AddressGuard())
    yield opened
    await opened.close()


def site() -> Site:
    return Site(yarl.URL("https://example.com/"))


def endpoint(path: str) -> tuple[int, int]:
    path, _, query = path.partition("?")
    return endpoint_of(f"{path}?{query}")


def clean(origin: Site, path: str, times: int = CLEAN_RESTS) -> None:
    for _ in range(times):
        origin.rested(endpoint(path))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/page/7", "/page/81", True),
        ("/2024/05/a.html", "/2025/06/a.html", True),
        ("/page?id=7&sort=up", "/page?id=8&sort=down", True),
        ("/page?id=7", "/page?name=7", False),
        ("/page/7", "/item/7", False),
        ("/ok", "/poison", False),
        ("/a/b", "/a%2Fb", False),
        ("/a/b/", "/a/c/", False),
        ("/a/b/", "/a/b", True),
    ],
)
def test_an_endpoint_is_a_path_without_numbers_and_values(one: str, other: str, same: bool) -> None:
    assert (endpoint(one) == endpoint(other)) is same


def test_an_endpoint_is_trusted_after_some_clean_rests() -> None:
    origin = site()
    clean(origin, "/page/1", CLEAN_RESTS - 1)
    before = origin.rest_after(endpoint("/page/2"))
    clean(origin, "/page/3", 1)

    assert before == REST
    assert origin.rest_after(endpoint("/page/2")) == 0


def test_good_endpoints_prove_nothing_of_another() -> None:
    origin = site()
    clean(origin, "/page/1", 1_000)

    assert origin.rest_after(endpoint("/page/twice")) == REST


@pytest.mark.parametrize("end", ["", "/"])
def test_many_clean_endpoints_prove_a_folder_and_no_other(end: str) -> None:
    origin = site()
    for n in range(CLEAN_ENDPOINTS):
        clean(origin, f"/wiki/{'x' * n}y{end}", 1)

    assert origin.rest_after(endpoint(f"/wiki/Crawler{end}")) == 0
    assert origin.rest_after(endpoint(f"/Crawler{end}")) == REST


def test_an_origin_that_broke_http_is_never_trusted() -> None:
    origin = site()
    clean(origin, "/page/1")
    origin.distrust(REST)
    clean(origin, "/page/1")

    assert origin.rest_after(endpoint("/page/1")) == REST


def test_an_origin_that_spoke_unasked_is_never_trusted_whatever_else_it_does() -> None:
    origin = site()
    origin.distrust(math.inf)
    origin.distrust(REST)
    clean(origin, "/page/1")

    assert origin.rest_after(endpoint("/page/1")) == math.inf
    assert origin.rest_after(endpoint("/of/no/request/yet")) == math.inf


async def test_a_connection_that_has_ended_already_has_no_bytes() -> None:
    """uvloop gives no socket for it, which can end while TLS begins in a proxy's tunnel."""
    current_hop.set(Hop(Attempt(request=Request("https://example.com/"))))
    listener = Listener(asyncio.get_running_loop(), among=set())
    listener.connection_made(asyncio.Transport())

    assert not listener.holds(termios.FIONREAD)


async def test_what_is_remembered_is_bounded(
    monkeypatch: pytest.MonkeyPatch, connector: Connector
) -> None:
    monkeypatch.setattr(connector_module, "_SITES", 3)
    first = connector.site("https://example.com", None)
    for n in range(100):
        connector.site(f"https://{n}.example", None)
        clean(first, f"/{'x' * n}/y", 1)
        assert connector.site("https://example.com", None) is first, "its last request was recent"

    assert len(connector._sites) == 3
    assert len(first._clean) == connector_module._COUNTS
