"""WARC files of a spider's pages: written durably before an outcome refers to them, and read back.

Each file is written by one process only. An unfinished file is called `NAME.warc.gz.open`, and its
process locks it; a finished file is called `NAME.warc.gz`. A crash leaves an unlocked `.open` file,
whose last record may be incomplete: the next process cuts this record off and renames the file.
Records that tasks refer to were synced before, so the cut loses none of them.
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
from crawlcw.errors import FetchError, Reason
from crawlcw.files.partial import locked, sync_folder
from crawlcw.model.sanitize import printable
from crawlcw.model.task import StoredPage

logger = logging.getLogger(__name__)

SUFFIX = ".warc.gz"
OPEN = ".open"
LARGEST_FILE = 1 << 30
_GZIP = zlib.MAX_WBITS + 16
_PIECE = 1 << 20
#: Bodies of at least this many bytes are compressed in a thread, so that they do not block the
#: event loop. A switch to a thread takes as long as the compression of ten thousand bytes.
_LARGE = 1 << 17
_THREADS = 2
#: Bytes from which pages are written without waiting for an outcome.
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
        self._files = WarcFiles(self.folder, prefix=spider, first_record=first_record)
        self._packer = Packer()
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def keep(self, attempt: Attempt, *, is_revisit: bool = False) -> StoredPage | None:
        """Store the exchanges of *attempt*, the redirects first; return the place of the page.

        A task may refer to it after the next `sync`. Return None if the attempt has no exchange. A
        revisit of an unchanged page stores only a short record; the page's earlier record stays.
        """
        exchanges, attempt.exchanges = attempt.exchanges, []
        if not exchanges:
            return None
        if sum(len(exchange.body) for exchange in exchanges) < _LARGE:
            packed = _packed(self._packer, exchanges, is_revisit)
        else:
            packing = partial(_packed, Packer(), exchanges, is_revisit)
            packed = await to_thread.run_sync(packing, limiter=self._limiter)
        try:
            page = self._files.append(packed)[-1]
        except OSError as error:
            raise self._unwritable(error) from error
        # Write before `sync` if many bytes wait: large pages come faster than outcomes.
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
        return FetchError(
            Reason.FILES_UNWRITABLE, f"cannot store pages in {self.folder}: {problem}"
        )

    async def mend(self) -> None:
        """Repair the files of crashed processes."""
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
        """Finish the last file, also during a cancellation."""
        with anyio.CancelScope(shield=True):
            try:
                await to_thread.run_sync(self._files.close)
            except OSError as error:
                # Only warn, because `sync` has already written the pages that tasks refer to.
                logger.warning(
                    "could not close a WARC file: %s",
                    printable(error),
                    extra={"event": "warc_not_closed"},
                )


def _packed(packer: Packer, exchanges: Sequence[Exchange], is_revisit: bool) -> list[bytes]:
    """Return the records of exchanges, that of the last response at the end."""
    *redirects, page = exchanges
    records = [record for hop in redirects for record in packer.pair(hop)]
    return [*records, packer.revisit(page)] if is_revisit else [*records, *packer.pair(page)[::-1]]


class FileMissingError(Exception):
    """The file of a record is missing or cannot be opened."""


def read_stored(folder: Path, stored_page: StoredPage, *, max_size: int) -> Answer:
    """Return the *stored_page* in a folder of WARC files; blocking, see `records.read`.

    Raises `FileMissingError` or `DamagedRecordError`.
    """
    if not stored_page.is_sound:
        raise DamagedRecordError("its place in the ledger is invalid")
    # The writing process may rename the file between two attempts, so try a third time.
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
    """Collects records for a file, and starts the next file when this file is full.

    `append` only buffers records, in microseconds; `sync` writes all of them at once. So an
    event loop can append, while a thread syncs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prefix: str,
        first_record: Callable[[str], bytes],
        largest: int = LARGEST_FILE,
    ) -> None:
        """*first_record* returns the first record for a file name; *largest* is in bytes."""
        self._folder = folder
        self._prefix = prefix
        self._first_record = first_record
        self._largest = largest
        self._turn = threading.Lock()  #: guards the buffers; no thread holds it during disk access
        self._writing = threading.Lock()
        self._files: list[_OpenFile] = []  #: full files, and the current file
        self._number = 0
        self._appended = self._synced = 0  #: numbers of `append` calls
        self._lost: OSError | None = None  #: the error of a failed write
        self.waiting = 0  #: bytes appended but not written yet

    def append(self, records: Sequence[bytes]) -> list[StoredPage]:
        """Buffer records, adjacent in one file; return the places of the non-empty records.

        Raises the `OSError` of an earlier failed `sync`.
        """
        with self._turn:
            self._raise_if_lost()
            file = self._with_room(sum(map(len, records)))
            pages = [file.take(record) for record in records if record]
            self._appended += 1
            self.waiting += sum(page.length for page in pages)
        return pages

    def sync(self) -> None:
        """Write all appended records to the disk.

        Raises `OSError`; earlier synced records stay intact, and later calls fail as well.
        """
        with self._turn:
            appended = self._appended
        with self._writing:
            # Another thread's sync may have written the records already.
            if appended > self._synced:
                self._write()
            self._raise_if_lost()

    def close(self) -> None:
        """Write the remaining records, and finish the file; do not call `append` afterwards."""
        with self._writing:
            try:
                if self._lost is None:
                    self._write()
            finally:
                for file in self._files:
                    file.finish()
                self._files.clear()

    def mend(self) -> int:
        """Repair the files of crashed processes; return their number."""
        return sum(map(_mended, sorted(self._folder.glob(f"*{SUFFIX}{OPEN}"))))

    def _raise_if_lost(self) -> None:
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
            self._raise_if_lost()
            appended = self._appended
            batches = [(file, file.waiting()) for file in self._files]
            self.waiting = 0
        try:
            for file, content in batches:
                file.write(content)
            for file, _ in batches[:-1]:
                file.finish()
        except OSError as error:
            # The content on the disk is unknown, and a second fsync after a failed one may
            # succeed without writing.
            self._lost = error
            raise
        with self._turn:
            del self._files[: len(batches) - 1]
        self._synced = appended


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
        """Buffer a record, and return its place."""
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
        """Write and sync *content*; after an error remove the part that was written."""
        if not content:
            return
        if is_new := self._stream is None:
            # Pages may hold secrets: only this user may read them.
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while self._stream is None:
            # A process that repairs files may lock the new file first, and delete it as empty.
            self._stream = locked(self._path, mode=0o600)
        descriptor, remainder = self._stream.fileno(), memoryview(content)
        try:
            while remainder:
                remainder = remainder[os.write(descriptor, remainder) :]
            os.fsync(descriptor)
        except OSError:
            # If the truncation fails too, the next process repairs the file as after a crash.
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
                return  # incomplete record: the next process repairs it
            if self._written:
                self._path.replace(self._path.with_suffix(""))
            else:
                self._path.unlink()
            sync_folder(self._path.parent)


def _mended(path: Path) -> bool:
    """Cut off an incomplete record, and rename the file, unless a process writes it."""
    try:
        stream = locked(path, mode=None)
    except FileNotFoundError:
        return False  # another process has mended the file
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
                # Decompress in pieces, because a record's uncompressed content may be large.
                member.decompress(remainder, _PIECE)
            except zlib.error:
                return complete_size
            remainder = member.unconsumed_tail
            if member.eof:
                remainder = member.unused_data
                complete_size = read_size - len(remainder)
                member = zlib.decompressobj(_GZIP)
    return complete_size
