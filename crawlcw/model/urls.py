"""What a URL is to crawlcw: the one it resolves to, its identity, its host, its scope.

yarl is the only parser: two parsers that disagree about the host of a link are
a hole. Only a path of plain names is joined as text, on an origin that yarl has
parsed and left as it is. Every function here takes crawled text and raises `FetchError` with one
of the `url-*` and `refused-*` reasons for what is not a URL we would fetch.
"""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address
from urllib.parse import quote

import yarl

from crawlcw.errors import FetchError, Reason
from crawlcw.model.sanitize import redacted

#: What everybody should take (RFC 9110, section 4.1), for the sake of the parser.
#: How long the links of a crawl may be is a setting, see `traps`.
MAX_LENGTH = 8000
#: Longer URLs are seldom met twice, and would make the caches large.
LONGEST_CACHED = 2000
#: RFC 1035, section 2.3.4, and the dot of the root.
_LONGEST_HOST = 254
_SCHEMES = ("http", "https")
#: The WHATWG URL standard's forbidden domain code points.
_NOT_IN_HOSTS = re.compile(r"[\x00-\x20\x7f#%/:<>?@\[\\\]^`{|}]")
#: By the same standard such a host is an IPv4 address, or none.
_ENDS_IN_A_NUMBER = re.compile(r"(?:\A|\.)(?:[0-9]+|0[xX][0-9a-fA-F]*)\Z")
#: As everybody writes them: four numbers below 256, without leading zeros.
_IPV4 = re.compile(
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}\Z", re.ASCII
)
_CONTROLS_AND_SPACE = "".join(map(chr, range(33)))
#: Names and slashes, and nothing that any standard encodes, decodes or takes away.
_NAME = r"[A-Za-z0-9_~-][A-Za-z0-9_~.-]*"
#: The relative links of most sites: from the root, or some folders up, and then down by names.
_PLAIN_LINK = re.compile(rf"(/|(?:\.\./)*)((?:{_NAME}/)*(?:{_NAME})?)")
_PLAIN_URL = re.compile(rf"(https?://[a-z0-9.:-]+)/(?:{_NAME}/)*(?:{_NAME})?")
_PLAIN_PATH = re.compile(rf"/(?:{_NAME}/)*")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
#: What names the host of a link, its backslashes read as slashes; none where it names none.
_AUTHORITY = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/{2,}[^/]*/?")
#: By the WHATWG URL standard more than two are two.
_SLASHES = re.compile(r"\A((?:https?:)?//)/+", re.IGNORECASE)
#: By the WHATWG encoding standard, UTF-16 is written as UTF-8 where something is sent.
_SENT_AS_UTF8 = ("utf-8", "utf-16-le", "utf-16-be")


@dataclass(frozen=True, slots=True)
class Location:
    """A URL that can be fetched."""

    url: str  #: absolute, as discovered, without userinfo and fragment
    canonical: str  #: its identity: two spellings of one resource have one of these
    host: str  #: the politeness key: `example.com`, or `example.com:8080` off the default port


@dataclass(frozen=True, slots=True)
class Userinfo:
    """The user and the password that stand in a URL, and the origin that they are for."""

    origin: str  #: as `origin_of` returns it
    user: str
    password: str


def locate(url: str) -> Location:
    """Return where an absolute *url* leads.

    The canonical form follows RFC 3986 section 6.2 (case, percent-encoding,
    dot segments, default port) and sorts the query's parameters, as Scrapy's
    fingerprint does. Raises `FetchError`.
    """
    return _locate(url) if len(url) <= LONGEST_CACHED else _locate.__wrapped__(url)


@lru_cache(maxsize=1 << 14)
def _locate(url: str) -> Location:
    return _plainly_located(url) or _location(_parsed_whole(url))


def _plainly_located(url: str) -> Location | None:
    """Return where a URL leads whose path needs no parser, on an origin that needs none either."""
    found = _PLAIN_URL.fullmatch(url) if len(url) <= LONGEST_CACHED else None
    place = None if found is None else _plain_folder(f"{found[1]}/")
    return None if place is None else Location(url, url, place[2])


def _location(parsed: yarl.URL) -> Location:
    query = parsed.raw_query_string
    if "&" in query:
        query = "&".join(sorted(query.split("&")))
    origin = f"{parsed.scheme}://{parsed.host_port_subcomponent}"
    canonical = f"{origin}{parsed.raw_path}?{query}" if query else origin + parsed.raw_path
    # Percent-encoding makes it longer, and what is stored is located again.
    url = _bounded(str(parsed))
    # Most are their own identity: thousands are kept, so not twice.
    return Location(url, url if canonical == url else canonical, host_of(parsed))


def parse(url: str) -> yarl.URL:
    """Return an absolute http(s) *url* without userinfo and fragment; raises `FetchError`."""
    if _plainly_located(url) is not None:
        return yarl.URL(url, encoded=True)
    return _parsed_whole(url)


def _parsed_whole(url: str) -> yarl.URL:
    text = _referred(url)
    return _checked(_parsed(text), text)


def userinfo(url: str) -> Userinfo | None:
    """Return the user and the password of an absolute *url*, None without; raises `FetchError`."""
    if "@" not in url:
        return None
    text = _referred(url)
    parsed = _parsed(text)
    origin = str(_checked(parsed, text).origin())
    if parsed.raw_user is None and parsed.raw_password is None:
        return None
    return Userinfo(origin, user=parsed.user or "", password=parsed.password or "")


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL that was located."""
    return str(yarl.URL(url).origin())


def resolve(base: str, href: str, *, encoding: str = "utf-8") -> str:
    """Return the absolute URL that *href* means on the page *base*; raises `FetchError`.

    *encoding* is Python's name of the page's encoding, see `resolver`.
    """
    return resolver(base, encoding=encoding)(href).url


def resolved(base: str, href: str) -> Location:
    """Return where *href* leads on the page *base*, as `locate` does; raises `FetchError`."""
    return resolver(base)(href)


def resolver(base: str, *, encoding: str = "utf-8") -> Callable[[str], Location]:
    """Return what `resolved` is for the many links of one page.

    What is not ASCII in a query is sent in the *encoding* of the page, by Python's name of it,
    as the WHATWG URL standard has it; in a path it is UTF-8 always.
    """
    # Only the folder of the base matters for most, and the pages of a folder share most of
    # their links: this is what makes the cache worth having. Nor is yarl given the last
    # segment to take away: it would decode all others.
    folder = _folder(base) if len(base) <= LONGEST_CACHED else _folder.__wrapped__(base)

    def resolve_on_page(href: str) -> Location:
        # The fragment names a place on a page, not a page (RFC 3986, section 3.5).
        target = href.partition("#")[0]
        if target[:1] <= " ":
            target = _stripped(target)
        of = base if target[:1] in ("", "?") else folder
        if len(base) + len(target) <= LONGEST_CACHED:
            return _resolve_in(of, target)
        return _resolve_in.__wrapped__(of, target)

    if encoding in _SENT_AS_UTF8:
        return resolve_on_page

    def resolve_in_encoding(href: str) -> Location:
        return resolve_on_page(href if href.isascii() else _with_query_in(encoding, href))

    return resolve_in_encoding


def _with_query_in(encoding: str, href: str) -> str:
    """Return *href* without its fragment, what is not ASCII in its query percent-encoded."""
    path, mark, query = href.partition("#")[0].partition("?")
    # What the encoding lacks becomes `&#26085;`, which is percent-encoded likewise.
    encoded = _NOT_ASCII.sub(
        lambda run: quote(run[0].encode(encoding, "xmlcharrefreplace"), safe=""), query
    )
    return f"{path}{mark}{encoded}"


@lru_cache(maxsize=1 << 15)
def _resolve_in(folder: str, href: str) -> Location:
    return _plainly_resolved(folder, href) or _plainly_located(href) or _parsed_in(folder, href)


def _plainly_resolved(folder: str, href: str) -> Location | None:
    """Return where a link leads that is joined to its folder as text, None for any other."""
    if not href or len(folder) + len(href) > LONGEST_CACHED:
        return None
    found = _PLAIN_LINK.fullmatch(href)
    place = None if found is None else _plain_folder(folder)
    if found is None or place is None:
        return None
    origin, path, host = place
    up, down = found.groups()
    if up == "/":
        path = up
    elif up:
        above = path.split("/")[1:-1]
        above = above[: max(0, len(above) - len(up) // len("../"))]
        path = "/".join(("", *above, ""))
    url = f"{origin}{path}{down}"
    return Location(url, url, host)


@lru_cache(maxsize=1 << 10)
def _plain_folder(folder: str) -> tuple[str, str, str] | None:
    """Return the origin, path and host of a folder whose links can be joined as text, else None."""
    try:
        location = _location(_parsed_whole(folder))
    except FetchError:
        return None
    origin = "/".join(folder.split("/", 3)[:3])
    path = folder[len(origin) :]
    if location.canonical != folder or location.url != folder or not _PLAIN_PATH.fullmatch(path):
        return None
    return origin, path, location.host


def _parsed_in(folder: str, href: str) -> Location:
    text = _referred(href)
    reference = _parsed(text)
    if text == "?":
        # yarl cannot tell an empty query from none, which would keep that of the page.
        folder = folder.partition("#")[0].partition("?")[0]
    is_empty = not reference.raw_authority and not reference.raw_path
    if is_empty and text[:1] not in ("", "?") and reference.scheme in ("", *_SCHEMES):
        # `//` and `http:` announce a host and name none.
        raise FetchError(Reason.URL_INVALID, _mistake(text, " names nothing"))
    try:
        url = yarl.URL(folder).join(reference)
        if "%3A" in url.raw_path:
            # Where a path begins with it, it is kept for a colon not to end a scheme.
            url = yarl.URL(str(url))
        # A second parse, of what it is as a text, would find nothing else.
        return _location(_checked(url, text))
    except ValueError as error:
        raise FetchError(Reason.URL_INVALID, _mistake(href, f": {error}")) from None


def has_userinfo(href: str) -> bool:
    """Return whether a link, relative or not, has a user or a password; raises `FetchError`."""
    parsed = _parsed(_referred(href))
    return parsed.raw_user is not None or parsed.raw_password is not None


def _referred(href: str) -> str:
    return _SLASHES.sub(r"\1", _bounded(_stripped(href)))


@lru_cache(maxsize=1 << 10)
def _folder(base: str) -> str:
    path = base.partition("?")[0].partition("#")[0]
    slash = path.rfind("/")
    return path[: slash + 1] if slash > path.find("//") + 1 else path


def host_of(url: yarl.URL) -> str:
    """Return the politeness key of *url*: its host, with the port where it is not the default."""
    return url.host_port_subcomponent or ""


def name_of(host: str) -> str:
    """Return a politeness key without its port, if it has one."""
    return host.rpartition(":")[0] if host[-1:].isdigit() and ":" in host else host


def scheme_of(url: str) -> str:
    """Return the scheme of a URL that was located."""
    return url.partition(":")[0]


def in_scope(host: str, allowed: Container[str]) -> bool:
    """Return whether *host* is one of *allowed* or below one of them; `*` allows every host.

    A name without a port allows that name on every port.
    """
    if "*" in allowed or host in allowed:
        return True
    name = name_of(host)
    while name:
        if name in allowed:
            return True
        if name.startswith("["):
            return False
        name = name.partition(".")[2]
    return False


def _mistake(text: str, what: str) -> str:
    # Such a text may have a password as well, and the message is logged and stored.
    return redacted(f"{text!r}{what}")


def _stripped(url: str) -> str:
    # The WHATWG URL standard: surrounding controls and spaces go, and so do
    # line feeds and tabs anywhere, which people leave in long attributes.
    text = url.strip(_CONTROLS_AND_SPACE)
    if "\n" in text or "\r" in text or "\t" in text:
        text = text.replace("\n", "").replace("\r", "").replace("\t", "")
    return text


def _bounded(text: str) -> str:
    if len(text) > MAX_LENGTH:
        raise FetchError(Reason.URL_TOO_LONG, f"{len(text)} characters, {MAX_LENGTH} are allowed")
    return text


def _slashed(text: str) -> str:
    """Return *text* with slashes for the backslashes of its path, as browsers read them."""
    before = text.partition("?")[0].partition("#")[0]
    if "\\" not in before:
        return text
    slashed = before.replace("\\", "/")
    authority = _AUTHORITY.match(slashed)
    if authority and "\\" in before[: authority.end()]:
        # Readers of these disagree about the host: some have it end there, and others do not.
        raise FetchError(Reason.URL_INVALID, _mistake(text, " has a backslash at its host"))
    return slashed + text[len(before) :]


def _parsed(text: str) -> yarl.URL:
    try:
        url = yarl.URL(_slashed(text))
        if url.raw_host and url.raw_host != url.raw_host.lower():
            # Where a label is none that IDNA knows, yarl leaves the others as they are written.
            url = yarl.URL(str(url))
    except (ValueError, TypeError, UnicodeError, IndexError) as error:
        raise FetchError(Reason.URL_INVALID, _mistake(text, f": {error}")) from None
    return url


def _is_host(host: str | None) -> bool:
    """Return whether *host* can name one: yarl takes spaces, dots alone and `[::g]` as well."""
    if not host or not host.strip(".") or len(host) > _LONGEST_HOST or "%" in host:
        # A `%` behind an IPv6 address (RFC 6874) is followed by any text at all.
        return False
    if ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            return False
        return True
    return not _NOT_IN_HOSTS.search(host)


def _is_disguised(host: str) -> bool:
    """Return whether *host* is an IPv4 address in another spelling than `127.0.0.1`.

    `2130706433`, `0x7f.1` and `127.0.0.1.` lead there in some resolvers. Nobody writes them but
    to get past a check, and what is wrong with the last would be laid to that very host.
    """
    # Any number of dots behind it is left out where it is connected to, and in its identity.
    return bool(_ENDS_IN_A_NUMBER.search(host.rstrip("."))) and not _IPV4.match(host)


def _checked(url: yarl.URL, text: str) -> yarl.URL:
    try:
        if url.scheme not in _SCHEMES:
            raise FetchError(Reason.REFUSED_SCHEME, _mistake(text, " is neither http nor https"))
        if not _is_host(url.raw_host) or url.port is None or not 0 < url.port < 65536:
            raise FetchError(Reason.URL_INVALID, _mistake(text, " has no host or no valid port"))
        if _is_disguised(url.raw_host or ""):
            raise FetchError(
                Reason.REFUSED_ADDRESS, _mistake(text, ": its address is not written as 192.0.2.1")
            )
        if url.raw_user is not None or url.raw_password is not None:
            url = url.with_user(None)
        return url.with_fragment(None) if url.raw_fragment else url
    except ValueError as error:
        raise FetchError(Reason.URL_INVALID, _mistake(text, f": {error}")) from None
