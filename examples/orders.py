"""Orders that are charged exactly once, although workers are killed meanwhile.

    python examples/orders.py

Adds 600 orders, starts two workers that charge them, and ends one by `kill -9` every
second. Needs no network. More workers can join, on any machine:

    crawlcw work examples/orders.py --ledger sqlite:///orders.db
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from crawlcw.tracking import SyncTracker, UseCase

# `max_lost` is high, since each kill counts against the innocent orders under way.
orders = UseCase("orders", max_retry=3, max_lost=20, lease="30s")


@orders.stage
async def charge(execution):
    await asyncio.sleep(0.01)  # the time to reach the bank
    receipt = pay(execution.key, fence=execution.fence)
    # If a worker dies here, after the charge and before its record, the order is
    # charged again. So the bank gets the order's key with each charge.
    await asyncio.sleep(0.01)
    return receipt


def pay(order, *, fence):
    """Simulate a bank with idempotency keys: accept only the first charge of an order.

    Every request adds a line to the book. The result is the accepted charge, also
    for a repeated request.
    """
    with book().open("a") as lines:  # one write: lines of two workers do not mix
        lines.write(f"{order} {fence}\n")
    return {"accepted": accepted()[order]}


def accepted():
    """Return the fence of the accepted charge of each order."""
    charges = {}
    for line in book().read_text().splitlines():
        order, fence = line.split()
        charges.setdefault(order, int(fence))
    return charges


def book():
    return Path(os.environ.get("CHARGES", "charges.txt"))


def start(ledger):
    command = [sys.executable, "-m", "crawlcw", "work", __file__, "--ledger", ledger]
    command += ["--concurrency", "2", "--drain", "--quiet"]
    return subprocess.Popen(command)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHARGES"] = f"{folder}/charges.txt"
        ledger = f"sqlite:///{folder}/orders.db"
        with SyncTracker.open(ledger, orders) as tracker:
            tracker.add_many([f"order-{n}" for n in range(600)])
            workers = [start(ledger) for _ in range(2)]
            kills = 0
            while any(worker.poll() is None for worker in workers):
                time.sleep(1)
                oldest, *others = workers
                if kills < 3 and oldest.poll() is None:
                    oldest.kill()
                    oldest.wait()
                    kills += 1
                    workers = [*others, start(ledger)]
            counts = tracker.counts()

        charges = len(book().read_text().splitlines())
        print(f"{kills} workers killed; {counts.total} orders: {counts.by_status}")
        print(f"{charges} charges asked for, {len(accepted())} accepted: one for each order")


if __name__ == "__main__":
    main()
