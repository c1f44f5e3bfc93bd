"""The cookies of a crawl: none reaches another site than the one that set it.

aiohttp's jar knows paths, dates and limits. What it does not know is here: which
domains belong to many owners (https://publicsuffix.org), and that a server on
another port, or the same one without TLS, is another origin. A jar also tells what
has changed in it, so that a session's cookies can be kept, and takes them back.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import blake2b
from http.cookies import BaseCookie, CookieError, Morsel, SimpleCookie
from typing import TYPE_CHECKING

import aiohttp
import yarl
from aiohttp.abc import AbstractCookieJar
from aiohttp.helpers import is_ip_address
from publicsuffixlist import PublicSuffixList

from crawlcw.model.identities import Cookie

if TYPE_CHECKING:
    from aiohttp.typedefs import LooseCookies

logger = logging.getLogger(__name__)

#: RFC 6265bis, section 5.6: of its name and its value, and of each attribute.
_MAX_COOKIE = 4096
_MAX_ATTRIBUTE = 1024
#: Of all jars together; aiohttp's own limits are 180 a domain and 3,300 a jar.
MOST_COOKIES = 3_300
#: What the cookies of one jar may amount to: a session is one document of a ledger.
_MOST_CHARACTERS = 2 << 20
#: A value that a `Cookie` header can hold as it is: neither it nor the cookie ends in it.
_IN_ONE_COOKIE = re.compile(r"[^\x00-\x1f\x7f;]*")
_DEFAULT_PORTS = frozenset({80, 443})
#: A later end alone is no news, unless it is so much later: servers move it at each request.
_NEWS = timedelta(minutes=1)
_LONGEST = timedelta(days=400)  # RFC 6265bis, section 5.5


class SiteCookies(aiohttp.DummyCookieJar):
    """A cookie jar whose cookies go back to their own site alone.

    - `Domain` of a public suffix (`co.uk`, `github.io`), or of an IP address: the
      cookie is kept for that very host, or not at all.
    - A port that is not HTTP's or HTTPS's own has cookies of its own.
    - A cookie that came over TLS is sent over TLS only.

    What no cookie can be is left out; nothing that a server sends raises. A client
    session uses only what is here of the jar that it stands in for.
    """

    def __init__(self) -> None:
        super().__init__()
        #: By port, the one that was used longest ago first.
        self._jars: OrderedDict[int, aiohttp.CookieJar] = OrderedDict()
        #: The same cookies as they are kept, the one that was set longest ago first.
        self._kept: OrderedDict[str, Cookie] = OrderedDict()
        self._size = 0  #: characters of them
        self._changed: set[str] = set()

    @property
    def has_changed(self) -> bool:
        """Whether a response has changed cookies since `take_changes`."""
        return bool(self._changed)

    def kept(self) -> dict[str, Cookie]:
        """Return the cookies as they are kept, by a digest of what tells each from others."""
        return dict(self._kept)

    def take_changes(self) -> dict[str, Cookie | None]:
        """Return what responses have changed since the last call; None: a cookie is gone."""
        changed, self._changed = self._changed, set()
        return {key: self._kept.get(key) for key in changed}

    def restore(self, cookies: Mapping[str, Cookie]) -> None:
        """Have the cookies that are kept elsewhere, but for what responses have changed here."""
        for key in self._kept.keys() - cookies.keys() - self._changed:
            self._put(self._kept.pop(key), gone=True)
        for key, cookie in cookies.items():
            if key not in self._changed and self._kept.get(key) != cookie:
                self._kept[key] = cookie
                self._put(cookie)
        self._size = sum(map(_size, self._kept.values()))

    def add(self, name: str, value: str, *, url: yarl.URL) -> None:
        """Have a cookie for the host of *url*; raises `ValueError` where it cannot be one."""
        try:
            made: SimpleCookie = SimpleCookie({name: value})
        except CookieError as error:
            raise ValueError(str(error)) from None
        if _IN_ONE_COOKIE.fullmatch(value):
            _set(made[name], name=name, value=value)
        made[name]["path"] = "/"
        self.update_cookies([(name, made[name])], url)

    def _put(self, cookie: Cookie, *, gone: bool = False) -> None:
        """Give aiohttp's jar a cookie that was checked when it came, or take one away."""
        morsel = _morsel(cookie, now=datetime.now(UTC), gone=gone)
        scheme = "https" if cookie.secure else "http"
        origin = yarl.URL.build(scheme=scheme, host=cookie.domain, path="/")
        if morsel is not None:
            self._jar_of(cookie.port).update_cookies([(cookie.name, morsel)], origin)

    def _note(self, morsel: "Morsel[str]", url: yarl.URL) -> None:
        """Note how a cookie that *url* has set is kept."""
        now = datetime.now(UTC)
        cookie = _cookie(morsel, url, now=now)
        if cookie is None:
            return
        key = _digest(cookie)
        known = self._kept.pop(key, None)
        if cookie.expires is not None and cookie.expires <= now:
            if known is not None:
                self._size -= _size(known)
                self._changed.add(key)
            return
        if not _is_the_same(known, cookie):
            self._changed.add(key)
        self._kept[key] = cookie
        self._size += _size(cookie) - (0 if known is None else _size(known))
        while len(self._kept) > MOST_COOKIES or self._size > _MOST_CHARACTERS:
            oldest, forgotten = self._kept.popitem(last=False)
            self._size -= _size(forgotten)
            self._changed.add(oldest)

    def __len__(self) -> int:
        return sum(map(len, self._jars.values()))

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: yarl.URL) -> None:
        """Keep what `Set-Cookie` headers say, as far as it is of use."""
        try:
            # Not the one in between, which reads nothing.
            AbstractCookieJar.update_cookies_from_headers(self, headers, response_url)
        except Exception:
            # The page has come all the same.
            logger.debug(
                "cookies that cannot be read", exc_info=True, extra={"event": "cookies_unreadable"}
            )

    def update_cookies(self, cookies: "LooseCookies", response_url: yarl.URL | None = None) -> None:
        """Keep *cookies* that *response_url* has set."""
        if response_url is None or not isinstance(cookies, Sequence):
            return  # only those of a response are kept, and they come as a sequence
        kept = [
            (name, cookie)
            for name, cookie in cookies
            if isinstance(cookie, Morsel) and _fits(cookie) and _narrow(cookie, response_url)
        ]
        for name, cookie in kept:
            # A server gets back what it has set, to the letter (RFC 6265, section 5.4).
            _set(cookie, name=name, value=cookie.coded_value)
        if kept:
            self._jar(response_url).update_cookies(kept, response_url)
            for _, cookie in kept:
                self._note(cookie, response_url)
            while len(self) > MOST_COOKIES and len(self._jars) > 1:
                self._jars.popitem(last=False)

    def filter_cookies(self, request_url: yarl.URL) -> "BaseCookie[str]":
        """Return the cookies to send to *request_url*."""
        if _port(request_url) not in self._jars:
            return BaseCookie()
        return self._jar(request_url).filter_cookies(request_url)

    def _jar(self, url: yarl.URL) -> aiohttp.CookieJar:
        return self._jar_of(_port(url))

    def _jar_of(self, port: int) -> aiohttp.CookieJar:
        if port not in self._jars:
            # Those of IP addresses too: `_narrow` keeps them at their own host.
            self._jars[port] = aiohttp.CookieJar(unsafe=True, quote_cookie=False)
        self._jars.move_to_end(port)
        return self._jars[port]


def _port(url: yarl.URL) -> int:
    """Return which cookies are for *url*: sites lead from port 80 to 443, and take them along."""
    port = url.port or 0
    return 0 if port in _DEFAULT_PORTS else port


def _fits(cookie: "Morsel[str]") -> bool:
    return len(cookie.key) + len(cookie.value) <= _MAX_COOKIE and all(
        len(value) <= _MAX_ATTRIBUTE for value in cookie.values() if isinstance(value, str)
    )


def _narrow(cookie: "Morsel[str]", url: yarl.URL) -> bool:
    """Bind a cookie of *url* to as few servers as it may have; return whether it is kept."""
    host = (url.raw_host or "").lower()
    domain = cookie["domain"].lower().lstrip(".")
    cookie["domain"] = domain
    if domain and (is_ip_address(host) or is_public_suffix(domain)):
        # RFC 6265, sections 5.1.3 and 5.3: of that very host, or refused.
        if domain != host:
            return False
        cookie["domain"] = ""
    if url.scheme == "https":
        cookie["secure"] = True
    return True


def _cookie(morsel: "Morsel[str]", url: yarl.URL, *, now: datetime) -> Cookie | None:
    """Return how a cookie of *url* is kept, None for one that no store can hold."""
    host = (url.raw_host or "").lower()
    domain = morsel["domain"]
    if domain and host != domain and not host.endswith(f".{domain}"):
        return None  # nor does aiohttp's jar keep it
    path = morsel["path"]
    if not path.startswith("/"):
        path = url.path[: url.path.rfind("/")] or "/"
    texts = (morsel.key, morsel.value, morsel.coded_value, domain, path)
    if not all(_is_text(text) for text in texts):
        return None
    return Cookie(
        name=morsel.key,
        value=morsel.value,
        coded=morsel.coded_value,
        domain=domain or host,
        host_only=not domain,
        path=path,
        port=_port(url),
        secure=bool(morsel["secure"]),
        expires=_end(morsel, now=now),
    )


def _is_text(text: str) -> bool:
    # A lone surrogate has no place in UTF-8.
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _end(morsel: "Morsel[str]", *, now: datetime) -> datetime | None:
    """Return when a cookie ends, in whole seconds; None: with its session."""
    now = now.replace(microsecond=0)
    with suppress(ValueError):
        if morsel["max-age"]:
            seconds = min(int(morsel["max-age"]), int(_LONGEST.total_seconds()))
            return now + timedelta(seconds=max(seconds, 0))
    try:
        end = parsedate_to_datetime(morsel["expires"])
        return min(end.replace(tzinfo=end.tzinfo or UTC).astimezone(UTC), now + _LONGEST)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_the_same(known: Cookie | None, cookie: Cookie) -> bool:
    if known is None or replace(known, expires=None) != replace(cookie, expires=None):
        return False
    if known.expires is None or cookie.expires is None:
        return known.expires == cookie.expires
    return abs(cookie.expires - known.expires) < _NEWS


def _size(cookie: Cookie) -> int:
    texts = (cookie.name, cookie.value, cookie.coded, cookie.domain, cookie.path)
    return sum(map(len, texts))


def _digest(cookie: Cookie) -> str:
    told = "\0".join((cookie.name, cookie.domain, cookie.path, str(cookie.port)))
    return blake2b(told.encode(), digest_size=10).hexdigest()


def _set(morsel: "Morsel[str]", *, name: str, value: str) -> None:
    """Give a cookie a value that is sent as it is."""
    # `set` refuses names that servers use.
    morsel.__setstate__({"key": name, "value": value, "coded_value": value})  # type: ignore[attr-defined]


def _morsel(cookie: Cookie, *, now: datetime, gone: bool) -> "Morsel[str] | None":
    """Return a cookie as aiohttp takes it, None for one that Python refuses."""
    morsel: Morsel[str] = Morsel()
    try:
        _set(morsel, name=cookie.name, value=cookie.coded)
    except (CookieError, ValueError):
        return None
    morsel["path"] = cookie.path
    morsel["secure"] = cookie.secure
    morsel["domain"] = "" if cookie.host_only else cookie.domain
    if gone:
        morsel["max-age"] = "0"
    elif cookie.expires is not None:
        morsel["max-age"] = str(max(0, int((cookie.expires - now).total_seconds())))
    return morsel


@lru_cache(maxsize=1 << 12)
def is_public_suffix(domain: str) -> bool:
    """Return whether hosts below *domain* belong to many owners; also of a name with no dot."""
    return _suffixes().privatesuffix(domain) is None


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    # Its list comes with the package: nothing is downloaded. Reading it takes 0.1 s.
    return PublicSuffixList()
