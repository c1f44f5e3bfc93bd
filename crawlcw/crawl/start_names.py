"""The hosts that a crawl begins at, for all of its processes: those of `start`, and public names.

A name that was public does not become one of the intranet when a process is started
again, or the crawl goes on another day. A host that `start` has named in one process is the
user's own word in every other one.
"""

import logging
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from crawlcw.errors import LedgerError
from crawlcw.ledger.protocol import Notes
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

_START = "start "


class StartNames:
    """Fulfils `PublicNames` by what crawls write down of themselves."""

    def __init__(self, notes: Notes, *, has_own_start: bool = False) -> None:
        """Take the ledger's notes; only a spider that *has_own_start* notes hosts of it."""
        self._notes = notes
        self._has_own_start = has_own_start
        self._noted: set[str] | None = None  #: None: not read yet

    async def was_public(self, name: str) -> bool:
        """See `PublicNames.was_public`."""
        return _key(name) in await self._state()

    async def start_hosts(self) -> list[str]:
        """See `PublicNames.start_hosts`."""
        if not self._has_own_start:
            return []
        state = await self._state()
        return [key.removeprefix(_START) for key in state if key.startswith(_START)]

    async def _state(self) -> Mapping[str, Any]:
        try:
            return await self._notes.state()
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


def noted_starts(hosts: Iterable[str]) -> dict[str, bool]:
    """Return what is written down of *hosts* (`Location.host`) that `start` has named."""
    return {f"{_START}{host}": True for host in hosts}


def _key(name: str) -> str:
    return f"public {name}"
