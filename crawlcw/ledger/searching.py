"""What a ledger lets be looked for in bounded time, for people who wait for the answer.

`Queries.find` reads on until it has found enough, and so a rare reason among a million
tasks costs a million reads. A search looks at so many tasks, says what it has found among
them and where it has come to, and whoever asked may go on from there.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Cursor, Ledger, TaskFilter
from crawlcw.model.task import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks are looked for: those that match all that is given."""

    chosen: TaskFilter = TaskFilter()  #: its ids are not asked for
    reasons: Collection[Reason] | None = None  #: any of these
    containing: str = ""  #: their URL, or key, has this in it; the case of letters counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search has found."""

    records: tuple[Record, ...]  #: the last changed first, without their items
    after: Cursor | None  #: where to go on; None: nothing is left to look at


class Search(Protocol):
    """Looking for tasks."""

    async def find(
        self, wanted: Wanted, *, limit: int, look_at: int, after: Cursor | None = None
    ) -> Found:
        """Return up to *limit* tasks, the last changed first, of all statuses in one order.

        It looks at *look_at* tasks of those statuses and times, or a few times as many, and
        at no more. Both are at least 1. Equal times are ordered by id.
        """


class SearchedLedger(Ledger, Protocol):
    """The tasks of one spider or use case, durable and shared, and to be searched."""

    search: Search
