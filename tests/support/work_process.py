"""`crawlcw work` in processes of their own, which can be killed, stopped and frozen."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from crawlcw.tracking import TrackedTask, Tracker
from tests.support.docs import REPOSITORY
from tests.support.programs import Program, run_to_end

#: Far longer than any wait here takes.
PATIENCE = 90.0


def crawlcw(*arguments: object, given: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; *given* is its standard input."""
    command = [sys.executable, "-m", "crawlcw", *map(str, arguments)]
    return run_to_end(command, folder=REPOSITORY, within=PATIENCE, input=given)


class Working(Program):
    """A worker in a process."""

    def __init__(
        self,
        use_case: Path | str,
        url: str,
        *options: object,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the worker; *environment* is added to that of this process."""
        command = [sys.executable, "-m", "crawlcw", "work", str(use_case), "--ledger", url]
        super().__init__(
            [*command, *map(str, options)],
            log,
            folder=REPOSITORY,
            environment=os.environ | dict(environment or {}),
        )

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


def tasks_of(url: str, use_case: str) -> dict[str, TrackedTask]:
    """Return every task of a use case, by key."""

    async def walked() -> dict[str, TrackedTask]:
        async with Tracker.open(url, use_case) as tracker:
            return {task.key: task async for task in tracker.walk(limit=1000)}

    return asyncio.run(walked())
