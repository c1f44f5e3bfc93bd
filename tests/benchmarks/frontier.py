"""Cost of a full frontier: the time to the first page, memory, and pages per second.

    python -m tests.benchmarks.frontier [--mongodb URI] [--postgres] [--sizes 10000,1000000]

A ledger is filled with queued URLs of 100 local hosts, which a server of this
machine answers. Then `crawlcw run` is started as a user does, in a fresh
process, and ended after a number of pages; each round continues in the same ledger.
"First page" is the time from the start of the process to the server's first request
for a page (without robots.txt), by one clock. Memory is the resident size after the
last page. Prints medians of the rounds, the sizes in turns.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pymongo

from crawlcw import Settings, Spider
from crawlcw.ledger_opening import open_ledger
from tests.benchmarks import machine
from tests.support import postgres
from tests.support.docs import REPOSITORY
from tests.support.ledgers import make_task
from tests.support.many_hosts import Host, Served, addresses, served
from tests.support.mongod import with_database

HOSTS = 100
_AT_ONCE = 5_000
_LOOK_EVERY = 0.02
_WITHIN = 120.0


class Frontier(Spider):
    """One small item for each page, and no links: the frontier is full already."""

    name = "frontier"
    settings = Settings(user_agent="crawlcw-benchmark", per_host_concurrency=8)

    def __init__(self, first: str) -> None:
        super().__init__()
        # A crawl needs a start URL; this one is queued already.
        self.start_urls = [first]

    def parse(self, response):
        yield {"url": response.url}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of the command."""

    first_page: float  #: seconds from the start of the process
    resident: float  #: MiB after the last page
    rate: float  #: pages a second, from the first one on


async def fill(ledger_url: str, names: Sequence[str], number: int) -> float:
    """Queue *number* URLs of the hosts; return the seconds that it took."""
    began = time.monotonic()
    ledger = await open_ledger(ledger_url, Frontier.name)
    try:
        now = ledger.now()
        times = {"due": now, "update_time": now, "create_time": now}
        for start in range(0, number, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, number))
            urls = (f"http://{names[n % len(names)]}/{n // len(names)}" for n in numbers)
            await ledger.tasks.add([make_task(url, **times) for url in urls])
        await ledger.hosts.wake(dict.fromkeys(names, now))
    finally:
        await ledger.close()
    return time.monotonic() - began


def crawl(ledger_url: str, site: Served, *, pages: int, folder: Path) -> Round:
    """Run the command until it has requested *pages* pages, and end it."""
    earlier = len(_pages(site))
    command = [sys.executable, "-m", "crawlcw", "run", f"{__file__}:Frontier", "--quiet"]
    command += ["--ledger", ledger_url, "--processes", "0"]
    command += ["-a", f"first={site.urls[0]}0", "-s", f"allow_private={','.join(site.names)}"]
    with (folder / "log").open("ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=REPOSITORY, stderr=log, stdout=log)
        try:
            while len(found := _pages(site)[earlier:]) < pages:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() - began < _WITHIN, "the crawl is too slow"
                time.sleep(_LOOK_EVERY)
            resident = _resident(process.pid)
        finally:
            process.terminate()
            process.wait()
    first, last = found[0], found[pages - 1]
    return Round(first_page=first - began, resident=resident, rate=pages / (last - first))


def _pages(site: Served) -> list[float]:
    """Return the time of each request for a page."""
    return [hit.arrived for hit in site.requests() if hit.path != "/robots.txt"]


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measured(
    ledgers: dict[tuple[str, int], str], site: Served, *, rounds: int, pages: int, folder: Path
) -> Iterator[dict[str, object]]:
    """Fill each ledger, run the rounds in turns, and yield the medians."""
    filled = {
        (store, size): asyncio.run(fill(url, site.names, size))
        for (store, size), url in ledgers.items()
    }
    found: dict[tuple[str, int], list[Round]] = {each: [] for each in ledgers}
    for _ in range(rounds):
        for each, url in ledgers.items():
            found[each].append(crawl(url, site, pages=pages, folder=folder))
    for (store, size), done in found.items():
        medians = {
            name: statistics.median(asdict(one)[name] for one in done) for name in asdict(done[0])
        }
        yield {"store": store, "queued": size, "filled": filled[store, size], **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mongodb", metavar="URI")
    parser.add_argument("--postgres", action="store_true", help="a server of its own as well")
    parser.add_argument("--sizes", default="10000,1000000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", type=int, default=2_000, help="of one round")
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.rounds * given.pages > min(sizes):
        parser.error("the rounds would empty the smallest frontier: take fewer --pages")
    # So that SIGTERM ends the crawl and drops the databases too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # The server answers 404 if the number in a path is no page.
        most = max(sizes) // HOSTS + 1
        site = stack.enter_context(
            served([Host(address=address, pages=most) for address in addresses(HOSTS)])
        )
        ledgers = {("sqlite", size): f"sqlite:///{folder}/{size}.db" for size in sizes}
        if given.mongodb:
            client = stack.enter_context(pymongo.MongoClient(given.mongodb))
            for size in sizes:
                name = f"bench_frontier_{os.getpid()}_{size}"
                stack.callback(client.drop_database, name)
                ledgers["mongodb", size] = with_database(given.mongodb, name)
        if given.postgres:
            database = stack.enter_context(postgres.running(folder / "postgres"))
            ledgers |= {("postgres", size): database(f"frontier_{size}") for size in sizes}
        about = machine.described()
        rows = list(measured(ledgers, site, rounds=given.rounds, pages=given.pages, folder=folder))
    if given.as_json:
        print(json.dumps({"machine": about, "results": rows}))
        return
    print(*(f"{name} {value}" for name, value in about.items()), sep=", ")
    print("store       queued  filled in  first page  resident  pages/s")
    for row in rows:
        print(
            "{store:8}{queued:10,}{filled:9.1f} s{first_page:10.2f} s"
            "{resident:6.0f} MiB{rate:9.0f}".format(**row)
        )


if __name__ == "__main__":
    main()
