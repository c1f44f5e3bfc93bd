"""Instruments: told how long the steps of a page take, and what came of them.

A crawl with instruments enters a block for each fetch, each callback and each commit.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Protocol

from crawlcw.model.task import Lease


class Seen(Protocol):
    """One step, while it lasts."""

    def answered(self, *, status: int, size: int) -> None:
        """Note an answer: its HTTP status, and the bytes of its decoded body."""

    def failed(self, reason: str) -> None:
        """Note that the step came to nothing, for one of the reasons of `errors.Reason`."""


#: The block of a step in a crawl without instruments.
UNSEEN: AbstractContextManager[Seen | None] = nullcontext()


class Instruments(Protocol):
    """What is told of each step. A block that an exception leaves has failed for that."""

    def fetch(self, lease: Lease) -> AbstractContextManager[Seen]:
        """Enter the block of one attempt at a page."""

    def parse(self, lease: Lease, callback: str) -> AbstractContextManager[Seen]:
        """Enter the block in which a callback runs."""

    def commit(self, leases: Sequence[Lease]) -> AbstractContextManager[Seen]:
        """Enter the block in which the links and outcomes of a group of pages are written."""


class SeveralInstruments:
    """Several look, each at every step."""

    def __init__(self, *instruments: Instruments) -> None:
        self._each = instruments

    def fetch(self, lease: Lease) -> AbstractContextManager[Seen]:
        """See `Instruments.fetch`."""
        return _entered([each.fetch(lease) for each in self._each])

    def parse(self, lease: Lease, callback: str) -> AbstractContextManager[Seen]:
        """See `Instruments.parse`."""
        return _entered([each.parse(lease, callback) for each in self._each])

    def commit(self, leases: Sequence[Lease]) -> AbstractContextManager[Seen]:
        """See `Instruments.commit`."""
        return _entered([each.commit(leases) for each in self._each])


@contextmanager
def _entered(blocks: Sequence[AbstractContextManager[Seen]]) -> Iterator[Seen]:
    with ExitStack() as stack:
        yield _SeenBySeveral([stack.enter_context(each) for each in blocks])


class _SeenBySeveral:
    def __init__(self, seen: Sequence[Seen]) -> None:
        self._seen = seen

    def answered(self, *, status: int, size: int) -> None:
        for each in self._seen:
            each.answered(status=status, size=size)

    def failed(self, reason: str) -> None:
        for each in self._seen:
            each.failed(reason)
