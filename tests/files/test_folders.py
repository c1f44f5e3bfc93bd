"""Folders of files: each content once, and no two writers of one partial file."""

import os
import subprocess
import sys
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


_KEEP = r"""
import sys
from pathlib import Path
from crawlcw.files.folders import folder
from tests.files.test_folders import part_of

part = part_of(Path(sys.argv[1]), "key")
sha256 = part.finish()
path = folder(sys.argv[1]).keep(part, sha256=sha256, name=f"{sha256}-\u0444.bin")
assert path.endswith(sha256), path
"""


def test_a_name_is_left_out_where_the_locale_cannot_write_it(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    finished = subprocess.run(
        [sys.executable, "-c", _KEEP, str(tmp_path)],
        env={**os.environ, **ascii_only},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr


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


def test_who_waited_for_a_file_that_is_whole_now_does_not_write_into_it(tmp_path: Path) -> None:
    """The lock belongs to the open file, which may have been renamed."""
    first = part_of(tmp_path, "key")
    moved = tmp_path / "whole"
    opened = threading.Event()
    path = first.path
    first.move_to(moved)

    second = PartialFile.open(tmp_path / ".parts", "key")
    second.restart(validator=None, total=None)
    second.write(b"other")
    opened.set()
    second.discard()

    assert path == second.path
    assert moved.read_bytes() == b"abc"


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


def test_what_has_no_validator_is_not_kept(tmp_path: Path) -> None:
    part = PartialFile.open(tmp_path / ".parts", "key")
    part.restart(validator=None, total=None)
    part.write(b"abc")

    part.suspend()

    assert list((tmp_path / ".parts").iterdir()) == []


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
