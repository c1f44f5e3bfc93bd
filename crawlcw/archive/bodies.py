"""Keep the pages of a crawl on the disk before an outcome names one, and read them back."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from crawlcw.api.settings import Settings
from crawlcw.archive.exchange import Exchange
from crawlcw.archive.files import LARGEST_FILE, OPEN, WarcFiles
from crawlcw.archive.records import Answer, DamagedRecordError, Packer, check_installed, read
from crawlcw.model.sanitize import printable
from crawlcw.model.task import StoredPage

logger = logging.getLogger(__name__)

#: Bytes of bodies that are packed in a thread, where the event loop would have to wait for them:
#: one hop to a thread takes as long as packing some ten thousand.
_LARGE = 1 << 17
_THREADS = 2
#: Bytes that wait for no outcome to be recorded, but are written.
_MOST_WAITING = 8 << 20


def folder_of(spider: str, settings: Settings) -> Path:
    """Return where the WARC files of a spider are."""
    return Path(settings.bodies_dir) / spider


class Bodies:
    """Keeps the pages of one spider, for one process; raises `OSError` where no disk takes them."""

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

    async def keep(self, exchanges: Sequence[Exchange]) -> StoredPage:
        """Keep exchanges, the redirects first; return the place of the last one's answer.

        It may be named by a task after the next `sync`.
        """
        packed = await self._packed(exchanges, _pairs)
        place = self._files.append(packed)[-1]
        await self._bounded()
        return place

    async def keep_unchanged(self, exchanges: Sequence[Exchange]) -> None:
        """Keep that a page was asked for, and found as it was; its own record stays."""
        self._files.append(await self._packed(exchanges, _pairs_and_revisit))
        await self._bounded()

    async def _packed(
        self,
        exchanges: Sequence[Exchange],
        pack: Callable[[Packer, Sequence[Exchange]], list[bytes]],
    ) -> list[bytes]:
        if sum(len(each.body) for each in exchanges) < _LARGE:
            return pack(self._packer, exchanges)
        return await to_thread.run_sync(pack, Packer(), exchanges, limiter=self._limiter)

    async def _bounded(self) -> None:
        """Write what waits where it is much: large pages come faster than outcomes."""
        if self._files.waiting > _MOST_WAITING:
            await self.sync()

    async def sync(self) -> None:
        """Return when all that was kept is on the disk."""
        await to_thread.run_sync(self._files.sync)

    async def mend(self) -> None:
        """Bring in order what crashed processes have left."""
        try:
            mended = await to_thread.run_sync(self._files.mend)
        except OSError as error:
            logger.warning(
                "WARC files of a crashed process stay as they are: %s",
                printable(error),
                extra={"event": "warc_not_mended"},
            )
            return
        if mended:
            logger.info(
                "%d WARC files of crashed processes are whole again",
                mended,
                extra={"event": "warc_mended"},
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the last file its name, even while being cancelled."""
        with anyio.CancelScope(shield=True):
            try:
                await to_thread.run_sync(self._files.close)
            except OSError as error:
                # What tasks name was synced before.
                logger.warning(
                    "a WARC file was not closed: %s",
                    printable(error),
                    extra={"event": "warc_not_closed"},
                )


def _pairs(packer: Packer, exchanges: Sequence[Exchange]) -> list[bytes]:
    """Return the records of exchanges, the last answer's behind all others."""
    *redirects, last = map(packer.pair, exchanges)
    return [*(each for pair in redirects for each in pair), *last[::-1]]


def _pairs_and_revisit(packer: Packer, exchanges: Sequence[Exchange]) -> list[bytes]:
    """Return the records of redirects, and that of a page which is as it was."""
    redirects = [each for hop in exchanges[:-1] for each in packer.pair(hop)]
    return [*redirects, packer.revisit(exchanges[-1])]


class FileMissingError(Exception):
    """The file of a record is not in the folder, or cannot be opened; the text says which."""


def read_stored(folder: Path, place: StoredPage, *, most: int) -> Answer:
    """Return the answer at *place* in a folder of WARC files; blocking, see `records.read`.

    Raises `FileMissingError` or `DamagedRecordError`.
    """
    if not place.is_sound:
        raise DamagedRecordError("the ledger names no place of a record")
    # It loses the second name when its process ends, perhaps between two looks.
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
        raise DamagedRecordError(f"it cannot be read: {error.strerror}") from None
    if len(packed) < place.length:
        raise DamagedRecordError("the file ends before it")
    return read(packed, most=most)
