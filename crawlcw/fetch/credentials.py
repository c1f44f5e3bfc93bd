"""Secrets for certain origins only: the settings' headers and login, and start URLs' passwords.

An origin is scheme, host and port, so nothing of it goes to another host, nor from
https to http. It lives in memory only: each process takes it from its spider and
settings anew, so no ledger, log or command line has it.
"""

from base64 import b64encode
from collections.abc import Awaitable, Iterable

from crawlcw.api.attempt import Attempt, Next, copied, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.model import urls

#: Headers that may be told to any server. Any other may be a key: X-API-Key is as
#: secret as Authorization.
HARMLESS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"}
)


class Credentials:
    """The layer that sends each origin its secrets, whatever page has led there.

    The spider and the hooks do not see them. The request's own headers count first; then
    those of the session, for the origins that its login asked; then those of the start URL.
    """

    def __init__(
        self,
        start_urls: Iterable[str] = (),
        *,
        headers: Iterable[tuple[str, str]] = (),
        auth: tuple[str, str] | None = None,
    ) -> None:
        """Take those of *start_urls*; raises `FetchError` for one that is no URL.

        *headers* and *auth* are the settings': the origins of the start URLs are
        told all of them, others only the harmless ones.
        """
        self._passwords: dict[str, str] = {}
        self._everywhere = {n.lower(): (n, v) for n, v in headers if n.lower() in HARMLESS}
        self._secret = {n.lower(): (n, v) for n, v in headers if n.lower() not in HARMLESS}
        if auth is not None:
            self._secret["authorization"] = ("Authorization", _basic(*auth))
        self._origins: set[str] = set()
        for url in start_urls:
            self.learn(url)

    @property
    def origins(self) -> frozenset[str]:
        """The origins of the start URLs, where the settings have a secret for them."""
        return frozenset(self._origins)

    def trust(self, origins: Iterable[str]) -> None:
        """Take *origins* for those of start URLs."""
        if self._secret:
            self._origins.update(origins)

    def learn(self, url: str) -> bool:
        """Take the origin of a start URL, its user and its password; return whether these are new.

        Of two for one origin the first counts. Raises `FetchError` where *url* is no URL.
        """
        if self._secret:
            self._origins.add(urls.origin_of(url))
        return self.learn_password(url)

    def learn_password(self, url: str) -> bool:
        """Do the same for a URL that is none of the spider's own: no setting is meant for it."""
        found = urls.userinfo(url)
        if found is None or found.origin in self._passwords:
            return False
        self._passwords[found.origin] = _basic(found.user, found.password)
        return True

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Ask with the secrets of the very origin of the request's URL."""
        has_own = attempt.session is not None and attempt.session.identity.headers
        if not (self._passwords or self._secret or self._everywhere or has_own):
            return call_next(attempt, request)
        return self._authorized(attempt, request, call_next)

    async def _authorized(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        origin = urls.origin_of(request.url)
        added = dict(self._everywhere)
        if origin in self._origins:
            added |= self._secret
        if (password := self._passwords.get(origin)) is not None:
            added["authorization"] = ("Authorization", password)
        if attempt.session is not None and origin in attempt.session.identity.origins:
            added |= {name.lower(): (name, v) for name, v in attempt.session.identity.headers}
        for name, _ in request.headers:
            added.pop(name.lower(), None)
        sent = copied(request, more_headers=tuple(added.values())) if added else request
        response = await call_next(attempt, sent)
        # The spider sees no secret, and none is stored.
        return replaced(response, request=request)


def _basic(user: str, password: str) -> str:
    # RFC 7617, section 2.1: UTF-8 where the server has not said otherwise.
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
