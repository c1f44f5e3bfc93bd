"""Find the first due tasks of many hosts in a few commands."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from datetime import datetime

from crawlcw.ledger.documents import Document
from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.port import Among, Path, Where, Within

#: Number of hosts in one command; the server takes four microseconds for each host.
_BATCH_SIZE = 500


class MongoHosts(Hosts):
    """The hosts in MongoDB."""

    _store: MongoStore

    async def earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """See `Hosts.earliest_dues`; a host without a task costs no command."""
        earliest: dict[str, datetime] = {}
        # The index is sorted by host. So the hosts before the host of the first found task have no
        # due tasks.
        rest = sorted(hosts)
        while rest:
            tasks = await self._first({"host": Among(rest[:_BATCH_SIZE])})
            if not tasks:
                rest = rest[_BATCH_SIZE:]
                continue
            host = tasks[0]["host"]
            while tasks:
                (task,) = tasks
                earliest[host] = min(task["due"], earliest.get(host, task["due"]))
                lower = Within(None, task["priority"])
                tasks = await self._first({"host": host, "priority": lower})
            rest = rest[bisect_right(rest, host) :]
        return earliest

    async def _first(self, where: Where) -> Sequence[Document]:
        fields = ("host", "priority", "due")
        return await self._store.ledger_tables.tasks.scan(
            where, by=Path.HOST_DUE, limit=1, fields=fields
        )
