"""Tracked tasks in processes of their own, to be killed and restarted.

    python -m tests.capabilities.worker_process hold URL USE_CASE KEY
    python -m tests.capabilities.worker_process work URL USE_CASE
    python -m tests.capabilities.worker_process fail URL USE_CASE TIMES

`hold` reports that it holds the task, and then works on it for ever. `work` reports
that it is ready, starts when it gets a line, works until no task is left, and reports
the number of its tasks. `fail` fails TIMES attempts, or fewer if no more are left.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from crawlcw.errors import TaskMissedError
from crawlcw.model.task import Status
from crawlcw.tracking import Tracker
from tests.support.docs import REPOSITORY


@contextmanager
def process(what: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Start a process, and end it at the end of the block."""
    command = [sys.executable, "-m", __name__, what, *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: "subprocess.Popen[str]") -> str:
    """Return the next line of a process's output."""
    assert started.stdout is not None
    said = started.stdout.readline().strip()
    assert said, "the process has ended"
    return said


def cue(started: "subprocess.Popen[str]") -> None:
    """Start the work of a process that is ready."""
    assert started.stdin is not None
    started.stdin.write("go\n")
    started.stdin.flush()


async def _hold(tracker: Tracker, key: str) -> None:
    async with tracker.start(key):
        print("held", flush=True)
        await asyncio.Event().wait()


async def _work(tracker: Tracker) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    while (await tracker.counts())[Status.FINISHED] < (await tracker.counts()).total:
        for task in await tracker.ledger.tasks.page(limit=5):
            try:
                async with tracker.start(task.url) as execution:
                    execution.data["times"] = execution.data.get("times", 0) + 1
                    await asyncio.sleep(0.005)
                done += 1
            except TaskMissedError:
                pass
    print(done, flush=True)


async def _fail(tracker: Tracker, times: int) -> None:
    # With the stores and drivers of all tests it takes longer to load than all else here.
    from tests.capabilities.use_cases import fail

    print("ready", flush=True)
    made = 0
    while made < times and (page := await tracker.ledger.tasks.page(limit=1)):
        await fail(tracker, page[0].url)
        made += 1
        print(f"attempt {page[0].retry + 1}", flush=True)
    print("no more", flush=True)


async def _main(arguments: argparse.Namespace) -> None:
    async with Tracker.open(arguments.url, arguments.use_case) as tracker:
        match arguments.what:
            case "hold":
                await _hold(tracker, arguments.argument)
            case "work":
                await _work(tracker)
            case "fail":
                await _fail(tracker, int(arguments.argument))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("hold", "work", "fail"))
    parser.add_argument("url")
    parser.add_argument("use_case")
    parser.add_argument("argument", nargs="?")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
