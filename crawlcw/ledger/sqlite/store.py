"""What every operation stands on: two connections, the statements, the time."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from crawlcw.ledger.sqlite.connection import Connection
from crawlcw.ledger.sqlite.schema import Tables
from crawlcw.ledger.sqlite.statements import Statements

#: What is walked through is read so much at a time: rows, and characters of JSON.
ITEM_ROWS = 500
ITEM_CHARACTERS = 1 << 20
#: How many rows one statement counts by an index alone, and how many it reads.
COUNTED = 50_000
READ = 10_000


class SqliteStore:
    """The tables of one spider or use case in an SQLite file."""

    tracked = False  #: whether they are a use case's: known once it is opened

    def __init__(self, path: Path, name: str, *, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._name = name
        self._tables = Tables(name)
        self._sql = Statements(self._tables)
        self._clock = clock
        self._writer = Connection(path)
        # Its own, so that `items` and `counts` do not keep claims waiting.
        self._reader = Connection(path)
        self._claims = 0
        #: Hosts of tasks that were admitted, and that may not have been woken yet.
        self._admitted_hosts: set[str] = set()

    def now(self) -> datetime:
        """Return this machine's time, which all processes on the file share."""
        return self._clock()

    async def close(self) -> None:
        """See `Ledger.close`."""
        await self._reader.close()
        await self._writer.close()
