"""arq on Redis with a null job: run by a Python that has it, see tests.benchmarks.queues."""

import asyncio
import json
import sys
import time

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

#: Jobs that are enqueued side by side.
CHUNK = 200


async def null(_ctx):
    """Do a job."""


async def main(url: str, jobs: int, concurrency: int) -> None:
    pool = await create_pool(RedisSettings.from_dsn(url))
    began = time.monotonic()
    for start in range(0, jobs, CHUNK):
        await asyncio.gather(*(pool.enqueue_job("null") for _ in range(min(CHUNK, jobs - start))))
    added = time.monotonic()
    # By default, arq looks for jobs twice a second, and takes at most `max_jobs` each time.
    worker = Worker(
        [null],
        redis_pool=pool,
        burst=True,
        max_jobs=concurrency,
        poll_delay=0.005,
        handle_signals=False,
    )
    await worker.async_run()
    ended = time.monotonic()
    assert worker.jobs_complete == jobs, worker.jobs_complete
    await worker.close()
    print(json.dumps({"add": jobs / (added - began), "work": jobs / (ended - added)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
