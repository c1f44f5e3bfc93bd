"""URLs: their address, identity, host and scope.

A browser would send the same address (WHATWG URL Standard, parsed by Ada). The identity depends
only on the address, so that two spellings of one page are one task. Ada is the only parser: two
parsers that disagree about the host of a link would be a security hole. There is one exception:
a path of plain names is joined as text, on an origin that Ada has parsed and not changed.

Every function of this module accepts crawled text. For a text that is not a URL to fetch it raises
`FetchError` with one of the `url-*` and `refused-*` reasons; `resolver`, which sees every link of a
page, returns a `Refusal`.
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

#: Characters: the length that all software should support (RFC 9110, section 4.1); it protects the
#: parser. The maximum length of a crawl's links is a setting, see `TrapPolicy`.
MAX_LENGTH = 8000
#: Longer URLs rarely occur twice, and would make the caches large.
LONGEST_CACHED = 2000
#: RFC 1035, section 2.3.4, and the dot of the root.
_LONGEST_HOST = 254
_SCHEMES = ("http://", "https://")
#: An offset that lies before the path of any URL: the next slash from there begins the path.
_BEFORE_PATH = len("http://") + 1
#: By the WHATWG URL standard such a host is an IPv4 address, or invalid.
_ENDS_IN_A_NUMBER = re.compile(r"(?:\A|\.)(?:[0-9]+|0[xX][0-9a-fA-F]*)\Z")
#: The usual notation: four numbers below 256, without leading zeros.
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}\Z")
_CONTROLS_AND_SPACE = "".join(map(chr, range(33)))
#: Marks of a link that may name a host; any number of slashes may precede the host.
_MAY_NAME_HOST = re.compile(r"[/\\]{2}|[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*([^/\\?#]*)")
_PORT = re.compile(r":[0-9]*\Z")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: A plain name: no standard encodes, decodes or removes one of its characters.
_NAME = r"[A-Za-z0-9_~-][A-Za-z0-9_~.-]*"
#: The relative links of most sites: from the root or some folders up, then down by plain names.
_PLAIN_LINK = re.compile(rf"(/|(?:\.\./)*)((?:{_NAME}/)*(?:{_NAME})?)")
_PLAIN_URL = re.compile(rf"(https?://[a-z0-9.:-]+/)(?:{_NAME}/)*(?:{_NAME})?")
_PLAIN_FOLDER = re.compile(rf"(https?://[a-z0-9.:-]+)(/(?:{_NAME}/)*)")
_ESCAPE = r"%(?:[2-7][0-9A-Fa-f]|[0-9A-Fa-f][a-f]|[a-f][0-9A-Fa-f])|%(?![0-9A-Fa-f]{2})"
#: The parts that an identity writes differently: some escapes, and characters that it escapes.
_IN_PATH = re.compile(rf"{_ESCAPE}|[^A-Za-z0-9%/._~!$&'()*+,;=:@-]")
_IN_QUERY = re.compile(rf"{_ESCAPE}|[^A-Za-z0-9%/._~!$&'()*+,;=:@?-]")


def _forms(decoded: str) -> dict[str, str]:
    """Return the normal forms of all escapes, and of all characters that an address may have.

    An escape becomes its character if that is in *decoded* or unreserved (RFC 3986).
    """
    decoded += "-._~" + ascii_letters + digits
    forms = {chr(code_point): f"%{code_point:02X}" for code_point in range(0x21, 0x7F)}
    for high, low in product(hexdigits, repeat=2):
        character = chr(int(high + low, 16))
        escape = f"%{high}{low}"
        forms[escape] = character if character in decoded else escape.upper()
    return forms


_PATH_FORMS = _forms("!$&'()*,:;=@")
#: In a query `&=+;` and their escapes have different meanings.
_QUERY_FORMS = _forms("!$'()*,/:?@")
#: Parts of an encoded query that must be escaped: text in ISO-2022-JP, whose bytes are ASCII; the
#: reference of a character that the encoding lacks; and bytes outside of ASCII.
_ENCODED_IN_QUERY = re.compile(rb"(\x1b\$B[^\x1b]*+)|&#[0-9]++;|[\x80-\xff]++")
#: In ISO-2022-JP text this module escapes only `#`, because Ada would begin a fragment with it. Ada
#: escapes the other characters itself.
_ALL_BUT_HASH = bytes(code for code in range(128) if code != ord("#"))


@page_value(frozen=True, slots=True)
class Location:
    """A URL that can be fetched."""

    url: str  #: absolute, as browsers send it, without userinfo and fragment
    canonical: str  #: its identity: the same for all spellings of one resource
    host: str  #: the politeness key: `example.com`, or `example.com:8080` for another port


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a text is not a URL to fetch."""

    reason: Reason
    message: str

    def error(self) -> FetchError:
        """Return the refusal as an error."""
        return FetchError(self.reason, self.message)


@dataclass(frozen=True, slots=True)
class Userinfo:
    """The user and the password in a URL, and their origin."""

    origin: str  #: in the form of `origin_of`
    user: str
    password: str


def locate(url: str) -> Location:
    """Return the location of an absolute *url*; raises `FetchError`.

    The address is serialised by the WHATWG URL Standard. The canonical form changes it further:

    - case and percent-encoding are normal (RFC 3986 section 6.2)
    - the host has no final dot, which names the root
    - the parameters of the query are sorted, as in Scrapy's fingerprint
    """
    result = located(url)
    if isinstance(result, Refusal):
        raise result.error()
    return result


def located(url: str) -> Location | Refusal:
    """Return the location of an absolute *url*, as `locate` does, or why it has no location."""
    return _locate(url) if len(url) <= LONGEST_CACHED else _locate.__wrapped__(url)


@lru_cache(maxsize=1 << 14)
def _locate(url: str) -> Location | Refusal:
    return _locate_plain(url) or _parse_location(url, None)


def _locate_plain(url: str) -> Location | None:
    """Return the location of a URL if neither its path nor its origin needs a parser, else None."""
    match = _PLAIN_URL.fullmatch(url) if len(url) <= LONGEST_CACHED else None
    folder_parts = None if match is None else _plain_folder(match[1])
    return None if folder_parts is None else Location(url, url, folder_parts[2])


def parse(url: str) -> yarl.URL:
    """Return the address of *url* for aiohttp, which sends it unchanged; see `locate`."""
    address = locate(url).url
    if address[-1] != "?":
        return yarl.URL(address, encoded=True)
    # yarl drops an empty query, but it keeps the `?` as the end of the path.
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
    """Return whether a link that `resolve` accepts has a user or a password."""
    parsed = ada_url.URL(_scalar(href), base)
    return bool(parsed.username or parsed.password)


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL; raises `FetchError` as `locate` does."""
    address = locate(url).url
    return address[: address.index("/", _BEFORE_PATH)]


def resolve(base: str, href: str, *, encoding: str = "utf-8") -> str:
    """Return the absolute URL that *href* means on the page *base*; raises `FetchError`.

    *encoding* is that of the page, by the standard's name, see `resolver`.
    """
    result = resolver(base, encoding=encoding)(href)
    if isinstance(result, Refusal):
        raise result.error()
    return result.url


def resolver(base: str, *, encoding: str = "utf-8") -> Callable[[str], Location | Refusal]:
    """Return a function like `resolve` for the many links of one page, at the address *base*.

    It returns a location, and a `Refusal` if `resolve` would raise, because most pages have links
    that are refused.

    Characters outside of ASCII use the page's *encoding* in a query, and UTF-8 in a path (WHATWG
    URL standard). *encoding* is the standard's name.
    """
    # Most links depend only on the folder of the base, and the pages of a folder share most of
    # their links. So the cache uses the folder.
    page = base.partition("#")[0].partition("?")[0]
    slash = page.rfind("/")
    folder = page[: slash + 1] if slash >= _BEFORE_PATH else page
    max_link = LONGEST_CACHED - len(base)

    def resolve_on_page(href: str) -> Location | Refusal:
        # The fragment names a part of a page, not a page (RFC 3986, section 3.5).
        target, number_sign, _ = href.partition("#")
        first_character = target[:1]
        if first_character <= " " or (number_sign and target[-1] <= " "):
            # A space before the fragment is part of the address: strip only spaces around the link.
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
    """Return *href* with an empty fragment and an encoded query in ASCII."""
    address, fragment, _ = href.partition("#")
    path, mark, query = address.partition("?")
    query = _ENCODED_IN_QUERY.sub(_escaped, encoded(query, encoding)).decode("ascii")
    return f"{path}{mark}{query}{fragment}"


def _escaped(run: re.Match[bytes]) -> bytes:
    return quote_from_bytes(run[0], safe=_ALL_BUT_HASH if run[1] else b"").encode()


def encoded(text: str, encoding: str) -> bytes:
    """Return *text* in the bytes that links and forms of a page in *encoding* send.

    A character that the encoding lacks becomes a reference such as `&#26085;`. UTF-16 becomes
    UTF-8 (WHATWG Encoding, "get an output encoding").
    """
    return endec.encode(_scalar(text), encoding, "xmlcharrefreplace")


@lru_cache(maxsize=1 << 15)
def _resolve_in(base: str, href: str) -> Location | Refusal | None:
    """Return the location of a link on a page, or on any page of a folder.

    None: the link depends on the page, so the folder is not enough.
    """
    location = _resolve_plain(base, href) or _locate_plain(href)
    if location is None and not _is_of_its_scheme(href):
        return _parse_location(href, base)
    return location


def _is_of_its_scheme(href: str) -> bool:
    """Return whether a link may be like `http:?q`: a relative query on a page at `http://`."""
    return href[:1] in "hH" and ":" in href and not href.startswith(_SCHEMES)


def _resolve_plain(folder: str, href: str) -> Location | None:
    """Return the location of a link that can be joined to its folder as text, else None."""
    if not href:
        return _locate_plain(folder)  # a link to the page itself
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
    """Return the origin, path and host of a folder whose links can be joined as text, else None."""
    match = _PLAIN_FOLDER.fullmatch(folder)
    if match is None:
        return None
    location = _parse_location(folder, None)
    if isinstance(location, Refusal) or {location.canonical, location.url} != {folder}:
        return None
    return match[1], match[2], location.host


def _parse_location(text: str, base: str | None) -> Location | Refusal:
    """Return the location of *text* by the URL parser of the WHATWG standard."""
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
    # Most addresses equal their identity: share the text, because thousands are in memory.
    return Location(href, href if canonical == href else canonical, parsed_origin.host)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The scheme and the authority of addresses."""

    origin: str  #: in the form of identities, without the dot of the root
    host: str  #: in the form of `Location.host`
    name: str  #: the host without its port
    ends_in_number: bool  #: whether some resolvers read it as an IPv4 address


@lru_cache(maxsize=1 << 12)
def _parse_origin(origin: str) -> _Origin | None:
    """Return the place of an origin that Ada has serialised; None if no connection is possible."""
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
    """Return whether a link spells its IPv4 address like `127.0.0.1`, or has that of its page.

    `2130706433` and `0x7f.1` are the same address, but are used only to bypass a check.
    """
    if not _IPV4.match(name):
        return False
    text = _stripped(text)
    if base is not None:
        if not _MAY_NAME_HOST.search(text):
            return True
        # Resolve the link on a page of an invented host: a link that names no host stays on that
        # host.
        page = f"{scheme_of(base)}://nowhere.invalid/"
        if ada_url.join_url(page, _scalar(text)).startswith(page):
            return True
    return _spelled_host(text) == name


def _spelled_host(text: str) -> str:
    """Return the host of a link that names one, in the link's own spelling."""
    authority = _AUTHORITY.match(text)
    assert authority is not None, "all of it is optional"
    return _PORT.sub("", authority[1].rpartition("@")[2])


def _refusal(text: str, base: str | None) -> Refusal:
    """Return the reason why the URL parser has refused a text."""
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
    """Return the path and the query of an address in the form of its identity."""
    path, _, query = path_and_query.partition("?")
    path = _IN_PATH.sub(lambda match: _PATH_FORMS[match[0]], path)
    if not query:
        return path
    query = _IN_QUERY.sub(lambda match: _QUERY_FORMS[match[0]], query)
    if "&" in query:
        query = "&".join(sorted(query.split("&")))
    return f"{path}?{query}"


def name_of(host: str) -> str:
    """Return a politeness key without any port."""
    return host.rpartition(":")[0] if host[-1:].isdigit() and ":" in host else host


def scheme_of(url: str) -> str:
    """Return the scheme of a located URL."""
    return url.partition(":")[0]


def in_scope(host: str, allowed: Container[str]) -> bool:
    """Return whether *host* is in *allowed* or a subdomain of a host in it; `*` allows every host.

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


def _mistake(text: str, problem: str) -> str:
    # An invalid URL may have a password, too, and the message is logged and stored.
    return redacted(f"{text!r}{problem}")


def _stripped(url: str) -> str:
    # The WHATWG URL standard removes surrounding controls and spaces. It also removes line feeds
    # and tabs anywhere, because authors break long attributes.
    text = url.strip(_CONTROLS_AND_SPACE)
    return text.replace("\n", "").replace("\r", "").replace("\t", "")


def _scalar(text: str) -> str:
    """Return *text* with U+FFFD for each lone surrogate, as browsers do."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
