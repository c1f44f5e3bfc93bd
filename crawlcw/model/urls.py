"""Parse URLs, and find each URL's address, identity and host.

The address of a URL is the text that a browser would send (WHATWG URL Standard). The identity of a
URL is a normal form of its address, so that two spellings of a URL are one task. Only the library
Ada parses URLs, because two parsers that disagree about a link's host would be a security hole. The
only exception is a plain path such as `/a/b`: this module itself appends it to an origin that Ada
has parsed.

Every function of this module may be called with untrusted text from a crawled page. A function
raises `FetchError` with a `url-*` or `refused-*` reason for a text that is not a URL to fetch.
`resolver`, which sees every link of a page, returns a `Refusal` instead.
"""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_letters, digits, hexdigits
from urllib.parse import quote_from_bytes, unquote

import ada_url
import endec
import yarl

from crawlcw.errors import FetchError, Reason
from crawlcw.model.page_value import page_value
from crawlcw.model.sanitize import redacted

#: The maximum number of characters of a URL (RFC 9110, section 4.1). This limit protects the
#: parser. A setting of the crawl may limit links to fewer characters, see `TrapPolicy`.
MAX_LENGTH = 8000
#: The maximum length of cached URLs. Longer URLs would fill the caches, and rarely occur twice.
LONGEST_CACHED = 2000
#: The maximum length of a host name with a final dot (RFC 1035, section 2.3.4).
_LONGEST_HOST = 254
_SCHEMES = ("http://", "https://")
#: An offset in a URL after the slashes of `://`, so that the next slash begins the path.
_BEFORE_PATH = len("http://") + 1
#: Finds a number at a host's end. Such a host is an IPv4 address or invalid (WHATWG URL Standard).
_ENDS_IN_A_NUMBER = re.compile(r"(?:\A|\.)(?:[0-9]+|0[xX][0-9a-fA-F]*)\Z")
#: An IPv4 address as four decimal numbers below 256, without leading zeros.
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}\Z")
_CONTROLS_AND_SPACE = "".join(map(chr, range(33)))
#: Finds two slashes or a scheme. A link that has neither cannot name a host.
_MAY_NAME_HOST = re.compile(r"[/\\]{2}|[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*([^/\\?#]*)")
_PORT = re.compile(r":[0-9]*\Z")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: A plain name in a path, which no parser changes.
_NAME = r"[A-Za-z0-9_~-][A-Za-z0-9_~.-]*"
#: A relative link of plain names only, such as `/a/b` or `../a`.
_PLAIN_LINK = re.compile(rf"(/|(?:\.\./)*)((?:{_NAME}/)*(?:{_NAME})?)")
_PLAIN_URL = re.compile(rf"(https?://[a-z0-9.:-]+/)(?:{_NAME}/)*(?:{_NAME})?")
_PLAIN_FOLDER = re.compile(rf"(https?://[a-z0-9.:-]+)(/(?:{_NAME}/)*)")
_ESCAPE = r"%(?:[2-7][0-9A-Fa-f]|[0-9A-Fa-f][a-f]|[a-f][0-9A-Fa-f])|%(?![0-9A-Fa-f]{2})"
#: Finds each escape and each character of an address that the identity writes in another form.
_IN_PATH = re.compile(rf"{_ESCAPE}|[^A-Za-z0-9%/._~!$&'()*+,;=:@-]")
_IN_QUERY = re.compile(rf"{_ESCAPE}|[^A-Za-z0-9%/._~!$&'()*+,;=:@?-]")


def _forms(decoded: str) -> dict[str, str]:
    """Return a mapping from each percent-escape and each ASCII character to its normal form.

    An escape is decoded if its character is in *decoded*, or is unreserved by RFC 3986.
    """
    decoded += "-._~" + ascii_letters + digits
    forms = {chr(code_point): f"%{code_point:02X}" for code_point in range(0x21, 0x7F)}
    for high, low in product(hexdigits, repeat=2):
        character = chr(int(high + low, 16))
        escape = f"%{high}{low}"
        forms[escape] = character if character in decoded else escape.upper()
    return forms


_PATH_FORMS = _forms("!$&'()*,:;=@")
#: The normal forms in a query. The escapes of `&=+;` stay, because `%26` and `&` differ in meaning.
_QUERY_FORMS = _forms("!$'()*,/:?@")
#: The bytes of an encoded query that must be percent-escaped. These are the bytes of text in
#: ISO-2022-JP, bytes outside of ASCII, and the bytes of character references such as `&#26085;`.
_ENCODED_IN_QUERY = re.compile(rb"(\x1b\$B[^\x1b]*+)|&#[0-9]++;|[\x80-\xff]++")
#: All ASCII characters except `#`, which would begin a fragment. `#` is the only ASCII character of
#: ISO-2022-JP text that this module escapes, because Ada escapes all others that are unsafe.
_ALL_BUT_HASH = bytes(code for code in range(128) if code != ord("#"))


@page_value(frozen=True, slots=True)
class Location:
    """A URL that the crawl can fetch, in three forms."""

    url: str  #: absolute URL as browsers send it, without userinfo and fragment
    canonical: str  #: the URL's identity, equal for all spellings of the URL
    host: str  #: host for politeness, such as `example.com` or `example.com:8080`


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a text is not a URL that the crawl can fetch."""

    reason: Reason
    message: str

    def error(self) -> FetchError:
        """Return this refusal as a `FetchError`."""
        return FetchError(self.reason, self.message)


@dataclass(frozen=True, slots=True)
class Userinfo:
    """The user and the password in a URL, with the URL's origin."""

    origin: str  #: scheme, host and port, as from `origin_of`
    user: str
    password: str


def locate(url: str) -> Location:
    """Return the `Location` of an absolute *url*; raises `FetchError`.

    `Location.url` is serialised by the WHATWG URL Standard. `Location.canonical` differs:

    - letter case and percent-encoding are normalised (RFC 3986 section 6.2)
    - the host has no final dot
    - the parameters of the query are sorted, as in Scrapy's fingerprint
    """
    result = located(url)
    if isinstance(result, Refusal):
        raise result.error()
    return result


def located(url: str) -> Location | Refusal:
    """Return the location of an absolute *url*, or a `Refusal` where `locate` would raise."""
    return _locate(url) if len(url) <= LONGEST_CACHED else _locate.__wrapped__(url)


@lru_cache(maxsize=1 << 14)
def _locate(url: str) -> Location | Refusal:
    return _locate_plain(url) or _parse_location(url, None)


def _locate_plain(url: str) -> Location | None:
    """Locate *url* without a parser; return None if a name in its path is not plain."""
    match = _PLAIN_URL.fullmatch(url) if len(url) <= LONGEST_CACHED else None
    folder_parts = None if match is None else _plain_folder(match[1])
    return None if folder_parts is None else Location(url, url, folder_parts[2])


def parse(url: str) -> yarl.URL:
    """Return the address of *url* as a `yarl.URL`, which aiohttp sends unchanged."""
    address = locate(url).url
    if address[-1] != "?":
        return yarl.URL(address, encoded=True)
    # Pass the final `?` to yarl as a part of the path, because yarl would drop an empty query.
    scheme, _, rest = address.partition("://")
    authority, _, path = rest.partition("/")
    return yarl.URL.build(scheme=scheme, authority=authority, path=f"/{path}", encoded=True)


def userinfo(url: str) -> Userinfo | None:
    """Return the user and the password in an absolute *url*, or None; raises `FetchError`."""
    if "@" not in url:
        return None
    origin = origin_of(url)
    ada_url_object = ada_url.URL(_scalar(url))
    if not ada_url_object.username and not ada_url_object.password:
        return None
    return Userinfo(
        origin, user=unquote(ada_url_object.username), password=unquote(ada_url_object.password)
    )


def has_userinfo(base: str, href: str) -> bool:
    """Return whether *href* has a user or a password; pass only a link that `resolve` accepts."""
    parsed = ada_url.URL(_scalar(href), base)
    return bool(parsed.username or parsed.password)


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL; raises `FetchError` for an invalid URL."""
    address = locate(url).url
    return address[: address.index("/", _BEFORE_PATH)]


def resolve(base: str, href: str, *, encoding: str = "utf-8") -> str:
    """Return the absolute URL of the link *href* on the page *base*; raises `FetchError`.

    *encoding* is the page's encoding, see `resolver`.
    """
    result = resolver(base, encoding=encoding)(href)
    if isinstance(result, Refusal):
        raise result.error()
    return result.url


def resolver(base: str, *, encoding: str = "utf-8") -> Callable[[str], Location | Refusal]:
    """Return a function that resolves the links of one page, whose address is *base*.

    The function returns the location of a link, or a `Refusal` if `resolve` would raise an error.
    An exception for each refused link would be slow, because most pages have such links.

    *encoding* is the page's encoding by its WHATWG name. The function encodes a link's query in
    *encoding*. It encodes a link's path in UTF-8 (WHATWG URL Standard).
    """
    # Cache links by the page's folder, because most links depend only on the folder. The pages of a
    # folder also share most of their links.
    page = base.partition("#")[0].partition("?")[0]
    slash = page.rfind("/")
    folder = page[: slash + 1] if slash >= _BEFORE_PATH else page
    max_link = LONGEST_CACHED - len(base)

    def resolve_on_page(href: str) -> Location | Refusal:
        # Drop the fragment, which names only a part of the page (RFC 3986, section 3.5).
        target, number_sign, _ = href.partition("#")
        first_character = target[:1]
        if first_character <= " " or (number_sign and target[-1] <= " "):
            # Strip spaces at the start of the link, but keep spaces before `#`, as browsers do.
            target = (target + number_sign).lstrip(_CONTROLS_AND_SPACE)
            first_character = target[:1]
        if len(target) > max_link:
            return _parse_location(target, base)
        link_base = base if first_character in {"", "?", "#"} else folder
        return _resolve_in(link_base, target) or _parse_location(target, base)

    if encoding == "utf-8":
        return resolve_on_page

    def resolve_in_encoding(href: str) -> Location | Refusal:
        if href.isascii():
            return resolve_on_page(href)
        if len(address := href.partition("#")[0]) > MAX_LENGTH:
            return _too_long(_stripped(address))
        return resolve_on_page(_with_query_in(encoding, href))

    return resolve_in_encoding


def _with_query_in(encoding: str, href: str) -> str:
    """Escape the query of *href* as ASCII, and drop the text of the fragment."""
    address, fragment, _ = href.partition("#")
    path, mark, query = address.partition("?")
    query = _ENCODED_IN_QUERY.sub(_escaped, encoded(query, encoding)).decode("ascii")
    return f"{path}{mark}{query}{fragment}"


def _escaped(run: re.Match[bytes]) -> bytes:
    return quote_from_bytes(run[0], safe=_ALL_BUT_HASH if run[1] else b"").encode()


def encoded(text: str, encoding: str) -> bytes:
    """Return the bytes that a browser sends for *text* if the page is encoded in *encoding*.

    A character that *encoding* lacks becomes a reference such as `&#26085;`. The browser sends
    UTF-8 if the page is in UTF-16 (WHATWG Encoding, "get an output encoding").
    """
    return endec.encode(_scalar(text), encoding, "xmlcharrefreplace")


@lru_cache(maxsize=1 << 15)
def _resolve_in(base: str, href: str) -> Location | Refusal | None:
    """Return the location of the link *href*; *base* is the URL of a page or of its folder.

    Returns None if *base* is a folder, but the location depends on the page's own URL.
    """
    location = _resolve_plain(base, href) or _locate_plain(href)
    if location is None and not _is_of_its_scheme(href):
        return _parse_location(href, base)
    return location


def _is_of_its_scheme(href: str) -> bool:
    """Return whether *href* may have a scheme and still be relative, like `http:?q`."""
    return href[:1] in "hH" and ":" in href and not href.startswith(_SCHEMES)


def _resolve_plain(folder: str, href: str) -> Location | None:
    """Locate *href* in *folder* without a parser; return None if a name in *href* is not plain."""
    if not href:
        return _locate_plain(folder)
    if len(folder) + len(href) > LONGEST_CACHED:
        return None
    match = _PLAIN_LINK.fullmatch(href)
    folder_parts = None if match is None else _plain_folder(folder)
    if match is None or folder_parts is None:
        return None
    origin, path, host = folder_parts
    prefix, suffix = match.groups()
    if prefix == "/":
        path = prefix
    elif prefix:
        segments = path.split("/")[1:-1]
        segments = segments[: max(0, len(segments) - len(prefix) // len("../"))]
        path = "/".join(("", *segments, ""))
    url = f"{origin}{path}{suffix}"
    return Location(url, url, host)


@lru_cache(maxsize=1 << 10)
def _plain_folder(folder: str) -> tuple[str, str, str] | None:
    """Return a folder URL's origin, path and host; None if a name in the path is not plain."""
    match = _PLAIN_FOLDER.fullmatch(folder)
    if match is None:
        return None
    location = _parse_location(folder, None)
    if isinstance(location, Refusal) or {location.canonical, location.url} != {folder}:
        return None
    return match[1], match[2], location.host


def _parse_location(text: str, base: str | None) -> Location | Refusal:
    """Return the location of *text*, parsed by Ada, or the reason why there is none."""
    if len(text) > MAX_LENGTH and len(text := _stripped(text)) > MAX_LENGTH:
        return _too_long(text)
    try:
        scalar = _scalar(text)
        href = ada_url.join_url(base, scalar) if base is not None else ada_url.normalize_url(scalar)
    except ValueError:
        return _refusal(text, base)
    if not href.startswith(_SCHEMES):
        return Refusal(Reason.REFUSED_SCHEME, _mistake(text, " is neither http nor https"))
    href = href.partition("#")[0]
    slash = href.index("/", _BEFORE_PATH)
    origin, path_and_query = href[:slash], href[slash:]
    if "@" in origin:
        origin = f"{origin[: origin.index(':')]}://{origin.rpartition('@')[2]}"
        href = origin + path_and_query
    parsed_origin = _parse_origin(origin)
    if parsed_origin is None:
        return Refusal(Reason.URL_INVALID, _mistake(text, " has no host or no valid port"))
    if parsed_origin.ends_in_number and not _is_spelled_out(parsed_origin.name, text, base):
        return _unwritten_address(text)
    if len(href) > MAX_LENGTH:
        return _too_long(href)
    canonical = f"{parsed_origin.origin}{_identity(path_and_query)}"
    # If the address equals the identity, use the same string object for both to save memory.
    return Location(href, href if canonical == href else canonical, parsed_origin.host)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The scheme, host and port of an address."""

    origin: str  #: scheme, host and port, without a final dot of the host
    host: str  #: host and port, as in `Location.host`
    name: str  #: the host without its port
    ends_in_number: bool  #: whether some DNS resolvers read the host as an IPv4 address


@lru_cache(maxsize=1 << 12)
def _parse_origin(origin: str) -> _Origin | None:
    """Split an origin that Ada has parsed; return None if no connection to it is possible."""
    scheme, _, authority = origin.partition("://")
    name, port = authority, ""
    if authority[-1] != "]":
        name, colon, port_digits = authority.rpartition(":")
        name, port = (name, f":{port_digits}") if colon else (authority, "")
    host_name = name.rstrip(".")
    if not host_name or len(name) > _LONGEST_HOST or port == ":0":
        return None
    host = f"{host_name}{port}"
    ends_in_number = _ENDS_IN_A_NUMBER.search(host_name) is not None
    return _Origin(f"{scheme}://{host}", host, name, ends_in_number)


def _is_spelled_out(name: str, text: str, base: str | None) -> bool:
    """Return whether *text* names no host, or spells the host as four decimal numbers.

    Other spellings of an address, such as `2130706433` and `0x7f.1`, only bypass address checks.
    """
    if not _IPV4.match(name):
        return False
    text = _stripped(text)
    if base is not None:
        if not _MAY_NAME_HOST.search(text):
            return True
        # Resolve the link on a page of an invented host. The result is a URL on the invented host
        # only if the link names no host.
        page = f"{scheme_of(base)}://nowhere.invalid/"
        if ada_url.join_url(page, _scalar(text)).startswith(page):
            return True
    return _spelled_host(text) == name


def _spelled_host(text: str) -> str:
    """Return the host that a link names, as the link spells it."""
    authority = _AUTHORITY.match(text)
    assert authority is not None, "all of it is optional"
    return _PORT.sub("", authority[1].rpartition("@")[2])


def _refusal(text: str, base: str | None) -> Refusal:
    """Return the reason why Ada, the URL parser, has refused a text."""
    text = _stripped(text)
    scheme = _SCHEME.match(text)
    if (base is None) if scheme is None else scheme[1].lower() not in ("http", "https"):
        return Refusal(Reason.REFUSED_SCHEME, _mistake(text, " is neither http nor https"))
    host = _spelled_host(text).rstrip(".")
    if host[:1] != "[" and _ENDS_IN_A_NUMBER.search(host) and not _IPV4.match(host):
        return _unwritten_address(text)
    return Refusal(Reason.URL_INVALID, _mistake(text, " is not a valid URL"))


def _unwritten_address(text: str) -> Refusal:
    return Refusal(
        Reason.REFUSED_ADDRESS, _mistake(text, ": write its IP address in the form 192.0.2.1")
    )


def _too_long(text: str) -> Refusal:
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() not in ("http", "https"):
        return Refusal(Reason.REFUSED_SCHEME, f"'{scheme[0][:100]}...' is neither http nor https")
    return Refusal(
        Reason.URL_TOO_LONG, f"{len(text)} characters, but at most {MAX_LENGTH} are allowed"
    )


def _identity(path_and_query: str) -> str:
    """Normalise the path and the query of an address, as `Location.canonical` requires."""
    path, _, query = path_and_query.partition("?")
    path = _IN_PATH.sub(lambda match: _PATH_FORMS[match[0]], path)
    if not query:
        return path
    query = _IN_QUERY.sub(lambda match: _QUERY_FORMS[match[0]], query)
    if "&" in query:
        query = "&".join(sorted(query.split("&")))
    return f"{path}?{query}"


def name_of(host: str) -> str:
    """Return the host name in `Location.host`, without a port."""
    return host.rpartition(":")[0] if host[-1:].isdigit() and ":" in host else host


def scheme_of(url: str) -> str:
    """Return the scheme of an absolute URL."""
    return url.partition(":")[0]


def in_scope(host: str, allowed: Container[str]) -> bool:
    """Return whether *allowed* contains *host*, or one of its parent domains, or `*`.

    `*` allows every host. If a name in *allowed* has no port, it allows all ports of the host.
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


def _mistake(text: str, problem: str) -> str:
    # Hide a password in the invalid URL, because the message is logged and stored.
    return redacted(f"{text!r}{problem}")


def _stripped(url: str) -> str:
    # The WHATWG URL Standard removes control characters and spaces around a URL. The standard also
    # removes line feeds and tabs within a URL, because authors write long URLs on several lines.
    text = url.strip(_CONTROLS_AND_SPACE)
    return text.replace("\n", "").replace("\r", "").replace("\t", "")


def _scalar(text: str) -> str:
    """Return *text* with each lone surrogate replaced by U+FFFD, as browsers do."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
