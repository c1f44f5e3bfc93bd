"""Find when a host's first task is due, by one index seek for each priority of the tasks."""

from collections.abc import Collection
from datetime import datetime

from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.sql.database import Database, descending
from crawlcw.ledger.sql.rows import moment
from crawlcw.ledger.sql.store import SqlStore


class SqlHosts(Hosts):
    """The hosts in an SQL database."""

    _store: SqlStore

    async def earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """See `Hosts.earliest_dues`."""
        return await self._store.reader.run(self._earliest_dues, hosts) if hosts else {}

    def _earliest_dues(self, db: Database, hosts: Collection[str]) -> dict[str, datetime]:
        statement = self._store.sql.next_due_of_host
        with db.snapshot():
            by_host = {n: [due for _, due in descending(db, statement, {"host": n})] for n in hosts}
        return {host: moment(min(dues)) for host, dues in by_host.items() if dues}
