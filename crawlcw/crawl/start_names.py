"""Which names of start URLs had a public address: told to all processes of a crawl by its ledger.

So a name that was public does not become one of the intranet when a process is
started again, or the crawl goes on another day.
"""

import logging
import socket

from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Notes
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)


class StartNames:
    """Fulfils `PublicNames` by what crawls write down of themselves."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._noted: set[str] | None = None  #: None: not read yet

    async def was_public(self, name: str) -> bool:
        """See `PublicNames.was_public`."""
        try:
            return _key(name) in await self._notes.state()
        except LedgerError as error:
            # As if the DNS itself were away: the page is tried again.
            message = f"the ledger could not be asked about the name: {printable(error)}"
            raise socket.gaierror(socket.EAI_AGAIN, message) from error

    async def note_public(self, name: str) -> None:
        """See `PublicNames.note_public`."""
        try:
            if self._noted is None:
                self._noted = set(await self._notes.state())
            if _key(name) not in self._noted:
                await self._notes.set_state({_key(name): True})
                self._noted.add(_key(name))
        except LedgerError as error:
            # This process knows it; the next look-up writes it down.
            logger.debug(
                "not noted that %s is public: %s",
                printable(name),
                printable(error),
                extra={"event": "not_noted"},
            )


class NoStartNames:
    """Fulfils `PublicNames` for a child, who has no ledger: its parent is asked for such pages."""

    async def was_public(self, name: str) -> bool:  # noqa: ARG002  # the protocol's
        """Return that it was, of every name."""
        return True

    async def note_public(self, name: str) -> None:
        """Do nothing."""


def _key(name: str) -> str:
    return f"public {name}"
