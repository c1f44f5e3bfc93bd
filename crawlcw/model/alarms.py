"""When somebody is to be told that a crawl does badly: it stands still, or much fails. No I/O.

An alarm is given once, and again only after it was over.
"""

from collections import deque

#: The rate is that of at least so many attempts.
ATTEMPTS = 100


class StallAlarm:
    """Nothing has moved for some time. Times are in seconds, of any clock that runs forward."""

    def __init__(self, after: float) -> None:
        """Give an alarm *after* so many seconds without a move; 0: never."""
        self._after = after
        self._since: float | None = None
        self._given = False

    def look(self, *, stands: bool, now: float) -> float | None:
        """Return for how long nothing has moved where it is time to say so, else None."""
        if not stands:
            self._since, self._given = None, False
            return None
        if self._since is None:
            self._since = now
        if self._given or not self._after or now - self._since < self._after:
            return None
        self._given = True
        return now - self._since


class FailureAlarm:
    """More than a share of the last attempts has failed."""

    def __init__(self, share: float | None) -> None:
        """Give an alarm where more than *share* failed, a number from 0 to 1; None: never."""
        self._share = share
        #: What was counted at each look, the oldest first: attempts, and those that failed.
        self._looks: deque[tuple[int, int]] = deque([(0, 0)])
        self._given = False

    def look(self, *, attempts: int, failed: int) -> float | None:
        """Return the share where it is time to say so, else None; both were counted from the start.

        It is over when the share has fallen to half of what is allowed.
        """
        if self._share is None or attempts == self._looks[-1][0]:
            return None
        self._looks.append((attempts, failed))
        # The oldest look that has enough attempts behind it, and none older than that.
        while attempts - self._looks[1][0] >= ATTEMPTS:
            self._looks.popleft()
        since, failed_then = self._looks[0]
        if attempts - since < ATTEMPTS:
            return None
        rate = (failed - failed_then) / (attempts - since)
        if self._given:
            self._given = rate > self._share / 2
            return None
        self._given = rate > self._share
        return rate if self._given else None
