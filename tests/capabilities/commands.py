"""`crawlcw work` and `crawlcw add` as processes, on the use case of `shop`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.capabilities.use_cases import UseCases
from tests.support.docs import REPOSITORY


class Commands:
    """The commands, on one use case."""

    def __init__(self, use_cases: UseCases, folder: Path) -> None:
        self.url = use_cases.url
        self.use_case = use_cases.named("orders")
        self.door = folder / "door"
        self._log = folder / "worked.log"
        self._environment = os.environ | {
            "PYTHONPATH": str(REPOSITORY),
            "SHOP_NAME": self.use_case,
            "SHOP_LOG": str(self._log),
            "SHOP_DOOR": str(self.door),
        }

    def add(self, *lines: str) -> str:
        """Run `crawlcw add` on lines of JSON; return its output."""
        arguments = ["add", self.use_case, "-", "--format", "jsonl", "--stage", "pay"]
        with self.started(*arguments) as adding:
            said, _ = adding.communicate("".join(f"{line}\n" for line in lines), timeout=60)
        assert adding.returncode == 0
        return said

    @contextmanager
    def work(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """Start `crawlcw work`, and end it at the end of the block."""
        with self.started("work", "tests.capabilities.shop:orders", *options) as working:
            yield working

    @contextmanager
    def started(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        with subprocess.Popen(
            [sys.executable, "-m", "crawlcw", *arguments, "--ledger", self.url],
            cwd=REPOSITORY,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as started:
            try:
                yield started
            finally:
                started.kill()

    def worked(self) -> list[str]:
        """Return the lines that workers have written."""
        return self._log.read_text().splitlines() if self._log.exists() else []
