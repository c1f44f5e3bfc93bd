"""Three commands lease hosts: find ready hosts, write the leases, and read the leased hosts."""

from datetime import datetime

from crawlcw.ledger import documents
from crawlcw.ledger.hosts import HostLeases
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.port import Among, AtMost, Edit, Path
from crawlcw.model.hosts import HostLease

#: Maximum number of searches; search again if another process has leased the hosts.
_ROUNDS = 3


class MongoHostLeases(HostLeases):
    """Leases hosts that are stored in MongoDB."""

    _store: MongoStore

    async def _take(
        self, token: str, limit: int, *, now: datetime, end: datetime
    ) -> list[HostLease]:
        hosts = self._store.ledger_tables.hosts
        where = {"ready_at": AtMost(now)}
        lease_edit = Edit(set={"owner": token, "ready_at": end}, inc={"epoch": 1})
        keys: list[str] = []
        missing = limit
        for _ in range(_ROUNDS):
            ready_hosts = await hosts.scan(where, by=Path.READY, limit=missing, fields=("_id",))
            names = [host["_id"] for host in ready_hosts]
            if not names:
                break
            keys += names
            number = await hosts.change_where({"_id": Among(names), **where}, lease_edit)
            missing -= number
            if number == len(names):
                break
            # Another process has leased some of the found hosts, so search for more ready hosts.
        leased = await hosts.read(keys, where={"owner": token}) if missing < limit else {}
        return [
            documents.host_lease(leased[name]) for name in dict.fromkeys(keys) if name in leased
        ]
