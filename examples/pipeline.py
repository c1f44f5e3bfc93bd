"""Videos that pass three stages; the result of each stage is recorded once.

    python examples/pipeline.py

A worker takes one stage at a time, so a long video does not block the others.
After a crash, a video continues with its current stage.
"""

import asyncio
import tempfile

from crawlcw.tracking import NewTask, Tracker, UseCase, Worker

videos = UseCase("videos", chain=["inspect", "transcode", "publish"])


@videos.stage
async def inspect(execution):
    return {"minutes": execution.data["minutes"]}


@videos.stage
def transcode(execution):  # no coroutine, so it runs in a thread
    minutes = execution.results["inspect"]["minutes"]
    if execution.attempt == 1 and minutes > 3:
        raise TimeoutError("too slow this time")  # costs a second attempt, nothing else
    if minutes > 4:
        # Choose the next stage, and pass data to it.
        execution.result = {"parts": 2}
        execution.advance("publish", context={"as": "series"})
        return None
    return {"parts": 1}


@videos.stage
async def publish(execution):
    shelf = execution.context.get("as", "film")
    parts = execution.results["transcode"]["parts"]
    return f"/{shelf}/{execution.key}/{parts}"


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with Tracker.open(f"sqlite:///{folder}/l.db", videos, backoff_base="10ms") as tracker:
            await tracker.add_many(NewTask(f"video-{n}", {"minutes": n}) for n in range(1, 6))
            report = await Worker(tracker, drain=True).run()
            print(f"{report.finish_reason}: {report.succeeded} stages done, {report.failed} failed")
            for n in range(1, 6):
                task = await tracker.get(f"video-{n}")
                print(task.results["publish"], *[f"{t.stage}:{t.event}" for t in task.trace])


if __name__ == "__main__":
    asyncio.run(main())
