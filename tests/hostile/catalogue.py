"""Expected outcome of every page of the hostile server, by the rows of the catalogue.

The catalogue lists attacks and faults of servers, pages and databases in numbered
rows; `ROWS` has those of its sections 1 to 8. The server performs most rows of
sections 1 to 4: `ENDPOINTS` has for each path its rows and the outcome of its task.
"""

from dataclasses import dataclass

from crawlcw.errors import Reason
from crawlcw.model.task import Status
from tests.hostile.pages import KEEP, Exchange, page, response

#: The last row of each section.
_LAST_ROWS = {1: 21, 2: 20, 3: 20, 4: 19, 5: 16, 6: 15, 7: 10, 8: 8}
ROWS = tuple(
    f"{section}.{row}" for section, last in _LAST_ROWS.items() for row in range(1, last + 1)
)
HEALTHY = 100
#: Rows with large or endless pages, which take seconds.
_LARGE = frozenset({"1.9", "2.10", "3.1", "3.2", "3.11", "3.20", "4.13"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ends."""

    status: Status
    reason: Reason | None = None
    truncated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One page of the server, and its expected outcome."""

    path: str
    rows: tuple[str, ...]
    outcome: Outcome  #: of a single attempt; of a crawl as well, without `or_else`
    or_else: Outcome | None = None
    """Outcome in a crawl, where the target of a redirect is a task of its own."""

    def allows(self, outcome: Outcome) -> bool:
        """Return whether a crawl may end the page with this outcome."""
        return outcome in (self.outcome, self.or_else)


WHOLE = Outcome(Status.FINISHED)
MOVED = Outcome(Status.FINISHED, Reason.REDIRECT)
CUT = Outcome(Status.FINISHED, truncated="bytes")
CODING_CUT = Outcome(Status.FINISHED, truncated="coding")
#: Its first 10 MiB keep the parser busy for too long, or make too large a tree.
CUT_AND_UNPARSED = Outcome(Status.IGNORED, Reason.PARSE_KILLED, "bytes")


def gone(reason: Reason) -> Outcome:
    """Return the outcome of a task that was given up or is unwanted."""
    return Outcome(Status.IGNORED, reason)


DISCONNECTED = gone(Reason.DISCONNECTED)
PAYLOAD = gone(Reason.PAYLOAD_TRUNCATED)
SILENT = gone(Reason.TIMEOUT_READ)
SLOW = gone(Reason.TIMEOUT_TOTAL)
PROTOCOL = gone(Reason.PROTOCOL)
HEADERS = gone(Reason.HEADER_TOO_LARGE)
CODING = gone(Reason.CONTENT_ENCODING)
STATUS = gone(Reason.HTTP_STATUS)
KIND = gone(Reason.CONTENT_TYPE)
LOOP = gone(Reason.REDIRECT_LOOP)
INVALID = gone(Reason.REDIRECT_INVALID)
SCHEME = gone(Reason.REFUSED_SCHEME)
SCOPE = gone(Reason.REFUSED_SCOPE)
BOMBS = "/gzip-bomb /deflate-bomb /br-bomb /zstd-bomb /gzip-gzip-bomb"
PARSER = gone(Reason.PARSE_KILLED)

_TABLE: tuple[tuple[str, Outcome, str], ...] = (
    ("1.1", DISCONNECTED, "/fin /fin-in-status /fin-after-status /fin-in-headers"),
    ("1.1", DISCONNECTED, "/fin-after-continue"),
    ("1.2", WHOLE, "/fin-then-ok"),
    ("1.3", DISCONNECTED, "/rst /rst-in-headers"),
    ("1.3", PAYLOAD, "/rst-in-body /rst-in-chunks /rst-in-close-delimited"),
    ("1.3", WHOLE, "/rst-after-body"),
    ("1.4", WHOLE, "/keep-alive-and-fin /fin-when-idle /rst-when-reused"),
    ("1.5", WHOLE, "/poison /poison-in-part /poison-late /poison-of-100-kib /one-byte-too-many"),
    ("1.5", WHOLE, "/408-when-idle"),
    ("1.6", WHOLE, "/two-at-once /three-at-once /204-and-a-body-later"),
    ("1.6 2.13", WHOLE, "/204-with-body"),
    ("1.6 2.13", STATUS, "/304-with-body"),
    ("1.7", SILENT, "/silent /silent-in-status /silent-in-headers /silent-after-headers"),
    ("1.7", SILENT, "/silent-in-body /silent-in-chunks /silent-in-chunk /silent-close-delimited"),
    ("1.7", SILENT, "/silent-after-continue"),
    ("1.8", SLOW, "/drip /drip-in-length /drip-in-header /drip-headers /drip-chunks"),
    ("1.8", SLOW, "/drip-processing"),
    ("1.8", WHOLE, "/slow-start /slow-and-whole"),
    ("1.9", WHOLE, "/early-hints /processing"),
    ("1.9", PROTOCOL, "/endless-continue /endless-hints"),
    ("1.10", PROTOCOL, "/switching /http-0.9 /icy /ssh /smtp /ftp /mysql /redis /tls-alert"),
    ("1.10", PROTOCOL, "/http-2-frames /noise /nuls /long-noise /endless-noise"),
    ("1.10", PROTOCOL, "/http-9.9"),
    ("1.10", WHOLE, "/rtsp /http-2.0"),
    ("1.11", WHOLE, "/close-delimited /close-delimited-and-empty /http-1.0 /http-1.0-keep-alive"),
    ("1.21", WHOLE, "/whole-and-fin"),
    ("2.1", WHOLE, "/long-header /60-kb-header"),
    ("2.2", WHOLE, "/300-headers"),
    ("2.3", HEADERS, "/2000-headers /header-too-long /name-too-long /megabyte-of-header"),
    ("2.3", HEADERS, "/endless-header /endless-headers /reason-too-long /endless-reason"),
    ("2.3 2.10", HEADERS, "/endless-trailers /endless-trailer"),
    ("2.4", PROTOCOL, "/nul-header"),
    ("2.4", WHOLE, "/bare-cr /no-colon /empty-name /space-before-colon /space-in-name"),
    ("2.5", WHOLE, "/bare-lf /leading-crlf /folded-header /escape-in-header /escape-in-reason"),
    ("2.5", WHOLE, "/8-bit-header /8-bit-reason /no-reason /header-twice /empty-header"),
    ("2.6", WHOLE, "/negative-length /length-1e3 /length-plus-4 /length-0x4 /length-in-words"),
    ("2.6", WHOLE, "/length-of-2-to-64 /empty-length /same-length-twice /same-length-listed"),
    ("2.6", WHOLE, "/cl-and-te"),
    ("2.6", PROTOCOL, "/two-lengths /length-list"),
    ("2.7", WHOLE, "/longer-than-length"),
    ("2.8", PAYLOAD, "/cl-too-long /chunks-without-end"),
    ("2.9", PROTOCOL, "/malformed-chunk /malformed-chunk-later /negative-chunk /chunk-of-2-to-64"),
    ("2.9", PROTOCOL, "/chunk-longer-than-it-says"),
    ("2.9", WHOLE, "/chunks-of-bare-lf"),
    ("2.10", WHOLE, "/chunk-extensions /tiny-chunks /200-000-chunks /trailers /page-in-chunks"),
    ("2.10", PROTOCOL, "/endless-extension /extensions-in-every-chunk"),
    ("2.11", WHOLE, "/te-gzip /x-gzip /identity /stacked /gzip /deflate /br /zstd"),
    ("2.11", CODING, "/dictionary-coding /too-many-codings"),
    ("2.11", WHOLE, "/te-identity /te-unknown /unknown-coding"),
    ("2.12", STATUS, "/status-000 /status-099 /status-600 /status-999"),
    ("2.12", PROTOCOL, "/status-abc /status-2000 /status-20 /status--200 /status-2e2"),
    ("2.13", WHOLE, "/204-without-body /205-with-body"),
    ("2.13", STATUS, "/304 /status-206"),
    ("2.14", WHOLE, "/status-299 /status-250"),
    ("2.14", STATUS, "/status-404 /404-with-links /status-300 /status-400 /status-401 /status-402"),
    ("2.14", STATUS, "/status-403 /status-405 /status-406 /status-407 /status-408 /status-410"),
    ("2.14", STATUS, "/status-411 /status-416 /status-418 /status-421 /status-425 /status-426"),
    ("2.14", STATUS, "/status-431 /status-451 /status-499 /status-500 /status-501 /status-502"),
    ("2.14", STATUS, "/status-503 /status-504 /status-505 /status-507 /status-508 /status-511"),
    ("2.14", STATUS, "/status-520 /status-522 /status-530 /status-599"),
    ("2.14 5.13", STATUS, "/basic-challenge"),
    ("2.14", WHOLE, "/500-then-ok"),
    ("2.15", WHOLE, "/soft-404 /empty-page"),
    ("2.16", STATUS, "/retry-after-1e20 /retry-after-1e309 /retry-after-nan /retry-after-infinity"),
    ("2.16", STATUS, "/retry-after-negative /retry-after-zero /retry-after-words"),
    ("2.16", STATUS, "/retry-after-empty /retry-after-year-9999 /retry-after-year-99999"),
    ("2.16", STATUS, "/retry-after-1970 /retry-after-digits /retry-after-arabic"),
    ("2.16", STATUS, "/429-for-an-age"),
    ("2.17", STATUS, "/429-for-ever /429-without-a-time"),
    ("2.17", WHOLE, "/429-then-ok"),
    ("2.18", WHOLE, "/set-cookie /garbage-cookies"),
    ("2.19", WHOLE, "/300-cookies"),
    ("2.20", WHOLE, "/not-for-head"),
    ("3.1", CUT, "/endless-body /endless-title /endless-comment /endless-tag"),
    ("3.1", CUT, "/endless-script /endless-chunks"),
    ("3.1", CUT_AND_UNPARSED, "/endless-text /endless-of-links"),
    ("3.2", CUT, BOMBS),
    ("3.2", CUT, "/gzip-of-nothing"),
    ("3.2", WHOLE, "/gzip-of-1-byte"),
    ("3.2", CODING, "/zstd-window"),
    ("3.3", CODING, "/not-gzip /not-br /not-zstd /not-deflate /bad-crc"),
    ("3.3", WHOLE, "/gzip-and-garbage /nothing-of-gzip"),
    ("3.4", CODING_CUT, "/truncated-gzip /truncated-br /truncated-zstd /truncated-deflate"),
    ("3.5", WHOLE, "/raw-deflate /gzip-members"),
    ("3.6", WHOLE, " ".join(f"/charset-{number}" for number in range(15))),
    ("3.7", WHOLE, "/wrong-charset /meta-gbk /utf-16-bom /utf-16-without-bom /nuls-in-text"),
    ("3.7 7.1", WHOLE, "/escapes-in-title /surrogates"),
    ("3.8", KIND, "/video /audio /events"),
    ("3.8", KIND, "/png-as-html /zip-as-html"),
    ("3.8", WHOLE, "/pdf /octets /no-type /garbage-type /json-as-html"),
    ("3.9", CUT_AND_UNPARSED, "/length-10-to-18"),
    ("3.10", WHOLE, "/named-attachment"),
    ("3.11", PARSER, "/200-000-divs /100-000-attributes /many-options"),
    ("3.11", WHOLE, "/lexbor-340 /open-formatting /nested-tables"),
    ("3.12", WHOLE, "/svg-template"),
    ("3.12", WHOLE, "/odd-comments"),
    ("3.14", WHOLE, "/title-regex-bait"),
    ("3.16", WHOLE, "/feed-with-entities"),
    ("3.19", WHOLE, "/deep-json /json-of-a-long-number"),
    ("3.20", WHOLE, "/100-000-links /megabyte-of-href /1000-titles /dense-tags"),
    ("4.1", LOOP, "/loop /loop-by-fragment /ping /pong"),
    ("4.1", gone(Reason.REDIRECT_LIMIT), "/endless-redirects"),
    ("4.1", WHOLE, "/301 /302 /303 /307 /308 /ten-redirects /relative-location /to-fragment"),
    ("4.1", STATUS, "/to-404"),
    ("4.1", WHOLE, "/to-204 /two-locations /200-with-location"),
    ("4.1", SILENT, "/to-silent"),
    ("4.2", gone(Reason.REFUSED_ROBOTS), "/to-disallowed /disallowed"),
    ("4.2", SCOPE, "/to-another-host /to-metadata /to-an-ssh-port"),
    ("4.3", SCHEME, "/to-file /to-data /to-ftp /to-javascript /to-mailto"),
    ("4.4", INVALID, "/no-location /empty-location /blank-location"),
    ("4.5", INVALID, "/bad-location /bad-port"),
    ("4.5", gone(Reason.URL_TOO_LONG), "/location-too-long"),
    ("4.6", WHOLE, "/latin-1-location /utf-8-location"),
    ("4.7", STATUS, "/quoted-location"),
    ("4.8", SCOPE, "/backslash"),
    ("4.9", gone(Reason.REFUSED_CREDENTIALS), "/with-password"),
    ("4.10", LOOP, "/cookie-gate"),
    ("4.11", WHOLE, "/302-with-endless-body"),
    ("4.12", WHOLE, "/refresh-to-itself /refresh-elsewhere /meta-refresh /meta-refresh-data"),
    ("4.13", WHOLE, " ".join(f"/alias-{number}" for number in range(50))),
    ("4.14", WHOLE, "/base-offsite /base-javascript /canonical-offsite"),
    ("4.15", WHOLE, "/malformed-links"),
    ("4.16", WHOLE, "/growing-path/ /calendar"),
)

#: In a crawl, these end as redirects; their targets have outcomes of their own.
_MOVED = """
    /301 /302 /303 /307 /308 /302-with-endless-body /ping /pong /endless-redirects /ten-redirects
    /to-404 /to-204 /to-silent /to-disallowed /to-fragment /relative-location /two-locations
    /latin-1-location /utf-8-location /quoted-location
"""
_OR_ELSE = dict.fromkeys([*_MOVED.split(), *(f"/alias-{n}" for n in range(50))], MOVED) | {
    # If the body arrives with the head, like /204-with-body.
    "/204-and-a-body-later": PROTOCOL,
}

ENDPOINTS = tuple(
    Endpoint(
        path=path,
        rows=tuple(rows.split()),
        outcome=outcome,
        or_else=_OR_ELSE.get(path),
    )
    for rows, outcome, paths in _TABLE
    for path in paths.split()
)


#: These send bytes after their answer, which may be taken for the answer to the next request on the
#: connection: `tests.hostile.test_unsolicited` crawls such pages.
LATE = ("/204-and-a-body-later", "/408-when-idle", "/one-byte-too-many", "/poison")
LATE += ("/poison-in-part", "/poison-late", "/poison-of-100-kib")


def healthy_paths() -> list[str]:
    """Return the paths of the healthy pages."""
    return [f"/healthy?{number}" for number in range(HEALTHY)]


def crawled_endpoints() -> list[Endpoint]:
    """Return the pages that do no harm to another page of their host."""
    return [each for each in ENDPOINTS if each.path not in LATE]


def quick_endpoints() -> list[Endpoint]:
    """Return one page for each row and outcome that needs neither a deadline nor a large page."""
    found: dict[object, Endpoint] = {}
    for each in crawled_endpoints():
        if each.outcome.reason not in (Reason.TIMEOUT_READ, Reason.TIMEOUT_TOTAL):
            found.setdefault((each.rows, each.outcome), each)
    return [each for each in found.values() if each.rows[0] not in _LARGE]


@page("/index")
async def _index(exchange: Exchange) -> object:
    """Links to the healthy pages, and to the pages of the query: `all`, `quick` or none."""
    paths = healthy_paths()
    chosen = {"all": crawled_endpoints(), "quick": quick_endpoints()}.get(exchange.query, ())
    others = [endpoint.path for endpoint in chosen]
    # Spread the other pages evenly among the healthy ones.
    every = len(others) / len(paths)
    for number in reversed(range(len(paths))):
        paths[number:number] = others[int(number * every) : int((number + 1) * every)]
    links = "".join(f'<a href="{path}">{path}</a>\n' for path in paths)
    await exchange.send(response(f"<title>index</title>\n{links}".encode()))
    return KEEP
