"""Who is told when user code runs in the loop, and says for how long it may."""

from typing import Protocol

from crawlcw.api.user_code import Called


class Watch(Protocol):
    """What is told when user code runs in the loop, and how long it may."""

    limit: float  #: seconds; 0: for ever

    def stalled(self, began: float) -> float:
        """Return for how many seconds the loop has stood still since *began*."""

    def begin(self, called: Called) -> None:
        """Note that user code begins; it is to `end`."""

    def end(self) -> None:
        """Note that it has ended."""


class Unwatched:
    """The `Watch` of a loop that nobody watches."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def stalled(self, _: float) -> float:
        """Return 0."""
        return 0.0

    def begin(self, called: Called) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
