"""Script that parses one page from stdin, in a process that the page may crash.

The script prints the size of the page's tree in bytes, or exits with TOO_LARGE. The script imports
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

#: The exit code if the tree takes more memory than allowed.
TOO_LARGE = 3
#: The signal that ends the process when its CPU time is used up.
TIME_IS_OVER = signal.SIGPROF
_NICE = 5
#: The option of prctl(2) that sends this process a signal when its parent process dies.
_PR_SET_PDEATHSIG = 1
#: Linux's file whose first number is the size of the process, in memory pages.
_FIGURES = Path("/proc/self/statm")


def _addresses() -> int:
    """Return the size of the process in bytes; 0 if the system does not tell the size."""
    try:
        return int(_FIGURES.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _parser(kind: str) -> Callable[[bytes], object]:
    """Return the function that makes the tree of a page, for the parser that *kind* names."""
    if kind == "lexbor":
        from selectolax.lexbor import LexborHTMLParser

        return LexborHTMLParser

    from parsel import Selector  # imported late, because parsel is an extra and slow to import

    # Parse with the same options as `crawlcw.api.markup`.
    return lambda body: Selector(body=body, encoding="utf-8", type=kind, huge_tree=kind == "html")


def main(kind: str, memory_limit: int, seconds: float) -> None:
    """Parse the page on stdin, within *memory_limit* bytes and *seconds* of CPU time."""
    # Write no core file if the page crashes this process.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    # On Linux, die with the parent process; elsewhere, the limit of CPU time ends this process.
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
        del tree  # not earlier, because the size was measured above
    except Exception:
        # A parser raises only if memory is short, and `sys.exit` would need memory.
        os._exit(TOO_LARGE)
    sys.stdout.write(str(size))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
