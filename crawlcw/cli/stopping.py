"""Until when a server runs, or a look at a crawl: SIGINT and SIGTERM end it softly.

A second one ends it at once.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine

from crawlcw.cli.exit_codes import INTERRUPTED


def stopped_by_signals() -> asyncio.Event:
    """Return an event of the running loop that is set by the first signal; the next one exits."""
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            # What clients hold stays theirs until the leases run out.
            os._exit(INTERRUPTED)
        stopped.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop)
    return stopped


async def until_stopped(work: Coroutine[None, None, None]) -> None:
    """Do *work* until it ends, or is cancelled by the first signal; raises what it raises.

    A shell starts what is to go on in the background with SIGINT ignored, and Python
    does nothing about it then: so it is asked for here.
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
