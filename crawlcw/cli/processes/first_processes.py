"""Processes of the first workers, forked before there is an event loop.

They load the crawler while this process loads the supervisor, reads the spider and opens the
ledger: on two cores in parallel. Then they wait for the order to start. Modules that all need
are loaded before the fork; the spider is not.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import anyio


@dataclass(frozen=True, slots=True)
class Ends:
    """One process's ends of the connection between supervisor and worker."""

    channel: socket.socket
    printed: BinaryIO
    logged: BinaryIO

    def close(self) -> None:
        """Close them."""
        for each in (self.channel, self.printed, self.logged):
            each.close()


def pair() -> tuple[Ends, Ends]:
    """Return the supervisor's ends and the worker's; raises `OSError`."""
    with ExitStack() as opened:
        channel, their_channel = map(opened.enter_context, socket.socketpair())
        printed, their_printed = _pipe(opened)
        logged, their_logged = _pipe(opened)
        opened.pop_all()
    return Ends(channel, printed, logged), Ends(their_channel, their_printed, their_logged)


def _pipe(opened: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    reading, writing = os.pipe()
    theirs = opened.enter_context(os.fdopen(writing, "wb"))
    return opened.enter_context(os.fdopen(reading, "rb")), theirs


@dataclass(slots=True, kw_only=True)
class FirstProcess:
    """A forked process, with the supervisor's ends."""

    pid: int
    ends: Ends
    is_taken: bool = False  #: whether a `WorkerProcess` has taken it over
    returncode: int | None = None  #: exit code; None: it was not reaped yet

    def send_signal(self, which: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        # Until it is reaped, no other process can have its id.
        if self.returncode is None:
            os.kill(self.pid, which)

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or the number of a signal below zero."""
        # The loop did not start it, and does not watch it.
        descriptor = os.pidfd_open(self.pid)
        await anyio.wait_readable(descriptor)
        os.close(descriptor)
        return self._reaped()

    def discard(self) -> None:
        """Kill it: it holds no tasks yet."""
        self.is_taken = True
        self.ends.close()
        self.send_signal(signal.SIGKILL)
        self._reaped()

    def _reaped(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@contextmanager
def started(work: Callable[[int], int], *, number: int) -> Iterator[list[FirstProcess]]:
    """Fork up to *number* processes; at the end of the block, kill those not taken over.

    Each calls *work* with its descriptor of the channel, and exits with the result. There are
    fewer if forking is not safe or fails: the supervisor starts the other workers later.
    """
    # Before the try block: a forked process returns through this function too, and must not
    # kill the others.
    first = _all_forked(work, number) if _may_fork() else []
    try:
        yield first
    finally:
        for each in first:
            if not each.is_taken:
                each.discard()


def _may_fork() -> bool:
    # Not in a program that embeds the command: the worker would return to its stack, and its
    # threads' locks would stay locked for ever in the fork. Only Linux has pidfd_open.
    return sys.argv[1:2] == ["run"] and threading.active_count() == 1 and hasattr(os, "pidfd_open")


def _all_forked(work: Callable[[int], int], number: int) -> list[FirstProcess]:
    found: list[FirstProcess] = []
    while len(found) < number and (each := _forked(work, found)) is not None:
        found.append(each)
    return found


def _forked(work: Callable[[int], int], others: list[FirstProcess]) -> FirstProcess | None:
    try:
        ours, theirs = pair()
    except OSError:
        return None
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        return None
    if pid:
        theirs.close()
        return FirstProcess(pid=pid, ends=ours)
    # An inherited end would hide the supervisor's end from the workers.
    for each in (ours, *(other.ends for other in others)):
        each.close()
    # A new session: the terminal's Ctrl-C reaches the supervisor only, which sends orders.
    os.setsid()
    with Path(os.devnull).open("rb") as nothing:
        for stream, number in ((nothing, 0), (theirs.printed, 1), (theirs.logged, 2)):
            os.dup2(stream.fileno(), number)
    descriptor = theirs.channel.detach()
    theirs.close()
    sys.exit(work(descriptor))
