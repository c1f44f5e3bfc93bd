"""Leasing hosts: taking many at once."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.hosts import HostLeases, Hosts
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.port import Among, AtMost, Edit, Path
from crawlcw.model.hosts import HostLease

#: How often `lease` reads again if other processes were faster.
_LEASE_ROUNDS = 3


class MongoHostLeases(HostLeases):
    """Leases hosts in MongoDB."""

    _store: MongoStore

    def __init__(self, store: MongoStore, hosts: Hosts) -> None:
        super().__init__(store, hosts)
        #: Leases whose reply was lost, host -> token: they may or may not be ours.
        self._unsure: dict[str, str] = {}

    async def lease(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """Lease many hosts in three round trips: look, compare and set, read which we got."""
        if adopted := await self._resolve_unsure():
            return adopted
        if limit < 1:
            return []  # to the server, no limit
        hosts = self._store.unit.hosts
        token = self._store.token(worker)
        now = self._store.now()
        ready = {"ready_at": AtMost(now)}
        taken = Edit(set={"owner": token, "ready_at": now + lease}, inc={"epoch": 1})
        tried: list[str] = []
        missing = limit
        try:
            for _ in range(_LEASE_ROUNDS):
                found = await hosts.scan(ready, by=Path.READY, limit=missing, fields=("_id",))
                names = [each["_id"] for each in found]
                if not names:
                    break
                tried += names
                number = await hosts.change_where({"_id": Among(names), **ready}, taken)
                missing -= number
                if number == len(names):
                    break
                # Another process was faster with the rest; behind it there may be more.
            return await self._owned(dict.fromkeys(tried, token)) if missing < limit else []
        except (LedgerUnavailableError, asyncio.CancelledError):
            # They may be ours without our knowing, and would stand still for a lease.
            self._unsure |= dict.fromkeys(tried, token)
            raise

    async def _resolve_unsure(self) -> list[HostLease]:
        """Return the leases whose reply was lost, where they did reach the server."""
        if not self._unsure:
            return []
        now = self._store.now()
        leases = await self._owned(self._unsure)
        self._unsure = {}
        # A host whose lease has run out meanwhile is ready, and is leased like any other.
        return [lease for lease in leases if lease.expires > now]

    async def _owned(self, tokens: Mapping[str, str]) -> list[HostLease]:
        """Return the leases of those hosts that the ledger shows with their tokens, in order."""
        owned = {"owner": Among(set(tokens.values()))}
        found = await self._store.unit.hosts.read([*tokens], where=owned)
        return [
            documents.host_lease(found[name])
            for name, token in tokens.items()
            if name in found and found[name]["owner"] == token
        ]
