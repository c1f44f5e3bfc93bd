"""Waking hosts: what `hosts.Hosts.wake` does in MongoDB, and the tasks that they wake for."""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawlcw.ledger import documents
from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.mongo.connection import mapped, refusals
from crawlcw.ledger.mongo.store import ANY_PRIORITY, BATCH, BY_HOST, HAS_DUE, MongoStore, all_of
from crawlcw.ledger.mongo.updates import of_host, of_hosts
from crawlcw.model.hosts import Host

#: How many hosts one command asks for: the server takes 4 us for the ids of each.
_ASKED = 500


class MongoHosts(Hosts):
    """The hosts in MongoDB."""

    _store: MongoStore

    async def wake(self, dues: Mapping[str, datetime]) -> None:
        """Read the hosts, and write those that are unknown or would be ready too late.

        A host that is held when it is read needs no write, also if it is released
        right after: its owner looks for tasks after the release, and the task
        that this is about is in the ledger.
        """
        names = list(dues)
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            with mapped():
                cursor = self._store.hosts.find(
                    {"_id": {"$in": some}}, {"owner": 1, "ready_at": 1, "not_before": 1}
                ).hint("_id_")
                found = {each["_id"]: each for each in await all_of(cursor, len(some))}
                late = {
                    name: ready
                    for name in some
                    if (ready := _woken(found.get(name), dues[name])) is not None
                }
                await self.hasten(late, upsert=True)

    async def hasten(self, readies: Mapping[str, datetime], *, upsert: bool = False) -> None:
        """Let hosts without an owner be ready no later than given; *upsert* those unknown."""
        if not readies:
            return
        names = list(readies)
        bulk = []
        for name in names:
            update: dict[str, Any] = {"$min": {"ready_at": readies[name]}}
            if upsert:
                new = documents.host_document(Host(name=name))
                # The filter sets these two.
                del new["_id"], new["owner"]
                update["$setOnInsert"] = new
            bulk.append(UpdateOne({"_id": name, "owner": None}, update, upsert=upsert, hint="_id_"))
        try:
            await self._store.hosts.bulk_write(bulk, ordered=False)
        except BulkWriteError as error:
            errors = (error.details or {}).get("writeErrors", ())
            if not upsert or refusals(error):
                raise
            # Another process was faster: it made the host known, perhaps for a
            # later time, or it holds it.
            await self.hasten({names[e["index"]]: readies[names[e["index"]]] for e in errors})

    async def earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """Return the earliest `due` of those hosts that have one; the others cost nothing."""
        earliest: dict[str, datetime] = {}
        # In the order of the index: the first task found tells of all hosts
        # before it that they have none.
        rest = sorted(hosts)
        while rest:
            found = await self._first_of(of_hosts(rest[:_ASKED], self._store.kind))
            if found is None:
                rest = rest[_ASKED:]
                continue
            host = found["host"]
            while found is not None:
                earliest[host] = min(found["due"], earliest.get(host, found["due"]))
                found = await self._first_of(
                    of_host(host, self._store.kind), below=found["priority"]
                )
            rest = rest[bisect_right(rest, host) :]
        return earliest

    async def _first_of(
        self, chosen: dict[str, Any], *, below: int = ANY_PRIORITY
    ) -> dict[str, Any] | None:
        cursor = self._store.tasks.find(
            {**chosen, "priority": {"$lt": below}, **HAS_DUE},
            {"_id": 0, "host": 1, "priority": 1, "due": 1},
        )
        cursor = cursor.sort([("host", 1), ("priority", -1), ("due", 1)]).limit(1).hint(BY_HOST)
        found: list[dict[str, Any]] = await cursor.to_list(1)
        return found[0] if found else None


def _woken(found: Mapping[str, Any] | None, due: datetime) -> datetime | None:
    """Return when a host is to be ready for a task that is due, or None where nothing changes."""
    if found is None:
        return due
    ready_at = max(due, found.get("not_before") or due)
    if found["owner"] is not None:
        return None
    return None if "ready_at" in found and found["ready_at"] <= ready_at else ready_at
