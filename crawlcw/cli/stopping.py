"""Graceful shutdown of servers and of `stats --watch` by SIGINT or SIGTERM.

A second signal exits at once.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine

from crawlcw.cli.exit_codes import INTERRUPTED


def stopped_by_signals() -> asyncio.Event:
    """Return an event that the first signal sets; the next one exits the process."""
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            # Clients keep their tasks until the leases run out.
            os._exit(INTERRUPTED)
        stopped.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop)
    return stopped


async def until_stopped(work: Coroutine[None, None, None]) -> None:
    """Run *work* until it ends or the first signal cancels it; raises its errors.

    A shell starts background jobs with SIGINT ignored, and Python then installs no
    handler: this function installs one.
    """
    stopped = asyncio.ensure_future(stopped_by_signals().wait())
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
    if not working.cancelled():
        working.result()
