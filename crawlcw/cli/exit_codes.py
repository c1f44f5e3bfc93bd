"""What a command's process ends with: as in sysexits.h, and 128 + the number of the signal."""

from collections.abc import Iterable

OK = 0
VIOLATIONS = 1  #: of `doctor` alone
USAGE = 2
NOT_WELL = 3  #: of a crawl that has ended, but not as one would wish
UNAVAILABLE = 69
INTERNAL = 70
STILL_AT_WORK = 75  #: of `stop --wait` alone: ask again later
CONFIGURATION = 78
INTERRUPTED = 130
BROKEN_PIPE = 141

#: Those a worker can end with. What the user asked for is better than what has
#: gone wrong on the web, that than what the user can mend, and that than a crash.
_FROM_GOOD_TO_BAD = (OK, INTERRUPTED, NOT_WELL, USAGE, UNAVAILABLE, CONFIGURATION, INTERNAL)


def worst(codes: Iterable[int]) -> int:
    """Return the worst of what several workers ended with."""
    return max(codes, key=_FROM_GOOD_TO_BAD.index, default=OK)
