"""Pages per second and CPU per page of whole crawls, beside a bare loop, in one run.

    python -m tests.benchmarks.crawl [--folder HTML] [--rounds 3] [--mongodb URI]

Every engine crawls the same real pages from a server in a process of its own,
each in a fresh process, in turns; medians are printed. The start of the process and the
limit of a host are left out: see `tests.benchmarks.as_used`.
"""

import argparse
import gc
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from crawlcw import Settings, Spider, run_spider
from crawlcw.cli.main import GARBAGE_AFTER
from tests.benchmarks.bare_loop import bare
from tests.benchmarks.docs_server import DOCS

CONCURRENCY = 100


def engines(mongodb: str | None) -> dict[str, dict[str, str]]:
    """Return the ledger and the settings of each engine, by name."""
    sqlite = {"ledger": "sqlite:///{folder}/ledger.db"}
    kept = {"keep_bodies": "yes", "bodies_dir": "{folder}/warc"}
    found = {"sqlite": sqlite, "sqlite keep_bodies": sqlite | kept}
    if mongodb:
        base, _, options = mongodb.partition("?")
        url = base.rstrip("/") + "/bench_{run}" + (f"?{options}" if options else "")
        for driver in ("motor", "pymongo"):
            for claim in ("each", "batch"):
                found[f"mongodb {claim} {driver}"] = {
                    "ledger": url,
                    "mongo_driver": driver,
                    "claim": claim,
                }
        found["mongodb keep_bodies"] = {"ledger": url, "claim": "batch", "mongo_driver": "pymongo"}
        found["mongodb keep_bodies"] |= kept
    return found


async def whole(start: str, options: dict[str, str]) -> int:
    """Crawl from *start* with crawlcw; return the number of pages with an item."""

    class Docs(Spider):
        name = "docs"
        start_urls = (start,)

        def parse(self, response):
            title = response.css_first("title")
            yield {"url": response.url, "title": title.text() if title else ""}
            yield from response.follow_all("a[href]")

    ledger = options.pop("ledger")
    settings = Settings(concurrency=CONCURRENCY, per_host_concurrency=0, max_depth=None, **options)
    report = await run_spider(Docs(), ledger=ledger, settings=settings)
    assert report.drained
    return report.items


def measured(start: str, options: dict[str, str] | None) -> dict[str, float]:
    """Run one crawl in this process; return pages, seconds and CPU seconds, imports left out."""
    if options and options["ledger"].startswith("mongodb"):
        importlib.import_module("crawlcw.ledger.mongo")
    # Like `crawlcw run`, and for the bare loop as well.
    gc.set_threshold(*GARBAGE_AFTER)
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF)
    pages = uvloop.run(
        bare(start, concurrency=CONCURRENCY) if options is None else whole(start, options)
    )
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"pages": pages, "seconds": seconds, "cpu": cpu}


def run_once(start: str, options: dict[str, str] | None, number: int) -> dict[str, float]:
    """Run one crawl in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        filled = options and {
            key: value.format(folder=folder, run=f"{os.getpid()}_{number}")
            for key, value in options.items()
        }
        finished = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.crawl", "--one", start, json.dumps(filled)],
            check=True,
            capture_output=True,
            text=True,
        )
        if filled and filled["ledger"].startswith("mongodb"):
            from pymongo import MongoClient

            with MongoClient(filled["ledger"]) as client:
                client.drop_database(client.get_default_database().name)
    return json.loads(finished.stdout)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2], json.loads(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, action="append", help="a folder of HTML with index.html; repeatable"
    )
    parser.add_argument("--copies", type=int, default=3, help="crawl so many copies of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mongodb", default=os.environ.get("CRAWLCW_TEST_MONGODB_URI"))
    parser.add_argument("--only", default="", help="engines whose name has this text")
    arguments = parser.parse_args()
    site = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.static_site",
            *map(str, arguments.folder or DOCS),
            f"--copies={arguments.copies}",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert site.stdout is not None
        start = f"http://127.0.0.1:{site.stdout.readline().strip()}/index.html"
        compare(start, arguments)
    finally:
        site.terminate()
        site.wait()


def compare(start: str, arguments: argparse.Namespace) -> None:
    """Run every engine in turns and print a table of medians."""
    chosen: dict[str, dict[str, str] | None] = {"bare loop": None}
    chosen |= {n: o for n, o in engines(arguments.mongodb).items() if arguments.only in n}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for round_ in range(arguments.rounds):
        for place, (name, options) in enumerate(chosen.items()):
            results[name].append(run_once(start, options, round_ * 100 + place))
    print(f"{'engine':24} {'pages':>6} {'pages/s':>9} {'of bare':>8} {'CPU ms/page':>12}")
    for name, runs in results.items():
        rate = statistics.median(run["pages"] / run["seconds"] for run in runs)
        cpu = statistics.median(1000 * run["cpu"] / run["pages"] for run in runs)
        ratio = statistics.median(
            (run["pages"] / run["seconds"]) / (beside["pages"] / beside["seconds"])
            for run, beside in zip(runs, results["bare loop"], strict=True)
        )
        print(f"{name:24} {runs[0]['pages']:6.0f} {rate:9.0f} {ratio:8.2f} {cpu:12.3f}")


if __name__ == "__main__":
    main()
