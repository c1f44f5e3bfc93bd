"""What is sent to certain origins only: the settings' headers and login, and start URLs' passwords.

An origin is scheme, host and port, so nothing of it goes to another host, nor from
https to http. It lives in memory only: each process takes it from its spider and
settings anew, so no ledger, log or command line has it.
"""

from base64 import b64encode
from collections.abc import Awaitable, Iterable, Sequence

from crawlcw.api.attempt import Attempt, Next, Purpose, copied, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.model import urls

#: Headers that may be told to any server. Any other may be a key: X-API-Key is as
#: secret as Authorization.
HARMLESS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"}
)


class Credentials:
    """What is to be sent besides a request's own headers to which origin."""

    def __init__(
        self,
        start_urls: Iterable[str] = (),
        *,
        headers: Iterable[tuple[str, str]] = (),
        auth: tuple[str, str] | None = None,
    ) -> None:
        """Take those of *start_urls*; raises `FetchError` for one that is no URL.

        *headers* and *auth* are the settings': the origins of the start URLs are
        told all of them, others only what is harmless.
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

    def for_request(self, request: Request) -> tuple[tuple[str, str], ...]:
        """Return the headers to send besides the request's own, for the very origin of its URL.

        What the request says itself counts; then what its start URL says.
        """
        if not (self._passwords or self._secret or self._everywhere):
            return ()
        origin = urls.origin_of(request.url)
        added = dict(self._everywhere)
        if origin in self._origins:
            added |= self._secret
        if (password := self._passwords.get(origin)) is not None:
            added["authorization"] = ("Authorization", password)
        for name, _ in request.headers:
            added.pop(name.lower(), None)
        return tuple(added.values())


class SessionHeaders:
    """The layer that adds the headers of a session, for the origins that its login asked."""

    purposes = frozenset({Purpose.PAGE})

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Ask with them; the spider and the hooks do not see them."""
        session = attempt.session
        if session is None or not session.identity.headers:
            return call_next(attempt, request)
        if urls.origin_of(request.url) not in session.identity.origins:
            return call_next(attempt, request)
        given = {name.lower() for name, _ in request.headers}
        added = [pair for pair in session.identity.headers if pair[0].lower() not in given]
        return _asked_with(attempt, request, added, call_next)


class Authorize:
    """The layer that sends each origin its credentials, whatever page has led there."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Ask with them; the spider and the hooks do not see them."""
        added = self._credentials.for_request(request)
        if not added:
            return call_next(attempt, request)
        return _asked_with(attempt, request, added, call_next)


async def _asked_with(
    attempt: Attempt, request: Request, added: Sequence[tuple[str, str]], call_next: Next
) -> Response:
    response = await call_next(attempt, copied(request, more_headers=added))
    # What the spider sees, and what is stored of it, has no secret.
    return replaced(response, request=request)


def _basic(user: str, password: str) -> str:
    # RFC 7617, section 2.1: UTF-8 where the server has not said otherwise.
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
