"""The first due tasks of many hosts in a few commands."""

from bisect import bisect_right
from collections.abc import Collection
from datetime import datetime
from typing import Any

from crawlcw.ledger.hosts import Hosts
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import ANY_PRIORITY, BY_HOST, HAS_DUE, MongoStore
from crawlcw.ledger.mongo.updates import of_host, of_hosts

#: How many hosts one command asks for: the server takes 4 us for the ids of each.
_ASKED = 500


class MongoHosts(Hosts):
    """The hosts in MongoDB."""

    _store: MongoStore

    async def earliest_dues(self, hosts: Collection[str]) -> dict[str, datetime]:
        """See `Hosts.earliest_dues`; hosts without a task cost nothing."""
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
        with mapped():
            found: list[dict[str, Any]] = await cursor.to_list(1)
        return found[0] if found else None
