"""Arguments and results of a ledger's operations: filters, cursors, counts and groups."""

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
    existing: int = 0
    rejected: tuple[
        tuple[Task, str], ...
    ] = ()  #: tasks that the store cannot hold, with the reason

    def __add__(self, other: "Added") -> "Added":
        """Return the sum of both."""
        return Added(
            new=self.new + other.new,
            existing=self.existing + other.existing,
            rejected=self.rejected + other.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Result of `claim`."""

    leases: tuple[Lease, ...] = ()
    missed: int = 0  #: changed by another worker meanwhile
    abandoned: int = 0  #: not leased but ignored, because they crashed too many workers
    deferred: int = 0  #: not leased but due later, because alone they crashed a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Result of `commit`."""

    lost: tuple[Lease, ...] = ()  #: their lease had ended, so nothing was written for them
    rejected: tuple[tuple[Lease, str], ...] = ()  #: given up as `store-rejected`, with the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of tasks or items."""

    number: int
    is_exact: bool = True  #: False: a lower bound

    def __add__(self, other: "Count") -> "Count":
        """Return the sum, which is a lower bound if either number is a lower bound."""
        return Count(number=self.number + other.number, is_exact=self.is_exact and other.is_exact)

    def __str__(self) -> str:
        """Return the number, or `at least` and the number."""
        return f"{self.number:,}" if self.is_exact else f"at least {self.number:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Filter of tasks; a task must match all given fields."""

    statuses: Collection[Status] = tuple(Status)
    reason: Reason | None = None
    reasons: Collection[Reason] | None = None  #: the reason must be any of these reasons
    host: str | None = None  #: for tracked tasks, the stage
    changed_since: datetime | None = None  #: last change of the status at or after this time
    changed_before: datetime | None = None  #: last change of the status before this time
    ids: Collection[bytes] | None = None
    url_prefix: str | None = None  #: prefix of the stored URL or key
    containing: str = ""  #: part of the stored URL or key; case-sensitive
    callback: str | None = None  #: name of the callback
    #: due at this time or before; for leased tasks, the end of the lease
    due_by: datetime | None = None

    def with_statuses(self, statuses: Collection[Status]) -> "TaskFilter":
        """Return the filter, restricted to tasks with *statuses*."""
        return replace(
            self, statuses=tuple(status for status in statuses if status in self.statuses)
        )

    def applicable(self, change: BulkChange, *, now: datetime) -> "TaskFilter":
        """Return the filter, restricted to the tasks that a part of a bulk change applies to.

        Leased tasks match only if their lease has expired at *now*.
        """
        selection = self.with_statuses(change.from_statuses)
        return replace(selection, due_by=now) if change.ends_leases else selection


class Dimension(StrEnum):
    """Properties to group tasks by."""

    HOST = "host"  #: for tracked tasks, the stage
    REASON = "reason"  #: reason of failed and ignored tasks
    CALLBACK = "callback"
    DEPTH = "depth"
    STATUS_CODE = "status-code"  #: of the last HTTP response


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Counts of the tasks with one value."""

    value: str | int | None  #: None: tasks without a value
    open: int = 0  #: not done yet, including tasks in progress
    finished: int = 0
    ignored: int = 0

    @property
    def total(self) -> int:
        """The number of tasks."""
        return self.open + self.finished + self.ignored

    def __add__(self, other: "Group") -> "Group":
        """Return the sum of the counts, with the value of the first group."""
        return Group(
            value=self.value,
            open=self.open + other.open,
            finished=self.finished + other.finished,
            ignored=self.ignored + other.ignored,
        )


def largest_first(groups: Iterable[Group]) -> list[Group]:
    """Return the non-empty groups, the largest first."""
    nonempty = [group for group in groups if group.total]
    return sorted(nonempty, key=lambda entry: (-entry.total, entry.value is None, str(entry.value)))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cursor:
    """Position in the tasks by their last change, the last changed first (keyset cursor)."""

    update_time: datetime
    id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """One item from the ledger."""

    item: dict[str, Any]
    url: str  #: final URL of its page
    fetched_at: datetime
