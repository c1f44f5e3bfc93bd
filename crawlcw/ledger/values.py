"""What operations of a ledger are given and return: filters, places, counts and groups."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from crawlcw.errors import Reason
from crawlcw.model.counters import Counts as Counts
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import BulkChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Result of `add`."""

    new: int = 0
    known: int = 0
    rejected: tuple[tuple[Task, str], ...] = ()  #: those the store cannot hold, and why

    def __add__(self, other: "Added") -> "Added":
        """Return the sum of both."""
        return Added(
            new=self.new + other.new,
            known=self.known + other.known,
            rejected=self.rejected + other.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Result of `claim`."""

    leases: tuple[Lease, ...] = ()
    missed: int = 0  #: taken, finished or moved by another worker meanwhile
    abandoned: int = 0  #: ignored instead: they have crashed too many workers
    put_off: int = 0  #: due later instead: a worker crashed that worked on nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Result of `commit`."""

    lost: tuple[Lease, ...] = ()  #: their lease had ended: nothing was written
    rejected: tuple[tuple[Lease, str], ...] = ()  #: given up as `store-rejected`, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCount:
    """How many items a ledger has."""

    number: int
    whole: bool  #: False: these were counted, and there may be more


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks a question or a change is about: those that match all that is given."""

    statuses: Collection[Status] = tuple(Status)
    reason: Reason | None = None
    host: str | None = None  #: of tracked tasks the stage
    since: datetime | None = None  #: changed their status at or after this time
    until: datetime | None = None  #: and before this one
    ids: Collection[bytes] | None = None
    url_prefix: str | None = None  #: their URL, or key, begins with this, as it is stored
    callback: str | None = None  #: the method that parses their pages
    due_by: datetime | None = None  #: due at this time or before; of held ones their lease's end

    def among(self, statuses: Collection[Status]) -> "TaskFilter":
        """Return the filter, restricted to tasks of those statuses."""
        return replace(self, statuses=tuple(each for each in statuses if each in self.statuses))

    def freed(self, change: BulkChange, *, now: datetime) -> "TaskFilter":
        """Return the filter, restricted to the tasks of a part of a bulk change.

        Of those that are held only those whose lease has run out *now*.
        """
        chosen = self.among(change.from_statuses)
        return replace(chosen, due_by=now) if change.ends_leases else chosen

    def counted_at(self, now: datetime) -> "TaskFilter":
        """Return the same without an end that is yet to come, for nothing changed later than now.

        No index but that of statuses has times.
        """
        to_come = self.until is not None and self.until > now
        return replace(self, until=None) if to_come else self


class Dimension(StrEnum):
    """What tasks may have in common."""

    HOST = "host"  #: of tracked tasks the stage
    REASON = "reason"  #: why they failed, or are ignored
    CALLBACK = "callback"
    DEPTH = "depth"
    STATUS_CODE = "status-code"  #: of the last HTTP answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """How many tasks have one value in common."""

    value: str | int | None  #: None: they have no such thing
    open: int = 0  #: not done yet, those in flight included
    finished: int = 0
    ignored: int = 0

    @property
    def total(self) -> int:
        """The number of tasks."""
        return self.open + self.finished + self.ignored

    def __add__(self, other: "Group") -> "Group":
        """Return both together, under the value of the first."""
        return Group(
            value=self.value,
            open=self.open + other.open,
            finished=self.finished + other.finished,
            ignored=self.ignored + other.ignored,
        )


def most_first(groups: Iterable[Group]) -> list[Group]:
    """Return the groups that have any task, those with the most first."""
    some = [group for group in groups if group.total]
    return sorted(some, key=lambda each: (-each.total, each.value is None, str(each.value)))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cursor:
    """Where a walk through tasks, the last changed first, has come to."""

    update_time: datetime
    id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """One item as it leaves the ledger."""

    item: dict[str, Any]
    url: str  #: where its page really was
    fetched_at: datetime
