"""The processes of the first workers, forked off before there is an event loop.

They load what crawls while this process loads what supervises, reads the spider and opens the
ledger: on two cores at the same time. Until they are told to go they do nothing else. What all
need is loaded once, before; nothing of the spider is.
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
    """One process's ends of what connects a supervisor and a worker."""

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
    """A process that was forked off; the supervisor's ends."""

    pid: int
    ends: Ends
    is_taken: bool = False  #: whether somebody else sees to its end
    returncode: int | None = None  #: what it ended with, once that was waited for

    def send_signal(self, which: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        # Until it was waited for, no other process can have its id.
        if self.returncode is None:
            os.kill(self.pid, which)

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or the number of a signal below zero."""
        # The loop has not started it, and does not know of it.
        descriptor = os.pidfd_open(self.pid)
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return self._reaped()

    def discard(self) -> None:
        """End it: it has done nothing yet."""
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
    """Start that many; kill those that were not taken at the end of the block.

    Each calls *work* with its descriptor of the channel, and exits with what that returns. There
    are fewer where a process cannot be forked off safely, or the system has no room for one: the
    other workers are started later.
    """
    # Not within the block below: a process that is forked off leaves by this way as well, and
    # must not end the others.
    first = _all_forked(work, number) if _may_fork() else []
    try:
        yield first
    finally:
        for each in first:
            if not each.is_taken:
                each.discard()


def _may_fork() -> bool:
    # A program that calls the command within itself has a command line of its own, and a stack
    # that the worker must not return to; of its threads none would be in the worker, nor would
    # their locks ever be given back. Only Linux lets one wait for a process by a descriptor.
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
    # Else they would not see that the supervisor is gone.
    for each in (ours, *(other.ends for other in others)):
        each.close()
    # Out of reach of the terminal's Ctrl-C, which comes by the other process.
    os.setsid()
    with Path(os.devnull).open("rb") as nothing:
        for stream, number in ((nothing, 0), (theirs.printed, 1), (theirs.logged, 2)):
            os.dup2(stream.fileno(), number)
    descriptor = theirs.channel.detach()
    theirs.close()
    sys.exit(work(descriptor))
