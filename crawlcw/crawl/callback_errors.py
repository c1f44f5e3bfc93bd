"""What the callbacks of a spider raised in this process, and which of them is broken.

No I/O but the log: each error of a callback is told once, with its traceback,
and only counted from then on.
"""

import logging
from collections import Counter

from crawlcw.crawl.callbacks import Raised
from crawlcw.model.sanitize import printable
from crawlcw.model.transitions import Failed

logger = logging.getLogger(__name__)

#: A callback that raises on so many pages, and on all so far, is broken.
BROKEN_FROM = 20
#: So many different errors are told, and callbacks known: the rest is in the ledger.
_MOST_TOLD = 100
_MOST_KNOWN = 1_000


class CallbackErrors:
    """The callbacks' errors of one process."""

    def __init__(self) -> None:
        self._good: set[str] = set()
        self._pages: Counter[str] = Counter()
        self._told: set[tuple[str, str, str]] = set()

    def succeeded(self, callback: str) -> None:
        """Note that *callback* went through a page to its end."""
        if len(self._good) < _MOST_KNOWN:
            self._good.add(callback)

    def raised(self, callback: str, failed: Failed, *, url: str) -> str | None:
        """Note that *callback* raised on a page; return what is to be said where it is broken."""
        self.tell(callback, failed, url=url)
        if callback in self._good:
            return None
        if callback in self._pages or len(self._pages) < _MOST_KNOWN:
            self._pages[callback] += 1
        if not self.is_broken(callback):
            return None
        where = _where(failed)
        return printable(
            f"{callback} raised on each of its first {self._pages[callback]} pages, the last "
            f"time {_error(failed)}{where}"
        )

    def is_broken(self, callback: str) -> bool:
        """Return whether *callback* raised on its first pages, all of them."""
        return callback not in self._good and self._pages[callback] >= BROKEN_FROM

    def tell(self, callback: str, failed: Failed, *, url: str) -> None:
        """Log an error of *callback* with its traceback, the first time that it is raised."""
        kind = failed.error if isinstance(failed, Raised) else failed.message
        key = (callback, kind, _where(failed))
        if key in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(key)
        logger.warning(
            "%s raised %s%s on %s",
            printable(callback),
            printable(_error(failed)),
            printable(_where(failed)),
            printable(url),
            extra={"event": "callback_failed", "url": url, "traceback": failed.traceback or ""},
        )


def _error(failed: Failed) -> str:
    return failed.message or str(failed.reason)


def _where(failed: Failed) -> str:
    return f" at {failed.where}" if isinstance(failed, Raised) and failed.where else ""
