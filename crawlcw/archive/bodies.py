"""Keeping pages while a crawl fetches them: written at once, synced before any task names one."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from crawlcw.api.settings import Settings
from crawlcw.archive import records
from crawlcw.archive.exchange import Exchange
from crawlcw.archive.files import LARGEST_FILE, WarcFiles
from crawlcw.model.sanitize import printable
from crawlcw.model.stored_page import StoredPage

logger = logging.getLogger(__name__)

#: As many as pack records beside the event loop: zlib lets others run meanwhile.
_THREADS = 2


def folder_of(spider: str, settings: Settings) -> Path:
    """Return where the WARC files of a spider are."""
    return Path(settings.bodies_dir) / spider


class Bodies:
    """Keeps the pages of one spider, for one process; raises `OSError` where no disk takes them."""

    def __init__(self, spider: str, settings: Settings, *, largest: int = LARGEST_FILE) -> None:
        """*largest* is the size of a file in bytes. Raises `UsageError` without warcio."""
        records.check_installed()
        self.folder = folder_of(spider, settings)
        self._files = WarcFiles(
            self.folder,
            prefix=spider,
            first_record=partial(records.about_the_file, spider=spider),
            largest=largest,
        )
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def keep(self, exchanges: Sequence[Exchange]) -> StoredPage:
        """Write exchanges, the redirects first; return the place of the last one's answer.

        It may be named by a task after the next `sync`.
        """
        return await to_thread.run_sync(self._keep, exchanges, limiter=self._limiter)

    def _keep(self, exchanges: Sequence[Exchange]) -> StoredPage:
        packed = [records.pair(each) for each in exchanges]
        answers_last = [*(each for pair in packed[:-1] for each in pair), *packed[-1][::-1]]
        return self._files.append(answers_last)[-1]

    async def keep_unchanged(self, exchanges: Sequence[Exchange]) -> None:
        """Write that a page was asked for, and found as it was; its own record stays."""
        await to_thread.run_sync(self._keep_unchanged, exchanges, limiter=self._limiter)

    def _keep_unchanged(self, exchanges: Sequence[Exchange]) -> None:
        redirects = [each for hop in exchanges[:-1] for each in records.pair(hop)]
        self._files.append([*redirects, records.revisit(exchanges[-1])])

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
