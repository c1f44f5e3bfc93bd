"""Store fetched pages durably before an outcome refers to them, and read them back."""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from crawlcw.api.attempt import Attempt
from crawlcw.api.settings import Settings
from crawlcw.archive.files import LARGEST_FILE, OPEN, WarcFiles
from crawlcw.archive.records import (
    Answer,
    DamagedRecordError,
    Exchange,
    Packer,
    check_installed,
    read,
)
from crawlcw.errors import FetchError, Reason
from crawlcw.model.sanitize import printable
from crawlcw.model.task import StoredPage

logger = logging.getLogger(__name__)

#: Bytes of bodies from which compression runs in a thread, so as not to block the event loop: a
#: switch to a thread takes as long as the compression of ten thousand bytes.
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

    def __init__(self, spider: str, settings: Settings, *, largest: int = LARGEST_FILE) -> None:
        """*largest* is the size of a file in bytes. Raises `UsageError` without warcio."""
        check_installed()
        self.folder = folder_of(spider, settings)
        self._files = WarcFiles(
            self.folder,
            prefix=spider,
            first_record=partial(Packer().about_the_file, spider=spider),
            largest=largest,
        )
        self._packer = Packer()
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def keep(self, attempt: Attempt) -> StoredPage | None:
        """Store the exchanges of *attempt*, the redirects first; return the place of the page.

        A task may refer to it after the next `sync`. None if the attempt has no exchange.
        """
        return await self._written(attempt, _pairs)

    async def keep_unchanged(self, attempt: Attempt) -> None:
        """Store a revisit without a change; the page's earlier record stays."""
        await self._written(attempt, _pairs_and_revisit)

    async def _written(
        self, attempt: Attempt, pack: Callable[[Packer, Sequence[Exchange]], list[bytes]]
    ) -> StoredPage | None:
        """Store and clear the exchanges of *attempt*; return the place of the last record."""
        noted, attempt.exchanges = attempt.exchanges, []
        if not noted:
            return None
        if sum(len(each.body) for each in noted) < _LARGE:
            packed = pack(self._packer, noted)
        else:
            packed = await to_thread.run_sync(pack, Packer(), noted, limiter=self._limiter)
        try:
            place = self._files.append(packed)[-1]
        except OSError as error:
            raise self._unwritable(error) from error
        # Write early if much waits: large pages come faster than outcomes.
        if self._files.waiting > _MOST_WAITING:
            await self.sync()
        return place

    async def sync(self) -> None:
        """Write all stored pages to the disk."""
        try:
            await to_thread.run_sync(self._files.sync)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> FetchError:
        why = os.strerror(error.errno or errno.EIO)
        return FetchError(Reason.FILES_UNWRITABLE, f"cannot keep pages in {self.folder}: {why}")

    async def mend(self) -> None:
        """Repair the files of crashed processes."""
        try:
            mended = await to_thread.run_sync(self._files.mend)
        except OSError as error:
            logger.warning(
                "WARC files of a crashed process were not repaired: %s",
                printable(error),
                extra={"event": "warc_not_mended"},
            )
            return
        if mended:
            logger.info(
                "%d WARC files of crashed processes were repaired",
                mended,
                extra={"event": "warc_mended"},
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the last file, also during a cancellation."""
        with anyio.CancelScope(shield=True):
            try:
                await to_thread.run_sync(self._files.close)
            except OSError as error:
                # Not an error: pages that tasks refer to were synced before.
                logger.warning(
                    "a WARC file was not closed: %s",
                    printable(error),
                    extra={"event": "warc_not_closed"},
                )


def _pairs(packer: Packer, exchanges: Sequence[Exchange]) -> list[bytes]:
    """Return the records of exchanges, that of the last response at the end."""
    *redirects, last = map(packer.pair, exchanges)
    return [*(each for pair in redirects for each in pair), *last[::-1]]


def _pairs_and_revisit(packer: Packer, exchanges: Sequence[Exchange]) -> list[bytes]:
    """Return the records of redirects, and the revisit record of the unchanged page."""
    redirects = [each for hop in exchanges[:-1] for each in packer.pair(hop)]
    return [*redirects, packer.revisit(exchanges[-1])]


class FileMissingError(Exception):
    """The file of a record is missing or cannot be opened."""


def read_stored(folder: Path, place: StoredPage, *, most: int) -> Answer:
    """Return the response at *place* in a folder of WARC files; blocking, see `records.read`.

    Raises `FileMissingError` or `DamagedRecordError`.
    """
    if not place.is_sound:
        raise DamagedRecordError("its place in the ledger is invalid")
    # The writing process may rename the file between two attempts, hence the third.
    for name in (place.file, f"{place.file}{OPEN}", place.file):
        try:
            stream = (folder / name).open("rb")
            break
        except FileNotFoundError:
            continue
        except OSError as error:
            message = f"{place.file} cannot be opened: {error.strerror}"
            raise FileMissingError(message) from None
    else:
        raise FileMissingError(f"{place.file} is not in {folder}")
    try:
        with stream:
            stream.seek(place.offset)
            packed = stream.read(place.length)
    except OSError as error:
        raise DamagedRecordError(f"cannot read it: {error.strerror}") from None
    if len(packed) < place.length:
        raise DamagedRecordError("the file is too short")
    return read(packed, most=most)
