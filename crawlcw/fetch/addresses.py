"""Addresses and ports that a crawl may connect to (CWE-918).

A crawler often runs inside a private network. No link, redirect or DNS answer may lead a request
into the private network. The address guard checks the IP address of a connection when aiohttp makes
the socket. A later DNS answer cannot change the checked address.

The guard reads the current request from a context variable, because aiohttp passes no request.
"""

import ipaddress
import socket
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any

import yarl
from aiohttp.connector import AddrInfoType

from crawlcw.api.attempt import Attempt
from crawlcw.errors import FetchError, LedgerError, Reason, SettingsError
from crawlcw.model import urls
from crawlcw.model.proxies import Proxy, address_of, is_loopback
from crawlcw.model.sanitize import printable

if TYPE_CHECKING:
    from crawlcw.ledger.notes import Notes

_ALLOWED_PORTS = frozenset({80, 443, *range(8000, 9000)})
_WEB_PORTS = frozenset({80, 443})

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_IPV4_COMPATIBLE = IPv6Network("::/96")
#: Networks that IANA lists as special, but that some versions of `ipaddress` treat as global.
_SPECIAL_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20")
]
#: Addresses at which clouds serve credentials to machines, and which are not link-local.
_METADATA_ADDRESSES = [
    ipaddress.ip_address(address)
    for address in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
]

#: If the start URLs have more host names than this, no name may have a private address.
MOST_START_NAMES = 1_000
#: Maximum number of hosts from the spider's `start` that the ledger's notes hold.
MOST_START_ADDRESSES = 1 << 16
#: Key prefixes in the ledger's notes, for hosts that `start` yielded and for public host names.
START, _PUBLIC = "start ", "public "
#: Maximum number of host names that this process remembers as public.
_MOST_PUBLIC = 10_000
NOT_PUBLIC = "the host's address is not public"


class Stage(IntEnum):
    """Progress of a request on its way through a proxy."""

    DIALLING = 0  #: the proxy is not connected yet
    REACHED = 1  #: the proxy is connected, but has not answered yet
    GREETED = 2  #: the proxy has answered that it speaks SOCKS
    PASSED = 3  #: the proxy reports that it has reached the host, or a response has come


@dataclass(slots=True, eq=False)
class Hop:
    """The state of one request and its response, which the connector and `AddressGuard` use."""

    attempt: Attempt
    proxy: Proxy | None = None
    url: yarl.URL | None = None  #: origin of the request; None before the request starts
    stage: Stage = Stage.DIALLING


#: The request that the current asyncio task sends. aiohttp connects to the addresses of a host in
#: separate asyncio tasks, which inherit this variable.
current_hop: ContextVar[Hop] = ContextVar("current_hop")


class AddressRefusedError(PermissionError):
    """The host has a private address, and the user has not allowed this.

    The error has no text, because aiohttp joins errors with different texts to one `OSError`.
    """


class PublicNames:
    """Reads and writes notes in the ledger, so that all processes know the same host names."""

    def __init__(self, notes: "Notes", *, has_own_start: bool = False) -> None:
        """Use *notes*; *has_own_start* is true if the spider's `start` may add hosts to *notes*."""
        self._notes = notes
        self._has_own_start = has_own_start
        self._noted: set[str] = set()

    async def was_public(self, name: str) -> bool:
        """Return whether *name* ever had a public address; raises `OSError` if the ledger fails."""
        return f"{_PUBLIC}{name}" in await self._state()

    async def start_hosts(self) -> Collection[str]:
        """Return the `Location.host` of all requests that the spider's `start` has yielded.

        Raises `OSError` while the ledger is unavailable.
        """
        if not self._has_own_start:
            return ()
        state = await self._state()
        return [key.removeprefix(START) for key in state if key.startswith(START)]

    async def _state(self) -> Mapping[str, Any]:
        try:
            return await self._notes.state()
        except LedgerError as error:
            # Raise the same error as a DNS outage, so that the crawl retries the page.
            message = f"could not read the host's address from the ledger: {printable(error)}"
            raise socket.gaierror(socket.EAI_AGAIN, message) from error

    async def note_public(self, name: str) -> None:
        """Record that *name* has a public address."""
        key = f"{_PUBLIC}{name}"
        if key not in self._noted:
            # If the ledger is unavailable, the next DNS look-up of *name* writes the note.
            with suppress(LedgerError):
                await self._notes.set_state({key: True})
                self._noted.add(key)


class AddressGuard:
    """Allows connections to public addresses and to hosts that the user has named.

    - *start_origins* are the `Location.host` of the start URLs. A start URL's host may have a
      private address. If *start_origins* gives a port, only that port is allowed. Without a port,
      80 and 443 are allowed. If a start URL's host name ever had a public address, a private
      address of it is refused (see `resolved`).
    - *allow_private* names hosts that may have private addresses. A name without a port allows all
      usual ports.
    - *any_port* allows all ports of public addresses, and all ports of a name without a port in
      *allow_private*.
    - *public_names* remembers public names for other processes and later crawls. Without
      *public_names*, no other guard knows these names.

    If an allowed name has a private address, other names with that address are refused all the
    same. A URL with a host name never leads to a link-local address, or to an address at which
    clouds serve credentials. A request to such an address needs a URL that contains the address.
    """

    def __init__(
        self,
        *,
        start_origins: Iterable[str] = (),
        allow_private: Iterable[str] = (),
        any_port: bool = False,
        public_names: PublicNames | None = None,
    ) -> None:
        self._any_port = any_port
        self._trusted_ports: dict[str, frozenset[int]] = {}
        self._start_names: dict[str, frozenset[int]] = {}
        self._ports = _ALLOWED_PORTS
        self._public_names = public_names
        #: Host names, of start URLs or of other URLs, that have had a public address.
        self._public: dict[str, None] = {}
        self._private: set[str] = set()  #: start URLs' names that never had a public address
        self._trust(start_origins)
        if len(self._start_names) > MOST_START_NAMES:
            self._start_names.clear()
        usual_ports = frozenset(range(1 << 16)) if any_port else _ALLOWED_PORTS
        for name in allow_private:
            host, ports = _host_and_ports(name, usual=usual_ports)
            self._ports |= ports
            self._trusted_ports[host] = self._trusted_ports.get(host, frozenset()) | ports

    def _trust(self, start_origins: Iterable[str]) -> None:
        for name in start_origins:
            host, ports = _host_and_ports(name, usual=_WEB_PORTS)
            self._ports |= ports
            ports_by_host = self._start_names if _parsed(host) is None else self._trusted_ports
            ports_by_host[host] = ports_by_host.get(host, frozenset()) | ports

    async def _trust_start_hosts(self, public_names: PublicNames) -> None:
        """Trust the hosts of URLs that `start` has yielded, and record which hosts are public."""
        old_names = set(self._start_names)
        self._trust(await public_names.start_hosts())
        for name in self._start_names.keys() - old_names:
            if name in self._public:
                await public_names.note_public(name)

    def _is_named(self, host: str, port: int | None) -> bool:
        return any(
            port in names.get(host, ()) for names in (self._trusted_ports, self._start_names)
        )

    async def admit(self, url: yarl.URL, proxy: Proxy | None = None) -> None:
        """Check that a request, sent through *proxy*, may go to the host and port of *url*.

        The proxy itself may have any address. Raises `FetchError` if the port is refused, or if
        *proxy* would connect to a private address. If a proxy resolves names itself, the address is
        unknown, and `admit` refuses only names such as `localhost`. Raises `OSError` if the ledger
        fails.
        """
        host, port = url.raw_host or "", url.port
        has_usual_port = self._any_port or port in self._ports
        is_odd = not has_usual_port or (_is_inside(host) and not self._is_named(host, port))
        if is_odd and self._public_names is not None:
            await self._trust_start_hosts(self._public_names)
        if not (self._any_port or port in self._ports):
            raise FetchError(Reason.REFUSED_PORT, f"port {port} is not a port that web servers use")
        if proxy is None:
            return
        address = address_of(host)
        is_refused = (
            is_loopback(host) and not self._is_named(host, port)
            if address is None
            else not self._permits(str(address), url)
        )
        if is_refused:
            raise FetchError(Reason.REFUSED_ADDRESS, NOT_PUBLIC)

    def check(self, address: str) -> None:
        """Raise `AddressRefusedError` unless this request may connect to *address*."""
        hop = current_hop.get(None)
        if hop is None or hop.url is None:
            raise AddressRefusedError
        # A proxy may have any address, because the user has named the proxy.
        is_proxy = hop.proxy is not None and hop.proxy.resolves_names
        if not is_proxy and not self._permits(address, hop.url):
            raise AddressRefusedError

    def socket(self, address: AddrInfoType) -> socket.socket:
        """Return a new socket for *address*; raises `AddressRefusedError` for a refused address.

        aiohttp's connector calls this method as its `socket_factory`.
        """
        family, kind, protocol, _, sockaddr = address
        self.check(str(sockaddr[0]))
        return socket.socket(family=family, type=kind, proto=protocol)

    def _permits(self, address: str, url: yarl.URL) -> bool:
        """Return whether a request to *url* may connect to *address*."""
        if is_public(address):
            return True
        host, port = url.raw_host or "", url.port
        is_private_start = host in self._private and port in self._start_names.get(host, ())
        if not is_private_start and port not in self._trusted_ports.get(host, ()):
            return False
        return host == address or not _is_always_refused(address)

    async def resolved(self, name: str, addresses: Collection[str]) -> None:
        """Remember, between a look-up and a connection, whether *name* has a public address.

        The first DNS look-up of a start URL's name decides whether the name may have private
        addresses. Raises `OSError` while the ledger is unavailable.
        """
        public_names, has_public = self._public_names, any(map(is_public, addresses))
        must_reload = name not in self._start_names and not (has_public and name in self._public)
        if public_names is not None and must_reload:
            await self._trust_start_hosts(public_names)
        is_start = name in self._start_names
        if has_public:
            self._public[name] = None
            if len(self._public) > _MOST_PUBLIC:
                del self._public[next(iter(self._public))]
            self._private.discard(name)
            if is_start and public_names is not None:
                await public_names.note_public(name)
        elif is_start and name not in self._private:
            was_public = public_names is not None and await public_names.was_public(name)
            # Check again, because a concurrent look-up may have found a public address meanwhile.
            if not was_public and name not in self._public:
                self._private.add(name)


def _host_and_ports(name: str, *, usual: frozenset[int]) -> tuple[str, frozenset[int]]:
    netloc = f"[{name}]" if name.count(":") > 1 and name[0] != "[" else name
    try:
        host = urls.name_of(urls.locate(f"http://{netloc}/").host).strip("[]")
    except FetchError as error:
        raise SettingsError(f"{name!r} is not a host or host:port: {error.message}") from None
    port = netloc.rpartition("]")[2].partition(":")[2]
    return host, frozenset({int(port)}) if port else usual


def is_address(host: str) -> bool:
    """Return whether a `Location.host` is an IP address and not a name."""
    return _parsed(urls.name_of(host).strip("[]")) is not None


@lru_cache(maxsize=1 << 12)
def is_public(address: str) -> bool:
    """Return whether an IP *address* belongs to the public Internet.

    If an IPv6 address contains an IPv4 address, a gateway sends the packets to the IPv4 address.
    Therefore this function judges the IPv4 address.
    """
    ip = _parsed(address)
    if isinstance(ip, IPv6Address) and ip not in _GLOBAL_UNICAST:
        return False
    return ip is not None and not (
        not ip.is_global or ip.is_multicast or any(ip in network for network in _SPECIAL_NETWORKS)
    )


@lru_cache(maxsize=1 << 12)
def _is_inside(host: str) -> bool:
    """Return whether *host* is a loopback name or an IP address that is not public."""
    return is_loopback(host) or (_parsed(host) is not None and not is_public(host))


def _is_always_refused(address: str) -> bool:
    """Return whether *address* is refused even if its host name may have a private address."""
    ip = _parsed(address)
    return ip is None or ip in _METADATA_ADDRESSES or ip.is_link_local or ip.is_unspecified


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        return _embedded_ipv4(ip) or ip
    return ip


def _embedded_ipv4(ip: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address in *ip*, if a gateway would forward packets to this address."""
    packed = ip.packed
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip in _NAT64 or ip in _IPV4_COMPATIBLE:
        return IPv4Address(packed[12:])
    if ip in _NAT64_LOCAL:
        # RFC 6052, section 2.2: after a /48 prefix, byte 8 splits the IPv4 address; leave it out.
        return IPv4Address(packed[6:8] + packed[9:11])
    # All Teredo addresses (2001::/32) are refused, because this network is in `_SPECIAL_NETWORKS`.
    return None
