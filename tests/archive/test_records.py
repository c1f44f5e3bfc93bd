"""WARC records, as read by warcio and by crawlcw."""

import io
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.archive import records
from crawlcw.archive.records import DamagedRecordError, Exchange, Packer

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
URL = "http://a.example/b?c=d"
MOST = 1 << 20
PACKER = Packer()


def exchange(**fields: Any) -> Exchange:
    return Exchange(url=fields.pop("url", URL), requested_at=AT, **fields)


def seen(packed: bytes) -> list[Any]:
    """Return the records as warcio reads them, with verified digests."""
    found = []
    for record in ArchiveIterator(io.BytesIO(packed), check_digests="raise"):
        record.content = record.raw_stream.read()
        found.append(record)
    return found


def test_an_answer_and_its_request_are_records_that_belong_together():
    answered, asked = PACKER.pair(
        exchange(
            request_headers=(("Accept", "text/html"),),
            headers=(("content-type", "text/html"), ("content-encoding", "gzip")),
            body=b"<h1>Hi</h1>",
        )
    )

    answer, request = seen(answered + asked)

    assert answer.rec_type == "response"
    assert answer.rec_headers.protocol == "WARC/1.1"
    assert answer.rec_headers.get_header("WARC-Target-URI") == URL
    assert answer.rec_headers.get_header("WARC-Date") == "2026-01-02T03:04:05.678000Z"
    assert answer.content == b"<h1>Hi</h1>"
    # The body is decoded, and the headers match that.
    assert answer.http_headers.get_header("content-encoding") is None
    assert answer.http_headers.get_header("x-orig-content-encoding") == "gzip"
    assert answer.http_headers.get_header("content-length") == "11"
    assert request.rec_type == "request"
    answer_id = answer.rec_headers.get_header("WARC-Record-ID")
    assert request.rec_headers.get_header("WARC-Concurrent-To") == answer_id
    assert request.http_headers.statusline == "/b?c=d HTTP/1.1"
    assert request.http_headers.get_header("host") == "a.example"
    assert request.http_headers.get_header("accept") == "text/html"


def test_an_answer_is_read_back_as_it_came():
    headers = {"content-encoding": "br", "content-length": "5", "x-a": "ü, \u2713", "etag": '"1"'}
    answered, _ = PACKER.pair(
        exchange(
            status=404, headers=tuple(headers.items()), body=b"a\r\n\r\nb\x00", truncated="bytes"
        )
    )

    found = records.read(answered, max_size=MOST)

    assert (found.url, found.status, found.body, found.is_cut) == (
        URL,
        404,
        b"a\r\n\r\nb\x00",
        True,
    )
    assert found.headers == headers
    (record,) = seen(answered)
    assert record.rec_headers.get_header("WARC-Truncated") == "length"


@pytest.mark.parametrize(
    ("status", "length", "cut"), [(302, "5", "unspecified"), (302, "0", None), (404, "5", None)]
)
def test_a_redirect_whose_body_was_not_read_says_so(status: int, length: str, cut: str | None):
    headers = (("location", "/c"), ("content-length", length))

    (record,) = seen(PACKER.pair(exchange(status=status, headers=headers))[0])

    assert record.rec_headers.get_header("WARC-Truncated") == cut


HOSTILE = st.lists(
    st.characters()  # lone surrogates, too
    | st.sampled_from(["\r\n", "\r\n\r\nWARC/1.1\r\n", "\x00", "\x85", "\u2028", "\x1b[2J"]),
    max_size=20,
).map("".join)


@settings(max_examples=40)
@given(
    url=HOSTILE.map(lambda text: f"http://a.example/{text}"),
    name=HOSTILE,
    value=HOSTILE,
    body=st.binary(max_size=100),
    status=st.integers(100, 999),
)
def test_whatever_a_server_says_makes_one_record(
    url: str, name: str, value: str, body: bytes, status: int
):
    answered, asked = PACKER.pair(
        exchange(
            url=url,
            status=status,
            headers=((name, value), ("x-value", value), ("x-last", "1")),
            request_headers=((name, value),),
            body=body,
        )
    )

    answer, request = seen(answered + asked)
    found = records.read(answered, max_size=MOST)

    assert (answer.rec_type, request.rec_type) == ("response", "request")
    assert answer.content == found.body == body
    assert found.status == status
    assert found.headers["x-last"] == "1"
    assert len(found.headers) <= 4
    assert not set("\r\n\0") & set(found.headers["x-value"])
    assert answer.rec_headers.get_header("WARC-Target-URI").isascii()


SECRETS = ("Authorization", "Cookie", "Proxy-Authorization")


def test_secrets_are_in_no_record():
    request = Request(URL, headers={**dict.fromkeys(SECRETS, "secret"), "X-Own": "told"})
    response = Response(
        URL, request=request, headers={"Set-Cookie": "a=secret", "X-Own": "told"}, body=b""
    )

    packed = b"".join(PACKER.pair(Exchange.of(request, response, requested_at=AT)))

    content = b"".join(zlib.decompress(each, 31) for each in members(packed))
    assert b"secret" not in content
    assert content.count(b"told") == 2


def members(packed: bytes) -> list[bytes]:
    found = []
    while packed:
        unpacking = zlib.decompressobj(31)
        unpacking.decompress(packed)
        found.append(packed[: len(packed) - len(unpacking.unused_data)])
        packed = unpacking.unused_data
    return found


def test_a_method_that_readers_do_not_know_leaves_its_answer_alone():
    answered, asked = PACKER.pair(exchange(method="PROPFIND", body=b"x"))

    assert asked == b""
    assert seen(answered)[0].content == b"x"


@pytest.mark.parametrize(
    ("status", "profile"), [(304, "server-not-modified"), (200, "identical-payload-digest")]
)
def test_a_page_that_is_as_it_was_makes_a_revisit_without_its_body(status: int, profile: str):
    (record,) = seen(PACKER.revisit(exchange(status=status, body=b"as it was")))

    assert record.rec_type == "revisit"
    assert record.rec_headers.get_header("WARC-Profile").endswith(profile)
    assert record.content == b""
    assert b"as it was" not in zlib.decompress(PACKER.revisit(exchange(body=b"as it was")), 31)


def test_a_file_begins_with_who_wrote_it():
    (record,) = seen(PACKER.about_the_file("books-1.warc.gz", spider="books"))

    assert record.rec_type == "warcinfo"
    assert record.rec_headers.get_header("WARC-Filename") == "books-1.warc.gz"
    assert b"software: crawlcw" in record.content
    assert b"isPartOf: books" in record.content


ANSWERED, ASKED = PACKER.pair(exchange(body=b"x" * 10_000))


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"", "its end is missing"),
        (ANSWERED[:-1], "its end is missing"),
        (b"no gzip at all", "cannot be decompressed"),
        (ANSWERED[:-8] + bytes(8), "cannot be decompressed"),
        (ASKED, "no response record"),
        (PACKER.about_the_file("a", spider="a"), "no response record"),
        (zlib.compress(b"no WARC", wbits=31), "not a WARC record"),
        (zlib.compress(b"", wbits=31), "no response record"),
        (zlib.compress(b"WARC/1.1\r\nWARC-Type: response\r\n\r\nx", wbits=31), "not a WARC record"),
        (PACKER.pair(exchange(body=bytes(10 << 20)))[0], "it is too large"),
    ],
)
def test_what_is_damaged_says_so(packed: bytes, why: str):
    with pytest.raises(DamagedRecordError, match=why):
        records.read(packed, max_size=MOST)
