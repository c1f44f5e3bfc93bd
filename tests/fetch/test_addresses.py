"""Public addresses, and permission for others."""

import asyncio
import socket
from collections.abc import Iterable
from contextvars import Context, copy_context

import pytest
import yarl

from crawlcw.api.attempt import Attempt
from crawlcw.api.request import Request
from crawlcw.errors import FetchError, Reason, SettingsError
from crawlcw.fetch.addresses import (
    MOST_START_NAMES,
    AddressGuard,
    AddressRefusedError,
    Hop,
    current_hop,
    is_public,
)
from crawlcw.model.proxies import parse


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "93.184.215.14",
        "2606:4700:4700::1111",
        "::ffff:1.1.1.1",
        "64:ff9b::101:101",
        "2002:101:101::",
    ],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "168.63.129.16",
        "172.16.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::169.254.169.254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "2002:a9fe:a9fe::",
        "2002:7f00:1::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "not an address",
    ],
)
def test_any_other_address_is_not_public(address: str) -> None:
    """HOSTILE 5.1, 5.4."""
    assert not is_public(address)


def resolve(guard: AddressGuard, name: str, *addresses: str) -> None:
    asyncio.run(guard.resolved(name, addresses))


def admit(guard: AddressGuard, url: yarl.URL) -> None:
    """Start an exchange, as the transport does."""
    asyncio.run(guard.admit(url))
    current_hop.set(Hop(Attempt(request=Request(str(url))), url=url))


def connects(guard: AddressGuard, url: str, address: str) -> bool:
    """Return whether a request to *url* gets a socket if its name resolves to *address*."""

    def request() -> bool:
        target = yarl.URL(url)
        admit(guard, target)
        resolve(guard, target.raw_host or "", address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            made = guard.socket((family, socket.SOCK_STREAM, 0, "", (address, target.port)))
        except AddressRefusedError:
            return False
        made.close()
        return True

    return copy_context().run(request)


def test_without_exceptions_only_public_addresses_are_connected_to() -> None:
    guard = AddressGuard()

    assert connects(guard, "http://example.com/", "1.1.1.1")
    assert not connects(guard, "http://example.com/", "127.0.0.1")
    assert not connects(guard, "http://127.0.0.1/", "127.0.0.1")


@pytest.mark.parametrize(
    ("origin", "url", "address", "allowed"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/", "127.0.0.1", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8001/", "127.0.0.1", False),
        ("127.0.0.1:8000", "http://localhost:8000/", "127.0.0.1", False),
        ("localhost:8000", "http://localhost:8000/", "127.0.0.1", True),
        ("localhost:8000", "http://localhost:8000/", "::1", True),
        ("localhost:8000", "http://LOCALHOST:8000/", "127.0.0.1", True),
        ("localhost:8000", "http://rebind.example:8000/", "127.0.0.1", False),
        ("[::1]:8000", "http://[::1]:8000/", "::1", True),
        ("intranet", "http://intranet/", "10.0.0.1", True),
        ("intranet", "https://intranet/", "10.0.0.1", True),
        ("intranet", "http://intranet:8000/", "10.0.0.1", False),
        ("intranet", "http://intranet/", "not an address", False),
        # A public name that changes to the address of the cloud's credentials.
        ("example.com", "http://example.com/", "169.254.169.254", False),
        ("example.com", "http://example.com/", "::ffff:169.254.169.254", False),
        ("example.com", "http://example.com/", "::169.254.169.254", False),
        ("example.com", "http://example.com/", "64:ff9b::a9fe:a9fe", False),
        ("example.com", "http://example.com/", "64:ff9b:1:a9fe:a9:fe00::", False),
        ("example.com", "http://example.com/", "168.63.129.16", False),
        ("example.com", "http://example.com/", "0.0.0.0", False),
        ("169.254.169.254", "http://169.254.169.254/", "169.254.169.254", True),
        ("0.0.0.0:8000", "http://0.0.0.0:8000/", "0.0.0.0", True),
    ],
)
def test_a_start_url_may_be_private_at_its_own_name_and_port(
    origin: str, url: str, address: str, allowed: bool
) -> None:
    assert connects(AddressGuard(start_origins=[origin]), url, address) is allowed


@pytest.mark.parametrize(
    ("name", "url", "allowed"),
    [
        ("10.0.0.5", "http://10.0.0.5/", True),
        ("10.0.0.5", "http://10.0.0.5:8080/", True),
        ("10.0.0.5", "http://10.0.0.6/", False),
        ("10.0.0.5:8080", "http://10.0.0.5:8080/", True),
        ("10.0.0.5:8080", "http://10.0.0.5/", False),
        ("10.0.0.5:9200", "http://10.0.0.5:9200/", True),
        ("::1", "http://[::1]:8000/", True),
    ],
)
def test_allow_private_names_hosts_and_ports(name: str, url: str, allowed: bool) -> None:
    address = yarl.URL(url).raw_host or ""

    assert connects(AddressGuard(allow_private=[name]), url, address) is allowed


def test_the_trust_in_one_host_ends_with_the_next_request() -> None:
    guard = AddressGuard(start_origins=["localhost:8000"])
    address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 8000))

    def requests() -> None:
        admit(guard, yarl.URL("http://localhost:8000/"))
        resolve(guard, "localhost", "127.0.0.1")
        guard.socket(address).close()
        admit(guard, yarl.URL("http://other.example:8000/"))
        guard.socket(address)

    with pytest.raises(AddressRefusedError):
        Context().run(requests)


PUBLIC, PRIVATE = "1.1.1.1", "10.0.0.1"


def test_a_name_that_was_public_stays_public() -> None:
    guard = AddressGuard(start_origins=["a.example"])

    assert connects(guard, "http://a.example/", PUBLIC)
    assert not connects(guard, "http://a.example/", PRIVATE)
    assert not connects(guard, "http://a.example/", "127.0.0.1")
    assert connects(guard, "http://a.example/", PUBLIC)


def test_a_name_is_public_with_one_public_address() -> None:
    guard = AddressGuard(start_origins=["a.example"])

    resolve(guard, "a.example", PRIVATE, PUBLIC)

    assert not connects(guard, "http://a.example/", PRIVATE)


def test_what_the_user_allows_may_lead_anywhere_private_at_any_time() -> None:
    guard = AddressGuard(start_origins=["a.example"], allow_private=["a.example"])

    assert connects(guard, "http://a.example/", PUBLIC)
    assert connects(guard, "http://a.example/", PRIVATE)


def test_all_ports_that_the_user_allows_are_open() -> None:
    guard = AddressGuard(allow_private=["10.0.0.5:8080", "10.0.0.5:9200"])

    assert connects(guard, "http://10.0.0.5:8080/", "10.0.0.5")
    assert connects(guard, "http://10.0.0.5:9200/", "10.0.0.5")


@pytest.mark.parametrize("hop", [None, Hop(Attempt(request=Request("http://10.0.0.1/")))])
def test_outside_of_a_request_nothing_private_is_connected_to(hop: Hop | None) -> None:
    def check() -> None:
        if hop is not None:
            current_hop.set(hop)
        AddressGuard(allow_private=[PRIVATE]).check(PRIVATE)

    with pytest.raises(AddressRefusedError):
        Context().run(check)


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "127.1", "[::1]", "[::ffff:10.0.0.1]", "169.254.169.254", "a.localhost"]
)
@pytest.mark.parametrize("kind", ["http", "socks5", "socks5h"])
def test_no_proxy_may_be_asked_for_an_address_that_is_not_public(kind: str, host: str) -> None:
    with pytest.raises(FetchError) as caught:
        asyncio.run(
            AddressGuard().admit(yarl.URL(f"http://{host}/"), parse(f"{kind}://p.example:80"))
        )

    assert caught.value.reason is Reason.REFUSED_ADDRESS


class Started:
    """Stands for the ledger, with the hosts that `start` has yielded."""

    def __init__(self, *hosts: str, public: Iterable[str] = ()) -> None:
        self.hosts = list(hosts)
        self.public = list(public)
        self.is_away = False

    async def start_hosts(self) -> list[str]:
        if self.is_away:
            raise ConnectionError
        return self.hosts

    async def was_public(self, name: str) -> bool:
        if self.is_away:
            raise ConnectionError
        return name in self.public

    async def note_public(self, name: str) -> None:
        self.public.append(name)


def test_what_a_guard_has_learnt_counts_while_the_ledger_is_away() -> None:
    ledger = Started()
    guard = AddressGuard(start_origins=["intranet", "localhost"], public_names=ledger)
    resolve(guard, "intranet", PRIVATE)
    resolve(guard, "example.com", PUBLIC)
    ledger.is_away = True

    assert connects(guard, "http://intranet/", PRIVATE)
    assert connects(guard, "http://example.com/", PUBLIC)
    for host in (PUBLIC, "other.example", "localhost"):
        asyncio.run(guard.admit(yarl.URL(f"http://{host}/")))


def test_a_name_is_judged_when_start_has_named_it_and_not_before() -> None:
    started = Started()
    guard = AddressGuard(public_names=started)
    resolve(guard, "a.example", PRIVATE)
    started.hosts.append("a.example")
    started.public.append("a.example")

    assert not connects(guard, "http://a.example/", PRIVATE)


def test_a_private_host_that_start_has_named_is_asked_for() -> None:
    def request() -> None:
        guard = AddressGuard(public_names=Started(PRIVATE))
        admit(guard, yarl.URL(f"http://{PRIVATE}/"))
        guard.check(PRIVATE)  # an address is not looked up before

    Context().run(request)
    # By a proxy that looks its name up.
    proxy, guard = parse("http://proxy.example:80"), AddressGuard(public_names=Started("localhost"))
    asyncio.run(guard.admit(yarl.URL("http://localhost/"), proxy))


def test_of_too_many_start_names_none_is_trusted() -> None:
    names = [f"h{n}.example" for n in range(MOST_START_NAMES)]

    assert connects(AddressGuard(start_origins=names), "http://h1.example/", PRIVATE)
    guard = AddressGuard(start_origins=[*names, "one.more", "10.0.0.1"])
    assert not connects(guard, "http://h1.example/", PRIVATE)
    assert connects(guard, "http://10.0.0.1/", PRIVATE)


@pytest.mark.parametrize("port", [80, 443, 8000, 8999])
def test_the_ports_of_the_web_are_open(port: int) -> None:
    asyncio.run(AddressGuard().admit(yarl.URL(f"http://example.com:{port}/")))


@pytest.mark.parametrize("port", [1, 22, 25, 3306, 6379, 7999, 9000, 27017])
def test_other_ports_are_refused(port: int) -> None:
    """HOSTILE 5.8."""
    with pytest.raises(FetchError) as caught:
        asyncio.run(AddressGuard().admit(yarl.URL(f"http://example.com:{port}/")))

    assert caught.value.reason is Reason.REFUSED_PORT


def test_any_port_opens_all_ports_of_public_addresses_and_of_allowed_hosts() -> None:
    guard = AddressGuard(any_port=True, allow_private=["10.0.0.1", "10.0.0.2:80"])

    for port in (1, 22, 27017, 65535):
        asyncio.run(guard.admit(yarl.URL(f"http://example.com:{port}/")))
        assert connects(guard, f"http://example.com:{port}/", "93.184.215.14")
        assert connects(guard, f"http://10.0.0.1:{port}/", "10.0.0.1")
        assert not connects(guard, f"http://10.0.0.2:{port}/", "10.0.0.2")
        assert not connects(guard, f"http://example.com:{port}/", PRIVATE)


def test_the_port_of_a_start_url_is_open() -> None:
    guard = AddressGuard(start_origins=["example.com:3000"])

    asyncio.run(guard.admit(yarl.URL("http://www.example.com:3000/")))


@pytest.mark.parametrize("name", ["", "host:port", "host:99999", "[::1", "a b:c"])
def test_a_name_that_is_none_is_the_users_mistake(name: str) -> None:
    with pytest.raises(SettingsError):
        AddressGuard(allow_private=[name])
