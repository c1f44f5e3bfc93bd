"""Who is told how long the steps of a page take, and what came of them: nobody, by default.

A crawl enters a block for each fetch, each callback and each commit. Who measures or traces
them stands behind these blocks; a crawl that nobody watches pays for an empty one.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol

from crawlcw.model.task import Lease


class Seen(Protocol):
    """One step, while it lasts."""

    def answered(self, *, status: int, size: int) -> None:
        """Note an answer: its HTTP status, and the bytes of its decoded body."""

    def failed(self, reason: str) -> None:
        """Note that the step came to nothing, for one of the reasons of `errors.Reason`."""


class Instruments(Protocol):
    """What is told of each step. A block that an exception leaves has failed for that."""

    def fetch(self, lease: Lease) -> AbstractContextManager[Seen]:
        """Enter the block of one attempt at a page."""

    def parse(self, lease: Lease, callback: str) -> AbstractContextManager[Seen]:
        """Enter the block in which a callback runs."""

    def commit(self, leases: Sequence[Lease]) -> AbstractContextManager[Seen]:
        """Enter the block in which the links and outcomes of a group of pages are written."""


class Unseen:
    """A step that nobody looks at."""

    __slots__ = ()

    def __enter__(self) -> "Unseen":
        """Begin."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """End."""

    def answered(self, *, status: int, size: int) -> None:
        """Note nothing."""

    def failed(self, reason: str) -> None:
        """Note nothing."""


class NoInstruments:
    """Nobody looks."""

    __slots__ = ()

    def fetch(self, _lease: Lease) -> AbstractContextManager[Seen]:
        """See `Instruments.fetch`."""
        return _UNSEEN

    def parse(self, _lease: Lease, _callback: str) -> AbstractContextManager[Seen]:
        """See `Instruments.parse`."""
        return _UNSEEN

    def commit(self, _leases: Sequence[Lease]) -> AbstractContextManager[Seen]:
        """See `Instruments.commit`."""
        return _UNSEEN


class SeveralInstruments:
    """Several look, each at every step."""

    __slots__ = ("_each",)

    def __init__(self, *instruments: Instruments) -> None:
        self._each = instruments

    def fetch(self, lease: Lease) -> AbstractContextManager[Seen]:
        """See `Instruments.fetch`."""
        return _SeenBySeveral([each.fetch(lease) for each in self._each])

    def parse(self, lease: Lease, callback: str) -> AbstractContextManager[Seen]:
        """See `Instruments.parse`."""
        return _SeenBySeveral([each.parse(lease, callback) for each in self._each])

    def commit(self, leases: Sequence[Lease]) -> AbstractContextManager[Seen]:
        """See `Instruments.commit`."""
        return _SeenBySeveral([each.commit(leases) for each in self._each])


class _SeenBySeveral(ExitStack):
    def __init__(self, blocks: Sequence[AbstractContextManager[Seen]]) -> None:
        super().__init__()
        self._blocks = blocks
        self._seen: list[Seen] = []

    def __enter__(self) -> "_SeenBySeveral":
        super().__enter__()
        self._seen = [self.enter_context(each) for each in self._blocks]
        return self

    def answered(self, *, status: int, size: int) -> None:
        for each in self._seen:
            each.answered(status=status, size=size)

    def failed(self, reason: str) -> None:
        for each in self._seen:
            each.failed(reason)


_UNSEEN = Unseen()
UNWATCHED = NoInstruments()
