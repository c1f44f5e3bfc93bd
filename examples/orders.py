"""Orders that are charged exactly once, though workers are killed while they charge.

    python examples/orders.py

Adds 600 orders, lets two workers charge them, and ends one by `kill -9` every
second. Needs no network. Any number of workers may join, on any machine:

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

# Each kill here counts against the orders that were being charged: they are not to blame.
orders = UseCase("orders", max_retry=3, max_lost=20, lease="30s")


@orders.stage
async def charge(execution):
    await asyncio.sleep(0.01)  # the way to the bank
    receipt = pay(execution.key, fence=execution.fence)
    # A worker may die right here, after the charge and before its record: then
    # the order is charged again. So the bank is told which order it is.
    await asyncio.sleep(0.01)
    return receipt


def pay(order, *, fence):
    """Do what a bank does that takes an idempotency key: accept an order's first charge only.

    Every request is a line of the book, of whatever claim it came; the result is
    the charge that was accepted, as it is for the request before.
    """
    with book().open("a") as lines:  # one write at the end: lines of two workers do not mix
        lines.write(f"{order} {fence}\n")
    return {"accepted": accepted()[order]}


def accepted():
    """Return order -> fence of the charge that was accepted."""
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
