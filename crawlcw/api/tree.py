"""Making lexbor's tree of a page, with or without a bound on the memory that it takes.

A parser cannot be asked for less, and what a page makes of it cannot always be told by a look.
The bound is kept by the system: RLIMIT_DATA of setrlimit(2).
"""

import os
import resource
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from crawlcw.api import markup
from crawlcw.errors import ParseRefusedError

T = TypeVar("T")

_PAGE = resource.getpagesize()
#: Of Linux: the sixth number is what the limit is about, in pages.
_STATM = "/proc/self/statm"
#: To ask is to open, read and close a file: each gives other threads the interpreter.
_ASKED_EVERY = 0.5


def parse(source: bytes) -> LexborHTMLParser:
    """Return the tree of a page in UTF-8, whatever it is built to do."""
    return LexborHTMLParser(source)


def parse_bounded(source: bytes | str) -> LexborHTMLParser:
    """Return the tree of a page; raises `ParseRefusedError` where it takes too much memory."""
    if len(source) <= markup.HARMLESS:
        return LexborHTMLParser(source)
    for exactly in (False, True):
        try:
            return within(markup.MOST_HEAP, lambda: LexborHTMLParser(source), exactly=exactly)
        except (SelectolaxError, MemoryError):  # for want of memory: any bytes can be parsed
            pass
    raise ParseRefusedError(f"its tree takes over {markup.MOST_HEAP >> 20} MiB")


def within(room: int, make: Callable[[], T], *, exactly: bool = True) -> T:
    """Return what *make* returns; the process gets no more than *room* bytes meanwhile.

    What *make* does without them is its own: it raises. If not *exactly*, the process may
    have grown or shrunk for half a second since it was asked how much it has. The limit is
    that of all threads, for as long as this takes. Nothing is limited in other threads than
    the main one, two of which would take each other's limit for that of before, and nothing
    where the system does not tell what the process has, or has a lower limit itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    if exactly:
        _taken.cache_clear()
    taken = _taken(int(time.monotonic() / _ASKED_EVERY))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = taken + room
    if not taken or any(limit != resource.RLIM_INFINITY and limit < most for limit in (soft, hard)):
        return make()
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        return make()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@lru_cache(maxsize=1)
def _taken(_: int) -> int:
    """Return the bytes that count by the limit, 0 where the system does not tell."""
    try:
        # Opened anew: a forked process would read its parent's.
        statm = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 128).split()[5]) * _PAGE
    finally:
        os.close(statm)
