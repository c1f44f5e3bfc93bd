"""Proxies: their URLs, the masked form in output, and hosts without a proxy."""

from datetime import timedelta

import pytest

from crawlcw.errors import SettingsError
from crawlcw.model.health import LONGEST_OUTAGE, Policy, ProxyBreaker
from crawlcw.model.proxies import NoProxy, ProxyEnvironment, address_of, is_loopback, parse

pytestmark = pytest.mark.quick
POLICY = Policy(
    backoff_base=timedelta(seconds=10), backoff_max=timedelta(seconds=60), max_failures=3
)


@pytest.mark.parametrize(
    ("text", "shown", "port"),
    [
        ("http://proxy.example:3128", "http://proxy.example:3128", 3128),
        ("proxy.example:3128", "http://proxy.example:3128", 3128),
        ("https://proxy.example/", "https://proxy.example:443", 443),
        ("socks5://proxy.example", "socks5://proxy.example:1080", 1080),
        ("SOCKS5H://[2001:db8::1]:9050", "socks5h://[2001:db8::1]:9050", 9050),
        (" http://ann:p%40ss@proxy.example:80 ", "http://***@proxy.example:80", 80),
    ],
)
def test_a_proxy_is_shown_without_its_password(text: str, shown: str, port: int):
    proxy = parse(text)

    assert (str(proxy), proxy.port) == (shown, port)
    assert parse(proxy.url) == proxy
    assert "p@ss" not in repr(proxy) + proxy.key
    assert "ann" not in repr(proxy) + proxy.key


@pytest.mark.parametrize(
    "text",
    [
        *("", "http://", "ftp://ann:s3cret@proxy", "socks4://ann:s3cret@proxy:1", "http://h:port"),
        *("http://ann:s3cret@proxy:99999", "http://ann:s3cret@proxy/path", "http://p?s3cret", 7),
        *("http://ann:s3cret\n@proxy", "http://ann:s3%0Acret@proxy"),
    ],
)
def test_what_is_no_proxy_is_refused_in_a_sentence_without_its_text(text: object):
    with pytest.raises(SettingsError) as caught:
        parse(text)

    assert "s3" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_two_users_of_one_proxy_are_told_apart_and_a_new_password_is_the_same_proxy():
    one, other = parse("http://ann:a@gate:80"), parse("http://bob:a@gate:80")

    assert one.key != other.key
    assert one.key == parse("http://ann:new@gate:80").key


@pytest.mark.parametrize(
    ("entries", "host", "port", "covered"),
    [
        ("example.com", "example.com", 80, True),
        ("example.com", "www.example.com", 443, True),
        (".example.com", "example.com", 80, True),
        ("*.example.com", "www.example.com.", 80, True),
        ("example.com", "notexample.com", 80, False),
        ("EXAMPLE.com other", "Example.COM", 80, True),
        ("example.com:8080", "example.com", 8080, True),
        ("example.com:8080", "example.com", 80, False),
        ("*", "anything", 80, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.7", "10.0.0.7", 80, True),
        ("10.0.0.7", "10.0.0.70", 80, False),
        ("::1,fd00::/8", "fd00::5", 80, True),
        ("[::1]", "::1", 80, True),
        ("", "example.com", 80, False),
        (",,", "example.com", 80, False),
        ("0.0.7", "10.0.0.7", 80, False),
    ],
)
def test_no_proxy_names_hosts(entries: str, host: str, port: int, covered: bool):
    assert NoProxy.of(entries).covers(host, port) is covered


def test_the_environment_is_read_in_both_cases_and_the_lower_one_counts():
    variables = {
        "HTTP_PROXY": "http://upper:1",
        "http_proxy": "http://lower:1",
        "ALL_PROXY": "socks5://all:2",
        "NO_PROXY": "example.org",
    }
    environment = ProxyEnvironment.of(variables)

    assert environment.proxy_for("http", "example.com", 80) == parse("http://lower:1")
    assert environment.proxy_for("https", "example.com", 443) == parse("socks5://all:2")
    assert environment.proxy_for("https", "www.example.org", 443) is None
    assert environment.proxy_for("http", "127.0.0.1", 8000) is None
    assert environment.proxy_for("http", "localhost", 8000) is None


def test_in_a_cgi_process_a_header_of_the_client_names_no_proxy():
    variables = {"HTTP_PROXY": "http://evil:1", "REQUEST_METHOD": "GET"}

    assert ProxyEnvironment.of(variables).by_scheme == {}


def test_a_variable_that_is_no_proxy_is_named_without_its_value():
    with pytest.raises(
        SettingsError, match=r"^the variable https_proxy \(or all_proxy\): "
    ) as told:
        ProxyEnvironment.of({"https_proxy": "gopher://ann:s3cret@gate"})

    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "::1", "[::1]", "a.LOCALHOST."]
)
def test_this_machine_is_known_by_all_its_names(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["example.com", "10.0.0.1", "localhost.example", "1.example"])
def test_no_other_host_is_this_machine(host: str):
    assert not is_loopback(host)
    assert (address_of(host) is not None) is host.startswith("10")


def failing(times: int, *, has_worked: bool = False) -> ProxyBreaker:
    """Return a proxy that has failed *times* times, each time right after its rest."""
    proxy = ProxyBreaker(has_worked=has_worked)
    for _ in range(times):
        proxy.fault("refused", now=max(0.0, proxy.ready_at), policy=POLICY)
    return proxy


def test_a_proxy_rests_twice_as_long_each_time_and_is_dead_after_some():
    proxy, rests, now = ProxyBreaker(), [], 0.0
    for _ in range(4):
        assert proxy.fault("refused", now=now, policy=POLICY)
        rests.append(proxy.ready_at - now)
        now = proxy.ready_at

    assert rests == [10, 20, 40, 60]
    assert proxy.is_dead
    proxy.answered()
    assert (proxy.is_dead, proxy.is_proven) == (False, True)
    proxy.fault("refused", now=now, policy=POLICY)
    assert not proxy.is_proven


def test_a_proxy_that_has_worked_has_an_hour_for_it_may_be_our_network():
    assert failing(3).is_lost(now=100.0)
    assert not failing(3, has_worked=True).is_lost(now=100.0)
    assert failing(3, has_worked=True).is_lost(now=LONGEST_OUTAGE)
    assert not failing(2, has_worked=True).is_lost(now=LONGEST_OUTAGE)
    assert not failing(0).is_lost(now=LONGEST_OUTAGE)


def test_a_proxy_that_refuses_us_is_dead_at_once_even_if_it_has_worked():
    proxy = ProxyBreaker(has_worked=True)

    proxy.fault("HTTP 407", now=0.0, policy=POLICY, is_permanent=True)

    assert proxy.is_lost(now=1.0)


def test_a_failure_that_another_proxy_has_not_may_be_chance_three_in_a_row_are_not():
    proxy = ProxyBreaker()

    opened = [proxy.fault("fails", now=1.0, policy=POLICY, tolerated=3) for _ in range(3)]

    assert opened == [False, False, True]
    assert proxy.ready_at == 41.0
