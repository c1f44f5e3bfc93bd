"""Exit of the process while abandoned threads still run the user's code.

Python waits for such threads at exit. A hanging one would keep the process for ever,
although it holds no task and its results are no longer accepted.
"""

import logging
import os
import sys
import threading
import time
from typing import NoReturn

logger = logging.getLogger(__name__)

#: anyio's name for the threads that run the user's functions. Idle ones end with their loop.
_WORKER_THREAD = "AnyIO worker thread"
#: Seconds for idle threads to end.
_IDLE_ENDS_WITHIN = 0.5


def end_process(code: int) -> NoReturn:
    """Exit with *code*; do not wait for threads that hang in the user's code."""
    if number := _left_behind():
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


def _left_behind() -> int:
    until = time.monotonic() + _IDLE_ENDS_WITHIN
    threads = [each for each in threading.enumerate() if each.name == _WORKER_THREAD]
    for each in threads:
        each.join(max(0.0, until - time.monotonic()))
    return sum(each.is_alive() for each in threads)
