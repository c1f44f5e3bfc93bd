"""The cookies of a crawl: none reaches another site than the one that set it.

They are parsed, kept and sent as browsers do it (RFC 6265bis, section 5), but that a server
on another port, or the same one without TLS, is another origin. A jar also tells what has
changed in it, so that a session's cookies can be kept, and takes them back.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from itertools import count

import yarl
from publicsuffixlist import PublicSuffixList

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

#: Bytes of a name and its value, and of each attribute (section 5.6).
_MAX_COOKIE = 4096
_MAX_ATTRIBUTE = 1024
_LONGEST = timedelta(days=400)  # section 5.5
_BLANK = " \t"
#: No header with one of these sets a cookie: controls, and bytes that are no UTF-8. Browsers keep
#: the latter, but no store holds them.
_REFUSED = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
#: Section 5.6.2; `-` alone is no number.
_MAX_AGE = re.compile(r"-?[0-9]+")
_DEFAULT_PORTS = frozenset({80, 443})

# Section 5.1.1: what is between the tokens of a date, and what each may be.
_TOKEN = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?![0-9])")
_DAY = re.compile(r"([0-9]{1,2})(?![0-9])")
_YEAR = re.compile(r"([0-9]{2,4})(?![0-9])")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


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
        #: What responses have changed since `take_changes`.
        self.changed: set[str] = set()

    def kept(self) -> dict[str, Cookie]:
        """Return the cookies as they are kept, by a digest of what tells each from others."""
        return dict(self._kept)

    def take_changes(self) -> dict[str, Cookie | None]:
        """Return what responses have changed since the last call; None: a cookie is gone."""
        changed, self.changed = self.changed, set()
        return {key: self._kept.get(key) for key in changed}

    def restore(self, cookies: Mapping[str, Cookie]) -> None:
        """Have the cookies that are kept elsewhere, but for what responses have changed here."""
        for key in self._kept.keys() - cookies.keys() - self.changed:
            self._drop(key)
        for key, cookie in cookies.items():
            if key not in self.changed and self._kept.get(key) != cookie:
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

    def keep(self, headers: Iterable[str], url: yarl.URL) -> None:
        """Keep what `Set-Cookie` headers of *url* say, as far as it is of use."""
        now = datetime.now(UTC)
        try:
            for header in headers:
                cookie = cookie_of(header, url, now=now)
                if cookie is not None:
                    self._set(cookie, now=now)
        except Exception:
            # The page has come all the same.
            logger.debug(
                "cookies that cannot be read", exc_info=True, extra={"event": "cookies_unreadable"}
            )

    def sent_to(self, url: yarl.URL) -> list[tuple[str, str]]:
        """Return the names and values of the cookies for *url*, in their order (section 5.8.3)."""
        now, port, path, is_safe = (
            datetime.now(UTC),
            port_of(url),
            url.raw_path,
            url.scheme == "https",
        )
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
        return [(cookie.name, cookie.coded) for *_, cookie in sorted(found, key=lambda e: e[:2])]

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
            self.changed.add(key)
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
        self.changed.add(key)

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


def cookie_of(header: str, url: yarl.URL, *, now: datetime) -> Cookie | None:
    """Return the cookie that *url* sets by one header, None where it sets none.

    One whose end is not after *now* is to be deleted.
    """
    pair, _, rest = header.partition(";")
    named = _named(pair)
    if named is None or _REFUSED.search(header):
        return None
    attributes = _attributes(rest)
    host = (url.raw_host or "").lower()
    domain = _domain(attributes, host)
    if domain is None or not _is_kept(named, attributes, url):
        return None
    name, value = named
    path = attributes.get("path", "")
    if not path.startswith("/"):
        # Section 5.1.4: the folder of the page.
        path = url.raw_path[: url.raw_path.rfind("/")] or "/"
    return Cookie(
        name=name,
        value=value,
        coded=value,
        domain=domain or host,
        host_only=not domain,
        path=path,
        port=port_of(url),
        # Stricter than browsers: what came over TLS goes back over TLS only.
        secure=url.scheme == "https",
        expires=_end(attributes, now=now),
    )


def _named(pair: str) -> tuple[str, str] | None:
    """Return the name, which may be empty, and the value; None where they are no cookie."""
    name, equals, value = (part.strip(_BLANK) for part in pair.partition("="))
    if not equals:
        name, value = "", name
    size = len((name + value).encode("utf-8", "replace"))
    return (name, value) if 0 < size <= _MAX_COOKIE else None


def _domain(attributes: dict[str, str], host: str) -> str | None:
    """Return the domain of a cookie that *host* sets, "" for that host, None for another site's.

    Of a name with many owners, and of an IP address, it is for that very host.
    """
    domain = attributes.get("domain", "").removeprefix(".").lower()
    if not domain:
        return ""
    is_whole = is_address(host) or is_public_suffix(domain)
    if domain == host:
        return "" if is_whole else domain
    return domain if host.endswith(f".{domain}") and not is_whole else None


def _is_kept(named: tuple[str, str], attributes: dict[str, str], url: yarl.URL) -> bool:
    """Return whether a cookie came as securely as it, or the prefix of its name, says."""
    name, value = (text.lower() for text in named)
    if not name and value.startswith(("__secure-", "__host-")):
        return False
    is_secure = "secure" in attributes
    if is_secure and url.scheme != "https":
        return False
    if name.startswith("__host-"):
        return is_secure and not attributes.get("domain") and attributes.get("path") == "/"
    return is_secure or not name.startswith("__secure-")


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes of a cookie by lower-case name; of two of one name the last counts."""
    found: dict[str, str] = {}
    for piece in text.split(";"):
        name, _, value = (part.strip(_BLANK) for part in piece.partition("="))
        name = name.lower()
        # An end that is none leaves the one before it.
        is_no_end = (name == "max-age" and not _MAX_AGE.fullmatch(value)) or (
            name == "expires" and cookie_date(value) is None
        )
        if len(value.encode()) <= _MAX_ATTRIBUTE and not is_no_end:
            found[name] = value
    return found


def _end(attributes: dict[str, str], *, now: datetime) -> datetime | None:
    """Return when a cookie ends, in whole seconds; None: with its session."""
    now = now.replace(microsecond=0)
    if (age := attributes.get("max-age")) is not None:
        seconds = min(int(age), int(_LONGEST.total_seconds()))
        return now + timedelta(seconds=max(seconds, 0))
    end = cookie_date(attributes.get("expires", ""))
    return None if end is None else min(end, now + _LONGEST)


@lru_cache(maxsize=1 << 8)
def cookie_date(text: str) -> datetime | None:
    """Return the time that a date of a cookie means, None for one that is none (section 5.1.1)."""
    time: list[int] = []
    day = month = year = None
    for token in _TOKEN.findall(text):
        if not time and (found := _TIME.match(token)):
            time = list(map(int, found.groups()))
        elif day is None and (found := _DAY.match(token)):
            day = int(found[1])
        elif month is None and token[:3].lower() in _MONTHS:
            month = _MONTHS.index(token[:3].lower()) + 1
        elif year is None and (found := _YEAR.match(token)):
            year = int(found[1])
    if not time or day is None or month is None or year is None:
        return None
    hour, minute, second = time
    if year < 100:
        year += 1900 if year >= 70 else 2000
    if year < 1601:
        return None
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None


def port_of(url: yarl.URL) -> int:
    """Return which cookies are for *url*: sites lead from port 80 to 443, and take them along."""
    port = url.port or 0
    return 0 if port in _DEFAULT_PORTS else port


@lru_cache(maxsize=1 << 12)
def is_address(host: str) -> bool:
    """Return whether *host* is an IP address, an IPv6 one without its brackets."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1 << 12)
def is_public_suffix(domain: str) -> bool:
    """Return whether hosts below *domain* belong to many owners; also of a name with no dot."""
    return _suffixes().privatesuffix(domain) is None


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    # Its list comes with the package: nothing is downloaded. Reading it takes 0.1 s.
    return PublicSuffixList()
