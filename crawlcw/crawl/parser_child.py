"""A process that parses pages and may die of them: run as a script, with the number of a socket.

It answers each page with what its tree takes, and ends with its parent. It
imports nothing of crawlcw, so that it starts within a tenth of a second.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser

#: A page: its length, the most its tree may take, the seconds of CPU it may cost, and the parser.
PAGE = struct.Struct("!QQdB")
#: The parsers: lexbor, and those of parsel.
LEXBOR, HTML, XML = range(3)
#: An answer: what the tree takes, or one of these.
ANSWER = struct.Struct("!q")
READY = -1
TOO_LARGE = -2
#: What ends it when the time is over.
TIME_IS_OVER = signal.SIGPROF
_NICE = 5
#: See prctl(2).
_PR_SET_PDEATHSIG = 1
#: Of Linux.
_FIGURES = Path("/proc/self/statm")


def _exactly(channel: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        taken = channel.recv_into(view)
        if not taken:
            raise EOFError
        view = view[taken:]
    return bytes(content)


class _Heap(ctypes.Structure):
    """See mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks"),
            *("fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _heap() -> tuple[int, int] | None:
    """Return how many bytes of the heap are in use and free, where the system tells."""
    try:
        # Not what the process has: the heap keeps some of what earlier trees took.
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    ask.restype = _Heap
    heap = ask()
    return heap.uordblks + heap.hblkhd, heap.fordblks


def _addresses() -> int:
    return int(_FIGURES.read_text().split()[0]) * resource.getpagesize()


def _parsed(body: bytes, parser: int) -> object:
    """Return the tree of a page, with what most callbacks ask of it asked."""
    if parser == LEXBOR:
        tree = LexborHTMLParser(body)
        # What nearly every callback does, and `Response.base_url`.
        tree.css("a[href]")
        tree.css("base[href]")
        return tree
    from parsel import Selector  # an extra, and slow to import

    # As `crawlcw.api.xpath` has it.
    kind = "xml" if parser == XML else "html"
    selector = Selector(body=body, encoding="utf-8", type=kind, huge_tree=parser == HTML)
    selector.xpath("count(//a/@href)")
    return selector


def _tree(body: bytes, room: int, seconds: float, parser: int) -> int:
    """Return what the tree of a page takes, or TOO_LARGE; the process ends when time is over."""
    before = _heap()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if before is not None:
        limit = _addresses() + max(0, room - before[1])
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        tree = _parsed(body, parser)
        after = _heap()
        del tree
    except Exception:  # for want of memory: whatever its bytes are, a page can be parsed
        return TOO_LARGE
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if before is None or after is None:
        return room
    return max(0, after[0] - before[0])


def main(number: int) -> None:
    """Parse pages until the parent ends."""
    # A page that this process dies of leaves no core behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    # The parser may be busy when the parent goes. Elsewhere than on Linux its time ends that.
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = socket.socket(fileno=number)
    channel.sendall(ANSWER.pack(READY))
    with suppress(EOFError, OSError):
        while True:
            length, room, seconds, parser = PAGE.unpack(_exactly(channel, PAGE.size))
            answer = _tree(_exactly(channel, length), room, seconds, parser)
            channel.sendall(ANSWER.pack(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]))
