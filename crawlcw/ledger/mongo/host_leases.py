"""Leasing hosts: taking many at once, and what their owner writes while it holds them."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo import UpdateOne

from crawlcw.errors import LedgerUnavailableError
from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.hosts import MongoHosts
from crawlcw.ledger.mongo.store import BY_READY, MongoStore, all_of
from crawlcw.ledger.mongo.updates import setting
from crawlcw.model.hosts import Host, HostLease

#: How often `lease` looks again where others were faster.
_LEASE_ROUNDS = 3


class HostLeases:
    """Leases hosts, and writes what their owners have learned."""

    def __init__(self, store: MongoStore, hosts: MongoHosts) -> None:
        self._store = store
        self._hosts = hosts
        #: Leases whose reply was lost, host -> token: they may or may not be ours.
        self._unsure: dict[str, str] = {}

    async def lease(self, *, worker: str, limit: int, lease: timedelta) -> list[HostLease]:
        """Lease many hosts in three round trips: look, compare and set, read which we got."""
        if adopted := await self._resolve_unsure():
            return adopted
        token = self._store.token(worker)
        now = self._store.now()
        taken = {"$set": {"owner": token, "ready_at": now + lease}, "$inc": {"epoch": 1}}
        tried: list[str] = []
        missing = limit
        try:
            with mapped():
                for _ in range(_LEASE_ROUNDS):
                    names = await self._ready(now, missing)
                    if not names:
                        break
                    tried += names
                    ready = {"_id": {"$in": names}, "ready_at": {"$lte": now}}
                    result = await self._store.hosts.update_many(ready, taken, hint="_id_")
                    missing -= result.matched_count
                    if result.matched_count == len(names):
                        break
                    # Another process was faster with the rest; behind it there may be more.
                return await self._owned(dict.fromkeys(tried, token)) if missing < limit else []
        except (LedgerUnavailableError, asyncio.CancelledError):
            # They may be ours without our knowing, and would stand still for a lease.
            self._unsure |= dict.fromkeys(tried, token)
            raise

    async def _ready(self, now: datetime, limit: int) -> list[str]:
        if limit < 1:
            return []  # to the server, no limit
        cursor = self._store.hosts.find({"ready_at": {"$lte": now}}, {"_id": 1})
        cursor = cursor.sort([("ready_at", 1)]).limit(limit).hint(BY_READY)
        return [found["_id"] for found in await all_of(cursor, limit)]

    async def _resolve_unsure(self) -> list[HostLease]:
        """Return the leases whose reply was lost, where they did reach the server."""
        if not self._unsure:
            return []
        now = self._store.now()
        with mapped():
            leases = await self._owned(self._unsure)
        self._unsure = {}
        # A host whose lease has run out meanwhile is ready, and is leased like any other.
        return [lease for lease in leases if lease.expires > now]

    async def _owned(self, tokens: Mapping[str, str]) -> list[HostLease]:
        """Return the leases of those hosts that the ledger shows with their tokens, in order."""
        cursor = self._store.hosts.find(
            {"_id": {"$in": list(tokens)}, "owner": {"$in": list(set(tokens.values()))}}
        ).hint("_id_")
        found = {each["_id"]: each for each in await all_of(cursor, len(tokens))}
        return [
            documents.host_lease(found[name])
            for name, token in tokens.items()
            if name in found and found[name]["owner"] == token
        ]

    async def renew(self, leases: Sequence[HostLease], *, lease: timedelta) -> set[str]:
        """Move the leases' ends in one bulk; read only where some were not matched."""
        ready_at = self._store.now() + lease
        # As for tasks: one that was delayed on its way shortens nothing.
        return await self._write([(held, {"$max": {"ready_at": ready_at}}) for held in leases])

    async def save(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write all states in one unordered bulk of fenced updates."""
        return await self._write(
            [
                (lease, setting(documents.host_learned(state, since=lease.host)))
                for lease, state in states
            ]
        )

    async def release(self, states: Sequence[tuple[HostLease, Host]]) -> set[str]:
        """Write all releases in one unordered bulk, then look for tasks that came in the meantime.

        A crash between the two loses a wake-up: the next process that polls finds its task.
        """
        lost = await self._write(
            [
                (
                    lease,
                    setting(
                        documents.host_learned(state, since=lease.host)
                        | {"ready_at": state.ready_at, "released": lease.epoch},
                        always={"owner": None},
                    ),
                )
                for lease, state in states
            ],
            release=True,
        )
        now = self._store.now()
        rests: dict[str, datetime] = {}
        for lease, state in states:
            rest = max(now, state.not_before or now)
            if lease.host.name not in lost and (state.ready_at is None or state.ready_at > rest):
                rests[lease.host.name] = rest
        with mapped():
            dues = await self._hosts.earliest_dues(rests)
            await self._hosts.hasten({name: max(due, rests[name]) for name, due in dues.items()})
        return lost

    async def _write(
        self, writes: Sequence[tuple[HostLease, dict[str, Any]]], *, release: bool = False
    ) -> set[str]:
        """Update hosts that are held; return the names of those that are not."""
        if not writes:
            return set()
        bulk = [
            UpdateOne(
                {"_id": lease.host.name, "owner": lease.token, "epoch": lease.epoch},
                update,
                hint="_id_",
            )
            for lease, update in writes
        ]
        with mapped():
            result = await self._store.hosts.bulk_write(bulk, ordered=False)
            if result.matched_count == len(bulk):
                return set()
            cursor = self._store.hosts.find(
                {"_id": {"$in": [lease.host.name for lease, _ in writes]}},
                {"owner": 1, "epoch": 1, "released": 1},
            ).hint("_id_")
            found = {each["_id"]: each for each in await all_of(cursor, len(writes))}
        return {
            lease.host.name
            for lease, _ in writes
            if not _stands(lease, found.get(lease.host.name, {}), release=release)
        }


def _stands(lease: HostLease, found: Mapping[str, Any], *, release: bool) -> bool:
    """Return whether the ledger shows a host as held by the lease, or as released by its owner."""
    if release:
        return found.get("released") == lease.epoch
    return (found.get("owner"), found.get("epoch")) == (lease.token, lease.epoch)
