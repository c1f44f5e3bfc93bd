"""Gain of a second process for a crawl of one host.

    python -m tests.benchmarks.one_host [--postgres] [--mongodb] [--against CRAWLCW]
        [--cpu 0,5,50] [--delay 0,0.1] [--at-once 1,8,100] [--rounds 3]

`crawlcw run --processes 1` and `2` in turns on one host whose pages take their callbacks some
milliseconds of CPU. It prints medians of pages per second, from the site's first request to the
end of the command, the CPU seconds of all processes, and the most requests at once by the site's
log.
--against is the command of another commit.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from tests.support import mongod, postgres
from tests.support.docs import REPOSITORY
from tests.support.one_host_site import most_at_once, served

#: Seconds that one process takes for a crawl, about.
_SECONDS = 20.0
_PAGES_A_SECOND = 500
SPIDER = REPOSITORY / "tests/support/one_host_site.py"


def crawl(
    command: list[str], ledger: str, *, processes: int, cpu: float, delay: float, at_once: int
) -> tuple[float, float, int]:
    """Return pages per second, CPU seconds, and the most requests at once."""
    rate = min(_PAGES_A_SECOND, 1000 / cpu if cpu else 1e9, 1 / delay if delay else 1e9)
    number = int(_SECONDS * rate)
    with served(number) as site:
        options = ["-a", f"start={site.url}", "-a", f"cpu={cpu}", "--processes", str(processes)]
        options += ["-s", f"delay={delay}", "-s", f"per_host_concurrency={at_once}", "--quiet"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*command, "run", f"{SPIDER}:OneHost", "--ledger", ledger, *options],
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": ""},
        )
        end = time.monotonic()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        log = [each for each in site.log() if each.path != "/robots.txt"]
    assert len(log) == number, (len(log), number)
    elapsed = end - min(each.began for each in log)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return number / elapsed, used, most_at_once(log)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mongodb", action="store_true")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--no-sqlite", action="store_true")
    parser.add_argument("--against")
    parser.add_argument("--cpu", default="0,5,50")
    parser.add_argument("--delay", default="0,0.1")
    parser.add_argument("--at-once", default="1,8,100")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ways = {"": [sys.executable, "-m", "crawlcw"]}
    if given.against:
        ways["against"] = [given.against]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stores = {} if given.no_sqlite else {"sqlite": f"sqlite:///{folder}/%s.db"}
        if given.mongodb:
            stores["mongodb"] = stack.enter_context(mongod.running(_made(folder / "mongod")))
        database = stack.enter_context(postgres.running(folder / "pg")) if given.postgres else None
        if database:
            stores["postgres"] = ""
        number = 0
        cases = product(given.cpu.split(","), given.delay.split(","), given.at_once.split(","))
        for cpu, delay, at_once in cases:
            for store, pattern in stores.items():
                shown = f"{store} cpu={cpu} ms delay={delay} s at_once={at_once}:"
                for way, command in ways.items():
                    for processes in map(int, given.processes.split(",")):
                        found = []
                        for _ in range(given.rounds):
                            number += 1
                            name = f"bench_{os.getpid()}_{number}"
                            if store == "postgres":
                                assert database is not None
                                ledger = database(name)
                            elif store == "mongodb":
                                ledger = mongod.with_database(pattern, name)
                            else:
                                ledger = pattern % name
                            found.append(
                                crawl(
                                    command,
                                    ledger,
                                    processes=processes,
                                    cpu=float(cpu),
                                    delay=float(delay),
                                    at_once=int(at_once),
                                )
                            )
                        rates, cpus, most = zip(*found, strict=True)
                        print(
                            f"{shown} {way} {processes} processes"
                            f" {statistics.median(rates):.1f} pages/s,"
                            f" {statistics.median(cpus):.1f} s CPU, at once {max(most)}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
