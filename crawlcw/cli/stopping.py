"""Until when a server runs: SIGINT and SIGTERM end it softly, and a second one at once."""

import asyncio
import os
import signal

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
