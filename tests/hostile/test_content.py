"""Bombs, false types and images as bodies: HOSTILE section 3, by real crawls on a real socket."""

import gzip
import re
import resource
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import brotli
import pytest

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import run_spider
from crawlcw.errors import FetchError
from crawlcw.fetch.body import _SIGNATURES, check_start, zstd
from crawlcw.ledger.sqlite import SqliteLedger
from tests.hostile.memory_web import SETTINGS, Crawled, looked_up
from tests.hostile.raw_server import Endless, RawServer, response, serving

MIB = 1 << 20
PAGE = b"<html><title>a page</title></html>"
#: Not NULs: they keep the parser busy for seconds, which other tests cover.
SPACES = b" " * (32 * MIB)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
SHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(1000)


class Bodies(Spider):
    """Records size, text and encoding of every page."""

    name = "bodies"

    def parse(self, answer: Response) -> Iterator[Any]:
        yield {
            "url": answer.url,
            "text": answer.text[:50],
            "size": answer.size,
            "truncated": answer.truncated,
            "encoding": answer.encoding,
        }


async def crawled(
    pages: Mapping[str, bytes | Endless], folder: Path, **settings: Any
) -> tuple[Crawled, RawServer]:
    """Crawl each of *pages* from a real server; the records are by path."""
    async with serving(pages) as server:
        spider = Bodies(start_urls=[server.url(path) for path in pages])
        chosen = Settings(**SETTINGS | {"obey_robots": False, "max_retry": 2} | settings)
        url = f"sqlite:///{folder}/ledger.db"
        report = await run_spider(spider, ledger=url, settings=chosen)
    ledger = await SqliteLedger.open(folder / "ledger.db", spider.name)
    try:
        found = await looked_up(ledger, report)
    finally:
        await ledger.close()
    origin = server.url("")
    found.records = {url.removeprefix(origin): record for url, record in found.records.items()}
    for item in found.items:
        item["path"] = item["url"].removeprefix(origin)
    return found, server


def coded(body: bytes, coding: str) -> bytes:
    return response(body, headers=b"Content-Encoding: %s\r\n" % coding.encode())


def typed(body: bytes, content_type: str) -> bytes:
    return response(body, headers=b"Content-Type: %s\r\n" % content_type.encode("latin-1"))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def of(found: Crawled, path: str) -> dict[str, Any]:
    (item,) = [item for item in found.items if item["path"] == path]
    return item


async def test_bodies_without_end_are_cut_and_not_read_on(tmp_path: Path):
    """HOSTILE 3.1, HOSTILE 3.9: bodies are cut at `max_body`, whatever length is announced."""
    length = b"HTTP/1.1 200 OK\r\nContent-Length: 1%s\r\n\r\n" % (b"0" * 18)
    pages = {
        "/endless": Endless(head=HEAD, again=b"x" * (1 << 16)),
        "/title": Endless(head=HEAD + b"<title>", again=b"x" * (1 << 16)),
        "/length": Endless(head=length, again=b"y" * (1 << 16)),
    }

    found, server = await crawled(pages, tmp_path)

    assert [found.outcome(path) for path in pages] == ["finished"] * 3
    assert {(item["size"], item["truncated"]) for item in found.items} == {(10 * MIB, "bytes")}
    assert server.sent < 3 * 28 * MIB


def bombs() -> dict[str, bytes]:
    """Return compressed pages of spaces or NULs; making them takes seconds."""
    return {
        "/gzip": coded(gzip.compress(SPACES, 6), "gzip"),
        "/deflate": coded(zlib.compress(SPACES), "deflate"),
        "/br": coded(brotli.compress(SPACES, quality=1), "br"),
        "/zstd": coded(zstd.compress(SPACES), "zstd"),
        "/twice": coded(gzip.compress(gzip.compress(SPACES)), "gzip, gzip"),
        "/members": coded(gzip.compress(bytes(MIB)) * 64, "gzip"),
        "/nothing": coded(gzip.compress(b"") * 600_000, "gzip"),
    }


@pytest.mark.thorough
async def test_bombs_are_cut_and_cost_little_memory(tmp_path: Path):
    """HOSTILE 3.2: the limit counts decoded bytes, of all gzip members together."""
    pages = bombs()
    # Load the modules of a crawl first: they take 20 MiB.
    (tmp_path / "first").mkdir()
    await crawled({"/": coded(gzip.compress(PAGE), "gzip")}, tmp_path / "first")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    found, _ = await crawled(pages, tmp_path, concurrency=1)

    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert [found.outcome(path) for path in pages] == ["finished"] * len(pages)
    sizes = {item["path"]: (item["size"], item["truncated"]) for item in found.items}
    assert sizes.pop("/nothing") == (0, "bytes")
    assert set(sizes.values()) == {(10 * MIB, "bytes")}
    # In KiB: the body, its text, its tree, and 16 MiB.
    assert grown < 4 * 10 * 1024 + 16 * 1024


def large_window(data: bytes) -> bytes:
    options = {zstd.CompressionParameter.window_log: 27}
    return zstd.compress(data, options=options)


@pytest.mark.parametrize(
    ("body", "coding", "outcome"),
    [
        pytest.param(
            large_window(bytes(range(256)) * (1 << 16)),
            "zstd",
            "content-encoding",
            id="HOSTILE 3.2 window of zstd",
        ),
        # RFC 9841: the stream header of a window of up to 1 GiB.
        pytest.param(
            b"\x11\x1e\0\0\0", "br", "content-encoding", id="HOSTILE 3.2 window of brotli"
        ),
        pytest.param(PAGE, "gzip", "content-encoding", id="HOSTILE 3.3 no gzip"),
        pytest.param(PAGE, "br", "content-encoding", id="HOSTILE 3.3 no br"),
        pytest.param(PAGE, "zstd", "content-encoding", id="HOSTILE 3.3 no zstd"),
        pytest.param(
            gzip.compress(PAGE)[:-8] + bytes(8), "gzip", "content-encoding", id="HOSTILE 3.3 CRC"
        ),
        pytest.param(gzip.compress(PAGE) + b"\0x", "gzip", "finished", id="HOSTILE 3.3 garbage"),
        pytest.param(gzip.compress(PAGE)[:-9], "gzip", "coding", id="HOSTILE 3.4 gzip"),
        pytest.param(zlib.compress(PAGE)[:-5], "deflate", "coding", id="HOSTILE 3.4 deflate"),
        pytest.param(brotli.compress(PAGE)[:-2], "br", "coding", id="HOSTILE 3.4 br"),
        pytest.param(zstd.compress(PAGE)[:-2], "zstd", "coding", id="HOSTILE 3.4 zstd"),
        pytest.param(gzip.compress(PAGE)[:-8], "gzip", "checksum", id="HOSTILE 3.4 gzip-8"),
        pytest.param(gzip.compress(PAGE)[:-1], "gzip", "checksum", id="HOSTILE 3.4 gzip-1"),
        pytest.param(zlib.compress(PAGE)[:-4], "deflate", "checksum", id="HOSTILE 3.4 deflate-4"),
        pytest.param(gzip.compress(PAGE)[:5], "gzip", "payload-truncated", id="HOSTILE 3.4 head"),
        pytest.param(raw_deflate(PAGE), "deflate", "finished", id="HOSTILE 3.5 raw deflate"),
        pytest.param(
            gzip.compress(PAGE[:9]) + gzip.compress(PAGE[9:]), "gzip", "finished", id="HOSTILE 3.5"
        ),
        pytest.param(
            brotli.compress(gzip.compress(PAGE)), "gzip, br", "finished", id="HOSTILE 2.11 stacked"
        ),
        pytest.param(gzip.compress(PAGE), "x-gzip", "finished", id="HOSTILE 2.11 x-gzip"),
        pytest.param(PAGE, "frobnicate", "finished", id="HOSTILE 2.11 unknown"),
        pytest.param(PAGE, "compress", "content-encoding", id="HOSTILE 2.11 no decoder"),
        pytest.param(PAGE, "gzip,gzip,gzip,gzip", "content-encoding", id="HOSTILE 2.11 many"),
    ],
)
async def test_a_coded_body_is_whole_or_marked_or_no_page(
    body: bytes, coding: str, outcome: str, tmp_path: Path
):
    """HOSTILE 3.2, HOSTILE 3.3, HOSTILE 3.4, HOSTILE 3.5: compressed bytes are never text."""
    found, server = await crawled({"/": coded(body, coding)}, tmp_path)

    mark = outcome if outcome in ("coding", "checksum") else None
    assert found.outcome("/") == ("finished" if mark else outcome)
    texts = [item["text"] for item in found.items]
    if outcome == "coding":
        (text,) = texts
        assert PAGE.decode().startswith(text)
    else:
        assert texts == ([PAGE.decode()] if outcome in ("finished", "checksum") else [])
    assert {item["truncated"] for item in found.items} <= {mark}
    # Only a cut body is requested again: it may be whole the next time.
    assert len(server.requested) == (2 if outcome == "payload-truncated" else 1)


@pytest.mark.parametrize(
    ("cut", "outcome"), [(1, "finished"), (8, "finished"), (9, "payload-truncated")]
)
async def test_where_no_length_is_said_only_what_has_all_of_its_content_is_a_page(
    cut: int, outcome: str, tmp_path: Path
):
    """HOSTILE 1.11, HOSTILE 3.4: otherwise a broken connection would pass for the end of a page."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n"

    found, _ = await crawled({"/": head + gzip.compress(PAGE)[:-cut]}, tmp_path)

    assert found.outcome("/") == outcome


async def test_a_coding_that_is_cut_off_is_no_page_where_nothing_may_be_cut(tmp_path: Path):
    """HOSTILE 3.4: `truncate=False`."""
    page = coded(gzip.compress(PAGE)[:-8], "gzip")

    found, server = await crawled({"/": page}, tmp_path, truncate=False)

    assert found.outcome("/") == "payload-truncated"
    assert len(server.requested) == 2


@pytest.mark.parametrize(("cut", "is_crawled"), [(8, True), (20, False)])
async def test_half_a_robots_txt_allows_nothing(cut: int, is_crawled: bool, tmp_path: Path):
    """HOSTILE 3.4: missing rules may disallow pages; a missing checksum cannot."""
    rules = b"User-agent: *\nDisallow: /a\nDisallow: /b\n"
    pages = {"/robots.txt": coded(gzip.compress(rules)[:-cut], "gzip"), "/": response(PAGE)}

    options = {"obey_robots": True, "host_max_failures": 1}
    found, server = await crawled(pages, tmp_path, **options)

    assert (found.outcome("/") == "finished") is is_crawled
    assert ("/" in server.requested) is is_crawled


@pytest.mark.parametrize(
    ("content_type", "body", "text", "encoding"),
    [
        ("text/html; charset=punycode", b"a" * 300_000, "a" * 50, "utf-8"),
        ("text/html; charset=unicode_escape", rb"\x1b[2J", r"\x1b[2J", "utf-8"),
        ("text/html; charset=utf-7", b"+ADw-script+AD4-", "+ADw-script+AD4-", "utf-8"),
        ("text/html; charset=utf-8, utf-8", "ü".encode(), "ü", "utf-8"),
        ("text/html; charset=\xff\xfe", b"x", "x", "utf-8"),
        ("text/html; charset=nonsense", "ü".encode("cp1252"), "ü", "cp1252"),
        ("text/html; charset=utf-8", b"a\xffb", "a\ufffdb", "utf-8"),
        (
            "text/html",
            b"<meta charset=gbk>" + "中".encode("gbk"),
            "<meta charset=gbk>中",
            "gb18030",
        ),
        ("text/html", "\ufeffü".encode("utf-16-le"), "ü", "utf-16-le"),
        ("text/html; charset=utf-8", "\ufeffü".encode("utf-16-be"), "ü", "utf-16-be"),
    ],
)
async def test_any_charset_makes_text(
    content_type: str, body: bytes, text: str, encoding: str, tmp_path: Path
):
    """HOSTILE 3.6, HOSTILE 3.7: the browsers' encodings, with U+FFFD for invalid bytes."""
    found, _ = await crawled({"/": typed(body, content_type)}, tmp_path)

    assert found.outcome("/") == "finished"
    assert (of(found, "/")["text"], of(found, "/")["encoding"]) == (text, encoding)


async def test_what_is_no_text_is_not_read(tmp_path: Path):
    """HOSTILE 3.8: binary content is refused by its type, or by its first bytes."""
    refused: dict[str, bytes | Endless] = {
        f"/{number}": Endless(
            head=b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n" % kind, again=b"x" * 1000
        )
        for number, kind in enumerate(
            (b"audio/mpeg", b"Video/MP4", b"text/event-stream", b"image/png", b"font/woff2")
        )
    }
    refused |= {
        "/zip": typed(b"x", "application/zip"),
        "/png as html": typed(PNG, "text/html; charset=utf-8"),
        "/png endless": Endless(head=HEAD + PNG, again=b"x" * 1000),
        "/zip as html": typed(b"PK\3\4" + bytes(1000), "text/html"),
        "/zip of no type": response(b"PK\3\4"),
        "/mp4 as anything": typed(b"\0\0\0\x18ftypmp42", "application/octet-stream"),
        "/packed png": response(
            gzip.compress(PNG), headers=b"Content-Type: text/html\r\nContent-Encoding: gzip\r\n"
        ),
    }
    refused = {path.replace(" ", "-"): page for path, page in refused.items()}
    read = {
        "/svg": typed(b"<svg/>", "image/svg+xml"),
        "/pdf": typed(b"%PDF-1.7", "application/pdf"),
        "/octets": typed(b"anything", "application/octet-stream"),
        "/json": typed(b"{}", "application/json"),
        "/pk": typed(b"PK is a town", "text/html"),
        "/sheet": typed(b"PK\3\4" + bytes(1000), SHEET),
        "/not-found": response(b"", status="204 No Content"),
    }

    found, server = await crawled(refused | read, tmp_path)

    assert {path for path in refused if found.outcome(path) != "content-type"} == set()
    assert {path for path in read if found.outcome(path) != "finished"} == set()
    assert server.sent < 20 * MIB


async def test_a_type_that_is_accepted_is_read(tmp_path: Path):
    """HOSTILE 3.8: the user may accept more types."""
    pages = {
        "/png": typed(PNG, "image/png"),
        "/hidden": typed(PNG, "text/html"),
        "/gif": typed(b"GIF89a", "image/gif"),
        "/zip": typed(b"PK\3\4", "application/zip"),
    }

    found, _ = await crawled(pages, tmp_path, accept_types=["image/png", "application/*"])

    assert [found.outcome(path) for path in pages] == [
        *("finished", "finished", "content-type", "finished"),
    ]


def test_every_signature_is_of_a_type_that_is_refused():
    """HOSTILE 3.8: each recognised type has a use."""
    for place, signature, kind in _SIGNATURES:
        start = bytes(place) + signature

        with pytest.raises(FetchError, match=f"the body is {re.escape(kind)}, although its"):
            check_start(start, "text/html", [])
        with pytest.raises(
            FetchError, match=f"the body is {re.escape(kind)}, although its .* missing"
        ):
            check_start(start, "", [])
        check_start(start, "", ["*/*"])


async def test_no_file_is_named_by_a_response(tmp_path: Path):
    """HOSTILE 3.10: Content-Disposition has no effect on paths."""
    name = b"Content-Disposition: attachment; filename=\"../../evil\"; filename*=utf-7''+ADw-x\r\n"

    found, _ = await crawled({"/x": response(PAGE, headers=name)}, tmp_path)

    assert found.report.pages == 1
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"ledger.db"}
