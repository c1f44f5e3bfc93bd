"""Control access to the dashboard by token, host name and origin.

A page of another site can make a browser on this machine send requests to the dashboard. Three
checks stop such requests. The Host header must be a known name, so the dashboard refuses a foreign
name that points to this machine (DNS rebinding). The browser's headers Origin and Sec-Fetch-Site
must not name another site. A request that changes data must carry a key that only the dashboard's
own page knows.
"""

import hmac
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from aiohttp import web

from crawlcw.server.access import Access, RefusedError, address_of, host_of, is_loopback

#: Name of the HTTP header for the key of POST requests, see `Gate.key`.
KEY_HEADER = "X-Crawlcw-Key"
#: Accepted values of Sec-Fetch-Site; browsers send `none` if the user has typed the address.
_ALLOWED_SITES = ("same-origin", "none")

#: Paths with data of crawls; all other paths are files of the dashboard's page.
_PROTECTED_PATHS = ("/api/", "/metrics")


class Gate:
    """Checks each request before a handler gets the request."""

    def __init__(self, *, token: str | None, hosts: Collection[str]) -> None:
        """Require *token* unless *token* is None; accept *hosts* and loopback as host names."""
        self._access = Access(token)
        self._hosts = {host.lower() for host in hosts}
        #: Random key of this process, which POST requests must carry.
        self.key = secrets.token_urlsafe(24)

    @property
    def needs_token(self) -> bool:
        """Whether requests must carry a token."""
        return self._access.needs_token

    def check(self, request: web.Request) -> None:
        """Raise `RefusedError` if the dashboard must not answer the request."""
        self._check_host(request.headers.get("Host", ""))
        if not request.path.startswith(_PROTECTED_PATHS):
            # The page's own files hold no data of crawls.
            return
        _check_origin(request)
        if self.needs_token:
            self._access.check(request)
        if request.method not in ("GET", "HEAD"):
            key = request.headers.get(KEY_HEADER, "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(key, self.key.encode()):
                raise RefusedError(
                    403, "the page is from an earlier dashboard process: load it again"
                )

    def _check_host(self, header: str) -> None:
        name = host_of(header)
        if is_loopback(name) or name in self._hosts:
            return
        # Accept an IP address, because DNS rebinding needs a host name.
        if self.needs_token and address_of(name) is not None:
            return
        raise RefusedError(
            403, "the dashboard does not accept this host name: --allow-host NAME adds one"
        )


def _check_origin(request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    if site not in _ALLOWED_SITES or foreign:
        raise RefusedError(403, "this request comes from another site's page")
