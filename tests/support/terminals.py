"""Programs on terminals of their own."""

import fcntl
import os
import pty
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def started(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path | None = None,
    size: tuple[int, int] = (24, 80),
) -> tuple["subprocess.Popen[bytes]", int]:
    """Start *command* on a new terminal of *size* lines and columns.

    Return the process, and the descriptor that reads and writes the terminal.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # Make it the controlling terminal, so that Ctrl-C goes to the process group.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    return process, ours


def chunks(terminal: int) -> Iterator[bytes]:
    """Yield the output until the last program on the terminal has ended; close it."""
    # Linux raises EIO then.
    with suppress(OSError):
        while chunk := os.read(terminal, 1 << 16):
            yield chunk
    os.close(terminal)
