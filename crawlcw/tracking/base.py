"""Base of the tracker: a use case, its ledger, and one session on it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from crawlcw.errors import TaskNotFoundError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import Record, key_id
from crawlcw.tracking.adding import Adder
from crawlcw.tracking.blobs import Blobs
from crawlcw.tracking.coalescer import Coalescer
from crawlcw.tracking.policy import Policy
from crawlcw.tracking.session import Session
from crawlcw.tracking.sync_calls import LoopPortal
from crawlcw.tracking.use_case import UseCase


class Base:
    """A use case, its ledger and its session."""

    def __init__(
        self, ledger: Ledger, use_case: UseCase, policy: Policy, *, give_up: timedelta
    ) -> None:
        """Wait up to *give_up* for an unavailable ledger."""
        self.use_case = use_case
        self.session = Session(ledger, policy, give_up=give_up)
        self.ledger = self.session.ledger
        #: Set after this process has made tasks due.
        self.added = asyncio.Event()
        self.portal = LoopPortal()
        self._blobs = Blobs(self.ledger)
        self._adder = Adder(self.ledger, use_case)
        #: Reads tasks by id; concurrent reads share one query.
        self.records: Coalescer[bytes, Record | None] = Coalescer(self._read)

    async def _record(self, key: str) -> Record:
        record = await self.records(key_id(key))
        if record is None:
            raise TaskNotFoundError(key)
        return record

    async def _read(self, ids: Sequence[bytes]) -> list[Record | None]:
        if len(ids) == 1:
            return [await self.ledger.tasks.get(ids[0])]
        chosen = TaskFilter(ids=set(ids))
        found = await self.ledger.queries.find(chosen, limit=len(ids))
        records = {record.task.id: record for record in found}
        return [records.get(each) for each in ids]
