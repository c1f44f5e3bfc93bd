"""The processes of the first workers, forked off before there is an event loop.

They load what crawls while this process loads what supervises, reads the spider and opens the
ledger: on two cores at the same time. Until they are told to go they do nothing else. What all
need is loaded once, before; nothing of the spider is.
"""

import asyncio
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


@dataclass(slots=True, kw_only=True)
class FirstProcess:
    """A process, and this process's ends of what connects the two."""

    pid: int
    channel: socket.socket
    printed: BinaryIO
    logged: BinaryIO
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
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._reaped()

    def discard(self) -> None:
        """End it: it has done nothing yet."""
        self.is_taken = True
        self.close()
        self.send_signal(signal.SIGKILL)
        self._reaped()

    def close(self) -> None:
        """Close this process's ends."""
        for each in (self.channel, self.printed, self.logged):
            each.close()

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
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            channel, their_channel = socket.socketpair()
            ours.enter_context(channel)
            theirs.enter_context(their_channel)
            printed, their_printed = _pipe(ours, theirs)
            logged, their_logged = _pipe(ours, theirs)
            pid = os.fork()
        except OSError:
            return None
        if pid:
            ours.pop_all()
            return FirstProcess(pid=pid, channel=channel, printed=printed, logged=logged)
        ours.close()
        # Else they would not see that the supervisor is gone.
        for each in others:
            each.close()
        # Out of reach of the terminal's Ctrl-C, which comes by the other process.
        os.setsid()
        with Path(os.devnull).open("rb") as nothing:
            for stream, number in ((nothing, 0), (their_printed, 1), (their_logged, 2)):
                os.dup2(stream.fileno(), number)
        descriptor = their_channel.detach()
        theirs.close()
        sys.exit(work(descriptor))


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return what this process reads, and what the other one writes to."""
    reading, writing = os.pipe()
    printed = theirs.enter_context(os.fdopen(writing, "wb"))
    return ours.enter_context(os.fdopen(reading, "rb")), printed
