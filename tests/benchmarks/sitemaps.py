"""Time and memory of a frontier from sitemaps, beside the memory for 10,000 URLs.

    python -m tests.benchmarks.sitemaps [--files 20] [--urls 50000] [--mongodb URI]

A local server generates the sitemaps. A crawl in a process of its own reads them all
and ends at the first page. Prints tasks, seconds, and the largest resident size.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pymongo

from crawlcw import run_spider
from tests.support.docs import REPOSITORY
from tests.support.mongod import with_database
from tests.support.sitemap_site import FrontierSpider, served

LITTLE = 10_000
_ENOUGH = 3600


def measured(ledger: str, *, files: int, urls: int) -> dict[str, float]:
    """Crawl *files* sitemaps of *urls* URLs each; return `tasks`, `seconds` and `mib`."""
    with served(files=files, urls=urls) as site:
        crawl = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.benchmarks.sitemaps",
                "--crawl",
                f"{site}/index.xml",
                ledger,
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_ENOUGH,
            check=True,
        )
    found: dict[str, float] = json.loads(crawl.stdout)
    return found


def _crawl(sitemap: str, ledger: str) -> None:
    report = asyncio.run(run_spider(FrontierSpider(sitemap), ledger=ledger))
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = round(report.elapsed, 1)
    print(json.dumps({"tasks": report.counts.total, "seconds": seconds, "mib": largest >> 10}))


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--urls", type=int, default=50_000)
    parser.add_argument("--mongodb")
    parser.add_argument("--crawl", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crawl:
        _crawl(*options.crawl)
        return
    for files, urls in ((1, LITTLE), (options.files, options.urls)):
        with tempfile.TemporaryDirectory() as folder:
            ledger = f"sqlite:///{Path(folder) / 'ledger.db'}"
            database = f"bench_{os.getpid()}_{files}"
            if options.mongodb:
                ledger = with_database(options.mongodb, database)
            found = measured(ledger, files=files, urls=urls)
            if options.mongodb:
                with pymongo.MongoClient(options.mongodb) as client:
                    client.drop_database(database)
        print("{tasks:,.0f} tasks, {seconds:,.1f} s, {mib:,.0f} MiB".format(**found), flush=True)


if __name__ == "__main__":
    _main()
