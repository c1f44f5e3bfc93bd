"""The end of the process, where the user's code still runs in a thread that was given up.

Python waits for such threads before it ends, and one that hangs would keep the process for
ever: with nothing claimed, and nothing of what it does accepted any more.
"""

import logging
import os
import sys
import threading
import time
from typing import NoReturn

logger = logging.getLogger(__name__)

#: anyio's name for its threads, in which the user's functions run. Those that are idle end
#: with their loop.
_WORKER_THREAD = "AnyIO worker thread"
#: What that takes, in seconds.
_IDLE_ENDS_WITHIN = 0.5


def end_process(code: int) -> NoReturn:
    """Exit with *code*, as soon as none but threads that were given up are left."""
    if number := _left_behind():
        logger.warning(
            "%s still in code of yours: ended with the process",
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
