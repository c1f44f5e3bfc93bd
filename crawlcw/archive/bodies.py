"""Keeping pages while a crawl fetches them: on the disk before any outcome names one."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from crawlcw.api.settings import Settings
from crawlcw.archive.exchange import Exchange
from crawlcw.archive.files import LARGEST_FILE, WarcFiles
from crawlcw.archive.records import Packer, check_installed
from crawlcw.model.sanitize import printable
from crawlcw.model.stored_page import StoredPage

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
