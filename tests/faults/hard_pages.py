"""Spiders of a documentation to whose process something happens on a certain page.

`-a pages=/a.html,/b.html` names the pages, `-a seconds=` how long what happens
takes, and `-a marks=` a file that gets a line whenever it happens.
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
    """The first process that comes to the page stands still, its event loop included."""

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
    """Every process that comes to the page ends there and then."""

    exit_code = 9

    def parse(self, response):
        if self.is_hard(response):
            self.mark()
            os._exit(self.exit_code)
        yield from super().parse(response)


class SlowSpider(_HardSpider):
    """The page takes long, and lets everything else go on meanwhile."""

    async def parse(self, response):
        if self.is_hard(response):
            self.mark()
            await asyncio.sleep(float(self.seconds))
        for thing in super().parse(response):
            yield thing
