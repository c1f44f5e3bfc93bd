"""Raw documents of a ledger and guarded repairs, for `doctor`.

A crawl needs none of this. The documents are raw: one with wrong
values cannot be read as a task or a host.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from crawlcw.model.invariants import Violation

#: The fields of a task that a mend may change, and those it repeats as a condition.
TASK_STATE = (
    *("status", "due", "lock", "lock_time", "fence", "settled", "begun"),
    *("retry", "lost", "reason"),
)
#: Likewise of a host.
HOST_STATE = ("ready_at", "owner", "epoch", "released")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the store is, without its contents."""

    recorded: bool  #: whether there is any task
    facts: Mapping[str, str] = field(default_factory=dict)  #: for people
    violations: tuple[Violation, ...] = ()
    clock_offset: timedelta | None = None
    """How far the store's clock is ahead of this machine's; None: it is this machine's."""


class Inspection(Protocol):
    """What `doctor` reads and mends."""

    async def prepare(self) -> None:
        """Make missing tables and indexes, as the opening of a crawl does."""

    async def write_refusal(self) -> str | None:
        """Try a write that changes nothing; return why it is not taken, None where it is.

        Reads no task: it takes as long however many there are. Raises `LedgerUnavailableError`.
        """

    async def health(self) -> Health:
        """Look at the store; writes nothing."""

    def examine(self, *, only: Collection[bytes] | None = None) -> AsyncIterator[Mapping[str, Any]]:
        """Yield every task, or *only* those of the ids, as `invariants.of_task` takes it.

        In flat memory, without what grows with the results. Each task is of one
        moment; tasks that are added meanwhile may or may not be among them. A document that is no
        task may have an `_id` of any type.
        """

    def examine_hosts(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield every host, or *only* those of the names, without its robots.txt."""

    def unreferenced_blobs(
        self, *, only: Collection[str] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the values set aside that their task does not refer to, or *only* some of them.

        Each has `_id`, `task_id` and `create_time`. Only tracked tasks have such values.
        """
