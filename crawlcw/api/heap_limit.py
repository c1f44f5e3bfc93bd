"""How much memory one call may take, kept by the system: RLIMIT_DATA of setrlimit(2).

A parser cannot be asked for less, and what a page makes of it cannot always be told by a look.
"""

import os
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAGE = resource.getpagesize()
#: Of Linux: the sixth number is what the limit is about, in pages.
_STATM = "/proc/self/statm"


def within(room: int, make: Callable[[], T]) -> T:
    """Return what *make* returns; the process gets no more than *room* bytes meanwhile.

    What *make* does without them is its own: it raises. The limit is that of all threads,
    for as long as this takes. Nothing is limited in other threads than the main one,
    two of which would take each other's limit for that of before, and nothing where
    the system does not tell what the process has, or has a lower limit itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    taken = _taken()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = taken + room
    if not taken or any(limit != resource.RLIM_INFINITY and limit < most for limit in (soft, hard)):
        return make()
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        return make()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _taken() -> int:
    """Return the bytes that count by the limit, 0 where nobody tells."""
    try:
        # Opened anew: a forked process would read its parent's.
        statm = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 128).split()[5]) * _PAGE
    finally:
        os.close(statm)
