"""Who may ask the dashboard, and from which pages.

A page of another site can make a browser on this machine ask the dashboard too. Three
things stop it. The Host header must be a name of the dashboard: where a stranger's name
was made to point at this machine (DNS rebinding), it is not. The browser says where a
request comes from (Origin, Sec-Fetch-Site): another site's are refused. And what changes
something needs a header that only the dashboard's own page can know.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from aiohttp import web

from crawlcw.server.access import Access, is_loopback
from crawlcw.server.refused import RefusedError

#: What a changing request must send, see `Gate.key`.
KEY_HEADER = "X-Crawlcw-Key"
#: Where a browser says that a request comes from: the page itself, or the address bar.
_OWN_SITES = ("same-origin", "none")

#: The addresses that tell of crawls; the others are the page's own files.
_OF_CRAWLS = ("/api/", "/metrics")


class Gate:
    """The checks that every request passes first."""

    def __init__(self, *, token: str | None, hosts: Collection[str]) -> None:
        """Demand *token*, if there is one; *hosts* are names to be asked by, besides loopback."""
        self._access = Access(token)
        self._hosts = {host.lower() for host in hosts}
        #: What the page must send to change anything: of this process, and guessed by nobody.
        self.key = secrets.token_urlsafe(24)

    @property
    def needs_token(self) -> bool:
        """Whether a token is asked for."""
        return self._access.needs_token

    def check(self, request: web.Request) -> None:
        """Raise `RefusedError` where the request is not to be answered."""
        self._check_host(request.headers.get("Host", ""))
        if not request.path.startswith(_OF_CRAWLS):
            # The page itself: the same for everybody, without anything of a crawl.
            return
        _check_origin(request)
        if self.needs_token:
            self._access.check(request)
        if request.method not in ("GET", "HEAD"):
            self._check_key(request.headers.get(KEY_HEADER, ""))

    def _check_host(self, header: str) -> None:
        name = _name(header)
        if is_loopback(name) or name in self._hosts:
            return
        # An address is no name that a stranger could have made to point here.
        if self.needs_token and _is_address(name):
            return
        raise RefusedError(
            403, "the dashboard is not asked by this name: --allow-host NAME allows one more"
        )

    def _check_key(self, given: str) -> None:
        sent = given.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(sent, self.key.encode()):
            raise RefusedError(403, "the page is of an earlier dashboard: load it again")


def _check_origin(request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    if site not in _OWN_SITES or foreign:
        raise RefusedError(403, "this request comes from another site's page")


def _name(header: str) -> str:
    """Return a Host header's name or address, without its port."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return name.removeprefix("[").removesuffix("]").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
