"""Folders of files: each content once, and no two writers of one partial file."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from crawlcw.files import partial
from crawlcw.files.folders import folder
from crawlcw.files.partial import PartialFile

pytestmark = pytest.mark.quick


def part_of(place: Path, key: str, content: bytes = b"abc") -> PartialFile:
    part = PartialFile.open(place / ".parts", key)
    part.restart(validator='"v1"', total=None)
    part.write(content)
    return part


def test_many_writers_of_one_content_leave_one_file(tmp_path: Path) -> None:
    target = folder(str(tmp_path))
    parts = [part_of(tmp_path, f"key{n}") for n in range(8)]
    together = threading.Barrier(8)

    def keep(number: int) -> str:
        sha256 = parts[number].finish()
        together.wait()
        return target.keep(parts[number], sha256=sha256, name=f"{sha256}-{number}.bin")

    with ThreadPoolExecutor(8) as threads:
        paths = set(threads.map(keep, range(8)))

    assert len(paths) == 1
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"lock", Path(paths.pop()).name}


def test_a_name_that_the_file_system_does_not_take_is_left_out(tmp_path: Path) -> None:
    part = part_of(tmp_path, "key")
    sha256 = part.finish()

    path = folder(str(tmp_path)).keep(part, sha256=sha256, name=f"{sha256}-{'x' * 300}.bin")

    assert path == str(tmp_path / sha256[:2] / sha256)
    assert Path(path).read_bytes() == b"abc"


def test_a_partial_file_has_one_writer(tmp_path: Path) -> None:
    first = part_of(tmp_path, "key")
    second = PartialFile.open(tmp_path / ".parts", "key")

    assert second.path != first.path
    assert second.size == 0
    first.suspend()
    second.suspend()
    again = PartialFile.open(tmp_path / ".parts", "key")
    assert (again.path, again.size, again.validator) == (first.path, 3, '"v1"')
    again.discard()
    assert list((tmp_path / ".parts").iterdir()) == []


def test_a_version_that_begins_anew_has_no_note_of_the_old_one(tmp_path: Path) -> None:
    first = part_of(tmp_path, "key")
    first.suspend()

    again = PartialFile.open(tmp_path / ".parts", "key")
    again.restart(validator='"v2"', total=None)
    again.write(b"x")
    # Like a kill at this point: nothing is closed.
    notes = list((tmp_path / ".parts").glob("*.json"))

    assert notes == []
    again.discard()


def test_a_file_that_is_moved_before_it_is_locked_is_not_the_one_that_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, path = partial.fcntl.flock, tmp_path / "a.part"

    def late(stream: BinaryIO, how: int) -> None:
        if not (tmp_path / "whole").exists():
            path.replace(tmp_path / "whole")
        lock(stream, how)

    monkeypatch.setattr(partial.fcntl, "flock", late)

    stream = partial.locked(path)

    assert stream is not None
    with stream:
        assert os.path.samestat(os.fstat(stream.fileno()), path.stat())
