"""A small site in this process, and the command for spiders and use cases of a test."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.plain_site import PlainHandler, PlainSite
from tests.support.programs import Program, environment

#: Far longer than any wait here takes.
ENOUGH = 120.0


class Site(PlainSite):
    """Serves *pages* and counts the requests.

    A number is that of the links on `/`; a mapping has the body of each page. Any other
    page is a heading.
    """

    def __init__(self, pages: int | Mapping[str, str], *, address: str = "127.0.0.1") -> None:
        self.hits: Counter[str] = Counter()
        if isinstance(pages, int):
            pages = {"/": links(f"/{n}" for n in range(pages))}
        bodies = pages
        site = self

        class Handler(PlainHandler):
            protocol_version = "HTTP/1.1"

            def get(self) -> None:
                site.hits[self.path] += 1
                found = self.path != "/robots.txt"
                body = bodies.get(self.path, f"<h1>{self.path}</h1>")
                self.reply(200 if found else 404, body)

        super().__init__(Handler, address=address)


def links(addresses: Iterable[str]) -> str:
    """Return a page of links."""
    return "".join(f'<a href="{address}">{address}</a>' for address in addresses)


def spider(url: str, body: str) -> str:
    """Return the code of a spider that starts at *url*."""
    return f"""
import asyncio, sys, time
from crawlcw import Request, Spider, StopCrawl

class Pages(Spider):
    name = "pages"
    start_urls = [{url!r}]
{body}
"""


class Command(Program):
    """`crawlcw` in a process, with its log as JSON."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        super().__init__(
            [sys.executable, "-m", "crawlcw", *map(str, arguments)],
            folder / f"log-{time.monotonic_ns()}",
            folder=folder,
            environment=environment(),
        )

    def __exit__(self, *args: object) -> None:
        self.kill_all()
        super().__exit__(*args)

    def records(self, event: str) -> list[dict[str, Any]]:
        """The log's records of an event."""
        found = []
        for line in self.log.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("event") == event:
                found.append(record)
        return found

    def end(self, *, within: float = ENOUGH) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return the exit code and the report, if any."""
        try:
            self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not at its end after {within:g} s: {self.log}") from None
        return self.process.returncode, next(iter(self.records("report")), {})


def running(folder: Path, code: str, ledger: str, *options: object) -> Command:
    """Run the spider in *code*."""
    (folder / "spider.py").write_text(code)
    return started(folder, "spider.py", "--ledger", ledger, *options)


def started(folder: Path, *arguments: object) -> Command:
    """Start `crawlcw run` with *arguments*."""
    return Command(folder, "run", *arguments, "--log-format", "json")


def crawled(
    folder: Path, code: str, ledger: str, *options: object
) -> tuple[int, dict[str, Any], Command]:
    """Run the spider in *code* to its end; return exit code, report and the command."""
    with running(folder, code, ledger, *options) as command:
        code_, report = command.end()
    return code_, report, command
