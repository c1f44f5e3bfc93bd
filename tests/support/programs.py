"""Programs in processes of their own, and the environment that they start in."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.docs import REPOSITORY


def environment() -> dict[str, str]:
    """Return this process's environment without settings of crawlcw, and with this crawlcw."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CRAWLCW_")}
    return ours | {"PYTHONPATH": str(REPOSITORY)}


def run_to_end(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    within: float = 120.0,
    **options: Any,
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, and keep its output; in `environment()` with those *variables*."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment() | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=within,
        **{"check": False, **options},
    )


def children_of(pid: int) -> list[int]:
    """Return the living descendants of a process."""
    try:
        own = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [pid for each in own for pid in (each, *children_of(each))]


class Program:
    """A program with its log in a file, which ends at the latest with its block."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        folder: Path,
        environment: Mapping[str, str],
        **popen: Any,
    ) -> None:
        """Start *command* in *folder*; its stderr is appended to *log*."""
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **popen,
            )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # SIGKILL ends a frozen process as well.
        self.process.kill()
        self.process.communicate()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def send(self, which: signal.Signals) -> None:
        self.process.send_signal(which)

    def kill(self) -> None:
        """End the program by SIGKILL, and wait for its end."""
        assert self.process.poll() is None, f"the process has ended by itself: {self.log}"
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """End the program and all of its processes by SIGKILL, at once."""
        everybody = [self.pid, *children_of(self.pid)]
        # Stop all first, so that none sees the death of another.
        for which in (signal.SIGSTOP, signal.SIGKILL):
            for pid in everybody:
                with suppress(ProcessLookupError):
                    os.kill(pid, which)

    def is_running(self) -> bool:
        return self.process.poll() is None
