"""Track orders, files, videos - anything that must be done once - in a crawl's ledger.

    tracker = await Tracker.open("sqlite:///orders.db", "orders", max_retry=3)
    await tracker.add("order-1", data={"amount": 3})
    async with tracker.start("order-1") as execution:
        execution.data["receipt"] = await charge(execution.data)

A `with` block that ends without an error finishes its task and saves `execution.data`.
"""

from crawlcw.tracking.adding import NewTask
from crawlcw.tracking.dispenser import Assignment, Dispenser, RebuildReport
from crawlcw.tracking.endings import (
    Advance,
    Ending,
    EndReport,
    Fail,
    Finish,
    Ignore,
    Refusal,
    Release,
)
from crawlcw.tracking.execution import Execution
from crawlcw.tracking.sync_calls import SyncExecution
from crawlcw.tracking.tracker import SyncTracker, Tracker
from crawlcw.tracking.use_case import Policy, UseCase
from crawlcw.tracking.views import Page, TrackedTask
from crawlcw.tracking.worker import Worker, WorkReport

__all__ = [
    "Advance",
    "Assignment",
    "Dispenser",
    "EndReport",
    "Ending",
    "Execution",
    "Fail",
    "Finish",
    "Ignore",
    "NewTask",
    "Page",
    "Policy",
    "RebuildReport",
    "Refusal",
    "Release",
    "SyncExecution",
    "SyncTracker",
    "TrackedTask",
    "Tracker",
    "UseCase",
    "WorkReport",
    "Worker",
]
