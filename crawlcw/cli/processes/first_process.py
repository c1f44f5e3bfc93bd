"""The process of the first worker, started before there is an event loop.

It loads what crawls while this process loads what supervises, reads the spider and opens the
ledger: on two cores at the same time. Until it is told to go it does nothing else.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

from crawlcw.cli.processes.own_command import own_command, own_environment

_NO_SUPERVISOR = ("-h", "--help", "--worker-channel", "--suspects-channel", "--processes=0")


@dataclass(slots=True, kw_only=True)
class FirstProcess:
    """A process, and this process's ends of what connects the two."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    printed: BinaryIO
    logged: BinaryIO
    is_taken: bool = False  #: whether somebody else sees to its end

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    def send_signal(self, which: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self.process.send_signal(which)

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
        return self.process.wait()

    def discard(self) -> None:
        """End it: it has done nothing yet."""
        for each in (self.channel, self.printed, self.logged):
            each.close()
        self.process.kill()
        self.process.wait()


@contextmanager
def started() -> Iterator[FirstProcess | None]:
    """Start the process; kill it at the end of the block unless it was taken.

    It is None where the system lets nobody wait for a process by a descriptor, as only Linux
    does, or has no room for one: then a worker is started like every other.
    """
    first = _start() if _is_of_use() and hasattr(os, "pidfd_open") else None
    try:
        yield first
    finally:
        if first is not None and not first.is_taken:
            first.discard()


def _is_of_use() -> bool:
    """Return whether this process, whose options are not parsed yet, is to be a supervisor."""
    arguments = sys.argv[1:]
    # A program that calls the command within itself has no command line that could be repeated.
    if arguments[:1] != ["run"] or any(each.startswith(_NO_SUPERVISOR) for each in arguments):
        return False
    # The worker is to be told first which place was made for a ledger that passes.
    places = [*arguments, os.environ.get("CRAWLCW_LEDGER", "")]
    in_this_process = ("--processes", "0") in pairwise(arguments)
    return not in_this_process and not any(":memory:" in each for each in places)


def _start() -> FirstProcess | None:
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            channel, their_channel = socket.socketpair()
            ours.enter_context(channel)
            theirs.enter_context(their_channel)
            printed, their_printed = _pipe(ours, theirs)
            logged, their_logged = _pipe(ours, theirs)
            process = subprocess.Popen(  # noqa: S603  # our own command
                own_command(f"--worker-channel={their_channel.fileno()}"),
                env=own_environment(),
                stdin=subprocess.DEVNULL,
                stdout=their_printed,
                stderr=their_logged,
                pass_fds=(their_channel.fileno(),),
                # Out of reach of the terminal's Ctrl-C, which comes by this process.
                start_new_session=True,
            )
        except OSError:
            return None
        ours.pop_all()
        return FirstProcess(process=process, channel=channel, printed=printed, logged=logged)


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return what this process reads, and what the other one writes to."""
    reading, writing = os.pipe()
    printed = theirs.enter_context(os.fdopen(writing, "wb"))
    return ours.enter_context(os.fdopen(reading, "rb")), printed
