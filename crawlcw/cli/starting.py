"""Start worker processes: make their channel and pipes, and send their arguments.

The first worker starts before this process has loaded the command, and loads the crawler
meanwhile. The arguments come through the channel, because every user of the machine can read
command lines, and settings may contain secrets.
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

#: This argument makes `crawlcw` a worker. The next argument is the file descriptor of its end of
#: the channel.
WORKER = "--worker"
_WITHOUT_WORKER = re.compile(r"(^| )(-h|--help|--processes[ =]0)( |$)")


@dataclass(frozen=True, slots=True)
class Process:
    """A worker process that waits for its arguments, with this process's ends of its pipes."""

    popen: "subprocess.Popen[bytes]"
    channel: socket.socket
    stdout_reader: BinaryIO
    stderr_reader: BinaryIO

    def send_arguments(self, share: Mapping[str, int], *, started_at: datetime) -> None:
        """Send this process's arguments and environment, *share*, and the start of the crawl."""
        run, *rest = sys.argv[1:]
        share_options = (f"--share={name}={limit}" for name, limit in share.items())
        arguments = [run, *share_options, f"--started-at={started_at.isoformat()}", *rest]
        line = json.dumps({"arguments": arguments, "environment": dict(os.environ)})
        self.channel.sendall(line.encode() + b"\n")

    def discard(self) -> None:
        """End a process that still waits for its arguments, or has already ended."""
        for stream in (self.channel, self.stdout_reader, self.stderr_reader):
            stream.close()
        self.popen.kill()
        self.popen.wait()


def first(arguments: list[str]) -> Process | None:
    """Start the first worker if the command of these arguments needs one."""
    if arguments[:1] != ["run"] or _WITHOUT_WORKER.search(" ".join(arguments)):
        return None
    try:
        return start()
    except OSError:
        return None  # the supervisor tries again, and reports the error


def start() -> Process:
    """Start a worker; raises `OSError` if no process can be created."""
    with ExitStack() as parent_stack, ExitStack() as child_stack:
        channel, child_channel = socket.socketpair()
        parent_stack.enter_context(channel)
        child_stack.enter_context(child_channel)
        stdout_reader, stdout = _pipe(parent_stack, child_stack)
        stderr_reader, stderr = _pipe(parent_stack, child_stack)
        # Use the interpreter's options, and the same entry point: `-m`, or a script.
        interpreter = sys.orig_argv[1 : -len(sys.argv[1:])]
        number = child_channel.fileno()
        popen = subprocess.Popen(  # noqa: S603  # this process's own command
            [sys.executable, *interpreter, WORKER, str(number)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(number,),
            # The terminal's Ctrl-C reaches only this process, which then sends orders.
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
    """Wait for this worker's arguments and environment; exit if the supervisor has ended."""
    number = int(sys.argv[2])
    # Read without a buffer, because orders may follow.
    with os.fdopen(os.dup(number), "rb", buffering=0) as channel:
        line = channel.readline()
    if not line.endswith(b"\n"):
        sys.exit()
    message = json.loads(line)
    os.environ.update(message["environment"])
    sys.argv[1:] = run, *rest = message["arguments"]
    return [run, f"--worker-channel={number}", *rest]
