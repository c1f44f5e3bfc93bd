"""The exit codes of `crawlcw`, from sysexits.h, or 128 + the number of a signal."""

from collections.abc import Iterable

OK = 0
VIOLATIONS = 1  #: `doctor` only
USAGE = 2
NOT_WELL = 3  #: the crawl has ended with faults
UNAVAILABLE = 69
INTERNAL = 70
STILL_AT_WORK = 75  #: `stop --wait` only: workers are still at work
CONFIGURATION = 78
INTERRUPTED = 130
BROKEN_PIPE = 141

#: Exit codes of a worker, from the best to the worst: success, a stop by the user, faults of web
#: sites, three kinds of faults that the user can correct, crashes.
_FROM_GOOD_TO_BAD = (OK, INTERRUPTED, NOT_WELL, USAGE, UNAVAILABLE, CONFIGURATION, INTERNAL)


def worst(codes: Iterable[int]) -> int:
    """Return the worst of several workers' exit codes."""
    return max(codes, key=_FROM_GOOD_TO_BAD.index, default=OK)
