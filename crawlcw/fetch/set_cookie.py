"""Parse a Set-Cookie header as browsers do (RFC 6265bis, sections 5.1.1, 5.6 and 5.7).

A cookie comes out bound to its host, its path and its end, or not at all where no site may
set it. Dates are those of section 5.1.1: no other parser takes what servers write for one.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address

import yarl
from publicsuffixlist import PublicSuffixList

from crawlcw.model.identities import Cookie

#: Bytes of a name and its value, and of each attribute (section 5.6).
_MAX_COOKIE = 4096
_MAX_ATTRIBUTE = 1024
_LONGEST = timedelta(days=400)  # section 5.5
_BLANK = " \t"
#: No header with one of these sets a cookie.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: Section 5.6.2; `-` alone is no number.
_MAX_AGE = re.compile(r"-?[0-9]+")
_DEFAULT_PORTS = frozenset({80, 443})

# Section 5.1.1: what is between the tokens of a date, and what each may be.
_TOKEN = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?![0-9])")
_DAY = re.compile(r"([0-9]{1,2})(?![0-9])")
_YEAR = re.compile(r"([0-9]{2,4})(?![0-9])")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def cookie_of(header: str, url: yarl.URL, *, now: datetime) -> Cookie | None:
    """Return the cookie that *url* sets by one header, None where it sets none.

    One whose end is not after *now* is to be deleted.
    """
    pair, _, rest = header.partition(";")
    named = _named(pair)
    # Only bytes that are no UTF-8 are left out though browsers keep them: no store holds them.
    if named is None or _CONTROLS.search(header) or not _is_unicode(header):
        return None
    attributes = _attributes(rest)
    host = (url.raw_host or "").lower()
    domain = _domain(attributes, host)
    if domain is None or not _is_kept(named, attributes, url):
        return None
    name, value = named
    path = attributes.get("path", "")
    return Cookie(
        name=name,
        value=value,
        coded=value,
        domain=domain or host,
        host_only=not domain,
        path=path if path.startswith("/") else default_path(url),
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


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


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
        if len(value.encode()) <= _MAX_ATTRIBUTE and _is_read(name, value):
            found[name] = value
    return found


def _is_read(name: str, value: str) -> bool:
    """Return whether an attribute counts: an end that is none leaves the one before it."""
    if name == "max-age":
        return _MAX_AGE.fullmatch(value) is not None
    return name != "expires" or cookie_date(value) is not None


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


def default_path(url: yarl.URL) -> str:
    """Return the path of a cookie that names none: the folder of *url* (section 5.1.4)."""
    path = url.raw_path
    return path[: path.rfind("/")] or "/"


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
