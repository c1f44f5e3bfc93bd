"""Start worker processes with a channel and pipes, and send arguments to the processes.

The supervisor starts the first worker before it imports its own modules, so that both processes
import modules at the same time. Workers receive their arguments through the channel, because every
user of the machine can read command lines, and settings may contain secrets.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO

#: The argument that makes `crawlcw` a worker. The argument after `--worker` is the file descriptor
#: of the worker's channel.
WORKER = "--worker"
_WITHOUT_WORKER = re.compile(r"(^| )(-h|--help|--processes[ =]0)( |$)")


@dataclass(frozen=True, slots=True)
class Process:
    """A worker process that waits for its arguments, and the supervisor's ends of the pipes."""

    popen: "subprocess.Popen[bytes]"
    channel: socket.socket
    stdout_reader: BinaryIO
    stderr_reader: BinaryIO

    def send_arguments(self, share: Mapping[str, int], *, started_at: datetime) -> None:
        """Send this process's arguments and environment to the worker.

        *share* has the worker's part of each limit; the supervisor started at *started_at*.
        """
        run, *rest = sys.argv[1:]
        share_options = (f"--share={name}={limit}" for name, limit in share.items())
        arguments = [run, *share_options, f"--started-at={started_at.isoformat()}", *rest]
        line = json.dumps({"arguments": arguments, "environment": dict(os.environ)})
        self.channel.sendall(line.encode() + b"\n")

    def discard(self) -> None:
        """Kill the worker if it has not ended, and close the supervisor's ends of the pipes."""
        for stream in (self.channel, self.stdout_reader, self.stderr_reader):
            stream.close()
        self.popen.kill()
        self.popen.wait()


def first(arguments: list[str]) -> Process | None:
    """Start the first worker if the command in *arguments* needs a worker."""
    if arguments[:1] not in (["run"], ["crawl"]) or _WITHOUT_WORKER.search(" ".join(arguments)):
        return None
    try:
        return start()
    except OSError:
        return None  # the supervisor will report the error


def start() -> Process:
    """Start a worker; raises `OSError` if no process can be created."""
    with ExitStack() as parent_stack, ExitStack() as child_stack:
        channel, child_channel = socket.socketpair()
        parent_stack.enter_context(channel)
        child_stack.enter_context(child_channel)
        stdout_reader, stdout = _pipe(parent_stack, child_stack)
        stderr_reader, stderr = _pipe(parent_stack, child_stack)
        # The worker gets this process's interpreter options, and runs the same module or script.
        interpreter = sys.orig_argv[1 : -len(sys.argv[1:])]
        number = child_channel.fileno()
        popen = subprocess.Popen(  # noqa: S603  # starts this process's own command
            [sys.executable, *interpreter, WORKER, str(number)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(number,),
            # Let the terminal's Ctrl-C reach only this process, which sends orders to the worker.
            start_new_session=True,
        )
        parent_stack.pop_all()
    return Process(popen, channel, stdout_reader, stderr_reader)


def _pipe(parent_stack: ExitStack, child_stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    read_end, write_end = os.pipe()
    return (
        parent_stack.enter_context(os.fdopen(read_end, "rb")),
        child_stack.enter_context(os.fdopen(write_end, "wb")),
    )


def received_arguments() -> list[str]:
    """Receive this worker's arguments and environment; exit if the supervisor has ended."""
    number = int(sys.argv[2])
    # Read without a buffer, because a buffer could take orders that follow the arguments.
    with os.fdopen(os.dup(number), "rb", buffering=0) as channel:
        line = channel.readline()
    if not line.endswith(b"\n"):
        sys.exit()
    message = json.loads(line)
    os.environ.update(message["environment"])
    sys.argv[1:] = run, *rest = message["arguments"]
    return [run, f"--worker-channel={number}", *rest]
