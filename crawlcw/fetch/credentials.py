"""Secrets (headers and logins) from settings and start URLs, which only certain origins get.

An origin is scheme, host and port, so no secret goes to another host, or to `http` instead of
`https`. Each process reads the secrets from its spider and settings, and keeps them only in memory,
so no ledger, log or command line contains a secret.
"""

from base64 import b64encode
from collections.abc import Awaitable, Iterable

from crawlcw.api.attempt import Attempt, Next, copied, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.model import urls

#: Names of harmless headers, which any server may get. Any other header may be a secret, such as
#: X-API-Key.
HARMLESS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"}
)


class Credentials:
    """Layer that adds an origin's secrets to each request to that origin.

    The spider and the hooks do not see the secrets that this layer adds. If several sources set the
    same header, the layer sends the request's own header. Without such a header, it sends the
    session's header at the origins of the session's login. Otherwise it sends the header of the
    settings or of the start URL.
    """

    def __init__(
        self,
        start_urls: Iterable[str] = (),
        *,
        headers: Iterable[tuple[str, str]] = (),
        auth: tuple[str, str] | None = None,
    ) -> None:
        """Use the secrets of *start_urls*; raises `FetchError` for an invalid URL.

        *headers* and *auth* come from the settings. The origins of the start URLs get *auth* and
        all *headers*; other origins get only the harmless headers.
        """
        self._passwords: dict[str, str] = {}
        self._harmless_headers = {
            name.lower(): (name, value) for name, value in headers if name.lower() in HARMLESS
        }
        self._secret_headers = {
            name.lower(): (name, value) for name, value in headers if name.lower() not in HARMLESS
        }
        if auth is not None:
            self._secret_headers["authorization"] = ("Authorization", _basic(*auth))
        self._origins: set[str] = set()
        for url in start_urls:
            self.learn(url)

    @property
    def origins(self) -> frozenset[str]:
        """The origins of the start URLs, or no origins if the settings have no secrets."""
        return frozenset(self._origins)

    def trust(self, origins: Iterable[str]) -> None:
        """Send the secrets of the settings not only to start URLs but also to *origins*."""
        if self._secret_headers:
            self._origins.update(origins)

    def learn(self, url: str) -> bool:
        """Note the origin, user and password of a start URL; return whether the login is new.

        Later logins for the same origin are ignored. Raises `FetchError` if *url* is not a URL.
        """
        if self._secret_headers:
            self._origins.add(urls.origin_of(url))
        return self.learn_password(url)

    def learn_password(self, url: str) -> bool:
        """Remember the user and password in *url*; its origin gets no secret of the settings."""
        login = urls.userinfo(url)
        if login is None or login.origin in self._passwords:
            return False
        self._passwords[login.origin] = _basic(login.user, login.password)
        return True

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Send a request with the secrets of its URL's origin."""
        has_session_headers = bool(attempt.session and attempt.session.identity.headers)
        if not (
            self._passwords or self._secret_headers or self._harmless_headers or has_session_headers
        ):
            return call_next(attempt, request)
        return self._authorized(attempt, request, call_next)

    async def _authorized(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        origin = urls.origin_of(request.url)
        added = dict(self._harmless_headers)
        if origin in self._origins:
            added |= self._secret_headers
        if (password := self._passwords.get(origin)) is not None:
            added["authorization"] = ("Authorization", password)
        if attempt.session is not None and origin in attempt.session.identity.origins:
            added |= {
                name.lower(): (name, value) for name, value in attempt.session.identity.headers
            }
        for name, _ in request.headers:
            added.pop(name.lower(), None)
        authorized_request = (
            copied(request, more_headers=tuple(added.values())) if added else request
        )
        response = await call_next(attempt, authorized_request)
        # Return the original request, so that no secret reaches the spider or a ledger.
        return replaced(response, request=request)


def _basic(user: str, password: str) -> str:
    # UTF-8 is the usual encoding (RFC 7617, section 2.1).
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
