"""How long connections rest, decided without any connection."""

import math

import pytest
from aiohttp.client_reqrep import ConnectionKey

from crawlcw.fetch import connection
from crawlcw.fetch.connection import (
    CLEAN_ENDPOINTS,
    CLEAN_RESTS,
    REST,
    Endpoint,
    Origin,
    Origins,
    endpoint_of,
)
from crawlcw.fetch.connector import site_of

pytestmark = pytest.mark.quick


def key(host: str) -> ConnectionKey:
    return site_of(f"https://{host}", None).key


KEY = key("example.com")


def endpoint(path: str) -> Endpoint:
    path, _, query = path.partition("?")
    return endpoint_of(f"{path}?{query}")


def clean(origin: Origin, path: str, times: int = CLEAN_RESTS) -> None:
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
    ],
)
def test_an_endpoint_is_a_path_without_numbers_and_values(one: str, other: str, same: bool) -> None:
    assert (endpoint(one) == endpoint(other)) is same


def test_an_endpoint_is_trusted_after_some_clean_rests() -> None:
    origin = Origin()
    clean(origin, "/page/1", CLEAN_RESTS - 1)
    before = origin.rest_after(endpoint("/page/2"))
    clean(origin, "/page/3", 1)

    assert before == REST
    assert origin.rest_after(endpoint("/page/2")) == 0


def test_good_endpoints_prove_nothing_of_another() -> None:
    origin = Origin()
    clean(origin, "/page/1", 1_000)

    assert origin.rest_after(endpoint("/page/twice")) == REST


def test_many_clean_endpoints_prove_a_folder_and_no_other() -> None:
    origin = Origin()
    for n in range(CLEAN_ENDPOINTS):
        clean(origin, f"/wiki/{'x' * n}", 1)

    assert origin.rest_after(endpoint("/wiki/Crawler")) == 0
    assert origin.rest_after(endpoint("/Crawler")) == REST


def test_an_origin_that_broke_http_is_never_trusted() -> None:
    origins = Origins()
    clean(origins.of(KEY), "/page/1")
    origins.broke_http(KEY)
    clean(origins.of(KEY), "/page/1")

    assert origins.of(KEY).rest_after(endpoint("/page/1")) == REST
    assert origins.of(key("example.org")).broke_http is False


def test_an_origin_that_spoke_unasked_is_remembered_longer_than_what_others_have_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_ORIGINS", 3)
    origins = Origins()
    clean(origins.of(KEY), "/page/1")
    origins.spoke_unasked(KEY)
    for n in range(3):
        clean(origins.of(key(f"{n}.example")), "/page/1")
    first, spoke = origins.of(key("0.example")), origins.of(KEY)

    assert spoke.rest_after(endpoint("/page/1")) == math.inf
    assert first.rest_after(endpoint("/page/1")) == 0
    # Two of the others had to go for the one that came back.
    assert origins.of(key("1.example")).rest_after(endpoint("/page/1")) == REST


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ORIGINS", 3)
    monkeypatch.setattr(connection, "_OUTSPOKEN", 2)
    origins, origin = Origins(), Origin()
    for n in range(100):
        origins.spoke_unasked(key(f"{n}.example"))
        clean(origin, f"/{'x' * n}/y", 1)

    assert len(origins._origins) == 3
    assert list(origins._outspoken) == [key(f"{n}.example") for n in (98, 99)]
    assert len(origin._clean) == connection._COUNTS
