"""The workers: who is at work, what each has counted, and what it leaves behind."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from crawlcw.ledger import documents
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.hosts import Hosts
from crawlcw.ledger.mongo.indexes import BY_LEFT, BY_OWNER, BY_STATUS, LONG_AGO
from crawlcw.ledger.mongo.store import BATCH, MongoStore, all_of
from crawlcw.ledger.protocol import Counters, Worker
from crawlcw.model.rates import Vitals
from crawlcw.model.task import Status


class Workers:
    """Keeps a document for each worker."""

    def __init__(self, store: MongoStore, hosts: Hosts) -> None:
        self._store = store
        self._hosts = hosts

    async def join(self, worker: Worker) -> None:
        """Write the worker's document, unless it is at work already or has left since it started.

        One that was delayed on its way takes back neither what the worker has
        counted since nor that it has left.
        """
        document = documents.worker_document(worker)
        absent = {"_id": document.pop("_id"), "left": {"$lte": worker.started}}
        with mapped(), suppress(DuplicateKeyError):
            await self._store.workers.replace_one(absent, document, upsert=True)

    async def all(self) -> list[Worker]:
        """Read the documents of those that have not left."""
        with mapped():
            found = await self._store.workers.find({"left": None}).hint(BY_LEFT).to_list(None)
        return [documents.worker(each) for each in found]

    async def beat(
        self, name: str, tally: Counters, *, hungry: bool = False, vitals: Vitals | None = None
    ) -> None:
        """Set all by one update of a worker that has not left."""
        counted = documents.tally_document(tally)
        news: documents.Document = {
            "heartbeat": self._store.now(),
            "hungry": hungry,
            "tally": counted,
        }
        if vitals is not None:
            news["vitals"] = documents.vitals_document(vitals)
        # One that was delayed on its way must not take back a later one.
        earlier = {"_id": name, "left": None, "heartbeat": {"$lte": news["heartbeat"]}}
        with mapped():
            await self._store.workers.update_one(earlier, {"$set": news}, hint="_id_")

    async def tally(self) -> Counters:
        """Add up the documents of all workers that are kept."""
        with mapped():
            found = await self._store.workers.find({}, {"tally": 1}).to_list(None)
        return sum((documents.tally(each["tally"]) for each in found), Counters())

    async def leave(self, name: str) -> int:
        """End the leases first and mark the worker second: a crash in between repeats both."""
        now = self._store.now()
        # ';' follows ':', so these are the tokens that begin with `name:`.
        owned = {"owner": {"$gte": f"{name}:", "$lt": f"{name};"}}
        with mapped():
            held = await self._held_by(name)
            ended = await self._end_leases(held, now)
            await self._store.hosts.update_many(
                owned, {"$set": {"ready_at": now, "owner": None}}, hint=BY_OWNER
            )
            logins = self._store.sessions.collection
            await logins.update_many({"owner": name}, {"$set": {"expires": now}})
            if ended and not self._store.kind.tracked:
                # Hosts of others, too, which come back when the leases would have run out.
                await self._hosts.wake({each["host"]: now for each in held})
            await self._store.workers.update_one(
                {"_id": name, "left": None},
                {"$set": {"left": now}, "$unset": {"vitals": ""}},
                hint="_id_",
            )
            await self._forget_workers()
        return ended

    async def _held_by(self, name: str) -> list[documents.Document]:
        """Read the tasks that a worker holds, as far as their leases are to be ended."""
        held = {"status": int(Status.PROCESSING), "lock": {"$regex": f"^{re.escape(name)}:"}}
        fields = dict.fromkeys(("status", "lock", "fence", "create_time", "host"), 1)
        found = await self._store.tasks.find(held, fields).hint(BY_STATUS).to_list(None)
        return list(found)

    async def _end_leases(self, held: Sequence[documents.Document], now: datetime) -> int:
        """Make tasks due since they are there, where they are still held so; return how many.

        Of what waits, nothing that came later goes first.
        """
        woken = self._store.woken(now)
        writes = [
            UpdateOne(
                {name: each[name] for name in ("_id", "status", "lock", "fence")},
                {"$set": {"due": each["create_time"], **woken}},
                hint="_id_",
            )
            for each in held
        ]
        ended = 0
        for start in range(0, len(writes), BATCH):
            some = writes[start : start + BATCH]
            result = await self._store.durable.bulk_write(some, ordered=False)
            ended += result.matched_count
        return ended

    async def _forget_workers(self) -> None:
        """Delete the workers that left before the last ones that are kept."""
        cursor = self._store.workers.find({"left": {"$gt": LONG_AGO}}, {"_id": 1})
        cursor = cursor.sort([("left", -1), ("_id", -1)]).hint(BY_LEFT)
        cursor = cursor.skip(documents.KEPT_WORKERS).limit(BATCH)
        old = [each["_id"] for each in await all_of(cursor, BATCH)]
        if old:
            # A name may have joined anew since it was read.
            left = {"_id": {"$in": old}, "left": {"$ne": None}}
            await self._store.workers.delete_many(left, hint="_id_")
