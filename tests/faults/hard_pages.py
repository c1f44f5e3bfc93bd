"""Spiders of a documentation that block, end or delay their process on certain pages.

`-a pages=/a.html,/b.html` names the pages, `-a seconds=` the length of the block or
delay, and `-a marks=` a file that gets a line for each event.
"""

import asyncio
import os
import time
from pathlib import Path

from tests.support.docs import DocsSpider, path_of


class _HardSpider(DocsSpider):
    pages = ""
    seconds = "0"
    marks = os.devnull

    def is_hard(self, response) -> bool:
        return path_of(response.url) in self.pages.split(",")

    def mark(self) -> None:
        with Path(self.marks).open("a") as marks:
            marks.write(f"{os.getpid()}\n")


class BlockingSpider(_HardSpider):
    """The page blocks the event loop of the first process that parses it."""

    def parse(self, response):
        if self.is_hard(response) and self._is_first():
            self.mark()
            time.sleep(float(self.seconds))
        yield from super().parse(response)

    def _is_first(self) -> bool:
        try:
            os.close(os.open(f"{self.marks}.first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class DeadlySpider(_HardSpider):
    """The page ends every process that parses it."""

    exit_code = 9

    def parse(self, response):
        if self.is_hard(response):
            self.mark()
            os._exit(self.exit_code)
        yield from super().parse(response)


class SlowSpider(_HardSpider):
    """The page takes long, without blocking the event loop."""

    async def parse(self, response):
        if self.is_hard(response):
            self.mark()
            await asyncio.sleep(float(self.seconds))
        for thing in super().parse(response):
            yield thing
