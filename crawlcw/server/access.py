"""Check a request's bearer token; a server without a token checks the Host header instead.

A foreign web page in a browser on this machine can send requests to loopback. Such a page cannot
send a JSON body, because this server refuses the preflight request that the browser sends first. A
site may point its own host name at this machine (DNS rebinding). The check of the Host header
refuses the requests of such a site's pages.
"""

import hmac
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from aiohttp import web

from crawlcw.errors import CrawlcwError


class RefusedError(CrawlcwError):
    """The server refuses a request, and answers with an HTTP status and a message."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class Access:
    """Checks for each request whether the server may answer it."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def needs_token(self) -> bool:
        """Whether each request must carry the server's access token."""
        return self._token is not None

    def check(self, request: web.Request) -> None:
        """Raise `RefusedError` if the token is wrong, or if the Host header is not local."""
        if self._token is None:
            if not is_loopback(host_of(request.headers.get("Host", ""))):
                raise RefusedError(
                    403,
                    "without a token, the server accepts only requests to localhost and 127.0.0.1",
                )
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        is_equal = hmac.compare_digest(
            token.strip().encode("utf-8", "surrogateescape"), self._token
        )
        if scheme.lower() != "bearer" or not is_equal:
            raise RefusedError(
                401,
                "send the server's token in the header `Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": "Bearer"},
            )


def host_of(header: str) -> str:
    """Return the host name or address in a Host header, without the port."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.removeprefix("[").removesuffix("]").lower()


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable from this machine only."""
    address = address_of(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return *host* as an IP address; None if *host* is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
