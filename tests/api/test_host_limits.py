"""Settings of a spider for single hosts, and the ones that apply to a host."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.host_limits import HostLimit, Limit, Limits, limit_of
from crawlcw.api.settings import Settings
from crawlcw.errors import SettingsError
from crawlcw.model.urls import locate

pytestmark = pytest.mark.quick

SETTINGS = Settings(per_host_concurrency=8, delay="1s")


def limits(*keys: str) -> Limits:
    """Return limits with distinct concurrencies: 1 for the first key, 2 for the second."""
    return Limits({key: Limit(concurrency=n) for n, key in enumerate(keys, start=1)})


def which(host: str, *keys: str) -> str | None:
    """Return the one of *keys* that applies to *host*."""
    limit = limits(*keys).of(host)
    return None if limit is None else keys[(limit.concurrency or 0) - 1]


# --- one limit


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, (None, None)),
        ({"concurrency": 0}, (0, None)),
        ({"delay": 0.5}, (None, timedelta(milliseconds=500))),
        ({"concurrency": 3, "delay": "2"}, (3, timedelta(seconds=2))),
    ],
)
def test_a_limit_takes_what_the_settings_take(given: dict[str, Any], held: tuple[Any, Any]):
    limit = Limit(**given)

    assert (limit.concurrency, limit.delay) == held


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concurrency": -1}, "Limit(concurrency=...): -1 is not a whole number of at least 0"),
        ({"concurrency": True}, "Limit(concurrency=...): True is not a whole number"),
        ({"delay": "soon"}, "Limit(delay=...): 'soon' is not a duration: write seconds, or"),
    ],
)
def test_a_limit_that_makes_no_sense_is_one_clear_error(given: dict[str, Any], message: str):
    with pytest.raises(SettingsError) as caught:
        Limit(**given)

    assert str(caught.value).startswith(message)


# --- the most specific key


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("shop.example.com:8080", "shop.example.com:8080"),
        ("shop.example.com:8081", "shop.example.com"),
        ("old.shop.example.com", "*.shop.example.com"),
        ("blog.example.com:8080", "*.example.com"),
        ("xshop.example.com", "*.example.com"),
        ("example.com", "*"),
        ("10.0.0.5:8080", "10.0.0.5"),
        ("[::1]:8080", "[::1]:8080"),
        ("[::1]:9090", "[::1]"),
    ],
)
def test_the_most_specific_limit_counts(host: str, key: str):
    keys = [
        "*",
        "*.example.com",
        "*.shop.example.com",
        "shop.example.com",
        "shop.example.com:8080",
        "10.0.0.5",
        "[::1]",
        "[::1]:8080",
    ]

    assert which(host, *keys) == key
    assert which(host, *reversed(keys)) == key, "the order of the keys does not matter"


def test_without_a_star_other_hosts_have_no_limit():
    assert which("b.example", "a.example", "*.a.example") is None
    assert which("a.example", "*.a.example") is None
    assert which("a.example", "a.example:8080") is None
    assert Limits({}).of("a.example") is None


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("Shop.Example.COM", "https://shop.example.com/"),
        ("shop.example.com.", "https://shop.example.com./"),
        ("bücher.example", "https://bücher.example/"),
        ("*.bücher.example", "https://www.bücher.example:81/"),
        ("[::0:1]:8080", "http://[::1]:8080/"),
    ],
)
def test_a_key_is_the_same_host_however_it_is_spelled(key: str, url: str):
    assert which(locate(url).host, key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "http://shop.example.com/",
        "shop.example.com/",
        "me@shop.example.com",
        "shop.example.com\n",
        "shop.example.com:http",
        "shop.example.com:99999",
        "foo*bar",
        "*.*.example.com",
        "*:8080",
        "::1",
        "\ud800",
        None,
        b"shop.example.com",
    ],
)
def test_what_names_no_host_is_one_clear_error(key: Any):
    with pytest.raises(SettingsError) as caught:
        Limits({key: Limit()})

    assert str(caught.value) == (
        f"limits[{key!r}] is neither a host nor a pattern: write shop.example.com, "
        "shop.example.com:8080, *.example.com or *"
    )


@pytest.mark.parametrize("key", ["example.com:80", "example.com:443", "[::1]:443"])
def test_a_port_that_no_host_is_named_with_is_an_error(key: str):
    with pytest.raises(SettingsError, match="leave out the port, because host names do not"):
        limits(key)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a.example", "A.example"), ("*.a.example", "*.A.example"), ("ü.example", "xn--tda.example")],
)
def test_two_limits_for_one_host_are_an_error(one: str, other: str):
    with pytest.raises(SettingsError, match=r"occurs twice: remove one") as caught:
        limits(one, other)

    assert repr(other) in str(caught.value)
    assert which("a.example", "a.example", "*.a.example") == "a.example"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "limits is None: write a dict of hosts and Limit(...)"),
        ("a.example", "write a dict"),
        ({"a.example": {"concurrency": 1}}, "limits['a.example'] is {'concurrency': 1}: write a"),
        ({"*": None}, "limits['*'] is None: write a Limit(...)"),
    ],
)
def test_limits_are_a_mapping_of_limits(given: Any, message: str):
    with pytest.raises(SettingsError) as caught:
        Limits(given)

    assert message in str(caught.value)


# --- limits of a host


def test_what_a_limit_leaves_open_is_as_the_settings_say():
    found = Limits(
        {
            "a.example": Limit(concurrency=1),
            "b.example": Limit(delay="250ms"),
            "c.example": Limit(concurrency=0, delay=0),
            "d.example": Limit(),
            "*": Limit(concurrency=2, delay=3),
        }
    )

    assert limit_of("a.example", found, SETTINGS) == HostLimit(concurrency=1, delay=1.0)
    assert limit_of("b.example", found, SETTINGS) == HostLimit(concurrency=8, delay=0.25)
    assert limit_of("c.example", found, SETTINGS) == HostLimit(concurrency=0, delay=0.0)
    assert limit_of("d.example", found, SETTINGS) == HostLimit(concurrency=8, delay=1.0)
    assert limit_of("e.example", found, SETTINGS) == HostLimit(concurrency=2, delay=3.0)


# --- any keys

labels = st.sampled_from(["a", "b", "c"])
names = st.lists(labels, min_size=1, max_size=4).map(".".join)
ports = st.sampled_from(["", ":81", ":8080"])
keys = st.one_of(
    st.just("*"), names.map(lambda name: f"*.{name}"), st.builds("".join, st.tuples(names, ports))
)


def fits(key: str, host: str) -> bool:
    name = host.partition(":")[0]
    return key in ("*", host, name) or (key.startswith("*.") and name.endswith(key[1:]))


def specificity(key: str) -> tuple[bool, bool, int]:
    return (":" in key, "*" not in key, len(key.split(".")))


@given(given_keys=st.sets(keys, max_size=8), name=names, port=ports)
def test_of_the_keys_that_fit_the_most_specific_counts(given_keys: set[str], name: str, port: str):
    host = name + port
    fitting = [key for key in given_keys if fits(key, host)]

    assert which(host, *given_keys) == max(fitting, key=specificity, default=None)
