"""The WARC files of one spider: each is written by one process, and by no other after it.

A file is called `NAME.warc.gz.open` while it is written, and locked by its process; then
`NAME.warc.gz`. What a crash leaves is an `.open` file that nobody has locked, whose last
record may be torn: the next process cuts that off and gives the file its name. Records
that tasks name were synced before, so none of them is ever cut.
"""

import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

from crawlcw.files.partial import locked, sync_folder
from crawlcw.model.task import StoredPage

SUFFIX = ".warc.gz"
OPEN = ".open"
LARGEST_FILE = 1 << 30
_GZIP = zlib.MAX_WBITS + 16
_PIECE = 1 << 20


class WarcFiles:
    """Collects records for a file of its own, and begins the next one when that is full.

    `append` only notes them, in microseconds; `sync` writes what is noted, at once, however many
    pages that is. So an event loop may append, and a thread sync.
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
        self._turn = threading.Lock()  #: of what is noted; never held while a disk works
        self._writing = threading.Lock()
        self._files: list[_OpenFile] = []  #: those that are full, and the one that is not
        self._number = 0
        self._appended = self._synced = 0  #: calls of `append`
        self._lost: OSError | None = None  #: why what was appended may not be on the disk
        self.waiting = 0  #: bytes that were appended and not written yet

    def append(self, records: Sequence[bytes]) -> list[StoredPage]:
        """Take records that are to lie behind one another, in one file; return their places.

        Empty ones have none. Raises the `OSError` of a `sync` that has failed.
        """
        with self._turn:
            self._check()
            file = self._with_room(sum(map(len, records)))
            places = [file.take(record) for record in records if record]
            self._appended += 1
            self.waiting += sum(place.length for place in places)
        return places

    def sync(self) -> None:
        """Return when all that was appended before is on the disk.

        Raises `OSError`; what was synced before stays whole then, and nothing is taken any more.
        """
        with self._turn:
            mine = self._appended
        with self._writing:
            # What came together is written together.
            if mine > self._synced:
                self._write()
            self._check()

    def close(self) -> None:
        """Write what is left, and give the file its name; nothing is appended afterwards."""
        with self._writing:
            try:
                if self._lost is None:
                    self._write()
            finally:
                for file in self._files:
                    file.finish()
                self._files.clear()

    def mend(self) -> int:
        """Give those files their names that crashed processes have left; return how many."""
        return sum(map(_mended, sorted(self._folder.glob(f"*{SUFFIX}{OPEN}"))))

    def _check(self) -> None:
        if self._lost is not None:
            raise OSError(self._lost.errno, self._lost.strerror)

    def _with_room(self, size: int) -> "_OpenFile":
        if not self._files or self._files[-1].size + size > self._largest:
            moment = datetime.now(UTC).strftime("%Y%m%d%H%M%S")
            name = f"{self._prefix}-{moment}-{self._number:05d}-{secrets.token_hex(4)}{SUFFIX}"
            self._number += 1
            file = _OpenFile(self._folder, name)
            file.take(self._first_record(name))
            self._files.append(file)
        return self._files[-1]

    def _write(self) -> None:
        with self._turn:
            self._check()
            noted = self._appended
            taken = [(file, file.waiting()) for file in self._files]
            self.waiting = 0
        try:
            for file, content in taken:
                file.write(content)
            for file, _ in taken[:-1]:
                file.finish()
        except OSError as error:
            # What the disk has of it nobody knows, and after a sync that failed a second one
            # would not tell.
            self._lost = error
            raise
        with self._turn:
            del self._files[: len(taken) - 1]
        self._synced = noted


class _OpenFile:
    """The one file that this process writes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.size = 0  #: of all that was taken
        self._path = folder / f"{name}{OPEN}"
        self._waiting: list[bytes] = []
        self._stream: BinaryIO | None = None
        self._written = 0

    def take(self, record: bytes) -> StoredPage:
        """Note a record, and return its place."""
        place = StoredPage(file=self.name, offset=self.size, length=len(record))
        self._waiting.append(record)
        self.size += len(record)
        return place

    def waiting(self) -> bytes:
        """Return what is to be written next."""
        content = b"".join(self._waiting)
        self._waiting.clear()
        return content

    def write(self, content: bytes) -> None:
        """Write *content*, whole and synced, or as good as nothing of it."""
        if not content:
            return
        if is_new := self._stream is None:
            # Pages may hold secrets; these are nobody else's to read.
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while self._stream is None:
            # For a moment another process may take it for one that a crash has left.
            self._stream = locked(self._path, mode=0o600)
        descriptor, rest = self._stream.fileno(), memoryview(content)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            # What stays is torn, and mended like what a crash leaves.
            with suppress(OSError):
                os.ftruncate(descriptor, self._written)
            raise
        self._written += len(content)
        if is_new:
            sync_folder(self._path.parent)

    def finish(self) -> None:
        """Give the file its name, or take it away where nothing is in it."""
        if self._stream is None:
            return
        stream, self._stream = self._stream, None
        with stream:
            if os.fstat(stream.fileno()).st_size > self._written:
                return  # torn: the next process mends it
            if self._written:
                self._path.replace(self._path.with_suffix(""))
            else:
                self._path.unlink()
            sync_folder(self._path.parent)


def _mended(path: Path) -> bool:
    """Cut off what a crash has torn, and give the file its name, unless somebody writes it."""
    try:
        stream = locked(path, mode=None)
    except FileNotFoundError:
        return False  # another process was faster
    if stream is None:
        return False
    with stream:
        size = whole_size(iter(partial(stream.read, _PIECE), b""))
        if not size:
            path.unlink()
            return False
        stream.truncate(size)
        os.fsync(stream.fileno())
        path.replace(path.with_suffix(""))
        sync_folder(path.parent)
    return True


def whole_size(pieces: Iterable[bytes]) -> int:
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
