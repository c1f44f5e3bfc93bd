"""A use case for `crawlcw work`, whose workers log their tasks in a file.

The file is named by SHOP_LOG; each line is `key attempt`. A task with `fails` raises, and
one with `waits` waits until the file SHOP_DOOR exists.
"""

import asyncio
import os
from pathlib import Path

from crawlcw.tracking import Execution, UseCase

orders = UseCase(os.environ.get("SHOP_NAME", "orders"), backoff_base=0, lease=30)


@orders.stage
async def pay(execution: Execution) -> str:
    with Path(os.environ["SHOP_LOG"]).open("a") as log:
        log.write(f"{execution.key} {execution.attempt}\n")
    if execution.data.get("waits"):
        while not await asyncio.to_thread(Path(os.environ["SHOP_DOOR"]).exists):
            await asyncio.sleep(0.01)
    if execution.data.get("fails"):
        raise ValueError("the card was declined")
    return "paid"
