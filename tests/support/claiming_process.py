"""Several claimers in one process, which claim all tasks they can get and hold them.

    python -m tests.support.claiming_process LEDGER USE_CASE CLAIMERS

Claims one task first, so that the quickest process leaves some to each, and prints
`ready`. Continues when it gets a line, prints its claims as one line of JSON (key,
fence), and holds them until its input ends.
"""

import asyncio
import json
import random
import sys

from crawlcw.cli.loop import run
from crawlcw.model.task import Task
from crawlcw.tracking import Tracker

Claims = list[tuple[str, int]]


async def claim_one(tracker: Tracker) -> Claims:
    """Claim the first tasks, as all others do, until one claim succeeds."""
    while page := await tracker.ledger.tasks.page(limit=1):
        if claims := await claim(tracker, page):
            return claims
    return []


async def claim_all(tracker: Tracker) -> Claims:
    """Claim the first tasks, as all others do, until none is left."""
    claims = []
    while page := await tracker.ledger.tasks.page(limit=random.randint(50, 400)):
        claims += await claim(tracker, page)
    return claims


async def claim(tracker: Tracker, page: list[Task]) -> Claims:
    claimed = await tracker.session.claim(page)
    return [(lease.task.url, lease.fence) for lease in claimed.leases]


async def main(url: str, use_case: str, claimers: int) -> None:
    async with Tracker.open(url, use_case) as tracker:
        first = await claim_one(tracker)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        shares = await asyncio.gather(*(claim_all(tracker) for _ in range(claimers)))
        print(json.dumps([each for share in (first, *shares) for each in share]), flush=True)
        # Tasks must stay held: released ones could be claimed again.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
