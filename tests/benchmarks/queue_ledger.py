"""The ledger alone, at several sizes: adding, listing, claiming, committing, counting."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from crawlcw.model import transitions
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.transitions import Progress, Succeeded
from crawlcw.tracking import Tracker
from tests.benchmarks.tracking import BATCH, LEASE, use_case

#: Tasks that are added, listed, claimed and committed in each round.
SOME = 2_000


async def measured(ledgers: list[tuple[int, str]], *, rounds: int) -> dict[str, dict[int, float]]:
    """Return the medians by step and size, in seconds for `SOME` tasks.

    *ledgers* maps sizes to URLs. A round leaves a ledger with the same number of waiting tasks.
    """
    taken: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        trackers = {
            size: await stack.enter_async_context(Tracker.open(url, use_case()))
            for size, url in ledgers
        }
        for size, tracker in trackers.items():
            await tracker.add_many(f"task-{n}" for n in range(size))
        # The first round fills caches and does not count.
        for n in range(rounds + 1):
            # In turns from either end, so that no size always follows the same one.
            for size, tracker in list(trackers.items())[:: -1 if n % 2 else 1]:
                for step, seconds in (await _round(tracker, n)).items():
                    if n:
                        taken[step][size].append(seconds)
    return {
        step: {size: statistics.median(by_size[size]) for size in trackers}
        for step, by_size in taken.items()
    }


async def _round(tracker: Tracker, number: int) -> dict[str, float]:
    ledger, took = tracker.ledger, dict.fromkeys(("add", "page", "claim", "commit", "counts"), 0.0)
    places = tracker.use_case.stored_stages(tracker.use_case.handlers)

    @contextmanager
    def timed(step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        took[step] += time.monotonic() - began

    with timed("add"):
        await tracker.add_many(f"round-{number}-{n}" for n in range(SOME))
    for _ in range(SOME // BATCH):
        with timed("page"):
            page = await ledger.tasks.page(limit=BATCH, hosts=places)
        with timed("claim"):
            claimed = await ledger.leases.claim(page, worker="bench", lease=LEASE, max_lost=3)
        assert len(claimed.leases) == BATCH, claimed
        now = ledger.now()
        outcome = Succeeded(progress=Progress(worker="bench", started_at=now, data={}))
        settled = [
            transitions.settle(lease, outcome, now=now, policy=RetryPolicy(), chance=0.5)
            for lease in claimed.leases
        ]
        with timed("commit"):
            committed = await ledger.outcomes.commit(settled)
        assert not committed.lost, committed
        assert not committed.rejected, committed
    with timed("counts"):
        await ledger.queries.counts()
    return took
