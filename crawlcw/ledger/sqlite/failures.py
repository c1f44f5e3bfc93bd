"""Bringing back what failed."""

from crawlcw.ledger.protocol import Selection
from crawlcw.ledger.sqlite.connection import number_of, update
from crawlcw.ledger.sqlite.hosts import Hosts
from crawlcw.ledger.sqlite.rows import milliseconds


class Failures(Hosts):
    """Resets failed tasks, and wakes the hosts for them."""

    async def retry_failed(self, selection: Selection, *, dry_run: bool = False) -> int:
        """See `Ledger.retry_failed`."""
        bounds = {
            "reason": selection.reason,
            "host": selection.host,
            "since": milliseconds(selection.since) if selection.since else None,
        }
        if dry_run:
            return await self._reader.run(number_of, self._sql.count_failed, bounds)
        bounds["now"] = milliseconds(self.now())
        count = await self._writer.run(update, self._sql.retry_failed, bounds)
        await self.wake_all_hosts()
        return count
