"""Cost of TLS connections at a distant server, beside a bare loop of aiohttp, in one run.

    python -m tests.benchmarks.connections [--rounds 3] [--pages 2000] [--round-trips 20 50]

One host with a self-signed certificate, 8 requests at once, at some round trips
in ms, by `crawlcw run` and by the bare loop in turns, each in a fresh
process. The server counts handshakes, pages and its CPU. Pages per second are
those between the first and the last request for a page, beside those of the
whole command with the start of the process. Medians are printed.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop

from crawlcw import Settings, Spider
from tests.benchmarks.bare_loop import emptied
from tests.support.docs import REPOSITORY
from tests.support.tls_site import Tally, make_certificate

LIMIT = 8


class Distant(Spider):
    """One item for each page."""

    name = "distant"
    settings = Settings(per_host_concurrency=LIMIT, insecure=True)

    def __init__(self, start: str) -> None:
        super().__init__()
        self.start_urls = [start]

    def parse(self, response):
        yield {"url": response.url, "title": response.css_first("title").text()}
        yield from response.follow_all("a[href]")


async def bare(start: str) -> None:
    """Fetch every page with aiohttp alone."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    queue.put_nowait(start)
    origin = start.removesuffix("/pages/0")

    async def fetch(session: aiohttp.ClientSession) -> None:
        while True:
            async with session.get(await queue.get(), ssl=False) as response:
                # A tree: no page is linked twice.
                for path in re.findall(r'href="([^"]*)"', await response.text()):
                    queue.put_nowait(origin + path)
            queue.task_done()

    await emptied(queue, fetch, aiohttp.TCPConnector(limit_per_host=LIMIT), workers=LIMIT)


@dataclass(frozen=True, slots=True)
class Run:
    """One crawl: the counts of the server, and the seconds of the whole command."""

    tally: Tally
    seconds: float


ENGINES = {
    "aiohttp": ["-m", "tests.benchmarks.connections", "--bare"],
    "crawlcw": ["-m", "crawlcw", "run", f"{__file__}:Distant", "--quiet"],
}


def run(engine: str, folder: Path, *, pages: int, round_trip: int) -> Run:
    """Crawl the site once, in a fresh process."""
    with ExitStack() as stack:
        site = ["tests.support.tls_site", str(folder / "certificate"), str(pages)]
        port, tally = stack.enter_context(_server(*site))
        relay = ["tests.support.delaying_relay", str(port), str(round_trip)]
        start = f"https://127.0.0.1:{stack.enter_context(_server(*relay))[0]}/pages/0"
        command = [sys.executable, *ENGINES[engine]]
        output = folder / "items.jsonl"
        if engine == "crawlcw":
            ledger = f"sqlite:///{tempfile.mkdtemp(dir=folder)}/ledger.db"
            command += ["-a", f"start={start}", "--ledger", ledger, "-o", str(output)]
        else:
            command.append(start)
        began = time.monotonic()
        subprocess.run(command, check=True, cwd=REPOSITORY, timeout=120)
        seconds = time.monotonic() - began
        seen = Tally(**json.loads(tally()))
    assert seen.pages == pages, seen
    if engine == "crawlcw":
        items = [json.loads(line) for line in output.open()]
        assert len(items) == pages
        assert all(item["url"].endswith(item["title"]) for item in items)
    return Run(seen, seconds)


@contextmanager
def _server(*arguments: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """Run a module that prints its port; yield the port, and a function to end it.

    The function returns the rest of the output.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )

    def ended() -> str:
        process.terminate()
        return process.communicate(timeout=30)[0]

    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), ended
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", type=int, default=2_000)
    parser.add_argument("--round-trips", type=int, nargs="+", default=[20, 50], metavar="MS")
    parser.add_argument("--bare", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        uvloop.run(bare(arguments.bare))
        return
    print("round trip  engine   handshakes  pages/s  with start  server's CPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificate(folder / "certificate")
        for round_trip in arguments.round_trips:
            runs: dict[str, list[Run]] = {engine: [] for engine in ENGINES}
            for _ in range(arguments.rounds):
                for engine in ENGINES:
                    runs[engine].append(
                        run(engine, folder, pages=arguments.pages, round_trip=round_trip)
                    )
            _print(round_trip, runs, pages=arguments.pages)


def _print(round_trip: int, runs: dict[str, list[Run]], *, pages: int) -> None:
    found = {}
    for engine, each in runs.items():
        handshakes = statistics.median(run.tally.handshakes for run in each)
        rate = statistics.median(run.tally.pages_a_second for run in each)
        whole = statistics.median(pages / run.seconds for run in each)
        cpu = statistics.median(run.tally.cpu for run in each)
        found[engine] = handshakes, rate
        print(
            f"{round_trip:>7} ms  {engine:<7}  {handshakes:>10g}  {rate:>7.0f}"
            f"  {whole:>10.0f}  {cpu:>10.2f} s"
        )
    (base, bare_rate), (ours, rate) = found["aiohttp"], found["crawlcw"]
    print(f"{'':>12}crawlcw has {ours / base:.2f} of the handshakes,", end=" ")
    print(f"{rate / bare_rate:.2f} of the pages/s", flush=True)


if __name__ == "__main__":
    main()
