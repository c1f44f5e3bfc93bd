"""Write a spider's pages to WARC files, and read the pages.

Each page is synced to the disk before an outcome refers to the page. One process alone writes a
WARC file. An unfinished file is called `NAME.warc.gz.open`, and its process locks it; a finished
file is called `NAME.warc.gz`. A crash leaves an `.open` file without a lock, and its last record
may be incomplete. The next process cuts an incomplete record off and renames the file. The cut
loses no record that a task refers to, because each such record was synced first.
"""

import errno
import logging
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

import anyio
from anyio import to_thread

from crawlcw.api.attempt import Attempt
from crawlcw.api.settings import Settings
from crawlcw.archive.records import (
    Answer,
    DamagedRecordError,
    Exchange,
    Packer,
    check_installed,
    read,
)
from crawlcw.errors import FetchError, FilesUnwritableError
from crawlcw.files.partial import locked, sync_folder
from crawlcw.model.sanitize import printable
from crawlcw.model.task import StoredPage

logger = logging.getLogger(__name__)

SUFFIX = ".warc.gz"
OPEN = ".open"
LARGEST_FILE = 1 << 30
_GZIP = zlib.MAX_WBITS + 16
_PIECE = 1 << 20
#: A thread compresses a body of at least this number of bytes, so that a large body does not block
#: the event loop. For smaller bodies the switch to a thread would take too long.
_LARGE_BODY_BYTES = 1 << 17
_THREADS = 2
#: Maximum number of bytes in the buffers; if the buffers hold more, `keep` itself calls `sync`.
_MOST_WAITING = 8 << 20


def folder_of(spider: str, settings: Settings) -> Path:
    """Return the folder of a spider's WARC files."""
    return Path(settings.bodies_dir) / spider


class Bodies:
    """Stores the pages of one spider, for one process.

    Raises `FetchError` (`files-unwritable`) if the disk fails.
    """

    def __init__(self, spider: str, settings: Settings) -> None:
        """Raises `UsageError` without warcio."""
        check_installed()
        self.folder = folder_of(spider, settings)
        first_record = partial(Packer().about_the_file, spider=spider)
        # Use an absolute path, because a spider may change the current folder.
        folder = self.folder.absolute()
        self._files = WarcFiles(folder, prefix=spider, first_record=first_record)
        self._packer = Packer()
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def keep(self, attempt: Attempt, *, is_revisit: bool = False) -> StoredPage | None:
        """Store the exchanges of *attempt*, redirects first; return the page's file and position.

        Call `sync` before a task refers to the `StoredPage`. Return None if the attempt has no
        exchange. For an unchanged page (*is_revisit*), `keep` stores only a short record beside the
        earlier record.
        """
        exchanges, attempt.exchanges = attempt.exchanges, []
        if not exchanges:
            return None
        if sum(len(exchange.body) for exchange in exchanges) < _LARGE_BODY_BYTES:
            packed = _packed(self._packer, exchanges, is_revisit)
        else:
            packing = partial(_packed, Packer(), exchanges, is_revisit)
            packed = await to_thread.run_sync(packing, limiter=self._limiter)
        try:
            page = self._files.append(packed)[-1]
        except OSError as error:
            raise self._unwritable(error) from error
        # Write early if many bytes are buffered, because many large pages may come before a `sync`.
        if self._files.waiting > _MOST_WAITING:
            await self.sync()
        return page

    async def sync(self) -> None:
        """Write all stored pages to the disk."""
        try:
            await to_thread.run_sync(self._files.sync)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> FetchError:
        problem = os.strerror(error.errno or errno.EIO)
        return FilesUnwritableError(f"cannot store pages in {self.folder}: {problem}")

    async def mend(self) -> None:
        """Repair the WARC files of crashed processes."""
        try:
            file_count = await to_thread.run_sync(self._files.mend)
        except OSError as error:
            logger.warning(
                "could not repair the WARC files of a crashed process: %s",
                printable(error),
                extra={"event": "warc_not_repaired"},
            )
            return
        if file_count:
            logger.info(
                "repaired %d WARC files of crashed processes",
                file_count,
                extra={"event": "warc_repaired"},
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the last WARC file, even during a cancellation."""
        with anyio.CancelScope(shield=True):
            try:
                await to_thread.run_sync(self._files.close)
            except OSError as error:
                # Only log a warning, because `sync` has already written the pages that tasks refer
                # to.
                logger.warning(
                    "could not close a WARC file: %s",
                    printable(error),
                    extra={"event": "warc_not_closed"},
                )


def _packed(packer: Packer, exchanges: Sequence[Exchange], is_revisit: bool) -> list[bytes]:
    """Return the WARC records of *exchanges*; the record of the last response is last."""
    *redirects, page = exchanges
    records = [record for hop in redirects for record in packer.pair(hop)]
    return [*records, packer.revisit(page)] if is_revisit else [*records, *packer.pair(page)[::-1]]


class FileMissingError(Exception):
    """The WARC file of a record is missing or cannot be opened."""


def read_stored(folder: Path, stored_page: StoredPage, *, max_size: int) -> Answer:
    """Read a *stored_page* from a folder of WARC files; the call blocks its thread.

    Raises `FileMissingError` or `DamagedRecordError`.
    """
    if not stored_page.is_sound:
        raise DamagedRecordError("its place in the ledger is invalid")
    # Try the finished file's name twice, because the writing process may rename the file between
    # two calls of `open`.
    for name in (stored_page.file, f"{stored_page.file}{OPEN}", stored_page.file):
        try:
            stream = (folder / name).open("rb")
            break
        except FileNotFoundError:
            continue
        except OSError as error:
            message = f"{stored_page.file} cannot be opened: {error.strerror}"
            raise FileMissingError(message) from None
    else:
        raise FileMissingError(f"{stored_page.file} is not in {folder}")
    try:
        with stream:
            stream.seek(stored_page.offset)
            packed = stream.read(stored_page.length)
    except OSError as error:
        raise DamagedRecordError(f"cannot read it: {error.strerror}") from None
    if len(packed) < stored_page.length:
        raise DamagedRecordError("the file is too short")
    return read(packed, max_size=max_size)


class WarcFiles:
    """Collects records for a WARC file, and starts the next file when the file is full.

    `append` only buffers records, in microseconds; `sync` writes all of them together. `append` in
    an event loop may run during a `sync` in a thread.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prefix: str,
        first_record: Callable[[str], bytes],
        largest: int = LARGEST_FILE,
    ) -> None:
        """*first_record* makes the first record from the file's name; *largest* is in bytes."""
        self._folder = folder
        self._prefix = prefix
        self._first_record = first_record
        self._largest = largest
        self._turn = threading.Lock()  #: guards the buffers
        self._writing = threading.Lock()
        self._files: list[_OpenFile] = []  #: the last is current
        self._file_number = 0
        self._append_count = self._synced_count = 0  #: numbers of `append` calls
        self._write_error: OSError | None = None  #: of a failed write
        self.waiting = 0  #: buffered bytes

    def append(self, records: Sequence[bytes]) -> list[StoredPage]:
        """Buffer *records* for one WARC file; return the position of each record that is not empty.

        Raises the `OSError` of an earlier failed `sync`.
        """
        with self._turn:
            self._raise_if_lost()
            file = self._with_room(sum(map(len, records)))
            pages = [file.take(record) for record in records if record]
            self._append_count += 1
            self.waiting += sum(page.length for page in pages)
        return pages

    def sync(self) -> None:
        """Write all appended records to the disk.

        Raises `OSError`; records of earlier calls of `sync` stay intact, and later calls fail as
        well.
        """
        with self._turn:
            appended = self._append_count
        with self._writing:
            # If the sync of another thread has written the records, there is nothing to write.
            if appended > self._synced_count:
                self._write()
            self._raise_if_lost()

    def close(self) -> None:
        """Write the remaining records and finish the file; do not call `append` after `close`."""
        with self._writing:
            try:
                if self._write_error is None:
                    self._write()
            finally:
                for file in self._files:
                    file.finish()
                self._files.clear()

    def mend(self) -> int:
        """Repair the WARC files of crashed processes; return the number of repaired files."""
        return sum(map(_mend_file, sorted(self._folder.glob(f"*{SUFFIX}{OPEN}"))))

    def _raise_if_lost(self) -> None:
        if self._write_error is not None:
            raise OSError(self._write_error.errno, self._write_error.strerror)

    def _with_room(self, size: int) -> "_OpenFile":
        if not self._files or self._files[-1].size + size > self._largest:
            time_text = datetime.now(UTC).strftime("%Y%m%d%H%M%S")
            name = (
                f"{self._prefix}-{time_text}-{self._file_number:05d}-{secrets.token_hex(4)}{SUFFIX}"
            )
            self._file_number += 1
            file = _OpenFile(self._folder, name)
            file.take(self._first_record(name))
            self._files.append(file)
        return self._files[-1]

    def _write(self) -> None:
        with self._turn:
            self._raise_if_lost()
            appended = self._append_count
            batches = [(file, file.waiting()) for file in self._files]
            self.waiting = 0
        try:
            for file, content in batches:
                file.write(content)
            for file, _ in batches[:-1]:
                file.finish()
        except OSError as error:
            # Later calls must fail, because a second fsync after a failed fsync may succeed without
            # writing.
            self._write_error = error
            raise
        with self._turn:
            del self._files[: len(batches) - 1]
        self._synced_count = appended


class _OpenFile:
    """A file under construction."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.size = 0  #: bytes of all records
        self._path = folder / f"{name}{OPEN}"
        self._waiting: list[bytes] = []
        self._stream: BinaryIO | None = None
        self._written = 0

    def take(self, record: bytes) -> StoredPage:
        """Buffer a record, and return its position in the WARC file."""
        page = StoredPage(file=self.name, offset=self.size, length=len(record))
        self._waiting.append(record)
        self.size += len(record)
        return page

    def waiting(self) -> bytes:
        """Return the buffered content, and clear the buffer."""
        content = b"".join(self._waiting)
        self._waiting.clear()
        return content

    def write(self, content: bytes) -> None:
        """Write and sync *content*; if an error occurs, cut off the written part of *content*."""
        if not content:
            return
        if is_new := self._stream is None:
            # Only the user may read the folder, because pages may hold secrets.
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while self._stream is None:
            # Try again if a process that repairs files has deleted the new file before the lock.
            self._stream = locked(self._path, mode=0o600)
        descriptor, remainder = self._stream.fileno(), memoryview(content)
        try:
            while remainder:
                remainder = remainder[os.write(descriptor, remainder) :]
            os.fsync(descriptor)
        except OSError:
            # If the truncation also fails, the next process repairs the WARC file as after a crash.
            with suppress(OSError):
                os.ftruncate(descriptor, self._written)
            raise
        self._written += len(content)
        if is_new:
            sync_folder(self._path.parent)

    def finish(self) -> None:
        """Rename the finished file, or delete it if it is empty."""
        if self._stream is None:
            return
        stream, self._stream = self._stream, None
        with stream:
            if os.fstat(stream.fileno()).st_size > self._written:
                return  # the next process repairs the file
            if self._written:
                self._path.replace(self._path.with_suffix(""))
            else:
                self._path.unlink()
            sync_folder(self._path.parent)


def _mend_file(path: Path) -> bool:
    """Cut off an incomplete record and rename the WARC file, unless a process writes the file."""
    try:
        stream = locked(path, mode=None)
    except FileNotFoundError:
        return False  # another process repaired it
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
    """Return the size of the complete records at the beginning of a file."""
    complete_size = read_size = 0
    member = zlib.decompressobj(_GZIP)
    for piece in pieces:
        read_size += len(piece)
        remainder = piece
        while remainder:
            try:
                # Decompress a record in pieces, because its uncompressed content may be large.
                member.decompress(remainder, _PIECE)
            except zlib.error:
                return complete_size
            remainder = member.unconsumed_tail
            if member.eof:
                remainder = member.unused_data
                complete_size = read_size - len(remainder)
                member = zlib.decompressobj(_GZIP)
    return complete_size
