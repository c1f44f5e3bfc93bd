"""Crawl of many hosts by one process, compared with the time that limits and latencies allow.

    python -m tests.benchmarks.broad [--mongodb URI] [--delay 5] [--latency 0.05 0.5] [--json]

`crawlcw run --concurrency 1000` crawls 2,000 hosts at loopback addresses, with the
per-host limits of the default settings and *delay*. Each host has its own latency and
some small pages. A few hosts are slow (ten times the longest latency, at most 3 s) or
dead (they refuse connections, or do not answer them).

The time runs from the first task in the ledger to the commit of the last page. The
bound is the least time for the living hosts (`allowed`): their latencies, their limits
and 1,000 requests at once, without the dead hosts. A second bound includes the slow
start of new hosts. The same crawl without latency, delay and dead hosts measures the
machine. If the machine is slower than the bound, the share shows only that: choose a
longer delay or latency.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pymongo

from crawlcw import Settings
from crawlcw.ledger.sql.rows import moment
from crawlcw.model.task import Status
from tests.benchmarks import machine, replica_set
from tests.benchmarks.allowed import Limits, least_seconds
from tests.support.docs import REPOSITORY
from tests.support.many_hosts import Host, HostsSpider, addresses, served
from tests.support.mongod import with_database

#: One in this many hosts is slow, refuses connections, or does not answer.
SLOW, REFUSES, SILENT = 50, 50, 100
SLOWEST = 3.0
#: Dead hosts are given up soon: the benchmark measures the other hosts.
GIVES_UP = {"host_max_failures": "2", "host_backoff_base": "1s"}
CRAWLS_WITHIN = 1800


class Broad(HostsSpider):
    """One item for each page of the hosts that a file names."""

    name = "broad"

    def __init__(self, urls: str) -> None:
        super().__init__()
        self.start_urls = json.loads(Path(urls).read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawled:
    """One crawl: pages that were finished, and seconds, of the clock and of CPU."""

    pages: int
    seconds: float  #: from the first task in the ledger to the last page's commit
    cpu: float  #: seconds of the command, its start included


def many(number: int, *, pages: int, latency: Sequence[float]) -> list[Host]:
    """Return a fixed set of hosts: a few slow, a few dead, most of them healthy."""
    chance = random.Random(15)
    shortest, longest = latency
    found = []
    for n, address in enumerate(addresses(number)):
        own = chance.uniform(shortest, longest)
        if n % SLOW == 1:
            own = max(own, min(SLOWEST, 10 * longest))
        dead = {"refuses": n % REFUSES == 2, "silent": n % SILENT == 3}
        found.append(Host(address=address, pages=pages, latency=own, **dead))
    return found


def crawl(hosts: Sequence[Host], ledger: str, *, concurrency: int, delay: float) -> Crawled:
    """Crawl hosts once by the command line; read the time from the ledger."""
    with tempfile.TemporaryDirectory() as name, served(hosts) as site:
        urls = Path(name) / "urls.json"
        urls.write_text(json.dumps(site.urls))
        url = ledger.replace("FOLDER", name)
        command = [sys.executable, "-m", "crawlcw", "run", f"{__file__}:Broad", "-a"]
        command += [f"urls={urls}", "--ledger", url, "--concurrency", str(concurrency), "--quiet"]
        command += ["--log-level", "error", "-s", f"delay={delay}s"]
        for setting, value in GIVES_UP.items():
            command += ["-s", f"{setting}={value}"]
        before = getrusage(RUSAGE_CHILDREN)
        ended = subprocess.run(command, cwd=REPOSITORY, timeout=CRAWLS_WITHIN, check=False)
        after = getrusage(RUSAGE_CHILDREN)
        dead = any(host.refuses or host.silent for host in hosts)
        # Exit code 3: hosts were given up.
        assert ended.returncode == (3 if dead else 0), ended
        pages, seconds = _read_mongodb(url) if url.startswith("mongodb") else _read_sqlite(url)
    living = sum(host.pages for host in hosts if not (host.refuses or host.silent))
    assert pages == living, (pages, living)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Crawled(pages=pages, seconds=seconds, cpu=cpu)


def _read_sqlite(url: str) -> tuple[int, float]:
    path = url.removeprefix("sqlite:///")
    asked = f"""SELECT count(*) FILTER (WHERE status = {Status.FINISHED:d}), min(create_time),
        max(update_time) FILTER (WHERE status = {Status.FINISHED:d}) FROM broad"""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        pages, first, last = db.execute(asked).fetchone()
    return pages, (moment(last) - moment(first)).total_seconds()


def _read_mongodb(url: str) -> tuple[int, float]:
    with pymongo.MongoClient[dict[str, datetime]](url) as client:
        tasks = client.get_default_database()["broad"]
        finished = {"status": int(Status.FINISHED)}
        pages = tasks.count_documents(finished)
        first = next(tasks.find().sort("create_time", 1).limit(1))["create_time"]
        last = next(tasks.find(finished).sort("update_time", -1).limit(1))["update_time"]
        client.drop_database(client.get_default_database().name)
    return pages, (last - first).total_seconds()


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Crawl in turns on each store; return medians and the bounds."""
    hosts = many(arguments.hosts, pages=arguments.pages, latency=arguments.latency)
    living = [host for host in hosts if not (host.refuses or host.silent)]
    per_host = Settings().per_host_concurrency
    limits = Limits(slots=arguments.concurrency, per_host=per_host, delay=arguments.delay)
    latencies = [host.latency for host in living]
    least, politely = (
        least_seconds(latencies, pages=arguments.pages, limits=each)
        for each in (limits, replace(limits, slow_start=True))
    )
    pages = len(living) * arguments.pages
    quick = [Host(address=host.address, pages=host.pages) for host in living]
    ledgers = {"sqlite": "sqlite:///FOLDER/ledger.db"}
    if arguments.mongodb:
        ledgers["mongodb"] = with_database(arguments.mongodb, f"bench_broad_{os.getpid()}")
    able: dict[str, list[Crawled]] = {name: [] for name in ledgers}
    runs: dict[str, list[Crawled]] = {name: [] for name in ledgers}
    for _ in range(arguments.rounds):
        for name, ledger in ledgers.items():
            crowd = arguments.concurrency
            able[name].append(crawl(quick, ledger, concurrency=crowd, delay=0))
            runs[name].append(crawl(hosts, ledger, concurrency=crowd, delay=arguments.delay))
    return {
        "hosts": len(hosts),
        "dead": len(hosts) - len(living),
        "pages": pages,
        "latency": arguments.latency,
        "delay": arguments.delay,
        "per_host_concurrency": per_host,
        "concurrency": arguments.concurrency,
        "allowed": {"seconds": least, "pages/s": pages / least},
        "allowed by the slow start": {"seconds": politely, "pages/s": pages / politely},
        "stores": {
            name: {
                "able pages/s": statistics.median(r.pages / r.seconds for r in able[name]),
                "pages/s": statistics.median(r.pages / r.seconds for r in runs[name]),
                "seconds": statistics.median(r.seconds for r in runs[name]),
                "share": statistics.median(least / r.seconds for r in runs[name]),
                "polite share": statistics.median(politely / r.seconds for r in runs[name]),
                "CPU ms/page": statistics.median(1000 * r.cpu / r.pages for r in runs[name]),
                "load": os.getloadavg()[0],
            }
            for name in ledgers
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mongodb", metavar="URI", help="crawl on a database of this server too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--pages", type=int, default=24, help="of each host")
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--latency", type=float, nargs=2, default=[0.05, 0.5], metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    arguments = parser.parse_args()
    # So that SIGTERM ends the hosts and removes the folder too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about = machine.described()
    if arguments.mongodb:
        about["MongoDB"] = replica_set.version(arguments.mongodb)
    found = measure(arguments)
    if arguments.json:
        print(json.dumps({"machine": about, **found}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    stores = found.pop("stores")
    assert isinstance(stores, dict)
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"{name}: {value['seconds']:.1f} s, {value['pages/s']:.0f} pages/s")
        else:
            print(f"{name}: {value}")
    print("store    able pages/s  pages/s  seconds  of allowed  of slow start  CPU ms/page  load")
    for name, row in stores.items():
        print(
            f"{name:<8} {row['able pages/s']:>12.0f} {row['pages/s']:>8.0f} {row['seconds']:>8.1f}"
            f" {row['share']:>11.2f} {row['polite share']:>14.2f} {row['CPU ms/page']:>12.2f}"
            f" {row['load']:>5.1f}"
        )


if __name__ == "__main__":
    main()
