"""Which addresses and ports a crawl may connect to.

A crawler goes where pages tell it to, and it often stands inside a network
that trusts it: a link, a redirect or a name that resolves to `127.0.0.1` must
not lead there (CWE-918). The check is made where a socket is made, after every
name look-up and before any packet: what is checked is what is connected to,
and no answer of the DNS can change in between.
"""

import errno
import ipaddress
import socket
from collections.abc import Iterable
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network

import yarl
from aiohttp.connector import AddrInfoType

from crawlcw.errors import FetchError, Reason, SettingsError

_PORTS = frozenset({80, 443, *range(8000, 9000)})
_WEB_PORTS = frozenset({80, 443})

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_IPV4_COMPATIBLE = IPv6Network("::/96")
#: Special by the IANA's registries, though `ipaddress` of some Python that we
#: run on calls them global.
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20"),
    )
)
#: Where clouds hand out credentials, outside of the link-local networks.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"),
    )
)

#: The trusted host that the request under way in this context goes to, or
#: None. aiohttp races the addresses of a name in tasks of their own, which
#: inherit the context of the request; no other request can see it.
_trusted_host: ContextVar[str | None] = ContextVar("trusted_host", default=None)


class AddressRefusedError(PermissionError):
    """The address is not public, and the host was not allowed to have such a one."""

    def __init__(self) -> None:
        # The same text for every address, so that aiohttp does not merge those
        # of one name into an OSError of no particular kind.
        super().__init__(errno.EACCES, "the host is at an address that is not public")


class AddressGuard:
    """Lets connections through to public addresses and to hosts the user has named.

    - *start_origins*: the `Location.host` of the start URLs. Each may be at a
      private address, at its own port; a name without a port means 80 and 443.
    - *allow_private*: names with a port, or without one for all usual ports.

    A name is trusted only for requests to that name: another host that
    resolves to the same address is refused. Link-local addresses and those
    where clouds keep credentials are allowed to nobody but who names the
    address itself.
    """

    def __init__(
        self, *, start_origins: Iterable[str] = (), allow_private: Iterable[str] = ()
    ) -> None:
        self._trusted: dict[str, frozenset[int]] = {}
        self._ports = _PORTS
        for name in start_origins:
            self._trust(name, ports=_WEB_PORTS)
        for name in allow_private:
            self._trust(name, ports=_PORTS)

    def admit(self, url: yarl.URL) -> None:
        """Prepare this task to connect to *url*; raises `FetchError` for a refused port.

        To be called before every request: it decides for the sockets that are
        made in the current context from now on.
        """
        port = url.port
        if port not in self._ports:
            raise FetchError(Reason.REFUSED_PORT, f"port {port} is none of the web's")
        host = url.raw_host
        trusted = port in self._trusted.get(host or "", ())
        _trusted_host.set(host if trusted else None)

    def socket(self, address: AddrInfoType) -> socket.socket:
        """Return a new socket for *address*; raises `AddressRefusedError`.

        To be used as the `socket_factory` of aiohttp's connector.
        """
        family, kind, protocol, _, place = address
        if not self._permits(str(place[0])):
            raise AddressRefusedError
        return socket.socket(family=family, type=kind, proto=protocol)

    def _permits(self, address: str) -> bool:
        if is_public(address):
            return True
        host = _trusted_host.get()
        return host is not None and (host == address or not _is_kept(address))

    def _trust(self, name: str, *, ports: frozenset[int]) -> None:
        try:
            url = yarl.URL(
                f"http://[{name}]" if name.count(":") > 1 and name[0] != "[" else f"http://{name}"
            )
            host, port = url.raw_host, url.explicit_port
        except ValueError as error:
            raise SettingsError(f"{name!r} is not a host or host:port: {error}") from None
        if not host:
            raise SettingsError(f"{name!r} is not a host or host:port")
        if port is not None:
            ports = frozenset({port})
        self._ports |= ports
        self._trusted[host] = self._trusted.get(host, frozenset()) | ports


@lru_cache(maxsize=1 << 12)
def is_public(address: str) -> bool:
    """Return whether an IP *address* belongs to the public Internet.

    An IPv6 address that stands for an IPv4 one is judged by that: a gateway
    would deliver there.
    """
    ip = _parsed(address)
    if isinstance(ip, IPv6Address) and ip not in _GLOBAL_UNICAST:
        return False
    return ip is not None and not (
        not ip.is_global
        or ip.is_multicast
        or ip.is_reserved
        or ip.is_link_local
        or any(ip.version == network.version and ip in network for network in _SPECIAL)
    )


def _is_kept(address: str) -> bool:
    """Return whether not even a trusted name may lead to *address*."""
    ip = _parsed(address)
    return ip is None or ip in _METADATA or ip.is_link_local or ip.is_multicast or ip.is_unspecified


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        return _embedded(ip) or ip
    return ip


def _embedded(ip: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets to *ip* may end up at."""
    packed = ip.packed
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip in _NAT64 or (ip in _IPV4_COMPATIBLE and int(ip) > 1):
        return IPv4Address(packed[12:])
    if ip in _NAT64_LOCAL:
        # RFC 6052, section 2.2: with a /48 the address lies around byte 8.
        return IPv4Address(packed[6:8] + packed[9:11])
    # Teredo (2001::/32) is refused as a whole, being special.
    return None
