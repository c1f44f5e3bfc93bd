"""A file while it comes: locked by the process that writes it, and found again after a crash.

`KEY.part` has the bytes, `KEY.json` how many of them are known to be on the disk,
and the version of the file that they belong to. It is written after the bytes are
synced, and removed before they change, so whatever a crash leaves, the bytes that
it stands for are of one version. The lock is the system's, and ends with its process.
"""

import errno
import hashlib
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

#: What a crash costs at the most, whichever comes first.
_SYNCED_EVERY = 16 << 20
_SYNCED_WITHIN = 5.0
_PIECE = 1 << 20
_LONGEST_NOTE = 1 << 14
_TOTAL = (int, type(None))
#: A disk with less than this part of it left is full, whatever a file says of its size.
_FULL = 1 / 100


class PartialFile:
    """The bytes of one file that have come so far; blocking, for any thread.

    `size` bytes of it count; `validator` names the version that they are of, and
    without one nothing outlives `suspend`; `total` is how many there are to be,
    where that is known. Raises `OSError`.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self._stream = stream
        self._note = path.with_suffix(".json")
        # A write whose caller was cancelled may go on while the file is to be closed.
        self._turn = threading.RLock()
        self._hash: hashlib._Hash | None = None  # none of what was there already
        self._synced_at = time.monotonic()
        self._synced = 0
        self.size, self.validator, self.total = self._noted()

    @classmethod
    def open(cls, folder: Path, key: str) -> "PartialFile":
        """Return the partial file named *key*, or a further one where others write that now."""
        folder.mkdir(parents=True, exist_ok=True)
        for slot in itertools.count():
            path = folder / (f"{key}.{slot}.part" if slot else f"{key}.part")
            stream = locked(path)
            if stream is not None:
                return cls(path, stream)
        raise AssertionError("there is always a further one")

    def restart(self, *, validator: str | None, total: int | None) -> None:
        """Begin anew: with another version, or for the first time."""
        if self._note.exists():
            self._note.unlink()
            # Else a power cut could bring the note back beside the new bytes.
            sync_folder(self.path.parent)
        self._stream.seek(0)
        self._stream.truncate()
        self._hash = hashlib.sha256()
        self.size = self._synced = 0
        self.validator, self.total = validator, total
        self._reserve()

    def resume(self, size: int, *, total: int | None) -> None:
        """Go on behind the first *size* bytes."""
        self._stream.truncate(size)
        self._stream.seek(size)
        self._hash = None
        self.size = self._synced = size
        self.total = total
        self._reserve()

    def write(self, data: bytes) -> None:
        """Add *data*."""
        with self._turn:
            if self._stream.closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            view = memoryview(data)
            while view:
                view = view[self._stream.write(view) :]
            if self._hash is not None:
                self._hash.update(data)
            self.size += len(data)
            is_due = time.monotonic() - self._synced_at >= _SYNCED_WITHIN
            if is_due or self.size - self._synced >= _SYNCED_EVERY:
                self._sync()

    def start(self, size: int) -> bytes:
        """Return the first bytes, *size* at the most."""
        with self._turn:
            return os.pread(self._stream.fileno(), min(size, self.size), 0)

    def finish(self) -> str:
        """Return the SHA-256 of the whole file, in hexadecimal; it is on the disk then."""
        with self._turn:
            os.fsync(self._stream.fileno())
            if self._hash is None:
                self._hash = hashlib.sha256()
                self._stream.seek(0)
                while piece := self._stream.read(_PIECE):
                    self._hash.update(piece)
            return self._hash.hexdigest()

    def move_to(self, target: Path) -> None:
        """Make it the file *target*, at once, and close it."""
        with self._turn:
            self.path.replace(target)
            self._note.unlink(missing_ok=True)
            self._stream.close()

    def suspend(self) -> None:
        """Close it, and keep what can be gone on with."""
        with self._turn:
            if self._stream.closed:
                return
            if self.validator is None or not self.size:
                self.discard()
                return
            try:
                self._sync()
            finally:
                self._stream.close()

    def discard(self) -> None:
        """Close it, and keep nothing."""
        with self._turn:
            if self._stream.closed:
                return
            self._note.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self._stream.close()

    def _reserve(self) -> None:
        """Raise `OSError` where the disk has no room for what is to come, before it is full."""
        left = 0 if self.total is None else self.total - self.size
        disk = shutil.disk_usage(self.path.parent)
        if left > disk.free:
            # Of a disk with room, a size that it has no room for is the file's fault, or a lie.
            number = errno.ENOSPC if disk.free < _FULL * disk.total else errno.EFBIG
            raise OSError(number, os.strerror(number))

    def _sync(self) -> None:
        os.fsync(self._stream.fileno())
        self._synced, self._synced_at = self.size, time.monotonic()
        if self.validator is None:
            return
        note = {"size": self.size, "validator": self.validator, "total": self.total}
        new = self._note.with_suffix(".new")
        with new.open("w", encoding="utf-8") as stream:
            json.dump(note, stream)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self._note)

    def _noted(self) -> tuple[int, str | None, int | None]:
        """Return the size, validator and total that were noted, where there is as much."""
        try:
            with self._note.open(encoding="utf-8") as stream:
                note = json.loads(stream.read(_LONGEST_NOTE))
            size, validator, total = note["size"], note["validator"], note["total"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0, None, None
        is_text = isinstance(validator, str) and validator.isascii() and validator.isprintable()
        is_sound = is_text and type(size) is int and type(total) in _TOTAL
        if not is_sound or not 0 < size <= os.fstat(self._stream.fileno()).st_size:
            return 0, None, None
        return size, validator, total


def _check_locks() -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "files are saved where there are locks of POSIX")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for the lock that is the file *path*, and hold it in the block."""
    _check_locks()
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems of networks have no such thing.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locked(path: Path, *, mode: int | None = 0o666) -> BinaryIO | None:
    """Open a file and lock it, or return None where another process has locked it.

    It is made with this *mode*; None: it has to be there.
    """
    _check_locks()
    made = 0 if mode is None else os.O_CREAT
    while True:
        flags = os.O_RDWR | made | os.O_CLOEXEC | os.O_NOFOLLOW
        stream = os.fdopen(os.open(path, flags, mode or 0), "r+b", buffering=0)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
        except BaseException:
            stream.close()
            raise
        # Between the two its holder may have moved it to where it is whole.
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                return stream
        stream.close()
