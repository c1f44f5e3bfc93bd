"""When the run began that this process takes part in.

A run goes on, over any number of processes, stops and crashes, until the ledger is drained.
The crawl that starts next begins another one.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import WAITING, Status

_LEFT = (*WAITING, Status.PROCESSING)
#: Workers that were silent for so many leases are not there.
_SILENT_LEASES = 3


class RunStart:
    """Finds it out, by what crawls have noted in the ledger."""

    def __init__(self, ledger: Ledger, *, lease: timedelta) -> None:
        self._ledger = ledger
        self._silence = _SILENT_LEASES * lease
        #: By the ledger's time; None: it is not known yet.
        self.began: datetime | None = None
        #: Which run of the ledger it is. Processes that begin one together find the same number.
        self.number = 0

    async def find(self, state: Mapping[str, Any]) -> None:
        """Take part in the run of the ledger's *state*, or begin one and note it.

        This process is on the list of workers already.
        """
        noted = state.get("run") or {}
        began = None if not noted else _from_ms(noted["began"])
        self.number = noted.get("number", 0)
        if began is not None:
            over = noted.get("over") or not await self._ledger.queries.has(_LEFT)
            # Of several processes that start together the first has begun it just now.
            if not over or began >= await self._first_started():
                self.began = began
                return
        self.began = self._ledger.now()
        self.number += 1
        run = {"began": _to_ms(self.began), "number": self.number}
        await self._ledger.notes.set_state({"run": run})

    async def end(self) -> None:
        """Note that the ledger is drained."""
        if self.began is not None:
            run = {"began": _to_ms(self.began), "number": self.number, "over": True}
            await self._ledger.notes.set_state({"run": run})

    async def _first_started(self) -> datetime:
        now = self._ledger.now()
        return min(
            (
                worker.started
                for worker in await self._ledger.workers.all()
                if worker.heartbeat is None or now - worker.heartbeat < self._silence
            ),
            default=now,
        )


def _to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _from_ms(number: int) -> datetime:
    return datetime.fromtimestamp(number / 1000, UTC)
