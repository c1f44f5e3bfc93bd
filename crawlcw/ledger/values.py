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
from crawlcw.model.values import ItemFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Result of `add`."""

    new: int = 0
    existing: int = 0
    rejected: tuple[
        tuple[Task, str], ...
    ] = ()  #: tasks that the store cannot hold, each with a text that says why

    def __add__(self, other: "Added") -> "Added":
        """Add the numbers of new and of existing tasks, and join the lists of rejected tasks."""
        return Added(
            new=self.new + other.new,
            existing=self.existing + other.existing,
            rejected=self.rejected + other.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Result of `claim`."""

    leases: tuple[Lease, ...] = ()
    missed: int = 0  #: number of tasks that another worker changed before this claim
    abandoned: int = 0  #: number of tasks that were ignored, because they crashed too many workers
    deferred: int = 0  #: number of tasks that were deferred after they crashed a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Result of `commit`."""

    lost: tuple[Lease, ...] = ()  #: leases that had ended before the call
    rejected: tuple[tuple[Lease, str], ...] = ()  #: tasks that became `store-rejected`, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of tasks or items, which may be only a lower bound."""

    number: int
    is_exact: bool = True  #: whether the number is exact, not a lower bound

    def __add__(self, other: "Count") -> "Count":
        """Return the sum, which is a lower bound if either number is a lower bound."""
        return Count(number=self.number + other.number, is_exact=self.is_exact and other.is_exact)

    def __str__(self) -> str:
        """Return the number, or `at least` and the number."""
        return f"{self.number:,}" if self.is_exact else f"at least {self.number:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """A filter that selects tasks; a task must match all given fields."""

    statuses: Collection[Status] = tuple(Status)
    reason: Reason | None = None
    reasons: Collection[Reason] | None = None  #: the task's reason must be any of these reasons
    host: str | None = None  #: for tracked tasks, the stage
    changed_since: datetime | None = None  #: the task's status changed last at or after this time
    changed_before: datetime | None = None  #: the task's status changed last before this time
    ids: Collection[bytes] | None = None
    url: str | None = None  #: the task's stored URL or key
    url_prefix: str | None = None  #: beginning of the task's stored URL or key
    containing: str = ""  #: part of the task's stored URL or key; case matters
    callback: str | None = None  #: name of the callback
    #: the task is due, or its lease ends, at this time or before
    due_by: datetime | None = None

    def with_statuses(self, statuses: Collection[Status]) -> "TaskFilter":
        """Return this filter, restricted to tasks with one of *statuses*."""
        return replace(
            self, statuses=tuple(status for status in statuses if status in self.statuses)
        )

    def applicable(self, change: BulkChange, *, now: datetime) -> "TaskFilter":
        """Return this filter, restricted to the tasks that *change* can change.

        If *change* removes leases, the new filter selects only tasks whose lease has expired.
        """
        selection = self.with_statuses(change.from_statuses)
        return replace(selection, due_by=now) if change.ends_leases else selection


class Dimension(StrEnum):
    """A property of tasks, by which `Groups` counts tasks."""

    HOST = "host"  #: for tracked tasks, the stage
    REASON = "reason"  #: reason why a task failed or was ignored
    CALLBACK = "callback"
    DEPTH = "depth"
    STATUS_CODE = "status-code"  #: status code of the task's last HTTP response


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Numbers of tasks that have one value of a dimension, such as one host."""

    value: str | int | None  #: value of the dimension; None counts tasks without a value
    open: int = 0  #: number of tasks that are not done yet, including leased tasks
    finished: int = 0
    ignored: int = 0

    @property
    def total(self) -> int:
        """Number of tasks with this value."""
        return self.open + self.finished + self.ignored

    def __add__(self, other: "Group") -> "Group":
        """Return a group with the value of this group and with the sums of both groups' counts."""
        return Group(
            value=self.value,
            open=self.open + other.open,
            finished=self.finished + other.finished,
            ignored=self.ignored + other.ignored,
        )


def largest_first(groups: Iterable[Group]) -> list[Group]:
    """Return the groups that are not empty, the largest group first."""
    nonempty = [group for group in groups if group.total]
    return sorted(nonempty, key=lambda entry: (-entry.total, entry.value is None, str(entry.value)))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cursor:
    """Position in a listing of tasks (keyset cursor); the task that changed last comes first."""

    update_time: datetime
    id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """One item that the ledger has recorded."""

    item: dict[str, Any]
    url: str  #: final URL of the item's page
    fetched_at: datetime

    @property
    def item_class(self) -> str | None:
        """The name of the item's class; None if the spider yielded a mapping."""
        return self.item.item_class if isinstance(self.item, ItemFields) else None
