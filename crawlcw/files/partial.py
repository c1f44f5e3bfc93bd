"""Partial downloads: the process locks each file, and after a crash another attempt can resume it.

`KEY.part` has the received bytes. `KEY.json` has the number of synced bytes and the validator of
the file's version. `PartialFile` writes the JSON file after a sync, and removes it before another
version of the file overwrites the bytes. Therefore the bytes that `KEY.json` counts always belong
to one version. If a process ends, the operating system unlocks its partial files.
"""

import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: Bytes or seconds after which the file is synced, whichever comes first.
_SYNCED_EVERY = 16 << 20
_SYNCED_WITHIN = 5.0
_PIECE = 1 << 20
_LONGEST_NOTE = 1 << 14
_TOTAL_TYPES = (int, type(None))


class PartialFile:
    """A partial file on disk, with thread-safe blocking methods.

    `size` is the number of valid bytes. `validator` is the ETag or Last-Modified of the version, or
    None. A download whose `validator` is None cannot be resumed, so `suspend` deletes its bytes.
    `total` is the expected size or None. Methods raise `OSError`.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self._stream = stream
        self._note = path.with_suffix(".json")
        # If a caller is cancelled and closes the file, the caller's thread may still write to it.
        self._write_lock = threading.RLock()
        self._hash: hashlib._Hash | None = None  # None after `resume`
        self._synced_at = time.monotonic()
        self._synced_size = 0
        self.size, self.validator, self.total = self._read_note()

    @classmethod
    def open(cls, folder: Path, key: str) -> "PartialFile":
        """Open `KEY.part`, or `KEY.1.part` and so on if another process has locked `KEY.part`."""
        folder.mkdir(parents=True, exist_ok=True)
        for slot in itertools.count():
            path = folder / (f"{key}.{slot}.part" if slot else f"{key}.part")
            stream = locked(path)
            if stream is not None:
                return cls(path, stream)
        raise AssertionError("there is always a next number")

    def restart(self, *, validator: str | None, total: int | None) -> None:
        """Delete the received bytes, because the download starts from the beginning."""
        if self._note.exists():
            self._note.unlink()
            # Without this sync, the old JSON file could exist again after a power failure.
            sync_folder(self.path.parent)
        self._stream.seek(0)
        self._stream.truncate()
        self._hash = hashlib.sha256()
        self.size = self._synced_size = 0
        self.validator, self.total = validator, total
        self._reserve()

    def resume(self, size: int, *, total: int | None) -> None:
        """Continue the download after the first *size* bytes."""
        self._stream.truncate(size)
        self._stream.seek(size)
        self._hash = None
        self.size = self._synced_size = size
        self.total = total
        self._reserve()

    def write(self, data: bytes) -> None:
        """Append *data*."""
        with self._write_lock:
            if self._stream.closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            view = memoryview(data)
            while view:
                view = view[self._stream.write(view) :]
            if self._hash is not None:
                self._hash.update(data)
            self.size += len(data)
            is_due = time.monotonic() - self._synced_at >= _SYNCED_WITHIN
            if is_due or self.size - self._synced_size >= _SYNCED_EVERY:
                self._sync()

    def start(self, size: int) -> bytes:
        """Return the first *size* bytes, or fewer if the file is shorter."""
        with self._write_lock:
            return os.pread(self._stream.fileno(), min(size, self.size), 0)

    def finish(self) -> str:
        """Sync the complete file to the disk, and return its SHA-256 in hexadecimal."""
        with self._write_lock:
            os.fsync(self._stream.fileno())
            if self._hash is None:
                self._hash = hashlib.sha256()
                self._stream.seek(0)
                while piece := self._stream.read(_PIECE):
                    self._hash.update(piece)
            return self._hash.hexdigest()

    def move_to(self, target: Path) -> None:
        """Rename the file to *target* atomically, and close it."""
        with self._write_lock:
            self.path.replace(target)
            self._note.unlink(missing_ok=True)
            self._stream.close()

    def suspend(self) -> None:
        """Close the file, and keep its bytes if another attempt can resume the download."""
        with self._write_lock:
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
        """Close and delete the file."""
        with self._write_lock:
            if self._stream.closed:
                return
            self._note.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self._stream.close()

    def _reserve(self) -> None:
        """Raise `OSError` before the download if the disk has no room for the expected size."""
        remaining = 0 if self.total is None else self.total - self.size
        disk = shutil.disk_usage(self.path.parent)
        if remaining > disk.free:
            # An announced size that exceeds the whole disk must be wrong.
            errno_value = errno.ENOSPC if remaining <= disk.total else errno.EFBIG
            raise OSError(
                errno_value, f"{remaining:,} bytes are missing, but only {disk.free:,} are free"
            )

    def _sync(self) -> None:
        os.fsync(self._stream.fileno())
        self._synced_size, self._synced_at = self.size, time.monotonic()
        if self.validator is None:
            return
        note = {"size": self.size, "validator": self.validator, "total": self.total}
        new_note = self._note.with_suffix(".new")
        with new_note.open("w", encoding="utf-8") as stream:
            json.dump(note, stream)
            stream.flush()
            os.fsync(stream.fileno())
        new_note.replace(self._note)

    def _read_note(self) -> tuple[int, str | None, int | None]:
        """Return size, validator and total from the JSON file; (0, None, None) if it is invalid."""
        try:
            with self._note.open(encoding="utf-8") as stream:
                note = json.loads(stream.read(_LONGEST_NOTE))
            size, validator, total = note["size"], note["validator"], note["total"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0, None, None
        is_text = isinstance(validator, str) and validator.isascii() and validator.isprintable()
        is_sound = is_text and type(size) is int and type(total) in _TOTAL_TYPES
        if not is_sound or not 0 < size <= os.fstat(self._stream.fileno()).st_size:
            return 0, None, None
        return size, validator, total


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock the file *path* for the time of the block."""
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new file names survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems do not support fsync of a folder.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locked(path: Path, *, mode: int | None = 0o666) -> BinaryIO | None:
    """Open and lock a file; return None if another process has locked it.

    A missing file is created with *mode*; if *mode* is None, a missing file is an error.
    """
    create_flag = 0 if mode is None else os.O_CREAT
    while True:
        flags = os.O_RDWR | create_flag | os.O_CLOEXEC | os.O_NOFOLLOW
        stream = os.fdopen(os.open(path, flags, mode or 0), "r+b", buffering=0)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
        except BaseException:
            stream.close()
            raise
        # Check that no other process has renamed the file between `open` and `flock`.
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                return stream
        stream.close()
