"""A process that parses one page and may die of it: run as a script, with the page on stdin.

It exits with 0 and prints the bytes that the tree takes, or it exits with TOO_LARGE. It imports
nothing of crawlcw, so that it starts within a tenth of a second.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: The exit code for a tree that takes more than its memory.
TOO_LARGE = 3
#: The signal that ends the process when its CPU time is used up.
TIME_IS_OVER = signal.SIGPROF
_NICE = 5
#: The option of prctl(2) that sets a signal for the death of the parent.
_PR_SET_PDEATHSIG = 1
#: The first number in this file is the size of the process, in pages. Only Linux has the file.
_FIGURES = Path("/proc/self/statm")


def _addresses() -> int:
    """Return the size of the process in bytes; 0 if the system does not tell it."""
    try:
        return int(_FIGURES.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _parser(kind: str) -> Callable[[bytes], object]:
    """Return the function that makes the tree of a page."""
    if kind == "lexbor":
        from selectolax.lexbor import LexborHTMLParser

        return LexborHTMLParser

    from parsel import Selector  # an extra, and slow to import

    # Parse with the same options as `crawlcw.api.markup`.
    return lambda body: Selector(body=body, encoding="utf-8", type=kind, huge_tree=kind == "html")


def main(kind: str, memory_limit: int, seconds: float) -> None:
    """Parse the page with a parser, within *memory_limit* bytes and *seconds* of CPU."""
    # A process that a page kills must leave no core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    # The parser may be busy when the parent dies. On other systems than Linux its CPU time ends it.
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parse, body = _parser(kind), sys.stdin.buffer.read()
    used_bytes, (_, hard_limit) = _addresses(), resource.getrlimit(resource.RLIMIT_AS)
    if used_bytes:
        limit = (
            used_bytes + memory_limit
            if hard_limit == resource.RLIM_INFINITY
            else min(used_bytes + memory_limit, hard_limit)
        )
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        tree = parse(body)
        size = _addresses() - used_bytes if used_bytes else memory_limit
        del tree  # keep it until the size is known
    except Exception:  # the memory is used up, because the parser accepts any bytes
        os._exit(TOO_LARGE)  # `sys.exit` needs memory as well
    sys.stdout.write(str(size))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
