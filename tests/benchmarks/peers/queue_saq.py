"""SAQ on Redis with a null job: run by a Python that has it, see tests.benchmarks.queues."""

import asyncio
import json
import sys
import time

from saq import Queue, Status, Worker

#: Jobs that are enqueued side by side.
CHUNK = 200


async def null(_ctx):
    """Do a job."""


async def main(url: str, jobs: int, concurrency: int) -> None:
    # The default of 20 operations at once would make the others wait.
    queue = Queue.from_url(url, max_concurrent_ops=concurrency)
    await queue.connect()
    began = time.monotonic()
    for start in range(0, jobs, CHUNK):
        await asyncio.gather(
            *(queue.enqueue("null", timeout=300) for _ in range(min(CHUNK, jobs - start)))
        )
    added = time.monotonic()
    done, ended = set(), 0.0

    async def count(ctx):
        # Called when the job's end is recorded.
        nonlocal ended
        # SAQ sometimes repeats a job that it stopped in the middle.
        if ctx["job"].status is Status.COMPLETE:
            done.add(ctx["job"].key)
        if len(done) == jobs and not ended:
            # Not after the stop of the worker, which waits for its background tasks.
            ended = time.monotonic()
            worker.event.set()

    worker = Worker(queue, [null], concurrency=concurrency, after_process=count)
    await worker.start()
    await queue.disconnect()
    assert len(done) == jobs, len(done)
    print(json.dumps({"add": jobs / (added - began), "work": jobs / (ended - added)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
