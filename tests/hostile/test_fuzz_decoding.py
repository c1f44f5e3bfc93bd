"""Any bytes under any Content-Encoding: a body within the limit, or a refusal."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import brotli
import pytest
from hypothesis import example
from hypothesis import strategies as st

from crawlcw.errors import FetchError, Reason
from crawlcw.fetch import body as decoding
from crawlcw.fetch.body import BodyDecoder, codings_of
from tests.support.fuzzing import fuzzed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1 << 20
#: The most that one step may return: twice a piece, since brotli's own limit is a soft one.
LARGEST_PIECE = 1 << 17
SLACK = 1 << 20
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=1),
    "zstd": zstd.compress,
}
codings = st.lists(st.sampled_from(sorted(PACKERS)), min_size=1, max_size=3)
bodies = st.binary(max_size=300) | st.builds(
    lambda unit, times: unit * times, st.binary(min_size=1, max_size=5), st.integers(0, 40_000)
)
places = st.lists(st.integers(min_value=0), max_size=8)
limits = st.sampled_from([0, 1, 100, (1 << 16) - 1, 1 << 16, MIB])


@dataclass(frozen=True)
class Damage:
    """One change to a stream: some of its bytes replaced."""

    place: int
    removed: int
    inserted: bytes

    def __call__(self, data: bytes) -> bytes:
        start = self.place % (len(data) + 1)
        return data[:start] + self.inserted + data[start + self.removed :]


damages = st.lists(
    st.builds(Damage, st.integers(min_value=0), st.integers(0, 20), st.binary(max_size=6)),
    max_size=4,
)


def packed(body: bytes, names: list[str]) -> bytes:
    for name in names:
        body = PACKERS[name](body)
    return body


def split(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


def decoded(names: list[str], pieces: list[bytes], limit: int) -> bytes | None:
    """Return the decoded body of the pieces, or None if they are refused."""
    try:
        decoder, body = BodyDecoder(names, limit=limit), b""
        for piece in pieces:
            if not decoder.is_full:
                body += b"".join(decoder.pieces(piece))
        return None if decoder.missing else body
    except FetchError as error:
        refused = error
    assert refused.reason is Reason.CONTENT_ENCODING
    return None


@fuzzed(names=codings, body=bodies, places=places, limit=limits, quick=60, thorough=2000)
@example(names=["deflate"], body=b"ab" * (1 << 17), places=[9], limit=MIB)
def test_a_whole_stream_comes_back_in_every_split(
    names: list[str], body: bytes, places: list[int], limit: int
) -> None:
    data = packed(body, names)

    for pieces in ([data], split(data, places), split(data, list(range(len(data) % 3000)))):
        assert decoded(names, pieces, limit) == body[:limit]
    # A stream without its last byte is refused; an empty stream is an empty body.
    assert len(data) == 1 or decoded(names, [data[:-1]], MIB) is None


@fuzzed(
    names=codings,
    body=bodies,
    damage=damages,
    places=places,
    limit=limits,
    quick=100,
    thorough=2000,
)
@example(names=["br"], body=b"", damage=[Damage(1, 0, b";")], places=[1], limit=0)
@example(names=["zstd"], body=b"", damage=[Damage(5, 1, b"6")], places=[1, 2, 3, 4], limit=0)
def test_a_damaged_stream_is_refused_or_has_one_body_in_all_splits(
    names: list[str], body: bytes, damage: list[Damage], places: list[int], limit: int
) -> None:
    data = packed(body, names)
    for change in damage:
        data = change(data)

    splits = [[data], split(data, places), split(data, list(range(len(data) % 3000)))]
    found = {decoded(names, pieces, limit) for pieces in splits} - {None}

    # A split may decide whether a decoder sees the damage before it has the whole
    # body. It must not change the body.
    assert len(found) <= 1
    assert all(len(each) <= limit for each in found if each is not None)


@fuzzed(
    names=st.lists(st.sampled_from([*PACKERS, "x-gzip", "identity", "frobnicate", ""]), max_size=5),
    data=st.binary(max_size=60),
    places=places,
    quick=100,
    thorough=5000,
)
def test_any_bytes_under_any_codings_are_refused_or_a_body(
    names: list[str], data: bytes, places: list[int]
) -> None:
    found = decoded(names, split(data, places), MIB)

    if found is not None and not set(names) - {"identity"}:
        assert found == data


@dataclass
class Work:
    """The output of the decoders' stages: the largest piece, and the most of one stage."""

    largest: int = 0
    most: int = 0


@contextmanager
def watched() -> Iterator[Work]:
    work = Work()
    given: dict[int, int] = {}
    pieces = decoding._Stage.pieces

    def counted(stage: decoding._Stage, data: bytes) -> Iterator[bytes]:
        for piece in pieces(stage, data):
            given[id(stage)] = given.get(id(stage), 0) + len(piece)
            work.largest = max(work.largest, len(piece))
            work.most = max(work.most, given[id(stage)])
            yield piece

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decoding._Stage, "pieces", counted)
        yield work


@fuzzed(
    layers=st.lists(
        st.tuples(
            st.sampled_from(sorted(PACKERS)), st.sampled_from([b"", b"\0", b"\1", b"\x28", b"\x1f"])
        ),
        min_size=1,
        max_size=3,
    ),
    start=st.binary(max_size=20) | st.just(gzip.compress(b"", mtime=0)[:3] + b"\x08"),
    limit=st.sampled_from([1, 1000, 1 << 17]),
    quick=20,
    thorough=400,
)
@example(layers=[("gzip", b""), ("br", b"\0")], start=b"page", limit=1000)
@example(layers=[("zstd", b""), ("gzip", b"\0"), ("zstd", b"\0")], start=b"page", limit=1000)
def test_no_step_of_any_bomb_hands_out_much_more_than_the_limit(
    layers: list[tuple[str, bytes]], start: bytes, limit: int
) -> None:
    """The output of a step costs memory and time."""
    data = start
    for name, filling in layers:
        data = PACKERS[name](data + 4 * MIB * filling)

    with watched() as work:
        found = decoded([name for name, _ in layers], [data], limit)

    assert found is None or len(found) <= limit
    assert work.largest <= LARGEST_PIECE
    assert work.most <= limit + SLACK + LARGEST_PIECE


@fuzzed(header=st.text(max_size=20) | st.from_regex(r"[a-z, ]{0,20}"), quick=50, thorough=5000)
def test_any_header_lists_codings_that_are_known_or_refused(header: str) -> None:
    names = codings_of({"content-encoding": header})

    assert all(name == name.strip().lower() for name in names)
    assert "" not in names
    assert decoded(names, [b""], MIB) in (b"", None)
