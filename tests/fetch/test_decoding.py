"""Output of the decoder for every coding, split and cut."""

import gzip
import os
import time
import zlib
from collections.abc import Callable

import brotli
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.body import BodyDecoder, codings_of, zstd

MIB = 1 << 20


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def _two_members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


def _two_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return zstd.compress(data[:half]) + zstd.compress(data[half:])


PACKERS = {
    "gzip": ("gzip", gzip.compress),
    "gzip members": ("gzip", _two_members),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", _raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstd.compress),
    "zstd frames": ("zstd", _two_frames),
}
ONE_STREAM = {name: packer for name, packer in PACKERS.items() if not name.endswith("s")}


def decoded(codings: list[str], pieces: list[bytes], *, limit: int = MIB) -> tuple[bytes, bool]:
    decoder, body = BodyDecoder(codings, limit=limit), b""
    for piece in pieces:
        if decoder.is_full:
            break
        body += b"".join(decoder.pieces(piece))
    return body, decoder.is_full


def reason_of(codings: list[str], pieces: list[bytes]) -> Reason:
    with pytest.raises(FetchError) as caught:
        decoded(codings, pieces)
    return caught.value.reason


def split(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Repeated(bytes):
    """A body longer than a piece, with a short repr."""

    unit: bytes
    times: int

    def __new__(cls, unit: bytes, times: int) -> "Repeated":
        body = super().__new__(cls, unit * times)
        body.unit, body.times = unit, times
        return body

    def __repr__(self) -> str:
        return f"Repeated({self.unit!r}, {self.times})"


bodies = st.one_of(
    st.binary(max_size=2000),
    st.builds(Repeated, st.binary(min_size=1, max_size=9), st.integers(0, 40_000)),
)
places = st.lists(st.integers(min_value=0), max_size=8)


@pytest.mark.thorough
@pytest.mark.representative("gzip]")
@pytest.mark.parametrize("name", PACKERS)
@given(body=bodies, places=places)
def test_any_body_comes_back_however_it_is_split(name: str, body: bytes, places: list[int]) -> None:
    coding, pack = PACKERS[name]

    assert decoded([coding], split(pack(body), places)) == (body, False)


@pytest.mark.parametrize("name", ONE_STREAM)
@given(body=bodies, cut=st.integers(min_value=0), places=places)
def test_a_stream_without_its_end_is_noticed(
    name: str, body: bytes, cut: int, places: list[int]
) -> None:
    coding, pack = PACKERS[name]
    packed = pack(body)
    kept = packed[: 1 + cut % (len(packed) - 1)] if len(packed) > 1 else b""
    if not kept:
        return

    for limit in (MIB, None):
        decoder = BodyDecoder([coding], limit=limit)
        found = [b"".join(decoder.pieces(piece)) for piece in split(kept, places)]
        assert body.startswith(b"".join(found))
        assert decoder.missing == f"the {coding} stream is incomplete"


@given(body=bodies, cut=st.integers(1, 19), level=st.sampled_from([0, 1, 6, 9]))
@example(body=os.urandom(700), cut=9, level=6)
@example(body=os.urandom(700), cut=12, level=6)
def test_a_stream_without_its_checksum_lacks_no_content(body: bytes, cut: int, level: int) -> None:
    decoder = BodyDecoder(["gzip"], limit=MIB)

    found = b"".join(decoder.pieces(gzip.compress(body, level)[:-cut]))

    if cut <= 8:
        assert found == body
    else:
        assert body.startswith(found)
    assert decoder.missing
    assert decoder.lacks_content is (cut > 8)


@pytest.mark.parametrize("name", PACKERS)
@given(body=bodies, limit=st.integers(1, 100_000), places=places)
def test_a_body_over_the_limit_is_cut_there_and_said_to_be(
    name: str, body: bytes, limit: int, places: list[int]
) -> None:
    coding, pack = PACKERS[name]

    found = decoded([coding], split(pack(body), places), limit=limit)

    assert found == (body[:limit], len(body) > limit)


@pytest.mark.thorough
@pytest.mark.representative("gzip]")
@pytest.mark.parametrize("name", PACKERS)
def test_a_bomb_yields_the_limit_and_not_much_more_memory(name: str) -> None:
    coding, pack = PACKERS[name]
    decoder = BodyDecoder([coding], limit=MIB)

    found = b"".join(decoder.pieces(pack(bytes(32 * MIB))))

    assert decoder.is_full
    assert found == bytes(MIB)


def test_a_file_may_be_large_where_its_coding_does_not_swell() -> None:
    packed = gzip.compress(os.urandom(MIB), 0)
    decoder = BodyDecoder(["gzip"])

    for _ in range(70):
        for _piece in decoder.pieces(packed):
            pass

    assert decoder.size == 70 * MIB


@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 512, b"garbage"])
@pytest.mark.parametrize("pack", [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_what_follows_a_stream_is_ignored_as_browsers_do(
    pack: tuple[str, Callable[[bytes], bytes]], garbage: bytes
) -> None:
    coding, compress = pack

    assert decoded([coding], [compress(b"page") + garbage]) == (b"page", False)
    assert decoded([coding], [compress(b"page"), garbage, garbage]) == (b"page", False)
    assert decoded([coding], [compress(b"page"), garbage, compress(b"more")]) == (b"page", False)


@pytest.mark.parametrize(
    ("codings", "data"),
    [
        (["gzip"], b"<html>not packed at all</html>"),
        (["gzip"], gzip.compress(b"page", mtime=0)[:-8] + bytes(8)),
        (["deflate"], b"<html>not packed at all</html>"),
        (["br"], b"<html>not packed at all</html>"),
        (["zstd"], b"<html>not packed at all</html>"),
        (["compress"], b"page"),
        (["gzip"] * 4, b"page"),
        # Named, for a gzip stream holds the time: processes must collect the same tests.
        pytest.param(
            ["gzip"] * 4,
            gzip.compress(gzip.compress(gzip.compress(gzip.compress(b"page")))),
            id="four codings",
        ),
    ],
)
def test_bytes_that_are_not_what_they_are_said_to_be_are_refused(
    codings: list[str], data: bytes
) -> None:
    assert reason_of(codings, [data]) is Reason.CONTENT_ENCODING


def test_a_zstd_window_of_more_than_8_mib_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    wide = zstd.ZstdCompressor(options=options)

    packed = wide.compress(bytes(64)) + wide.flush()

    assert reason_of(["zstd"], [packed]) is Reason.CONTENT_ENCODING


def deflated_emptiness(size: int) -> bytes:
    """Return a stream of empty blocks, *size* bytes long."""
    return b"\x78\x9c" + b"\0\0\0\xff\xff" * (size // 5)


@pytest.mark.parametrize(
    ("codings", "pack"),
    [
        (["gzip", "gzip"], lambda: gzip.compress(gzip.compress(b"") * 3_000_000, 1)),
        (["gzip"], lambda: gzip.compress(b"") * 600_000),
        (["deflate", "gzip"], lambda: gzip.compress(deflated_emptiness(100 * MIB), 1)),
    ],
    ids=["streams in a stream", "streams", "blocks"],
)
def test_what_never_becomes_content_takes_no_time(
    codings: list[str], pack: Callable[[], bytes]
) -> None:
    packed = pack()
    decoder = BodyDecoder(codings, limit=10 * MIB)
    began = time.process_time()

    assert list(decoder.pieces(packed)) == []

    assert time.process_time() - began < 0.5
    assert decoder.is_full


@pytest.mark.parametrize(
    ("header", "codings"),
    [
        ("", []),
        ("gzip", ["gzip"]),
        ("x-GZip , br", ["gzip", "br"]),
        (" , ,", []),
        ("compress", ["compress"]),  # which has no decoder
        ("identity", []),
        ("none", []),
        ("utf-8", []),
        ("iso-8859-1", []),
        ("text/html", []),
        ("en", []),
        ("aws-chunked, gzip", ["gzip"]),
    ],
)
def test_a_header_lists_codings(header: str, codings: list[str]) -> None:
    assert codings_of({"content-encoding": header}) == codings
