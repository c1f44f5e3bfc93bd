"""pgqueuer on PostgreSQL with a null job: run by a Python that has it, see tests.benchmarks.queues.

Its worker holds at least two batches: a batch is half of the concurrency.
"""

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.types import QueueExecutionMode

#: Jobs that are enqueued by one statement.
CHUNK = 500


async def main(url: str, jobs: int, concurrency: int) -> None:
    async with asyncpg.create_pool(url) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        began = time.monotonic()
        for start in range(0, jobs, CHUNK):
            number = min(CHUNK, jobs - start)
            await queries.enqueue(["null"] * number, [None] * number, [0] * number)
        added = time.monotonic()
        queuer = PgQueuer(driver)
        done = 0

        @queuer.entrypoint("null")
        async def null(_job):
            nonlocal done
            done += 1

        await queuer.qm.run(
            mode=QueueExecutionMode.drain,
            dequeue_timeout=timedelta(seconds=0.1),
            batch_size=concurrency // 2,
            max_concurrent_tasks=concurrency,
        )
        ended = time.monotonic()
        left = await pool.fetchval("SELECT count(*) FROM pgqueuer")
    assert (done, left) == (jobs, 0), (done, left)
    print(json.dumps({"add": jobs / (added - began), "work": jobs / (ended - added)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
