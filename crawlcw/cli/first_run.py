"""Warning at a spider's first run: state between callbacks that a crash would lose."""

import inspect
import logging
from pathlib import Path

from crawlcw.api.spider import Spider
from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)


async def warn_of_state(spider: Spider, ledger: Ledger) -> None:
    """Warn in one line of attributes that callbacks change, at the spider's first run."""
    try:
        if await ledger.notes.state():
            return
    except LedgerError:
        return  # the crawl itself waits for the ledger, or reports it
        # Imported here: only a first run reads the source.
    from crawlcw.checking import state
    from crawlcw.checking.source import UNREADABLE

    kind = type(spider)
    try:
        path = Path(inspect.getsourcefile(kind) or "")
        here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        found = state.of_class(here, kind.__name__)
    except (*UNREADABLE, TypeError):
        return  # no source file, as in an interactive session
    if not found:
        return
    first, more = found[0], len(found) - 1
    others = f"; {more} more by `crawlcw check {first.path}`" if more else ""
    logger.warning(
        "%s:%d: %s: keep it in self.state%s",
        printable(first.path),
        first.line,
        first.what,
        printable(others),
        extra={"event": "state_in_attributes", "file": first.path, "line": first.line},
    )
