"""Tracked tasks with a null job, like the peers in tests.benchmarks.queues.

python -m tests.benchmarks.queue_tracked LEDGER [DRIVER] JOBS CONCURRENCY
"""

import json
import sys
import time

from crawlcw.cli.loop import run
from crawlcw.tracking import Tracker, Worker
from tests.benchmarks.tracking import use_case


async def main(url: str, driver: str, jobs: int, concurrency: int) -> None:
    async with Tracker.open(url, use_case(), driver=driver) as tracker:
        began = time.monotonic()
        await tracker.add_many(f"job-{n}" for n in range(jobs))
        added = time.monotonic()
        report = await Worker(tracker, concurrency=concurrency, drain=True).run()
        ended = time.monotonic()
    assert report.succeeded == jobs, report
    print(json.dumps({"add": jobs / (added - began), "work": jobs / (ended - added)}))


if __name__ == "__main__":
    ledger, *which, jobs, concurrency = sys.argv[1:]
    run(main(ledger, which[0] if which else "", int(jobs), int(concurrency)))
