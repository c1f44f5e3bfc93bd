"""Exit codes: those of sysexits.h, and 128 + the number of a signal; and the exit itself."""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import NoReturn

logger = logging.getLogger(__name__)

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

#: Exit codes of a worker, from good to bad: the user's wish, faults of web sites, faults that
#: the user can correct, crashes.
_FROM_GOOD_TO_BAD = (OK, INTERRUPTED, NOT_WELL, USAGE, UNAVAILABLE, CONFIGURATION, INTERNAL)

#: anyio's name for the threads that run the user's functions. Idle ones end with their loop.
_WORKER_THREAD = "AnyIO worker thread"
#: Seconds for idle threads to end.
_IDLE_ENDS_WITHIN = 0.5


def worst(codes: Iterable[int]) -> int:
    """Return the worst of several workers' exit codes."""
    return max(codes, key=_FROM_GOOD_TO_BAD.index, default=OK)


def end_process(code: int) -> NoReturn:
    """Exit with *code*; do not wait for threads that hang in the user's code.

    Python waits for them at exit. A hanging one would keep the process for ever, although it
    holds no task and its results are no longer accepted.
    """
    until = time.monotonic() + _IDLE_ENDS_WITHIN
    threads = [each for each in threading.enumerate() if each.name == _WORKER_THREAD]
    for each in threads:
        each.join(max(0.0, until - time.monotonic()))
    if number := sum(each.is_alive() for each in threads):
        logger.warning(
            "%s still in your code: ended with the process",
            "a thread is" if number == 1 else f"{number} threads are",
            extra={"event": "threads_left", "number": number},
        )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)
