"""The cookies of a crawl: none reaches another site than the one that set it.

They are kept and sent as browsers do it (RFC 6265bis, sections 5.7 and 5.8), but that a
server on another port, or the same one without TLS, is another origin. A jar also tells what
has changed in it, so that a session's cookies can be kept, and takes them back.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from http.cookies import BaseCookie, CookieError, Morsel, SimpleCookie
from itertools import count

import yarl

from crawlcw.fetch.set_cookie import cookie_of, is_address, port_of
from crawlcw.model.identities import Cookie

logger = logging.getLogger(__name__)

#: Of a whole jar, and of one domain in it, as Chromium has them.
MOST_COOKIES = 3_300
_MOST_OF_A_DOMAIN = 180
#: What the cookies of one jar may amount to: a session is one document of a ledger.
_MOST_CHARACTERS = 2 << 20
#: A value that a `Cookie` header can hold as it is: neither it nor the cookie ends in it.
_IN_ONE_COOKIE = re.compile(r"[^\x00-\x1f\x7f;]*")
#: A later end alone is no news, unless it is so much later: servers move it at each request.
_NEWS = timedelta(minutes=1)


class SiteCookies:
    """A cookie jar whose cookies go back to their own site alone.

    - `Domain` of a public suffix (`co.uk`, `github.io`), or of an IP address: the
      cookie is kept for that very host, or not at all.
    - A port that is not HTTP's or HTTPS's own has cookies of its own.
    - A cookie that came over TLS is sent over TLS only.

    What no cookie can be is left out; nothing that a server sends raises.
    """

    def __init__(self) -> None:
        #: By a digest of what tells each from others, the one that was set longest ago first.
        self._kept: OrderedDict[str, Cookie] = OrderedDict()
        #: Which of two was there first: one that is set anew keeps its place.
        self._order: dict[str, int] = {}
        self._next = count()
        #: The digests of those of one port and domain, as `_kept` has them.
        self._places: dict[tuple[int, str], dict[str, None]] = {}
        self._size = 0  #: characters of all
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
            self._drop(key)
        for key, cookie in cookies.items():
            if key not in self._changed and self._kept.get(key) != cookie:
                self._keep(key, cookie)

    def add(self, name: str, value: str, *, url: yarl.URL) -> None:
        """Have a cookie for the host of *url*; raises `ValueError` where it cannot be one."""
        try:
            made: SimpleCookie = SimpleCookie({name: value})
        except CookieError as error:
            raise ValueError(str(error)) from None
        sent = value if _IN_ONE_COOKIE.fullmatch(value) else made[name].coded_value
        cookie = Cookie(
            name=name,
            value=sent,
            coded=sent,
            domain=(url.raw_host or "").lower(),
            host_only=True,
            path="/",
            port=port_of(url),
            secure=url.scheme == "https",
        )
        self._set(cookie, now=datetime.now(UTC))

    def __len__(self) -> int:
        return len(self._kept)

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: yarl.URL) -> None:
        """Keep what `Set-Cookie` headers say, as far as it is of use."""
        now = datetime.now(UTC)
        try:
            for header in headers:
                cookie = cookie_of(header, response_url, now=now)
                if cookie is not None:
                    self._set(cookie, now=now)
        except Exception:
            # The page has come all the same.
            logger.debug(
                "cookies that cannot be read", exc_info=True, extra={"event": "cookies_unreadable"}
            )

    def filter_cookies(self, request_url: yarl.URL) -> "BaseCookie[str]":
        """Return the cookies to send to *request_url*, in their order (section 5.8.3).

        Of some with one name the later ones stand under other keys.
        """
        found: BaseCookie[str] = BaseCookie()
        for cookie in self._sent(request_url, now=datetime.now(UTC)):
            key = cookie.name
            key = key if key not in found else f"{key};{len(found)}"
            found[key] = _morsel(cookie.name, cookie.coded)
        return found

    def _sent(self, url: yarl.URL, *, now: datetime) -> list[Cookie]:
        port, path, is_safe = port_of(url), url.raw_path, url.scheme == "https"
        host = (url.raw_host or "").lower()
        found = []
        for domain in _domains(host):
            for key in tuple(self._places.get((port, domain), ())):
                cookie = self._kept[key]
                if cookie.expires is not None and cookie.expires <= now:
                    self._drop(key)
                elif (
                    (domain == host or not cookie.host_only)
                    and (is_safe or not cookie.secure)
                    and _is_below(path, cookie.path)
                ):
                    found.append((-len(cookie.path), self._order[key], cookie))
        return [cookie for *_, cookie in sorted(found, key=lambda each: each[:2])]

    def _set(self, cookie: Cookie, *, now: datetime) -> None:
        """Keep a cookie that a response, or the spider, has set, or delete it."""
        key = _digest(cookie, host_only=cookie.host_only)
        known = self._kept.get(key)
        if not cookie.host_only:
            # A session of an older crawlcw has it under the digest of a host's own cookie.
            other = _digest(cookie, host_only=True)
            if other in self._kept and not self._kept[other].host_only:
                self._forget(other)
        if cookie.expires is not None and cookie.expires <= now:
            if known is not None:
                self._forget(key)
            return
        if not _is_the_same(known, cookie):
            self._changed.add(key)
        self._keep(key, cookie)
        place = self._places[cookie.port, cookie.domain]
        while len(place) > _MOST_OF_A_DOMAIN:
            self._forget(next(iter(place)))
        while len(self._kept) > MOST_COOKIES or self._size > _MOST_CHARACTERS:
            self._forget(next(iter(self._kept)))

    def _keep(self, key: str, cookie: Cookie) -> None:
        order = self._order.get(key)
        self._drop(key)
        self._kept[key] = cookie
        self._order[key] = next(self._next) if order is None else order
        self._places.setdefault((cookie.port, cookie.domain), {})[key] = None
        self._size += _size(cookie)

    def _forget(self, key: str) -> None:
        """Take away a cookie, which is news."""
        self._drop(key)
        self._changed.add(key)

    def _drop(self, key: str) -> None:
        cookie = self._kept.pop(key, None)
        if cookie is None:
            return
        del self._order[key]
        place = self._places[cookie.port, cookie.domain]
        del place[key]
        if not place:
            del self._places[cookie.port, cookie.domain]
        self._size -= _size(cookie)


@lru_cache(maxsize=1 << 12)
def _morsel(name: str, value: str) -> "Morsel[str]":
    morsel: Morsel[str] = Morsel()
    # A server gets back what it has set, to the letter: `set` refuses names that are used.
    morsel.__setstate__({"key": name, "value": value, "coded_value": value})  # type: ignore[attr-defined]
    return morsel


def _domains(host: str) -> Iterator[str]:
    """Yield a host, and the names that it is below of, whose cookies it may have."""
    yield host
    if not is_address(host):
        while host := host.partition(".")[2]:
            yield host


def _is_below(path: str, folder: str) -> bool:
    """Return whether a cookie for *folder* is sent to *path* (section 5.1.4)."""
    if not path.startswith(folder):
        return False
    return folder.endswith("/") or path[len(folder) : len(folder) + 1] in ("", "/")


def _is_the_same(known: Cookie | None, cookie: Cookie) -> bool:
    if known is None or known != replace(cookie, expires=known.expires):
        return False
    if known.expires is None or cookie.expires is None:
        return known.expires == cookie.expires
    return abs(cookie.expires - known.expires) < _NEWS


def _size(cookie: Cookie) -> int:
    texts = (cookie.name, cookie.value, cookie.coded, cookie.domain, cookie.path)
    return sum(map(len, texts))


def _digest(cookie: Cookie, *, host_only: bool) -> str:
    of = (cookie.name, cookie.domain, cookie.path, str(cookie.port))
    told = "\0".join(of if host_only else (*of, "below"))
    return blake2b(told.encode(), digest_size=10).hexdigest()
