"""Whether and when a worker that crashed is started again."""

from datetime import timedelta

from crawlcw.retry import backoff

_FIRST_WAIT = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(seconds=30)
#: Who has run as long as this has not crashed for what the one before crashed for.
_GOOD_RUN = timedelta(minutes=1)
MOST_CRASHES = 5


class Restarts:
    """The crashes of one slot's workers, one after the other.

    *now* is in seconds, of any clock that runs forward.
    """

    def __init__(self) -> None:
        self._crashes = 0
        self._started = 0.0

    def started(self, *, now: float) -> None:
        """Note that a worker starts."""
        self._started = now

    def crashed(self, *, now: float) -> timedelta | None:
        """Note that it crashed; return how long to wait before the next one, None for ever."""
        if now - self._started >= _GOOD_RUN.total_seconds():
            self._crashes = 0
        self._crashes += 1
        if self._crashes >= MOST_CRASHES:
            return None
        return backoff(self._crashes, base=_FIRST_WAIT, ceiling=_LONGEST_WAIT)
