"""Whether and when a worker that crashed is started again."""

from datetime import timedelta

from crawlcw.model.retry import backoff

_FIRST_WAIT = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(seconds=30)
MOST_CRASHES = 5


class Restarts:
    """The crashes of one slot's workers, one after the other."""

    def __init__(self) -> None:
        self._crashes = 0

    def crashed(self, *, progressed: bool) -> timedelta | None:
        """Note a crash; return how long to wait before the next worker, None for ever.

        *progressed* says whether the worker had come any further by then: who did
        has not crashed for what the one before crashed for.
        """
        if progressed:
            self._crashes = 0
        self._crashes += 1
        if self._crashes >= MOST_CRASHES:
            return None
        return backoff(self._crashes, base=_FIRST_WAIT, ceiling=_LONGEST_WAIT)
