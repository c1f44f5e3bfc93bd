"""Which cookies one attempt sends and keeps: those of its session, and those of its request.

All attempts share one client, and its connections; whose cookies an exchange has
is told by the context that it runs in.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http.cookies import BaseCookie
from typing import Protocol

import aiohttp
import yarl

from crawlcw.model import urls


class Jar(Protocol):
    """The cookies of one session, see `cookies.SiteCookies`."""

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: yarl.URL) -> None:
        """Keep what `Set-Cookie` headers say."""

    def filter_cookies(self, request_url: yarl.URL) -> "BaseCookie[str]":
        """Return the cookies to send to *request_url*."""


@dataclass(frozen=True, slots=True)
class _Cookies:
    jar: Jar | None  #: of the session; None: nothing is kept
    own: Mapping[str, str]  #: of the request itself
    origin: str  #: the only one that these are sent to
    session: str  #: whose jar it is, by name; "" where it is nobody's


_cookies: ContextVar[_Cookies | None] = ContextVar("cookies", default=None)


@contextmanager
def cookies_of(
    jar: Jar | None, own: Mapping[str, str], *, url: str, session: str = ""
) -> Iterator[None]:
    """Let exchanges in the block have *jar*, and *own* where they go to the origin of *url*.

    *session* is the name of the session that the jar is of.
    """
    token = _cookies.set(_Cookies(jar, own, urls.origin_of(url), session))
    try:
        yield
    finally:
        _cookies.reset(token)


def has_cookies() -> bool:
    """Return whether this exchange has a session's jar, or cookies of its request."""
    cookies = _cookies.get()
    return cookies is not None and (cookies.jar is not None or bool(cookies.own))


def session_name() -> str:
    """Return the name of the session that this exchange is one of; "" where it is of none."""
    cookies = _cookies.get()
    return "" if cookies is None else cookies.session


class AttemptCookies(aiohttp.DummyCookieJar):
    """The jar of a client: that of the attempt, or the one that it was given for all others."""

    def __init__(self, otherwise: Jar | None = None) -> None:
        super().__init__()
        self._otherwise = otherwise

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: yarl.URL) -> None:
        """Keep what `Set-Cookie` headers say, where there is a session."""
        cookies = _cookies.get()
        jar = self._otherwise if cookies is None else cookies.jar
        if jar is not None:
            jar.update_cookies_from_headers(headers, response_url)

    def filter_cookies(self, request_url: yarl.URL) -> "BaseCookie[str]":
        """Return the cookies to send to *request_url*; of some of one name the request's own."""
        cookies = _cookies.get()
        jar = self._otherwise if cookies is None else cookies.jar
        found: BaseCookie[str] = BaseCookie() if jar is None else jar.filter_cookies(request_url)
        if cookies is None or not cookies.own or str(request_url.origin()) != cookies.origin:
            return found
        for key in [key for key, morsel in found.items() if morsel.key in cookies.own]:
            del found[key]
        for name, value in cookies.own.items():
            found[name] = value
        return found
