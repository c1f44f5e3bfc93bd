"""Parse proxy URLs, show them without passwords, and find the hosts that bypass a proxy.

No I/O. `str()` and `repr()` of a proxy never show its user or password, so logs may contain both.
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv4Network, IPv6Network
from urllib.parse import quote, unquote, urlsplit

from crawlcw.errors import SettingsError

#: The schemes of proxy URLs, with their default ports.
PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
#: The value of `proxy` for a request that must not use a proxy.
DIRECT = "direct"
_FORM_HINT = (
    "write http://, https://, socks5:// or socks5h://, then host:port or user:password@host:port"
)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy server, which forwards our requests to hosts."""

    scheme: str  #: one of `PORTS`
    host: str
    port: int
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        login = "" if self.user is None else "***@"
        return f"{self.scheme}://{login}{host}:{self.port}"

    @property
    def key(self) -> str:
        """A text that identifies the proxy and its user in a session, without the password."""
        if self.user is None:
            return str(self)
        return f"{self}#{blake2b(self.user.encode(), digest_size=8).hexdigest()}"

    @property
    def url(self) -> str:
        """The proxy's URL with the password; this URL must never be displayed."""
        if self.user is None:
            return str(self)
        login = f"{quote(self.user, safe='')}:{quote(self.password or '', safe='')}@"
        return str(self).replace("***@", login, 1)

    @property
    def is_socks(self) -> bool:
        """Whether the proxy's protocol is SOCKS, not HTTP."""
        return self.scheme.startswith("socks")

    @property
    def resolves_names(self) -> bool:
        """Whether the proxy resolves host names; for `socks5`, this machine resolves them."""
        return self.scheme != "socks5"


def parse(text: object) -> Proxy:
    """Return the proxy with the URL *text*; the default scheme is `http`. Raises `SettingsError`.

    The error message never contains *text*, because *text* may contain a password.
    """
    if not isinstance(text, str) or not text.strip() or not text.strip().isprintable():
        raise SettingsError(f"it is not a proxy: {_FORM_HINT}")
    url = text.strip()
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise SettingsError(f"it is not a proxy: {_FORM_HINT}") from None
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    if scheme not in PORTS:
        raise SettingsError(f"its scheme is not one of {', '.join(PORTS)}: {_FORM_HINT}")
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise SettingsError(f"it is not a proxy: {_FORM_HINT}")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    if user is not None and (":" in user or not (user + (password or "")).isprintable()):
        raise SettingsError("its user has a colon, or its password is not one line of text")
    return Proxy(scheme, host, PORTS[scheme] if port is None else port, user, password)


@dataclass(frozen=True, slots=True)
class NoProxy:
    """Hosts of `NO_PROXY`, such as `a.com,10.0.0.0/8,b.com:80`; requests to them use no proxy."""

    names: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, text: str) -> "NoProxy":
        """Split *text*, the value of `NO_PROXY`, at commas and spaces; return the hosts."""
        names, networks = set(), []
        for entry in text.lower().replace(",", " ").split():
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                name, colon, port = entry.rpartition(":")
                exception = (name, int(port)) if colon and port.isdigit() else (entry, None)
                names.add((exception[0].removeprefix("*.").strip(".[]"), exception[1]))
        return cls(frozenset(names), tuple(networks))

    def covers(self, host: str, port: int | None) -> bool:
        """Return whether requests to a host bypass the proxy."""
        if ("*", None) in self.names:
            return True
        name = host.lower().rstrip(".")
        address = address_of(name)
        if address is not None and any(
            address.version == network.version and address in network for network in self.networks
        ):
            return True
        domains = [name]
        while address is None and "." in name:
            name = name.partition(".")[2]
            domains.append(name)
        return any(
            (domain, listed_port) in self.names
            for domain in domains
            for listed_port in (None, port)
        )


@dataclass(frozen=True, slots=True)
class ProxyEnvironment:
    """The proxies from environment variables; the variables mean the same as in curl and Scrapy."""

    by_scheme: Mapping[str, Proxy] = field(default_factory=dict)
    no_proxy: NoProxy = NoProxy()

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "ProxyEnvironment":
        """Return the values of `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`.

        A variable's name may be in upper or lower case; the lower-case variable has precedence.
        Raises `SettingsError`.
        """
        return cls(_by_scheme(variables), cls.exceptions(variables).no_proxy)

    @classmethod
    def exceptions(cls, variables: Mapping[str, str]) -> "ProxyEnvironment":
        """Return only the hosts of `no_proxy`; use this method if the settings name the proxies."""
        return cls(no_proxy=NoProxy.of(_variable(variables, "no_proxy") or ""))

    def proxy_for(self, scheme: str, host: str, port: int | None) -> Proxy | None:
        """Return the environment's proxy for requests to *host*, or None if they need no proxy."""
        if self.no_proxy.covers(host, port) or is_loopback(host):
            return None
        return self.by_scheme.get(scheme)


def _by_scheme(variables: Mapping[str, str]) -> dict[str, Proxy]:
    proxy_by_scheme: dict[str, Proxy] = {}
    general_proxy = _variable(variables, "all_proxy")
    for scheme in ("http", "https"):
        name = f"{scheme}_proxy"
        # Ignore HTTP_PROXY in a CGI process, because a client's header sets it (CVE-2016-5385).
        of_client = scheme == "http" and "REQUEST_METHOD" in variables
        text = variables.get(name) if of_client else _variable(variables, name)
        if text is None:
            text = general_proxy
        if text:
            try:
                proxy_by_scheme[scheme] = parse(text)
            except SettingsError as error:
                raise SettingsError(
                    f"the variable {name} (or all_proxy): {error}; proxy_env=false ignores it"
                ) from None
    return proxy_by_scheme


def _variable(variables: Mapping[str, str], name: str) -> str | None:
    return variables.get(name, variables.get(name.upper()))


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine: a loopback address, or `localhost` of RFC 6761."""
    name = host.lower().rstrip(".")
    address = address_of(name)
    if address is not None:
        return address.is_loopback
    return name == "localhost" or name.endswith(".localhost")


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a resolver reads in *host*, or None if *host* is a name."""
    bare_host = host.strip("[]").partition("%")[0]
    try:
        return ipaddress.ip_address(bare_host)
    except ValueError:
        pass
    try:
        # Resolvers read `127.1`, `0x7f.1` and `2130706433` as addresses.
        return ipaddress.IPv4Address(socket.inet_aton(bare_host))
    except OSError:
        return None
