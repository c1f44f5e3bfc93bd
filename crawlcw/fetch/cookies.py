"""A cookie jar that returns cookies only to their own site, and a parser of `Set-Cookie`.

Cookies are parsed, kept and sent as in browsers (RFC 6265bis, section 5), with two exceptions. Each
unusual port of a server has its own cookies, and cookies that came over TLS are sent only over TLS.
A jar reports its changes, so that the crawl can store a session's cookies.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from http.cookies import CookieError, SimpleCookie
from itertools import count

import yarl
from publicsuffixlist import PublicSuffixList

from crawlcw.model.identities import Cookie

logger = logging.getLogger(__name__)

MOST_COOKIES = 3_300  #: maximum number of cookies in a jar, as in Chromium
_MOST_OF_A_DOMAIN = 180  #: maximum number of cookies of one domain, as in Chromium
#: Maximum of characters in a jar, because a session's cookies must fit in one document of a ledger.
_MOST_CHARACTERS = 2 << 20
#: Pattern for a value that needs no coding in a `Cookie` header.
_IN_ONE_COOKIE = re.compile(r"[^\x00-\x1f\x7f;]*")
#: Changes of a cookie's expiry by less than this are ignored, because they are frequent.
_MIN_EXPIRY_CHANGE = timedelta(minutes=1)

_MAX_COOKIE = 4096  #: maximum bytes of a cookie's name and value together (section 5.6)
_MAX_ATTRIBUTE = 1024  #: maximum bytes of the value of an attribute (section 5.6)
_MAX_LIFETIME = timedelta(days=400)  # section 5.5
_BLANK = " \t"
#: A header with control characters, or with bytes that are not UTF-8, sets no cookie. Browsers keep
#: such bytes, but a ledger cannot store them.
_REFUSED_CHARACTERS = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
#: Pattern for a valid Max-Age (section 5.6.2); a `-` without digits is not valid.
_MAX_AGE = re.compile(r"-?[0-9]+")
_DEFAULT_PORTS = frozenset({80, 443})

# Patterns for any token of a date, and for its time, its day and its year (section 5.1.1).
_TOKEN = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?![0-9])")
_DAY = re.compile(r"([0-9]{1,2})(?![0-9])")
_YEAR = re.compile(r"([0-9]{2,4})(?![0-9])")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


class SiteCookies:
    """A cookie jar that returns cookies only to their own site.

    - A `Domain` that is a public suffix (`co.uk`, `github.io`) or an IP address must equal the host
      that sets the cookie. Only this host then gets the cookie.
    - A port other than 80 and 443 has its own cookies.
    - A cookie that came over TLS is sent only over TLS.

    A cookie with an impossible value is dropped. No cookie of a server raises an error.
    """

    def __init__(self) -> None:
        #: Maps a digest of the fields that identify a cookie to the cookie. The cookie that a
        #: response set last is last.
        self._cookies: dict[str, Cookie] = {}
        #: Ranks of cookies: port and domain -> digest of the cookie -> rank. Older cookies have
        #: lower ranks; a cookie that is set again keeps its rank.
        self._ranks: dict[tuple[int, str], dict[str, int]] = {}
        self._rank_counter = count()
        self._size = 0  #: characters of all cookies
        #: Digests of the cookies that responses have changed since the last `take_changes`.
        self.changed: set[str] = set()

    def all(self) -> dict[str, Cookie]:
        """Return all cookies; the key is the digest of the fields that identify a cookie."""
        return dict(self._cookies)

    def take_changes(self) -> dict[str, Cookie | None]:
        """Return the cookies that have changed since the last call; a deleted cookie is None."""
        changed, self.changed = self.changed, set()
        return {cookie_key: self._cookies.get(cookie_key) for cookie_key in changed}

    def restore(self, cookies: Mapping[str, Cookie]) -> None:
        """Replace the jar's cookies by *cookies*, but keep cookies that responses have changed."""
        for cookie_key in self._cookies.keys() - cookies.keys() - self.changed:
            self._drop(cookie_key)
        for cookie_key, cookie in cookies.items():
            if cookie_key not in self.changed and self._cookies.get(cookie_key) != cookie:
                self._keep(cookie_key, cookie)

    def add(self, name: str, value: str, *, url: yarl.URL) -> None:
        """Add a cookie for the host of *url*; raises `ValueError` for an invalid cookie."""
        try:
            morsels: SimpleCookie = SimpleCookie({name: value})
        except CookieError as error:
            raise ValueError(str(error)) from None
        coded_value = value if _IN_ONE_COOKIE.fullmatch(value) else morsels[name].coded_value
        host, port, is_safe = _origin(url)
        cookie = Cookie(
            name=name,
            value=coded_value,
            domain=host,
            host_only=True,
            path="/",
            port=port,
            secure=is_safe,
        )
        self._set(cookie, now=datetime.now(UTC))

    def keep(self, headers: Iterable[str], url: yarl.URL) -> None:
        """Keep the valid cookies of *headers*, the `Set-Cookie` headers in *url*'s response."""
        now = datetime.now(UTC)
        try:
            for header in headers:
                cookie = cookie_of(header, url, now=now)
                if cookie is not None:
                    self._set(cookie, now=now)
        except Exception:
            # Only log the error, because the response is otherwise valid.
            logger.debug(
                "cannot read a cookie", exc_info=True, extra={"event": "cookies_unreadable"}
            )

    def sent_to(self, url: yarl.URL) -> list[tuple[str, str]]:
        """Return the names and values of the cookies for *url*, in the order of RFC 6265bis."""
        now, path, (host, port, is_safe) = datetime.now(UTC), url.raw_path, _origin(url)
        matches, domain = [], host
        while domain:
            for cookie_key, rank in tuple(self._ranks.get((port, domain), {}).items()):
                cookie = self._cookies[cookie_key]
                if cookie.expires is not None and cookie.expires <= now:
                    self._drop(cookie_key)
                elif (
                    (domain == host or not cookie.host_only)
                    and (is_safe or not cookie.secure)
                    # A cookie's path matches all paths below it (section 5.1.4).
                    and (
                        path == cookie.path or path.startswith(f"{cookie.path.removesuffix('/')}/")
                    )
                ):
                    matches.append((-len(cookie.path), rank, cookie.name, cookie.value))
            # Look for cookies of the host's parent domains, too.
            domain = domain.partition(".")[2]
        return [(name, value) for *_, name, value in sorted(matches)]

    def _set(self, cookie: Cookie, *, now: datetime) -> None:
        """Store a cookie that a response or the spider has set, or delete an expired cookie."""
        cookie_key = _digest(cookie)
        old_cookie = self._cookies.get(cookie_key)
        if cookie.expires is not None and cookie.expires <= now:
            if old_cookie is not None:
                self._forget(cookie_key)
            return
        if not _is_the_same(old_cookie, cookie):
            self.changed.add(cookie_key)
        self._keep(cookie_key, cookie)
        ranks_by_key = self._ranks[cookie.port, cookie.domain]
        while len(ranks_by_key) > _MOST_OF_A_DOMAIN:
            self._forget(next(iter(ranks_by_key)))
        while len(self._cookies) > MOST_COOKIES or self._size > _MOST_CHARACTERS:
            self._forget(next(iter(self._cookies)))

    def _keep(self, cookie_key: str, cookie: Cookie) -> None:
        rank = self._drop(cookie_key)
        self._cookies[cookie_key] = cookie
        ranks_by_key = self._ranks.setdefault((cookie.port, cookie.domain), {})
        ranks_by_key[cookie_key] = next(self._rank_counter) if rank is None else rank
        self._size += _size(cookie)

    def _forget(self, cookie_key: str) -> None:
        """Remove a cookie, and note the removal as a change."""
        self._drop(cookie_key)
        self.changed.add(cookie_key)

    def _drop(self, cookie_key: str) -> int | None:
        """Remove a cookie and return its rank (see `_ranks`), or None for an unknown cookie."""
        cookie = self._cookies.pop(cookie_key, None)
        if cookie is None:
            return None
        site_key = cookie.port, cookie.domain
        rank = self._ranks[site_key].pop(cookie_key)
        if not self._ranks[site_key]:
            del self._ranks[site_key]
        self._size -= _size(cookie)
        return rank


def _origin(url: yarl.URL) -> tuple[str, int, bool]:
    """Return the host of *url*, the port for the cookies of the host, and whether *url* uses TLS.

    Ports 80 and 443 count as port 0 and share cookies, because sites redirect from HTTP to HTTPS.
    """
    port = url.port or 0
    return (
        (url.raw_host or "").lower(),
        0 if port in _DEFAULT_PORTS else port,
        url.scheme == "https",
    )


def _is_the_same(old_cookie: Cookie | None, cookie: Cookie) -> bool:
    if old_cookie is None or old_cookie.expires is None or cookie.expires is None:
        return old_cookie == cookie
    is_near = abs(cookie.expires - old_cookie.expires) < _MIN_EXPIRY_CHANGE
    return is_near and replace(old_cookie, expires=cookie.expires) == cookie


def _size(cookie: Cookie) -> int:
    texts = (cookie.name, cookie.value, cookie.domain, cookie.path)
    return sum(map(len, texts))


def _digest(cookie: Cookie) -> str:
    parts = (cookie.name, cookie.domain, cookie.path, str(cookie.port))
    identity = "\0".join(parts if cookie.host_only else (*parts, "below"))
    return blake2b(identity.encode(), digest_size=10).hexdigest()


def cookie_of(header: str, url: yarl.URL, *, now: datetime) -> Cookie | None:
    """Return the cookie that *url* sets by one `Set-Cookie` header; None for an invalid header.

    If the cookie's expiry is not after *now*, the server wants to delete the cookie.
    """
    pair, _, attribute_text = header.partition(";")
    name, equals, value = (part.strip(_BLANK) for part in pair.partition("="))
    if not equals:
        name, value = "", name
    if _REFUSED_CHARACTERS.search(header) or not 0 < len((name + value).encode()) <= _MAX_COOKIE:
        return None
    attributes = _attributes(attribute_text)
    host, port, is_safe = _origin(url)
    domain = attributes.get("domain", "").removeprefix(".").lower()
    if not domain.isascii():
        try:  # Convert the domain to ASCII, as Chromium does.
            domain = yarl.URL.build(scheme="http", host=domain).raw_host or ""
        except ValueError:
            return None
    # A cookie of a public suffix or an IP address is for exactly one host. Only an IPv4 address has
    # a number after the last dot (URL Standard), and `privatesuffix` returns None for an IPv6
    # address.
    is_shared = (
        f".{host}".endswith(f".{domain}")
        and not host.rpartition(".")[2].isdigit()
        and _suffixes().privatesuffix(domain) is not None
    )
    if domain not in ("", host) and not is_shared:
        return None
    path, is_secure = attributes.get("path", ""), "secure" in attributes
    # Servers read the value of a nameless cookie as a name, so check the value for a prefix.
    effective_name = (name or value).lower()
    is_host = effective_name.startswith("__host-")
    if (
        (is_secure and not is_safe)
        or ((is_host or effective_name.startswith("__secure-")) and not (name and is_secure))
        or (is_host and (attributes.get("domain") or path != "/"))
    ):
        return None
    if not path.startswith("/"):
        # The default path is the folder of the page (section 5.1.4).
        path = url.raw_path[: url.raw_path.rfind("/")] or "/"
    return Cookie(
        name=name,
        value=value,
        domain=domain or host,
        host_only=not is_shared,
        path=path,
        port=port,
        # Send a cookie that came over TLS only over TLS; browsers are less strict.
        secure=is_safe,
        expires=_end(attributes, now=now),
    )


def _attributes(text: str) -> dict[str, str]:
    """Return a cookie's attributes by lower-case name; the last value of a repeated name counts."""
    attributes: dict[str, str] = {}
    for piece in text.split(";"):
        name, _, value = (part.strip(_BLANK) for part in piece.partition("="))
        name = name.lower()
        # An invalid Max-Age or Expires does not replace an earlier valid one.
        is_no_end = (name == "max-age" and not _MAX_AGE.fullmatch(value)) or (
            name == "expires" and cookie_date(value) is None
        )
        if len(value.encode()) <= _MAX_ATTRIBUTE and not is_no_end:
            attributes[name] = value
    return attributes


def _end(attributes: dict[str, str], *, now: datetime) -> datetime | None:
    """Return the expiry of a cookie, in whole seconds; None for a session cookie."""
    now = now.replace(microsecond=0)
    if (age_text := attributes.get("max-age")) is not None:
        seconds = min(int(age_text), int(_MAX_LIFETIME.total_seconds()))
        return now + timedelta(seconds=max(seconds, 0))
    expires_at = cookie_date(attributes.get("expires", ""))
    return None if expires_at is None else min(expires_at, now + _MAX_LIFETIME)


@lru_cache(maxsize=1 << 8)
def cookie_date(text: str) -> datetime | None:
    """Return the time in a cookie's Expires; None if the text is no date (section 5.1.1)."""
    time_parts: list[int] = []
    day = month = year = None
    for token in _TOKEN.findall(text):
        if not time_parts and (match := _TIME.match(token)):
            time_parts = list(map(int, match.groups()))
        elif day is None and (match := _DAY.match(token)):
            day = int(match[1])
        elif month is None and token[:3].lower() in _MONTHS:
            month = _MONTHS.index(token[:3].lower()) + 1
        elif year is None and (match := _YEAR.match(token)):
            year = int(match[1])
    if not time_parts or day is None or month is None or year is None:
        return None
    hour, minute, second = time_parts
    if year < 100:
        year += 1900 if year >= 70 else 2000
    if year < 1601:
        return None
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    # `PublicSuffixList` takes 0.1 s to read the list of public suffixes.
    return PublicSuffixList()
