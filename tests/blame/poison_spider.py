"""A spider of a documentation; some pages end the process that parses them.

-a pages=/a.html,/b.html  which pages
-a how=exit-0             how, one of the methods below
-a times=N                N times in all, counted by files in the folder; 0: always
"""

import ctypes
import os
import resource
import signal
import time
from pathlib import Path

from crawlcw import Settings
from tests.support.docs import DocsSpider, path_of


class PoisonSpider(DocsSpider):
    name = "docs"
    settings = Settings(per_host_concurrency=0, max_depth=None, concurrency=40)

    def __init__(self, start_url="http://127.0.0.1:9/", pages="", how="", times="0"):
        super().__init__(start_urls=[start_url])
        self._pages = pages.split(",")
        self._how = how
        self._times = int(times)

    def parse(self, response):
        if path_of(response.url) in self._pages and self._is_deadly():
            self._die()
        yield from super().parse(response)

    def _is_deadly(self) -> bool:
        deaths = len(list(Path().glob("death-*")))
        if self._times and deaths >= self._times:
            return False
        (Path() / f"death-{os.getpid()}-{time.monotonic_ns()}").touch()
        return True

    def _die(self) -> None:
        match self._how.split("-"):
            case ["exit", code]:
                os._exit(int(code))
            case ["segfault"]:
                ctypes.string_at(0)
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["memory"]:
                # Stands for the kernel, which kills a process that uses too much memory.
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
                ctypes.CDLL(None).abort()
