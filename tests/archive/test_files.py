"""WARC files: rotation, locks, and repair after faults of processes and disks."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from warcio.archiveiterator import ArchiveIterator

from crawlcw.archive import bodies
from crawlcw.archive.bodies import OPEN, FileMissingError, WarcFiles, read_stored
from crawlcw.archive.records import DamagedRecordError
from crawlcw.model.task import StoredPage
from tests.archive.test_records import MOST, PACKER, exchange


def first_record(name: str) -> bytes:
    return PACKER.about_the_file(name, spider="books")


def opened(folder: Path, *, largest: int = 1 << 30) -> WarcFiles:
    return WarcFiles(folder, prefix="books", first_record=first_record, largest=largest)


def answer(number: int, *, size: int = 10) -> bytes:
    return PACKER.pair(exchange(body=b"%d" % number + os.urandom(size)))[0]


def is_there(folder: Path, place: StoredPage, number: int) -> bool:
    return read_stored(folder, place, max_size=MOST).body.startswith(b"%d" % number)


def kinds(path: Path) -> list[str]:
    with path.open("rb") as stream:
        return [record.rec_type for record in ArchiveIterator(stream)]


def test_records_are_read_where_they_were_written(tmp_path: Path):
    warc = opened(tmp_path)
    first, second = warc.append([answer(1), answer(2)])
    (third,) = warc.append([answer(3)])

    # Also while the file is being written.
    warc.sync()
    assert is_there(tmp_path, third, 3)
    warc.close()

    assert [is_there(tmp_path, p, n) for n, p in enumerate((first, second, third), 1)] == [True] * 3
    (path,) = tmp_path.iterdir()
    assert kinds(path) == ["warcinfo", *["response"] * 3]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_file_is_followed_by_the_next_one(tmp_path: Path):
    warc = opened(tmp_path, largest=3000)
    places = [warc.append([answer(n, size=900)])[0] for n in range(7)]
    warc.close()

    paths = sorted(tmp_path.iterdir())
    assert len(paths) > 2
    assert all(path.stat().st_size <= 3000 for path in paths)
    assert {place.file for place in places} == {path.name for path in paths}
    assert all(is_there(tmp_path, place, n) for n, place in enumerate(places))


def left_behind(folder: Path, *, torn: bytes) -> StoredPage:
    """Leave the state after a crash: a file under its temporary name, with a torn record."""
    warc = opened(folder)
    (place,) = warc.append([answer(1)])
    warc.close()
    path = folder / place.file
    with path.open("ab") as stream:
        stream.write(torn)
    path.rename(f"{path}{OPEN}")
    return place


WHOLE = answer(2, size=5000)


@pytest.mark.parametrize("torn", [b"", WHOLE[:1], WHOLE[:3000], WHOLE[:-1], bytes(4096), b"junk"])
def test_a_torn_end_is_cut_off_by_whoever_comes_next(tmp_path: Path, torn: bytes):
    place = left_behind(tmp_path, torn=torn)
    assert is_there(tmp_path, place, 1)

    assert opened(tmp_path).mend() == 1

    assert is_there(tmp_path, place, 1)
    assert [path.name for path in tmp_path.iterdir()] == [place.file]
    assert kinds(tmp_path / place.file) == ["warcinfo", "response"]
    assert (tmp_path / place.file).stat().st_size == place.offset + place.length


def test_many_members_that_unpack_to_much_are_measured_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(bodies, "_PIECE", 100)
    content = answer(1) + PACKER.pair(exchange(body=bytes(100_000)))[0] + answer(3)
    for size in (1, 7, len(content)):
        pieces = [content[n : n + size] for n in range(0, len(content), size)]

        assert bodies.whole_size(iter(pieces)) == len(content)


# Disks -------------------------------------------------------------------------------


def half_written(code: int) -> Callable[[int, memoryview], int]:
    """Return a `write` that writes 100 bytes of a large piece, and then fails with *code*."""
    write = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) > 100:
            return write(descriptor, data[:100])
        raise OSError(code, os.strerror(code))

    return half


def test_a_full_disk_leaves_what_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    warc = opened(tmp_path)
    (first,) = warc.append([answer(1)])
    warc.sync()
    warc.append([answer(2, size=1000)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half_written(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            warc.sync()
    # Places that were assigned after the last sync have no records.
    with pytest.raises(OSError, match="No space left"):
        warc.append([answer(3)])
    warc.close()

    assert is_there(tmp_path, first, 1)
    assert [path.name for path in tmp_path.iterdir()] == [first.file]
    assert kinds(tmp_path / first.file) == ["warcinfo", "response"]


def test_syncs_that_come_together_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    warc = opened(tmp_path)
    warc.append([answer(1)])
    warc.sync()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    warc.append([answer(2)])
    warc.append([answer(3)])

    for _ in range(3):
        warc.sync()

    assert len(synced) == 1
    warc.close()


def test_after_a_sync_that_failed_nothing_is_taken_for_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    warc = opened(tmp_path)
    warc.append([answer(1)])

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            warc.sync()

    # The kernel reports the error only once: the second call must fail by itself.
    with pytest.raises(OSError, match="Input/output"):
        warc.sync()
    with pytest.raises(OSError, match="Input/output"):
        warc.append([answer(2)])
    warc.close()


# Reading -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "", ".hidden", "a\0b", "x" * 300]
)
def test_a_place_leads_to_no_other_file(tmp_path: Path, name: str):
    (tmp_path / "secret").write_bytes(answer(1))
    (tmp_path / "folder").mkdir()

    with pytest.raises(DamagedRecordError, match="place in the ledger is invalid"):
        read_stored(tmp_path / "folder", StoredPage(file=name, offset=0, length=10), max_size=MOST)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path):
    place = StoredPage(file="books-1.warc.gz", offset=0, length=10)

    with pytest.raises(FileMissingError, match="is not in"):
        read_stored(tmp_path, place, max_size=MOST)


def test_any_number_of_files_is_read(tmp_path: Path):
    places = []
    for number in range(40):
        warc = opened(tmp_path)
        places += warc.append([answer(number)])
        warc.close()

    bodies = [read_stored(tmp_path, place, max_size=MOST).body for place in [*places, *places]]

    assert all(body.startswith(b"%d" % (n % 40)) for n, body in enumerate(bodies))


# Processes that are killed -----------------------------------------------------------

_WRITER = """
import os, sys
from pathlib import Path
from tests.archive.test_files import answer, opened
warc = opened(Path(sys.argv[1]), largest=200_000)
for number in range(1_000_000):
    (place,) = warc.append([answer(number, size=3000)])
    warc.sync()
    print(number, place.file, place.offset, place.length, flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("told", [1, 2, 63, 64, 65, 150, 300])
def test_what_was_synced_outlives_a_kill(tmp_path: Path, told: int):
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(told)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.read().splitlines(keepends=True)
    places = {}
    for line in lines:
        if line.endswith("\n"):
            number, file, offset, length = line.split()
            places[int(number)] = StoredPage(file=file, offset=int(offset), length=int(length))

    assert all(is_there(tmp_path, place, n) for n, place in places.items())
    opened(tmp_path).mend()

    assert all(is_there(tmp_path, place, n) for n, place in places.items())
    assert not list(tmp_path.glob(f"*{OPEN}"))
    assert sum(len(kinds(path)) - 1 for path in tmp_path.iterdir()) >= len(places)
