"""`crawlcw run` as a user starts it, and all of its processes."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.programs import environment, run_to_end

#: Far longer than any wait here takes; each waits for a condition.
ENOUGH = 120.0


def crawlcw(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run another command to its end; check that it succeeds."""
    return run_to_end([sys.executable, "-m", "crawlcw", *arguments], within=ENOUGH, check=True)


def children_of(pid: int) -> list[int]:
    """Return the living descendants of a process."""
    try:
        own = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [pid for each in own for pid in (each, *children_of(each))]


class Command:
    """`crawlcw run SPIDER --log-format json ...` in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "crawl.log"
        self._from = self._log.stat().st_size if self._log.exists() else 0
        command = [sys.executable, "-m", "crawlcw", "run", *arguments, "--log-format", "json"]
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.pid = self._process.pid

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_bytes()[self._from :].decode(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log records of an event."""
        *lines, _ = self.log.split("\n")
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if record.get("event") == name]

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill_all(self) -> None:
        """End the command and all of its processes by SIGKILL, at once."""
        everybody = [self.pid, *children_of(self.pid)]
        for pid in everybody:
            # Stop all first, so that none sees the death of another.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self, *, within: float = ENOUGH) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return the exit code and the report, if any."""
        code = self._process.wait(within)
        reports = self.events("report")
        return code, reports[0] if reports else {}
