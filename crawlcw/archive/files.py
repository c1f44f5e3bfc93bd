"""The WARC files of one spider: each is written by one process, and by no other after it.

A file is called `NAME.warc.gz.open` while it is written, and locked by its process; then
`NAME.warc.gz`. What a crash leaves is an `.open` file that nobody has locked, whose last
record may be torn: whoever comes next cuts that off and gives the file its name. Records
that tasks name were synced before, so none of them is ever cut.
"""

import errno
import os
import secrets
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from crawlcw.files.partial import sync_folder
from crawlcw.model.stored_page import StoredPage

if sys.platform != "win32":
    import fcntl

SUFFIX = ".warc.gz"
OPEN = ".open"
LARGEST_FILE = 1 << 30
_GZIP = zlib.MAX_WBITS + 16
_PIECE = 1 << 20


class TornError(OSError):
    """The end of a file is torn; nothing is to be written behind it."""


class WarcFiles:
    """Appends records to a file of its own, and begins the next one when that is full.

    Blocking, for any thread. Raises `OSError`; what was appended before stays whole then.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prefix: str,
        first_record: Callable[[str], bytes],
        largest: int = LARGEST_FILE,
    ) -> None:
        """*first_record* returns that of a file of this name; *largest* is in bytes."""
        self._folder = folder
        self._prefix = prefix
        self._first_record = first_record
        self._largest = largest
        self._turn = threading.Lock()
        self._file: _OpenFile | None = None
        self._number = 0
        self._lost: OSError | None = None  #: why what was appended may not be on the disk

    def append(self, records: Sequence[bytes]) -> list[StoredPage]:
        """Write records behind one another, in one file; return their places."""
        with self._turn:
            self._check()
            file = self._with_room(sum(map(len, records)))
            try:
                offset = file.append(b"".join(records))
            except TornError as error:
                self._lost = error
                raise
        places = []
        for record in records:
            if record:
                place = StoredPage(file=file.name, offset=offset, length=len(record))
                places.append(place)
            offset += len(record)
        return places

    def sync(self) -> None:
        """Return when all that was appended is on the disk."""
        with self._turn:
            self._check()
            if self._file is None or self._file.is_synced:
                return
            # Others append meanwhile: the disk takes milliseconds.
            file, size = self._file, self._file.size
            copy = os.dup(file.descriptor)
        try:
            os.fsync(copy)
        except OSError as error:
            # What the disk has of it nobody knows, and a second try would not tell.
            self._lost = error
            raise
        finally:
            os.close(copy)
        with self._turn:
            file.synced = max(file.synced, size)

    def close(self) -> None:
        """Give the file its name; nothing is appended afterwards."""
        with self._turn:
            file, self._file = self._file, None
            if file is not None:
                self._finish(file)

    def mend(self) -> int:
        """Give those files their names that crashed processes have left; return how many."""
        return sum(map(_mended, sorted(self._folder.glob(f"*{SUFFIX}{OPEN}"))))

    def _check(self) -> None:
        if self._lost is not None:
            raise OSError(self._lost.errno, self._lost.strerror)

    def _with_room(self, size: int) -> "_OpenFile":
        if self._file is not None and self._file.size + size > self._largest:
            full, self._file = self._file, None
            self._finish(full)
        if self._file is None:
            self._file = self._begun()
        return self._file

    def _begun(self) -> "_OpenFile":
        # Pages may hold secrets; these are nobody else's to read.
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        moment = datetime.now(UTC).strftime("%Y%m%d%H%M%S")
        name = f"{self._prefix}-{moment}-{self._number:05d}-{secrets.token_hex(4)}{SUFFIX}"
        self._number += 1
        file = _OpenFile(self._folder, name)
        try:
            file.append(self._first_record(name))
            sync_folder(self._folder)
        except BaseException:
            file.drop()
            raise
        return file

    def _finish(self, file: "_OpenFile") -> None:
        try:
            file.finish()
        except OSError as error:
            self._lost = error
            raise


class _OpenFile:
    """The one file that this process writes."""

    def __init__(self, folder: Path, name: str) -> None:
        _check_locks()
        self.name = name
        self._path = folder / f"{name}{OPEN}"
        self.descriptor = _locked(self._path)
        self.size = 0
        self.synced = 0

    @property
    def is_synced(self) -> bool:
        return self.synced == self.size

    def append(self, content: bytes) -> int:
        """Write all of *content* or nothing; return where it begins.

        Raises `TornError` where a part of it can be neither completed nor taken back.
        """
        begin = self.size
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError as error:
            try:
                os.ftruncate(self.descriptor, begin)
                os.lseek(self.descriptor, begin, os.SEEK_SET)
            except OSError:
                raise TornError(error.errno, error.strerror) from error
            raise
        self.size += len(content)
        return begin

    def finish(self) -> None:
        try:
            os.fsync(self.descriptor)
            self._path.replace(self._path.with_suffix(""))
            sync_folder(self._path.parent)
        finally:
            os.close(self.descriptor)

    def drop(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        os.close(self.descriptor)


def _locked(path: Path) -> int:
    """Make a file and lock it, before anybody may take it for one that a crash has left."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        descriptor = os.open(path, flags, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)


def _check_locks() -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "bodies are kept where there are locks of POSIX")


def _mended(path: Path) -> bool:
    """Cut off what a crash has torn, and give the file its name, unless somebody writes it."""
    _check_locks()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False  # another process was faster
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its writer may have been about to rename it.
        if not os.path.samestat(path.stat(), os.fstat(descriptor)):
            return False
        size = whole_size(_pieces(descriptor))
        if not size:
            path.unlink()
            return False
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
        path.replace(path.with_suffix(""))
        sync_folder(path.parent)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True


def _pieces(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, _PIECE):
        yield piece


def whole_size(pieces: Iterator[bytes]) -> int:
    """Return how many bytes the whole records take that a file begins with."""
    whole = read = 0
    member = zlib.decompressobj(_GZIP)
    for piece in pieces:
        read += len(piece)
        rest = piece
        while rest:
            try:
                # A piece at a time: what a record is unpacked to may be large.
                member.decompress(rest, _PIECE)
            except zlib.error:
                return whole
            rest = member.unconsumed_tail
            if member.eof:
                rest = member.unused_data
                whole = read - len(rest)
                member = zlib.decompressobj(_GZIP)
    return whole
