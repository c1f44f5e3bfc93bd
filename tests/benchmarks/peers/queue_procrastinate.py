"""procrastinate on PostgreSQL with a null job: run by a Python that has it.

See tests.benchmarks.queues.
"""

import asyncio
import json
import sys
import time

from procrastinate import App, PsycopgConnector

#: Jobs that are deferred by one statement.
CHUNK = 500


async def main(url: str, jobs: int, concurrency: int) -> None:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=20))
    done = 0

    @app.task(name="null")
    async def null():
        nonlocal done
        done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.monotonic()
        for start in range(0, jobs, CHUNK):
            await null.batch_defer_async(*({} for _ in range(min(CHUNK, jobs - start))))
        added = time.monotonic()
        await app.run_worker_async(
            concurrency=concurrency, wait=False, install_signal_handlers=False
        )
        ended = time.monotonic()
        left = await app.job_manager.list_jobs_async(status="doing")
    assert (done, list(left)) == (jobs, []), done
    print(json.dumps({"add": jobs / (added - began), "work": jobs / (ended - added)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
